"""Durations as people write them."""

from __future__ import annotations

import pytest

from headrace.kernel.durations import format_duration_us, parse_duration_us


@pytest.mark.parametrize("text", ["0s", "500ms", "1h30m", "7d", "1000000d"])
def test_what_is_read_is_written_the_same(text: str) -> None:
    assert format_duration_us(parse_duration_us(text)) == text


@pytest.mark.parametrize("text", ["1000000d1us", "9999999999d", "99999999999999999999s"])
def test_durations_that_no_sum_with_a_time_holds_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="too long"):
        parse_duration_us(text)
