"""Tumbling windows: golden examples, the cases WIN-01 (d), WIN-07, WIN-08, SNP-04, lateness, state."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from headrace.kernel import columns
from headrace.kernel.errors import GraphChangedError, SchemaError, SpecError
from headrace.kernel.protocols import COUNTS, LATE, MAIN, Determinism, OperatorState
from headrace.testing import operator_context
from operators.event_time import microseconds
from operators.window import TumblingWindow
from operators.window_instance import SlicedInstance
from tests.windows import stored

SECOND = 1_000_000
TEN = 10 * SECOND


def window(aggregates=None, **changes) -> TumblingWindow:
    return TumblingWindow("w", "t", changes.pop("size_us", TEN), aggregates or {"n": "count(*)"}, **changes)


def rows(seconds, row_watermark=None, **more) -> pl.DataFrame:
    frame = pl.DataFrame(
        {"t": [None if s is None else round(s * SECOND) for s in seconds], **more}, schema_overrides={"t": pl.Int64}
    )
    frame = frame.with_columns(pl.col("t").cast(pl.Datetime("us", "UTC")))
    if row_watermark is not None:
        marks = pl.Series(columns.ROW_WATERMARK, row_watermark, dtype=pl.Int64)
        frame = frame.with_columns(marks)
    return frame


def opened(operator: TumblingWindow, frame: pl.DataFrame, state: OperatorState | None = None) -> SlicedInstance:
    return operator.open(operator.partial(frame.clear().lazy()).collect_schema(), operator_context(state))


def feed(instance: SlicedInstance, operator: TumblingWindow, frame: pl.DataFrame) -> None:
    assert instance.process(operator.partial(frame.lazy()).collect()) == {}


def run(operator: TumblingWindow, *frames: pl.DataFrame) -> pl.DataFrame:
    instance = opened(operator, frames[0])
    for frame in frames:
        feed(instance, operator, frame)
    return instance.drain().get(MAIN, pl.DataFrame())


def starts(frame: pl.DataFrame) -> list[int]:
    return [us // SECOND for us in frame["window_start"].to_physical().to_list()]


def test_win_01_d_times_before_1970_lie_in_the_window_that_holds_them() -> None:
    out = run(window(), rows([-5, -10, 0]))
    assert starts(out) == [-10, 0]
    assert out["n"].to_list() == [2, 1]
    assert (out["window_end"] - out["window_start"]).dt.total_seconds().to_list() == [10, 10]


@pytest.mark.parametrize("dtype", [pl.Datetime("ms"), pl.Datetime("us", "Europe/Paris"), pl.Datetime("ns", "UTC")])
def test_every_unit_and_zone_gives_the_same_instants(dtype: pl.Datetime) -> None:
    frame = rows([-0.001, -10, 0, 9.999]).with_columns(pl.col("t").dt.replace_time_zone(None).cast(pl.Datetime("us")))
    frame = frame.with_columns(pl.col("t").dt.replace_time_zone("UTC"))
    typed = frame.with_columns(
        pl.col("t").dt.convert_time_zone(dtype.time_zone).cast(dtype)
        if dtype.time_zone
        else pl.col("t").dt.replace_time_zone(None).cast(dtype)
    )
    out = run(window(), typed)
    assert out.schema["window_start"] == out.schema["window_end"] == pl.Datetime("us", dtype.time_zone)
    assert starts(out) == [-10, 0]
    assert out["n"].to_list() == [2, 2]


def test_nanoseconds_before_1970_are_rounded_down() -> None:
    frame = pl.DataFrame({"t": pl.Series([-1, -10 * SECOND * 1000 - 1]).cast(pl.Datetime("ns"))})
    assert starts(run(window(), frame)) == [-20, -10]


def test_dates_are_midnight_utc() -> None:
    frame = pl.DataFrame({"t": pl.Series([-1, 0, 1], dtype=pl.Int32).cast(pl.Date)})
    out = run(window(size_us=2 * 86_400 * SECOND), frame)
    assert starts(out) == [-2 * 86_400, 0]
    assert out["n"].to_list() == [1, 2]


def test_offset_moves_windows() -> None:
    out = run(window(offset_us=3 * SECOND), rows([2.9, 3, 12.9, 13]))
    assert starts(out) == [-7, 3, 13]
    assert_frame_equal(out, run(window(offset_us=-7 * SECOND), rows([2.9, 3, 12.9, 13])))


def test_golden_aggregates_by_key() -> None:
    operator = window(
        {
            "n": "count(*)",
            "known": "count(delay)",
            "total": "sum(delay)",
            "mean": "AVG( delay )",
            "least": "min(delay + 1)",
            "most": "max(delay)",
        },
        by=["carrier"],
    )
    frame = rows([1, 2, 3, 4, 11], carrier=["UA", None, "UA", "UA", "AA"], delay=[4, 7, None, -1, None])
    expected = pl.DataFrame(
        {
            "carrier": [None, "UA", "AA"],
            "window_start": [0, 0, TEN],
            "window_end": [TEN, TEN, 2 * TEN],
            "n": [1, 3, 1],
            "known": [1, 2, 0],
            "total": [7, 3, None],
            "mean": [7.0, 1.5, None],
            "least": [8, 0, None],
            "most": [7, 4, None],
        }
    ).with_columns(pl.col("window_start", "window_end").cast(pl.Datetime("us", "UTC")))
    assert_frame_equal(run(operator, frame), expected)
    partials = operator.partial(frame.clear().lazy()).collect_schema()
    assert operator.output_schema(partials) == expected.schema


def test_a_window_is_given_out_when_the_watermark_reaches_its_end_and_not_before() -> None:
    operator = window()
    instance = opened(operator, rows([]))
    feed(instance, operator, rows([5, 12]))
    assert instance.advance(TEN - 1) == {}
    assert starts(instance.advance(TEN)[MAIN]) == [0]
    assert instance.advance(TEN) == {}
    assert instance.rows_held() == 1


def test_outgoing_watermark_is_the_start_of_the_open_window() -> None:
    operator = window(offset_us=2 * SECOND)
    instance = opened(operator, rows([]))
    assert instance.outgoing_watermark(11 * SECOND) == 2 * SECOND
    assert instance.outgoing_watermark(-1) == -8 * SECOND
    instance.advance(12 * SECOND)
    feed(instance, operator, rows([12]))
    assert instance.outgoing_watermark(12 * SECOND) <= 12 * SECOND
    assert instance.drain()
    assert instance.outgoing_watermark(12 * SECOND) == 22 * SECOND


def test_late_is_decided_by_the_window_end_and_the_rows_own_watermark() -> None:
    operator = window()
    marks = [TEN - 1, TEN, None, 25 * SECOND, 25 * SECOND]
    frame = rows([5, 5, 5, 25, 15], marks, payload=list("abcde"))
    late = operator.late(frame.lazy()).collect()
    assert late["payload"].to_list() == ["b", "e"]
    assert late.columns == frame.columns
    out = run(operator, frame)
    assert dict(zip(starts(out), out["n"], strict=True)) == {0: 2, 20: 1}


def test_rows_without_row_watermark_are_never_late() -> None:
    assert operator_late_count(rows([5, -100])) == 0


def operator_late_count(frame: pl.DataFrame) -> int:
    return window().late(frame.lazy()).collect().height


def test_rows_without_event_time_leave_late_and_are_counted() -> None:
    operator = window(by=["k"])
    frame = rows([None, 5, None], [None, None, 0], k=["a", "a", None])
    assert operator.late(frame.lazy()).collect()["k"].to_list() == ["a", None]
    instance = opened(operator, frame)
    feed(instance, operator, frame)
    assert instance.counts == {"dropped_late": 0, "null_event_time": 2}
    out = instance.drain()[MAIN]
    assert out["n"].to_list() == [1]
    assert out["window_start"].null_count() == 0


def test_win_07_no_history_row_is_late_whatever_the_order_of_files() -> None:
    operator = window()
    files = [rows([100, 150, 200]), rows([0, 50]), rows([100] * 5)]
    instance = opened(operator, rows([]))
    out = []
    unread = [[100, 0, 100], [0, 100], [100], []]
    for frame, left in zip(files, unread[1:], strict=True):
        feed(instance, operator, frame)
        watermark = min(left) * SECOND - 1 if left else 190 * SECOND - 0
        out.append(instance.advance(watermark).get(MAIN))
    tail = rows([190, 195, 150], [None, 190 * SECOND, 195 * SECOND])
    feed(instance, operator, tail)
    out.append(instance.drain()[MAIN])
    found = pl.concat([frame for frame in out if frame is not None])
    assert operator.late(tail.lazy()).collect()["t"].to_physical().to_list() == [150 * SECOND]
    everything = rows([100, 150, 200, 0, 50, *[100] * 5, 190, 195])
    assert_frame_equal(found.sort("window_start"), run(operator, everything))
    assert instance.counts["dropped_late"] == 0


def test_win_08_watermark_and_progress_come_back_with_the_state() -> None:
    operator = window(size_us=5 * SECOND)
    before, replayed = rows([11, 12, 16]), rows([13, 18, 21, 26])
    instance = opened(operator, before)
    feed(instance, operator, before)
    instance.advance(15 * SECOND)
    state = stored(instance.snapshot())

    def goes_on(current: SlicedInstance) -> list[pl.DataFrame]:
        late = replayed.head(1)
        feed(current, operator, late)
        feed(current, operator, replayed.tail(3))
        return [*current.advance(25 * SECOND).values(), *current.drain().values()]

    resumed = opened(operator, before, state)
    assert resumed.advance(12 * SECOND) == {}
    assert resumed.outgoing_watermark(12 * SECOND) == 15 * SECOND
    expected, found = goes_on(instance), goes_on(resumed)
    assert [starts(frame) for frame in found] == [[15, 20], [25]]
    for left, right in zip(expected, found, strict=True):
        assert_frame_equal(left, right)
    assert resumed.counts["dropped_late"] == instance.counts["dropped_late"] == 1


def test_a_drained_window_is_never_given_out_again() -> None:
    operator = window()
    instance = opened(operator, rows([]))
    feed(instance, operator, rows([5, 25]))
    assert starts(instance.drain()[MAIN]) == [0, 20]
    resumed = opened(operator, rows([]), stored(instance.snapshot()))
    feed(resumed, operator, rows([5, 29, 30]))
    assert resumed.counts["dropped_late"] == 2
    assert starts(resumed.drain()[MAIN]) == [30]
    assert resumed.drain() == {}


def test_snp_04_batches_without_rows_give_nothing_out() -> None:
    operator = window({"n": "count(*)", "s": "sum(x)", "lo": "min(x)"})
    empty = rows([], x=pl.Series([], dtype=pl.Int64))
    partials = operator.partial(empty.lazy()).collect()
    assert partials.height == 0
    instance = opened(operator, empty)
    instance.process(partials)
    assert instance.advance(TEN) == {}
    assert instance.drain() == {}
    assert instance.snapshot().held["windows"].schema == partials.schema


def test_snp_04_a_column_of_nulls_keeps_its_type() -> None:
    operator = window({"s": "sum(x)", "c": "count(x)", "m": "avg(x)", "lo": "min(x)"}, by=["k"])
    frame = rows([1, 2], x=pl.Series([None, None], dtype=pl.Int32), k=pl.Series([None, None], dtype=pl.String))
    out = run(operator, frame)
    assert out.row(0, named=True) | {"window_start": 0, "window_end": 0} == {
        "k": None,
        "window_start": 0,
        "window_end": 0,
        "s": None,
        "c": 0,
        "m": None,
        "lo": None,
    }
    assert out.schema["s"] == pl.Int64
    assert out.schema["lo"] == pl.Int32


def test_state_of_other_types_is_refused_with_the_difference() -> None:
    operator = window({"hi": "max(x)"})
    frame = rows([1], x=[1])
    instance = opened(operator, frame)
    feed(instance, operator, frame)
    state = instance.snapshot()
    with pytest.raises(GraphChangedError, match="max:x was Int64, is String"):
        opened(operator, rows([1], x=["a"]), state)
    with pytest.raises(GraphChangedError, match="version 9"):
        opened(
            operator, frame, OperatorState(9, state.values, held={"windows": replace(state.held["windows"], version=9)})
        )


def test_fingerprint_follows_what_the_state_depends_on() -> None:
    base = window({"s": "sum(x)"}, by=["k"]).fingerprint
    assert window({"renamed": " SUM(x) "}, by=["k"]).fingerprint == base
    assert window({"s": "sum(x)", "m": "avg(x)"}, by=["k"]).fingerprint == base
    assert window({"s": "sum(x)"}, by=["k"], offset_us=TEN).fingerprint == base
    changed = [
        window({"s": "sum(y)"}, by=["k"]),
        window({"s": "max(x)"}, by=["k"]),
        window({"s": "sum(x)"}, by=["j"]),
        window({"s": "sum(x)"}, by=["k"], size_us=1),
        window({"s": "sum(x)"}, by=["k"], offset_us=1),
    ]
    assert len({base, *(operator.fingerprint for operator in changed)}) == 6
    assert "tumbling window of 10s" in base
    assert "s = sum(x)" in window({"s": "sum(x)"}).describe()


def test_ports_and_determinism() -> None:
    assert tuple(window().ports) == (MAIN, LATE)
    assert window({"m": "avg(x)"}).determinism is Determinism.EXACT


def test_a_sum_beyond_64_bits_is_an_error_and_not_a_wrapped_number() -> None:
    operator = window({"s": "sum(x)"})
    frame = rows([1, 2], x=[2**63 - 1, 1])
    instance = opened(operator, frame)
    feed(instance, operator, frame)
    with pytest.raises(SchemaError, match="window 'w': a sum of x is beyond 64 bits") as caught:
        instance.drain()
    assert (caught.value.code, caught.value.detail) == ("SUM_OVERFLOW", f"it is {2**63}")
    cure = "sum(cast(x as decimal(38, 0)))"
    assert cure in caught.value.hint
    assert run(window({"s": cure}), frame)["s"].to_list() == [2**63]


@pytest.mark.parametrize("us", [2**63 - 1, -(2**63), 2**62 + 1])
@pytest.mark.parametrize("zone", [None, "Europe/Paris"])
def test_a_time_whose_windows_would_be_beyond_64_bits_is_none(us: int, zone: str | None) -> None:
    operator = window(size_us=86_400 * SECOND, time_zone=zone) if zone else window()
    frame = pl.DataFrame({"t": pl.Series([us, 0, 5 * SECOND]).cast(pl.Datetime("us", "UTC"))})
    instance = opened(operator, frame)
    feed(instance, operator, frame)
    out = instance.drain()[MAIN]
    assert out["n"].to_list() == [2]
    assert instance.snapshot().values[COUNTS]["null_event_time"] == 1
    assert operator.late(frame.lazy()).collect()["t"].to_physical().to_list() == [us]


@pytest.mark.parametrize(
    ("kind", "unit"), [(pl.Date(), 86_400 * SECOND), (pl.Datetime("ms"), 1000), (pl.Datetime("us"), 1)], ids=str
)
def test_event_times_of_every_unit_lie_within_62_bits(kind: pl.DataType, unit: int) -> None:
    most = 2**62 // unit
    physical = pl.Series("t", [most, most + 1, -most, -most - 1, None, 0], dtype=pl.Int64)
    found = pl.select(physical.cast(kind)).select(microseconds("t", kind, "here")).to_series().to_list()
    assert found == [most * unit, None, -most * unit, None, None, 0]


@pytest.mark.parametrize("far", [1_515_680_404_560, -69_425_294_400], ids=["year 50000", "year -231"])
@pytest.mark.parametrize("zone", [None, "Europe/Paris"])
def test_times_that_python_does_not_know_have_windows(far: int, zone: str | None) -> None:
    operator = window(size_us=86_400 * SECOND, time_zone=zone) if zone else window()
    out = run(operator, rows([far, 0]), rows([5]))
    assert sorted(out["n"].to_list()) == [1, 2]
    assert (out["window_start"] <= out["window_end"]).all()
    held = out.with_columns(pl.col("window_start", "window_end").to_physical())
    assert held.filter(pl.col("window_start") <= far * SECOND, pl.col("window_end") > far * SECOND).height == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: window(size_us=0), "size"),
        (lambda: window(time_zone="Europe/Paris"), "Europe/Paris.*whole number of days"),
        (lambda: window(size_us=86_400_000_000, time_zone="Europe/Pari"), "'Europe/Pari', which is not known"),
        (lambda: window({"window_start": "count(*)"}), "window_start.*twice"),
        (lambda: window({"k": "count(*)"}, by=["k"]), "'k' twice"),
        (lambda: TumblingWindow("w", "t", TEN, {}), "no aggregate"),
        (lambda: window({"x": "mode(x)"}), "mode.*not an aggregate"),
        (lambda: window({"x": "sum(x) + sum(y)"}), "not an aggregate"),
        (lambda: window({"x": "sum(distinct x)"}), "not an aggregate"),
        (lambda: window({"x": "sum(sum(x))"}), "holds an aggregate"),
        (lambda: window({"x": "sum(now())"}), "time of day"),
        (lambda: window({"x": "sum(*)"}), "cannot read"),
        (lambda: window({"x": "min(x, y)"}), "not an aggregate"),
        (lambda: window({"x": "sum(nope)"}).partial(rows([]).lazy()), "nope"),
        (lambda: window(by=["tt"]).partial(rows([]).lazy()), "'tt'.*(\n.*)*did you mean 't'"),
        (lambda: window({"x": "sum(t)"}).partial(rows([]).lazy()), "needs a number, not Datetime"),
        (lambda: window().partial(pl.LazyFrame({"t": [1]})), "has type Int64"),
        (lambda: window(by=["l"]).partial(rows([1], l=[[1]]).lazy()), "has type List"),
        (lambda: window({"x": "max(l)"}).partial(rows([1], l=[[1]]).lazy()), "not supported"),
    ],
)
def test_definitions_that_cannot_be_are_refused(make, message) -> None:
    with pytest.raises(SpecError, match=message):
        make()
