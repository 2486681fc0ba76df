"""Windows by the wall clock, and the ticks that drive them: in operators, and through the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
import pytest

from headrace.kernel.errors import InternalError
from headrace.kernel.protocols import MAIN, Determinism, OperatorState
from headrace.runtime import restarts
from headrace.runtime.graph import Graph, SinkNode, SourceNode, StatefulNode, Stream
from headrace.runtime.job import CheckpointPolicy, RunOptions
from headrace.runtime.observer import SilentObserver, StopSignal
from headrace.testing import (
    ManualClock,
    MemorySink,
    MemoryTable,
    ScriptedSource,
    StaticProgram,
    Tick,
    memory_store,
    operator_context,
)
from operators.custom_step import CustomStep
from operators.processing_window import PROCESSING_TIME, ProcessingTimeInstance, ProcessingTimeWindow
from operators.session import SessionWindow
from operators.window import HoppingWindow, TumblingWindow
from tests.custom_operators import After, Silence
from tests.windows import Row, frame_of, stored

COUNT = {"n": "count(*)", "s": "sum(x)", "f": "first(x)"}
KINDS: Mapping[str, ProcessingTimeWindow] = {
    "tumbling": ProcessingTimeWindow(TumblingWindow("w", PROCESSING_TIME, 10, COUNT, ["k"])),
    "hopping": ProcessingTimeWindow(HoppingWindow("w", PROCESSING_TIME, 10, 5, COUNT, ["k"])),
    "session": ProcessingTimeWindow(SessionWindow("w", PROCESSING_TIME, 10, COUNT, ["k"])),
}
SCHEMA = frame_of([]).schema


def opened(operator: ProcessingTimeWindow, state: OperatorState | None = None) -> ProcessingTimeInstance:
    schema = operator.partial(pl.LazyFrame(schema=SCHEMA)).collect_schema()
    return operator.open(schema, operator_context(None if state is None else stored(state)))


def fed(instance: ProcessingTimeInstance, operator: ProcessingTimeWindow, rows: Sequence[Row]) -> None:
    assert instance.process(operator.partial(frame_of(rows, [10**9] * len(rows)).lazy()).collect()) == {}


def given(emission: Mapping[str, pl.DataFrame]) -> list[tuple[Any, ...]]:
    if not emission:
        return []
    return emission[MAIN].with_columns(pl.col("window_start", "window_end").to_physical()).rows()


class TestInstance:
    def test_rows_lie_in_the_window_of_the_clock(self) -> None:
        operator = KINDS["tumbling"]
        instance = opened(operator)
        assert given(instance.tick(3)) == []
        fed(instance, operator, [Row(-900, "a", 1), Row(5, "b", 2)])
        instance.tick(7)
        fed(instance, operator, [Row(12345, "a", 4)])
        assert given(instance.tick(9)) == []
        assert instance.advance(10**9) == {}
        assert given(instance.tick(10)) == [("a", 0, 10, 2, 5, 1), ("b", 0, 10, 1, 2, 2)]
        assert given(instance.tick(30)) == []

    def test_overlapping_windows(self) -> None:
        operator = KINDS["hopping"]
        instance = opened(operator)
        instance.tick(7)
        fed(instance, operator, [Row(0, "a", 1)])
        assert given(instance.tick(11)) == [("a", 0, 10, 1, 1, 1)]
        assert given(instance.tick(15)) == [("a", 5, 15, 1, 1, 1)]

    def test_sessions_end_when_the_clock_has_gone_on(self) -> None:
        operator = KINDS["session"]
        instance = opened(operator)
        for now in (1, 10, 19):
            assert given(instance.tick(now)) == []
            fed(instance, operator, [Row(0, "a", now)])
        assert given(instance.tick(28)) == []
        assert given(instance.tick(29)) == [("a", 1, 29, 3, 30, 1)]

    @pytest.mark.parametrize("kind", KINDS)
    def test_what_ended_while_it_was_down_is_given_out_at_once(self, kind: str) -> None:
        operator = KINDS[kind]
        instance = opened(operator)
        instance.tick(5)
        fed(instance, operator, [Row(0, "a", 1)])
        again = opened(operator, instance.snapshot())
        assert {row[3:] for row in given(again.tick(1000))} == {(1, 1, 1)}
        assert again.rows_held() == 0

    def test_a_clock_that_goes_back_stands_still(self) -> None:
        operator = KINDS["tumbling"]
        instance = opened(operator)
        instance.tick(25)
        instance = opened(operator, instance.snapshot())
        instance.tick(3)
        fed(instance, operator, [Row(0, "a", 1)])
        assert given(instance.tick(30)) == [("a", 20, 30, 1, 1, 1)]

    def test_the_end_gives_out_open_windows(self) -> None:
        operator = KINDS["tumbling"]
        instance = opened(operator)
        with pytest.raises(InternalError, match="not been told the time"):
            fed(instance, operator, [Row(0, "a", 1)])
        instance.tick(5)
        fed(instance, operator, [Row(0, "a", 1)])
        assert given(instance.drain()) == [("a", 0, 10, 1, 1, 1)]

    def test_it_promises_nothing(self) -> None:
        operator = KINDS["tumbling"]
        assert operator.determinism is Determinism.NOT_INVARIANT
        assert operator.fingerprint != operator.window.fingerprint
        assert operator.late(frame_of([Row(0)], [5]).lazy()).collect().height == 0
        zeros = frame_of([Row(0, y=0.0), Row(0, y=-0.0)])
        by_float = ProcessingTimeWindow(TumblingWindow("w", PROCESSING_TIME, 10, COUNT, ["y"]))
        assert str(by_float.partial(zeros.lazy()).collect()["y"].to_list()) == "[0.0, 0.0]"


class Steps(ManualClock):
    """A clock that goes on by a second each time the engine looks at the time."""

    def now_us(self) -> int:
        self.advance(1_000_000)
        return super().now_us()


def ran(operator: Any, ticks: Sequence[Tick], parallelism: int | None = None) -> pl.DataFrame:
    table = MemoryTable()
    graph = Graph(
        [
            SourceNode("s", ScriptedSource("s", SCHEMA, ticks)),
            StatefulNode("w", Stream("s"), operator),
            SinkNode("out", Stream("w"), MemorySink("out", table), None),
        ]
    )
    policy = CheckpointPolicy(rows=1)
    options = RunOptions("caught-up", parallelism=parallelism)
    program = StaticProgram("j", graph)
    restarts.run(program, memory_store(), policy, options, SilentObserver(), StopSignal(), Steps())
    return table.rows()


TICKS = [Tick(frame_of([Row(n, "abc"[n % 3], n)])) for n in range(40)]


@pytest.mark.parametrize("parallelism", [1, 3])
def test_the_engine_moves_the_clock_of_windows(parallelism: int) -> None:
    operator = ProcessingTimeWindow(TumblingWindow("w", PROCESSING_TIME, 5_000_000, COUNT, ["k"]))
    out = ran(operator, TICKS, parallelism)
    assert out["n"].sum() == 40
    assert out["window_start"].n_unique() >= 8
    assert out["n"].max() <= 5


@pytest.mark.parametrize("parallelism", [1, 3])
def test_the_engine_fires_timers_by_the_clock(parallelism: int) -> None:
    step = CustomStep("w", Silence(After(5)), "silence", ["k"])
    out = ran(step, [*TICKS[:9:3], *TICKS[1:30:3]], parallelism)
    assert out.group_by("k").agg(pl.col("rows").max()).sort("k").rows() == [("a", 3), ("b", 10)]
    assert out["silent_since"].n_unique() > 1
