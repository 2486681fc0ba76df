"""Jobs that are changed between two runs, stores that are out for a while, successors that overlap: in one process."""

from collections.abc import Callable
from dataclasses import dataclass

import polars as pl
import pytest

from headrace.kernel.errors import FencedError, GraphChangedError, UnavailableError
from headrace.kernel.protocols import Head, HeadStore, SinkContext
from headrace.runtime import restarts
from headrace.runtime.graph import Graph, SinkNode, SourceNode, Stream
from headrace.runtime.job import CheckpointPolicy, RunOptions
from headrace.runtime.observer import SilentObserver, StopSignal
from headrace.state.checkpoint import CheckpointStore
from headrace.state.stores import JobStore
from headrace.testing import (
    MemorySink,
    MemoryTable,
    ScriptedSource,
    SimulatedCrashError,
    StaticProgram,
    Tick,
    crash_at,
    memory_store,
)

SCHEMA = pl.Schema({"k": pl.Int64()})
EVERY_BATCH = CheckpointPolicy(interval_us=0, timeout_s=30)


def ticks(count: int) -> list[Tick]:
    return [Tick(pl.DataFrame({"k": [number]}, schema=SCHEMA)) for number in range(count)]


def program(tables: dict[str, MemoryTable], source: str = "s", script: list[Tick] | None = None) -> StaticProgram:
    scripted = ScriptedSource(source, SCHEMA, script or ticks(3))
    sinks = [SinkNode(name, Stream(source), MemorySink(name, table), source) for name, table in tables.items()]
    return StaticProgram("job", Graph([SourceNode(source, scripted), *sinks]))


def go(job: StaticProgram, store: JobStore) -> restarts.RunResult:
    return restarts.run(job, store, EVERY_BATCH, RunOptions(until="caught-up"), SilentObserver(), StopSignal())


def test_a_renamed_source_does_not_begin_anew() -> None:
    table, store = MemoryTable(), memory_store()
    go(program({"out": table}), store)
    with pytest.raises(GraphChangedError, match="no longer fits") as caught:
        go(program({"out": table}, source="renamed"), store)
    assert caught.value.context["differences"] == ["source s: removed or renamed"]
    assert table.rows()["k"].to_list() == [0, 1, 2]


def test_a_sink_with_a_decided_epoch_cannot_be_renamed_before_it_has_committed() -> None:
    table, store = MemoryTable(), memory_store()
    with crash_at("after-head", 2), pytest.raises(SimulatedCrashError):
        go(program({"out": table}), store)
    with pytest.raises(GraphChangedError, match="no longer has the sink 'out'"):
        go(program({"renamed": table}), store)
    assert table.committed == []
    go(program({"out": table}), store)
    go(program({"renamed": table}, script=ticks(5)), store)
    assert table.rows()["k"].to_list() == [0, 1, 2, 3, 4]


@dataclass(frozen=True, slots=True)
class Unsteady:
    """A head store that does not answer to the calls whose numbers are given."""

    real: HeadStore
    calls: list[int]
    out: range

    def _answer(self) -> None:
        self.calls.append(len(self.calls))
        if self.calls[-1] in self.out:
            raise UnavailableError("the store is out")

    def read(self) -> Head | None:
        self._answer()
        return self.real.read()

    def swap(self, expected: Head | None, new: Head) -> None:
        self._answer()
        self.real.swap(expected, new)


@pytest.mark.parametrize("first", range(3, 8))
def test_an_outage_of_the_checkpoint_store_is_waited_out(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "FIRST_PAUSE_S", 0.0)
    table, store = MemoryTable(), memory_store()
    unsteady = JobStore(store.blobs, Unsteady(store.head, [], range(first, first + 4)))
    assert go(program({"out": table}), unsteady).status == "suspended"
    assert table.rows()["k"].to_list() == [0, 1, 2]


def test_a_job_taken_over_during_an_outage_is_not_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "FIRST_PAUSE_S", 0.0)
    table, store = MemoryTable(), memory_store()
    heads = Unsteady(store.head, [], range(3, 5))

    def take_over() -> None:
        if len(heads.calls) == 5:
            CheckpointStore(store, "job").acquire("another instance")

    job = program({"out": table})
    with pytest.raises(FencedError):
        restarts.run(
            job,
            JobStore(store.blobs, heads),
            EVERY_BATCH,
            RunOptions(until="caught-up"),
            Told(take_over),
            StopSignal(),
        )
    assert store.head.read() is not None
    assert table.committed == []


class Told(SilentObserver):
    """Does something at each event."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action

    def on_event(self, event: object) -> None:
        del event
        self._action()


def test_a_sink_is_told_what_was_decided() -> None:
    seen: list[int | None] = []

    class Noting(MemorySink):
        def open(self, schema: pl.Schema, context: SinkContext):  # type: ignore[no-untyped-def]
            seen.append(context.decided)
            return super().open(schema, context)

    table, store = MemoryTable(), memory_store()
    for count in (2, 4):
        source = ScriptedSource("s", SCHEMA, ticks(count))
        sink = Noting("out", table)
        go(StaticProgram("job", Graph([SourceNode("s", source), SinkNode("out", Stream("s"), sink, "s")])), store)
    assert seen == [None, 2]
