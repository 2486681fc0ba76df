"""Custom operators: order, timers, state, restores; and those that break their contract."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.kernel import columns
from headrace.kernel.errors import GraphChangedError, HeadraceError, SpecError, UserError
from headrace.kernel.keyed import KeyedLayout
from headrace.kernel.protocols import MAIN, Determinism, Ticks
from headrace.operators import CustomOperator, State, StateTable, Timers
from headrace.testing import operator_context
from operators.custom_step import CustomStep
from tests.custom_operators import Difference, Gap, RowByRowSessions, Sessionize
from tests.windows import CUTS, RESTARTS, ROWS, SCHEMA, Row, Tail, frame_of, pieces, stored, tail_of

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def step_of(operator: CustomOperator, **more: Any) -> CustomStep:
    return CustomStep("c", operator, "op", **{"by": ["k"], "order_by": "t", **more})


def played(
    step: CustomStep, history: Sequence[Row], tail: Tail, cuts: Sequence[int], restarts: set[int] | frozenset[int]
) -> tuple[list[tuple[Any, ...]], list[int]]:
    """What comes out of main, and the times of late rows."""
    schema = step.partial(frame_of([], []).lazy()).collect_schema()
    instance = step.open(schema, operator_context())
    out: list[tuple[Any, ...]] = []
    late: list[int] = []
    number = itertools.count()
    batches = [(frame_of(piece, [None] * len(piece)), -(10**7)) for piece in pieces(history, cuts)]
    position = 0
    for piece in pieces(tail.rows, cuts):
        frame = frame_of(piece, tail.marks[position : position + len(piece)])
        position += len(piece)
        batches.append((frame, tail.reached(position)))
    for frame, watermark in batches:
        partials = step.partial(frame.lazy()).collect()
        late += step.late(frame.lazy()).collect()["t"].to_physical().to_list()
        for emission in (instance.process(partials), instance.advance(watermark)):
            out += [row for given in emission.values() for row in given.rows()]
        if next(number) in restarts:
            instance = step.open(schema, operator_context(stored(instance.snapshot())))
    out += [row for given in instance.drain().values() for row in given.rows()]
    return sorted(out, key=repr), late


def sessions_of(rows: Sequence[Row], gap: int) -> list[tuple[Any, ...]]:
    out = []
    for key in {row.k for row in rows}:
        times = sorted(row.t for row in rows if row.k == key)
        start = 0
        for i in range(1, len(times) + 1):
            if i == len(times) or times[i] - times[i - 1] >= gap:
                first, last = times[start], times[i - 1]
                out.append((key, at(first), at(last + gap), i - start))
                start = i
    return sorted(out, key=repr)


def at(us: int) -> datetime:
    return EPOCH + timedelta(microseconds=us)


def accepted(history: Sequence[Row], tail: Tail) -> list[Row]:
    return [*history, *(row for row, mark in zip(tail.rows, tail.marks, strict=True) if row.t >= mark)]


@settings(max_examples=40, deadline=None)
@given(ROWS, ROWS, CUTS, RESTARTS, st.integers(0, 90), st.sampled_from([Sessionize, RowByRowSessions]))
def test_sessions_do_not_depend_on_cuts_batches_or_restarts(
    history: list[Row], rows: list[Row], cuts: list[int], restarts: set[int], bound: int, kind: type[Sessionize]
) -> None:
    tail = tail_of(rows, bound)
    out, late = played(step_of(kind(Gap(7))), history, tail, cuts, restarts)
    assert out == sessions_of(accepted(history, tail), 7)
    assert sorted(late) == sorted(row.t for row, mark in zip(tail.rows, tail.marks, strict=True) if row.t < mark)


@settings(max_examples=40, deadline=None)
@given(ROWS, CUTS, RESTARTS)
def test_rows_come_in_order_of_time(rows: list[Row], cuts: list[int], restarts: set[int]) -> None:
    tail = tail_of(rows, 90)
    out, late = played(step_of(Difference()), [], tail, cuts, restarts)
    whole, _ = played(step_of(Difference()), [], tail, [], frozenset())
    assert (out, late) == (whole, [])
    plain = frame_of(rows).sort("t", "k", "x", "y")
    before = plain.with_columns(delta=pl.col("x") - pl.col("x").shift(1).over("k"))
    assert sorted(row["delta"] or 0 for row in before.iter_rows(named=True)) == sorted(row[4] or 0 for row in out)


class Trace(CustomOperator):
    """Gives out what it is called with; each row sets timers as its x and y say."""

    def __init__(self, args: Any = None, *, seen: list[str] | None = None) -> None:
        super().__init__(args)
        self.seen = seen if seen is not None else []

    def output_schema(self, schema: pl.Schema) -> Mapping[str, Any]:
        return {"what": pl.String(), "k": schema["k"], "at": pl.Int64()}

    def process(self, rows: pl.DataFrame, state: State, timers: Timers) -> pl.DataFrame:
        self.seen.append("process")
        asked = rows.filter(pl.col("x").is_not_null())
        time = pl.from_epoch(pl.col("x").cast(pl.Int64), "us")
        timers.set_event_time(asked.select("k", time.alias("time")))
        timers.set_processing_time(asked.select("k", time.alias("time")), "p")
        return self.told("row", rows.rename({"t": "time"}))

    def on_event_time(self, due: pl.DataFrame, state: State, timers: Timers) -> pl.DataFrame:
        self.seen.append("event")
        return self.told("event", due)

    def on_processing_time(self, due: pl.DataFrame, state: State, timers: Timers) -> pl.DataFrame:
        self.seen.append("processing")
        return self.told("processing", due)

    def told(self, what: str, rows: pl.DataFrame) -> pl.DataFrame:
        return rows.select(pl.lit(what).alias("what"), "k", pl.col("time").to_physical().alias("at"))


def opened(step: CustomStep, state: Any = None) -> Any:
    schema = step.partial(frame_of([], []).lazy()).collect_schema()
    return step.open(schema, operator_context(None if state is None else stored(state)))


def fed(step: CustomStep, instance: Any, rows: Sequence[Row]) -> list[tuple[Any, ...]]:
    return told(instance.process(step.partial(frame_of(rows, [None] * len(rows)).lazy()).collect()))


def told(emission: Mapping[str, pl.DataFrame]) -> list[tuple[Any, ...]]:
    return emission[MAIN].rows() if emission else []


def test_a_timer_stands_between_the_rows_before_its_time_and_the_others() -> None:
    step = step_of(Trace())
    instance = opened(step)
    assert fed(step, instance, [Row(30, "a"), Row(10, "a", x=20), Row(20, "a"), Row(5, "b", x=7)]) == []
    assert told(instance.advance(20)) == [("row", "b", 5), ("row", "a", 10), ("event", "b", 7), ("event", "a", 20)]
    assert told(instance.advance(20)) == []
    assert told(instance.advance(31)) == [("row", "a", 20), ("row", "a", 30)]


def test_timers_of_many_keys_fire_together() -> None:
    seen: list[str] = []
    step = step_of(Trace(seen=seen))
    instance = opened(step)
    fed(step, instance, [Row(n % 3, str(n), x=50) for n in range(300)])
    assert len(told(instance.advance(60))) == 600
    assert seen == ["process", "event"]


def test_a_timer_that_is_set_again_is_replaced_and_a_null_removes_it() -> None:
    class Keeps(Trace):
        def process(self, rows: pl.DataFrame, state: State, timers: Timers) -> None:
            time = pl.from_epoch(pl.col("x").cast(pl.Int64), "us")
            timers.set_event_time(rows.select("k", time.alias("time")))

    step = step_of(Keeps(), order_by=None)
    instance = opened(step)
    fed(step, instance, [Row(0, "a", x=10), Row(0, "b", x=10), Row(0, None, x=10)])
    fed(step, instance, [Row(0, "a", x=30), Row(0, "b")])
    assert told(instance.advance(20)) == [("event", None, 10)]
    instance = opened(step, instance.snapshot())
    assert told(instance.advance(40)) == [("event", "a", 30)]
    assert told(instance.drain()) == []


def test_timers_outlive_a_restart_and_those_that_were_due_meanwhile_fire_at_once() -> None:
    step = step_of(Trace(), order_by=None)
    instance = opened(step)
    assert isinstance(instance, Ticks)
    assert told(instance.tick(100)) == []
    assert fed(step, instance, [Row(0, "a", x=150), Row(0, "b", x=400)]) == [("row", "a", 0), ("row", "b", 0)]
    again = opened(step, instance.snapshot())
    assert told(again.tick(120)) == []
    assert told(again.tick(200)) == [("processing", "a", 150)]
    assert told(opened(step, instance.snapshot()).tick(1000)) == [("processing", "a", 150), ("processing", "b", 400)]
    assert told(again.tick(50)) == []
    assert told(again.drain()) == [("event", "a", 150), ("event", "b", 400), ("processing", "b", 400)]


@pytest.mark.parametrize("restart", [False, True])
def test_cleared_timers_do_not_fire_and_those_of_other_keys_names_and_times_do(*, restart: bool) -> None:
    class Clears(Trace):
        def process(self, rows: pl.DataFrame, state: State, timers: Timers) -> None:
            super().process(rows, state, timers)
            gone = rows.filter(pl.col("x").is_null()).select("k")
            timers.set_processing_time(gone.with_columns(time=pl.lit(30).cast(pl.Datetime("us"))), "other")
            timers.clear_processing_time(gone, "p")

    step = step_of(Clears(), order_by=None)
    instance = opened(step)
    fed(step, instance, [Row(0, "a", x=10), Row(0, "b", x=10), Row(0, None, x=10)])
    fed(step, instance, [Row(0, "a"), Row(0, None), Row(0, "c")])  # c has none to clear
    if restart:
        instance = opened(step, instance.snapshot())
    assert told(instance.tick(20)) == [("processing", "b", 10)]
    assert set(told(instance.advance(20))) == {("event", key, 10) for key in (None, "a", "b")}
    assert set(told(instance.tick(40))) == {("processing", key, 30) for key in (None, "a", "c")}
    fed(step, instance, [Row(0, "a", x=50)])
    assert told(instance.tick(60)) == [("processing", "a", 50)]  # set anew


def test_without_order_rows_come_as_they_are_read_and_none_is_late() -> None:
    step = step_of(Trace(), order_by=None)
    instance = opened(step)
    assert fed(step, instance, [Row(9, "b"), Row(3, "a")]) == [("row", "b", 9), ("row", "a", 3)]
    instance.advance(100)
    assert fed(step, instance, [Row(1, "a", x=50)]) == [("row", "a", 1), ("event", "a", 50)]
    assert list(step.ports) == [MAIN]
    assert step.late(frame_of([Row(1)], [50]).lazy()).collect().height == 0


class Total(CustomOperator):
    """Without a key: one row of state."""

    def output_schema(self, schema: pl.Schema) -> Mapping[str, Any]:
        return {"n": pl.Int64()}

    def tables(self, schema: pl.Schema) -> Mapping[str, Any]:
        return {"n": {"n": pl.Int64()}}

    def process(self, rows: pl.DataFrame, state: State, timers: Timers) -> pl.DataFrame:
        assert rows.columns == list(SCHEMA)
        n = state["n"].find(rows)["n"].sum() + rows.height
        state["n"].put(pl.DataFrame({"n": [n]}))
        timers.set_event_time(pl.DataFrame({"time": [at(100)]}))
        return pl.DataFrame({"n": [n]})

    def on_event_time(self, due: pl.DataFrame, state: State, timers: Timers) -> pl.DataFrame:
        assert due.columns == ["timer", "time"]
        state["n"].remove(due)
        return pl.DataFrame({"n": [-1]})


def test_without_a_key_there_is_one_state() -> None:
    step = step_of(Total(), by=[])
    instance = opened(step)
    fed(step, instance, [Row(1, "a"), Row(2, "b")])
    assert told(instance.advance(2)) == [(1,)]
    instance = opened(step, instance.snapshot())
    assert told(instance.advance(90)) == [(2,)]
    assert told(instance.advance(200)) == [(-1,)]
    fed(step, instance, [Row(300, "a")])
    assert told(instance.drain()) == [(1,), (-1,)]


def test_state_that_is_forgotten() -> None:
    class Seen(Trace):
        def tables(self, schema: pl.Schema) -> Mapping[str, Any]:
            return {"seen": StateTable({"t": schema["t"]}, time="t", ttl=timedelta(microseconds=10))}

        def process(self, rows: pl.DataFrame, state: State, timers: Timers) -> pl.DataFrame:
            known = state["seen"].find(rows)
            state["seen"].put(rows.group_by("k").agg(pl.col("t").max()))
            return self.told("known", known.rename({"t": "time"}))

    step = step_of(Seen())
    instance = opened(step)
    fed(step, instance, [Row(1, "a"), Row(5, "a"), Row(6, "b")])
    instance.advance(8)
    fed(step, instance, [Row(9, "a")])
    assert told(instance.advance(16)) == [("known", "a", 5)]
    fed(step, instance, [Row(17, "a"), Row(17, "b")])
    assert told(instance.advance(18)) == [("known", "a", 9)]


def test_output_is_not_given_out_for_time_that_is_over() -> None:
    class Old(Trace):
        def output_schema(self, schema: pl.Schema) -> pl.Schema:
            return pl.Schema({"t": schema["t"]})

        def process(self, rows: pl.DataFrame, state: State, timers: Timers) -> pl.DataFrame:
            return rows.select(pl.col("t") - timedelta(microseconds=20))

    step = step_of(Old(), event_time="t")
    instance = opened(step)
    instance.advance(0)
    fed(step, instance, [Row(10, "a")])
    with pytest.raises(UserError, match="too far back"):
        instance.advance(11)
    lagging = Old()
    lagging.output_lag = timedelta(microseconds=20)
    step = step_of(lagging, event_time="t")
    instance = opened(step)
    instance.advance(0)
    fed(step, instance, [Row(10, "a")])
    assert instance.outgoing_watermark(11) == -9
    assert told(instance.advance(11)) == [(at(-10),)]


# --------------------------------------------------------------------------------------------- broken operators


def broken(**methods: Any) -> CustomOperator:
    return type("Broken", (Trace,), methods)()


def runs(operator: CustomOperator) -> None:
    step = step_of(operator)
    step.output_schema(step.partial(frame_of([], []).lazy()).collect_schema())
    instance = opened(step)
    fed(step, instance, [Row(1, "a", x=5), Row(2, "b")])
    instance.advance(3)
    instance.advance(50)


BROKEN: Mapping[str, tuple[Any, type[HeadraceError], str]] = {
    "raises": ({"process": lambda self, *_: 1 // 0}, UserError, "fails in process.*ZeroDivisionError.*rows 2, keys 2"),
    "polars": ({"process": lambda self, r, *_: r.select("q")}, UserError, 'fails in process.*"q"'),
    "no frame": ({"process": lambda self, *_: [1]}, UserError, "process gives list, no frame"),
    "lazy": ({"process": lambda self, r, *_: r.lazy()}, UserError, r"process gives LazyFrame.*collect\(\)"),
    "columns": (
        {"process": lambda self, r, *_: r.select(pl.lit(1).alias("what"), "k", "x")},
        UserError,
        "at is missing; x is not declared; what is Int32, not String",
    ),
    "timer": (
        {"on_event_time": lambda self, *_: pl.DataFrame({"q": [1]})},
        UserError,
        "on_event_time gives rows that do not fit",
    ),
    "no timers": ({"on_event_time": lambda self, *_: self.nothing}, UserError, "AttributeError"),
    "unknown table": ({"process": lambda self, r, s, t: s["x"]}, UserError, "no table 'x'.*declares none"),
    "timer columns": (
        {"process": lambda self, r, s, t: t.set_event_time(r)},
        UserError,
        "sets timers without a column 'time'",
    ),
    "timer keys": (
        {"process": lambda self, r, s, t: t.set_event_time(r.select(time="t"))},
        UserError,
        "sets timers with keys that do not fit.*k is missing",
    ),
    "timer type": (
        {"process": lambda self, r, s, t: t.set_event_time(r.with_columns(time="x"))},
        UserError,
        "Int32, which is no point in time",
    ),
    "timer again": (
        {"on_event_time": lambda self, d, s, t: t.set_event_time(d)},
        UserError,
        "sets an event-time timer too early",
    ),
    "timer early": (
        {"timer_delay": timedelta(seconds=1)},
        UserError,
        "sets an event-time timer too early",
    ),
    "table type": ({"tables": lambda self, s: {"x": {"y": "int"}}}, SpecError, "table 'x' with a type that is none"),
    "table key": ({"tables": lambda self, s: {"x": {"k": pl.Int8}}}, SpecError, "'k', whose name is taken"),
    "table time": (
        {"tables": lambda self, s: {"x": StateTable({"y": pl.Int8}, time="z", ttl=timedelta(1))}},
        SpecError,
        "no column 'z'",
    ),
    "table name": ({"tables": lambda self, s: {"held": {"x": pl.Int8}}}, SpecError, "'held', whose name is taken"),
    "table ttl": ({"tables": lambda self, s: {"x": StateTable({"y": pl.Int8}, ttl=timedelta(1))}}, SpecError, "alone"),
    "tables": ({"tables": lambda self, s: 1 // 0}, SpecError, "fails in tables"),
    "schema": ({"output_schema": lambda self, s: 1 // 0}, SpecError, "fails in output_schema"),
    "no schema": ({"output_schema": lambda self, s: None}, SpecError, "declares no columns as output"),
    "weight": ({"output_schema": lambda self, s: {"_weight": pl.Int64}}, SpecError, "'_weight', whose name is taken"),
    "empty": ({"output_schema": lambda self, s: {}}, SpecError, "no columns"),
    "delay": ({"timer_delay": 3}, SpecError, "has timer_delay 3"),
    "determinism": ({"determinism": "exact"}, SpecError, "has determinism 'exact'.*EXACT"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_breaks_the_contract_is_told_with_its_place(case: str) -> None:
    methods, kind, text = BROKEN[case]
    with pytest.raises(kind) as caught:
        runs(broken(**methods))
    assert re.search(text, str(caught.value), re.DOTALL), caught.value
    assert "'op' of step 'c'" in str(caught.value)
    assert caught.value.code.startswith("OPERATOR")


def test_rows_that_are_put_twice() -> None:
    class Twice(Trace):
        def tables(self, schema: pl.Schema) -> Mapping[str, Any]:
            return {"x": {"x": schema["x"]}}

        def process(self, rows: pl.DataFrame, state: State, timers: Timers) -> None:
            state["x"].put(rows.select("k", "x"))

    step = step_of(Twice(), order_by=None)
    with pytest.raises(UserError, match="put of 2 rows, 1 of which have the key of another one"):
        fed(step, opened(step), [Row(1, "a"), Row(2, "a")])


def test_state_is_bound_to_the_definition() -> None:
    step = step_of(Sessionize(Gap(7)), arguments={"gap_us": 7})
    assert step.determinism is Determinism.EXACT
    assert step_of(Trace()).determinism is Determinism.NOT_INVARIANT
    others = [
        step_of(Sessionize(Gap(7)), arguments={"gap_us": 8}),
        step_of(Sessionize(Gap(7)), arguments={"gap_us": 7}, by=["k", "x"]),
        step_of(Sessionize(Gap(7)), arguments={"gap_us": 7}, order_by=None),
        step_of(Sessionize(Gap(7)), arguments={"gap_us": 7}, allowed_lateness_us=1),
    ]
    assert len({other.fingerprint for other in [step, *others]}) == 5

    class Later(Sessionize):
        version = 2

    assert step_of(Later(Gap(7)), arguments={"gap_us": 7}).fingerprint != step.fingerprint
    state = opened(step).snapshot()
    with pytest.raises(GraphChangedError):
        opened(step_of(Later(Gap(7))), state)


def test_the_state_as_people_read_it() -> None:
    step = step_of(Total(), by=[])
    instance = opened(step)
    fed(step, instance, [Row(1, "a"), Row(2, "b")])
    instance.advance(2)
    state = instance.snapshot()
    snapshot = state.keyed["event_timers"]
    layout = KeyedLayout("event_timers", snapshot.schema, snapshot.key, snapshot.within, snapshot.version)
    kept = operator_context(state).keyed(layout)
    timers = pl.concat(kept.rows())
    held = pl.LazyFrame(schema=state.held["held"].schema)
    assert step.shown("held", held).collect().columns == list(SCHEMA)
    assert step.shown("event_timers", timers.lazy()).collect().rows() == [("timer", at(100))]
    assert list(state.keyed) == ["n", "event_timers", "processing_timers"]
    assert step.shown("n", pl.LazyFrame({"_all": [0], "n": [1]})).collect().columns == ["n"]


def test_columns_that_are_not_there() -> None:
    for wrong in ({"by": ["q"]}, {"order_by": "q"}, {"event_time": "q"}):
        step = step_of(Trace(), **wrong)
        with pytest.raises(SpecError, match="'q'") as caught:
            step.output_schema(step.partial(frame_of([], []).lazy()).collect_schema())
        assert caught.value.code == "COLUMN_NOT_FOUND"


def test_late_rows_and_rows_without_time_leave_through_late() -> None:
    step = step_of(Trace(), allowed_lateness_us=5)
    rows = frame_of([Row(4), Row(5), Row(9)], [10, 10, 10])
    rows = pl.concat([rows, rows[:1].with_columns(t=pl.lit(None, SCHEMA["t"]))])
    assert step.partial(rows.lazy()).collect()["t"].to_physical().to_list() == [5, 9, None]
    assert step.late(rows.lazy()).collect()["t"].to_physical().to_list() == [4, None]
    assert step.leaves_out(step.partial(rows.lazy()).collect())
    instance = opened(step)
    instance.process(step.partial(rows.lazy()).collect())
    assert instance.counts == {"dropped_late": 0, "null_event_time": 1}
    assert columns.ROW_WATERMARK not in step.partial(rows.lazy()).collect().columns
