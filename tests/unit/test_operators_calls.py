"""Functions that Polars' SQL does not have."""

from __future__ import annotations

from datetime import UTC, date, datetime

import polars as pl
import pytest

from headrace.kernel.errors import SpecError
from operators.expressions import row_expression

ROWS = pl.DataFrame(
    {
        "url": ["/a?channel_id=7&x=1", "channel_id=8", "none", None],
        "at": [datetime(2026, 5, 6, 7, 8, 9, 10, tzinfo=UTC)] * 4,
        "day": [date(2026, 5, 6)] * 4,
        "call 0": [1, 2, 3, 4],
    }
)


def given(text: str) -> list[object]:
    return ROWS.select(row_expression(text, "step 'x'").expr.alias("x"))["x"].to_list()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("regexp_extract(url, '(&|^|[?])channel_id=([^&]*)', 2)", ["7", "8", None, None]),
        ("regexp_extract(url, 'c[a-z]*_')", ["channel_", "channel_", None, None]),
        ("coalesce(upper(REGEXP_EXTRACT(lower(url), 'n(o)', 1)), '-') || '!'", ["-!", "-!", "O!", "-!"]),
        ("regexp_extract(regexp_extract(url, '.*=8'), '[0-9]')", [None, "8", None, None]),
        ("regexp_extract('it''s', '''s')", ["'s"] * 1),
        ("\"call 0\" + length(regexp_extract(url, 'n'))", [2, 3, 4, None]),
    ],
)
def test_regexp_extract(text: str, wanted: list[object]) -> None:
    assert given(text) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("date_trunc('hour', at)", datetime(2026, 5, 6, 7, tzinfo=UTC)),
        ("date_trunc('week', at)", datetime(2026, 5, 4, tzinfo=UTC)),
        ("date_trunc('MONTH', day)", date(2026, 5, 1)),
        ("date_bin('25m', at)", datetime(2026, 5, 6, 6, 55, tzinfo=UTC)),
        ("date_bin('2d', day)", date(2026, 5, 5)),
        ("extract(minute from date_trunc('hour', at))", 0),
    ],
)
def test_times_are_rounded_down_and_keep_their_type(text: str, wanted: object) -> None:
    assert given(text)[0] == wanted


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("regexp_extract(url)", "takes a text, a pattern"),
        ("regexp_extract(url, url)", "the pattern of regexp_extract must be a text in quotes"),
        ("regexp_extract(url, '(')", "the pattern of regexp_extract cannot be read"),
        ("regexp_extract(url, 'a', 100)", "from 0 to 99"),
        ("regexp_extract(url, 'a'", "a parenthesis is not closed"),
        ("date_trunc('eon', at)", "no unit 'eon'"),
        ("date_trunc(at)", "takes a unit and a time"),
        ("date_bin('0s', at)", "must be positive"),
        ("date_bin('1mo', at)", "no duration"),
        ("date_bin(at)", "takes a duration and a time"),
    ],
)
def test_what_they_do_not_take(text: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        row_expression(text, "step 'x'")
    assert caught.value.code == "EXPRESSION_INVALID"
    assert message in caught.value.detail


def test_arguments_are_checked_like_any_other_expression() -> None:
    with pytest.raises(SpecError, match="aggregate"):
        row_expression("regexp_extract(max(url), 'a')", "step 'x'")
