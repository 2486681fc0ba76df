"""The end of a bounded run, as people write it."""

from datetime import UTC, datetime

import pytest

from headrace.kernel.errors import UserError
from headrace.kernel.until import check_until, parse_until, until_ms, until_text

T = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "until"),
    [
        (None, None),
        ("caught-up", "caught-up"),
        ("2026-01-01T00:00:00Z", T),
        ("2026-01-01T01:00:00+01:00", T),
        ("2026-01-01 00:00:00+00:00", T),
    ],
)
def test_texts(text: str | None, until: object) -> None:
    assert parse_until(text) == until
    assert parse_until(until_text(parse_until(text))) == until


@pytest.mark.parametrize(
    ("text", "message"),
    [("2026-01-01", "has no zone"), ("2026-01-01T00:00:00", "has no zone"), ("caught", "no end"), ("", "no end")],
)
def test_what_is_no_end_is_refused(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as raised:
        parse_until(text)
    assert raised.value.code == "UNTIL_INVALID"


def test_the_end_is_the_first_millisecond_that_is_not_before_it() -> None:
    assert until_ms(T) == 1_767_225_600_000
    assert until_ms(T.replace(microsecond=1)) == 1_767_225_600_001
    assert until_ms(T.replace(microsecond=1000)) == 1_767_225_600_001


def test_an_end_in_the_future_is_refused() -> None:
    check_until(T, until_ms(T) * 1000)
    check_until("caught-up", 0)
    check_until(None, 0)
    with pytest.raises(UserError, match="lies in the future"):
        check_until(T, until_ms(T) * 1000 - 1)
