"""Windows in time zones: the case WIN-01, days of 23 and 25 hours, days that are missing, 1969."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.kernel.protocols import MAIN
from headrace.testing import operator_context
from operators.time_scales import ZoneDays
from operators.window import CumulatingWindow, HoppingWindow, TumblingWindow

HOUR = 3_600_000_000
DAY = 24 * HOUR
ZONES = [
    "Europe/Paris",
    "America/New_York",
    "America/Havana",
    "America/Sao_Paulo",
    "Australia/Lord_Howe",
    "Asia/Kolkata",
]


def counted(operator, times: list[datetime]) -> list[tuple[datetime, datetime, int]]:
    frame = pl.DataFrame({"t": times}, schema={"t": pl.Datetime("us", "UTC")})
    instance = operator.open(operator.partial(frame.clear().lazy()).collect_schema(), operator_context())
    instance.process(operator.partial(frame.lazy()).collect())
    return instance.drain()[MAIN].rows()


def tumbling(size: int, zone: str | None, offset: int = 0) -> TumblingWindow:
    return TumblingWindow("w", "t", size, {"n": "count(*)"}, offset_us=offset, time_zone=zone)


def utc(*args: int) -> datetime:
    return datetime(*args, tzinfo=UTC)


def test_win_01_a_days_with_an_offset_begin_at_six_local_time_over_the_change() -> None:
    out = counted(tumbling(DAY, "Europe/Paris", 6 * HOUR), [utc(2023, 3, 26, 14, 56), utc(2023, 3, 27, 14, 56)])
    assert [(start, end) for start, end, _ in out] == [
        (utc(2023, 3, 26, 4), utc(2023, 3, 27, 4)),
        (utc(2023, 3, 27, 4), utc(2023, 3, 28, 4)),
    ]


def test_win_01_b_the_days_of_change_have_23_and_25_hours() -> None:
    for begin, hours in [(utc(2024, 3, 9, 5), 23), (utc(2024, 11, 2, 4), 25)]:
        out = counted(tumbling(DAY, "America/New_York"), [begin + timedelta(hours=hour) for hour in range(24 + hours)])
        assert [n for *_, n in out] == [24, hours]
        assert out[1][1] - out[1][0] == timedelta(hours=hours)


def test_win_01_c_the_repeated_hour_makes_two_windows() -> None:
    out = counted(tumbling(HOUR, None), [utc(2024, 11, 3, 5, 30), utc(2024, 11, 3, 6, 30)])
    assert [start for start, *_ in out] == [utc(2024, 11, 3, 5), utc(2024, 11, 3, 6)]


def test_hopping_and_cumulating_days_over_the_change() -> None:
    noon = utc(2024, 3, 10, 16)
    week = HoppingWindow("w", "t", 2 * DAY, DAY, {"n": "count(*)"}, time_zone="America/New_York")
    assert counted(week, [noon]) == [
        (utc(2024, 3, 9, 5), utc(2024, 3, 11, 4), 1),
        (utc(2024, 3, 10, 5), utc(2024, 3, 12, 4), 1),
    ]
    growing = CumulatingWindow("w", "t", 2 * DAY, DAY, {"n": "count(*)"}, offset_us=DAY, time_zone="America/New_York")
    (begin, first_end, _), (same, second_end, _) = counted(growing, [noon - timedelta(days=1)])
    assert begin == same
    assert second_end - first_end in {timedelta(hours=23), timedelta(hours=24)}


def test_windows_are_shown_in_the_zone_of_the_event_time() -> None:
    frame = pl.DataFrame({"t": [utc(2024, 3, 10, 16)]}, schema={"t": pl.Datetime("us", "America/New_York")})
    operator = tumbling(DAY, "Europe/Paris")
    schema = operator.partial(frame.lazy()).collect_schema()
    assert operator.output_schema(schema)["window_start"] == pl.Datetime("us", "America/New_York")


def test_a_day_that_a_zone_leaves_out_has_no_length() -> None:
    days = ZoneDays("Pacific/Apia")
    marks = [datetime(2011, 12, day) for day in (29, 30, 31)]  # noqa: DTZ001 - wall-clock times
    physical = pl.Series(marks).to_physical().to_list()
    instants = [days.instant_at(mark) for mark in physical]
    assert [b - a for a, b in itertools.pairwise(instants)] == [DAY, 0]
    assert days.floor_at(instants[2], DAY, 0) == physical[2]


@pytest.mark.parametrize("zone", ZONES)
@settings(max_examples=15, deadline=None)
@given(
    st.datetimes(datetime(1969, 1, 1), datetime(2024, 12, 31)),  # noqa: DTZ001 - made UTC below
    st.sampled_from([DAY, 7 * DAY]),
    st.integers(0, 23),
)
def test_every_instant_lies_between_its_mark_and_the_next(zone: str, time: datetime, every: int, hours: int) -> None:
    days, phase = ZoneDays(zone), hours * HOUR
    instant = round((time.replace(tzinfo=UTC) - utc(1970, 1, 1)) / timedelta(microseconds=1))
    mark = days.floor_at(instant, every, phase)
    assert (mark - phase) % every == 0
    assert days.instant_at(mark) <= instant < days.instant_at(mark + every)
    local = (datetime(1970, 1, 1) + timedelta(microseconds=mark)).replace(tzinfo=ZoneInfo(zone))  # noqa: DTZ001
    back = local.astimezone(UTC).astimezone(ZoneInfo(zone))
    if back.replace(tzinfo=None) == local.replace(tzinfo=None):
        assert days.instant_at(mark) == round((local.astimezone(UTC) - utc(1970, 1, 1)) / timedelta(microseconds=1))
