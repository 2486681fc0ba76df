"""The epoch engine on scripted parts: every crash point, failures, fencing; nothing lost, nothing doubled."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import polars as pl
import pytest

from headrace.kernel.errors import FencedError, HeadraceError, UnavailableError
from headrace.kernel.protocols import Determinism
from headrace.runtime.graph import Graph, SinkNode, SourceNode, Stream, TransformNode
from headrace.runtime.job import CheckpointPolicy, RunOptions
from headrace.runtime.observer import SilentObserver, StopSignal
from headrace.runtime.restarts import run
from headrace.state.checkpoint import CheckpointStore
from headrace.state.stores import JobStore
from headrace.testing import (
    CRASH_POINTS,
    MemorySink,
    MemoryTable,
    ScriptedSource,
    SimulatedCrashError,
    StaticProgram,
    Tick,
    crash_at,
    memory_store,
)

SCHEMA = pl.Schema({"k": pl.Int64(), "v": pl.String()})
EVERY_BATCH = CheckpointPolicy(interval_us=0, timeout_s=30)
ONE_EPOCH = CheckpointPolicy(interval_us=10**12, timeout_s=30)
CAUGHT_UP = RunOptions(until="caught-up")


@dataclass(frozen=True, slots=True)
class Keep:
    id: str = "keep"
    determinism: Determinism = Determinism.EXACT

    def apply(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        return rows.filter(pl.col("k") >= 0)


@dataclass(frozen=True, slots=True)
class Disturbed:
    """A scripted source in which something happens, once, before one of the ticks."""

    script: list[Tick]
    at: int
    disturb: Callable[[], None]
    name: str = "s"
    schema: pl.Schema = field(default_factory=lambda: SCHEMA)

    def begin(self):
        return ScriptedSource(self.name, self.schema, self.script).begin()

    def open(self, request, position):
        reader = ScriptedSource(self.name, self.schema, self.script).open(request, position)
        poll = reader.poll

        def disturbed(timeout):
            if reader.position["next"] == self.at:
                self.disturb()
            return poll(timeout)

        reader.poll = disturbed
        return reader


def ticks(count, rows=3):
    return [
        Tick(pl.DataFrame({"k": range(i * rows, (i + 1) * rows), "v": [f"r{i}"] * rows}, schema=SCHEMA))
        for i in range(count)
    ]


def program(source, *tables):
    if isinstance(source, list):
        source = ScriptedSource("s", SCHEMA, source)
    sinks = [
        SinkNode(f"sink-{i}", Stream("keep"), MemorySink(f"sink-{i}", table, commit_order=i), covers="s")
        for i, table in enumerate(tables)
    ]
    return StaticProgram("job", Graph([SourceNode("s", source), TransformNode("keep", Stream("s"), Keep()), *sinks]))


def go(prog, store, policy=EVERY_BATCH, stop=None):
    return run(prog, store, policy, CAUGHT_UP, SilentObserver(), stop or StopSignal())


def once(action):
    done = []

    def act():
        if not done:
            done.append(True)
            action()

    return act


@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize("point", [point for point in CRASH_POINTS if not point.startswith(("iceberg", "kafka"))])
def test_crash_at_each_point_of_the_epoch_loses_and_doubles_nothing(point, nth):
    tables = [MemoryTable(), MemoryTable()]
    prog = program(ticks(5), *tables)
    store = memory_store()
    with crash_at(point, nth), pytest.raises(SimulatedCrashError):
        go(prog, store)
    assert go(prog, store).status == "suspended"
    for table in tables:
        assert table.rows()["k"].to_list() == list(range(15))


def test_later_run_reads_nothing_twice():
    table = MemoryTable()
    store = memory_store()
    go(program(ticks(3), table), store)
    assert go(program(ticks(5), table), store).records == 6
    assert table.rows()["k"].to_list() == list(range(15))


def test_run_without_new_rows_commits_nothing():
    table = MemoryTable()
    store = memory_store()
    go(program(ticks(3), table), store)
    before = store.head.read().record
    go(program(ticks(3), table), store)
    assert store.head.read().record == before


def test_failure_that_a_retry_helps_is_recovered_within_the_run():
    def fail():
        raise UnavailableError("gone for a moment")

    table = MemoryTable()
    result = go(program(Disturbed(ticks(4), 2, once(fail)), table), memory_store())
    assert result.restarts == 1
    assert table.rows()["k"].to_list() == list(range(12))


def test_failure_that_no_retry_helps_ends_the_run_with_nothing_half_committed():
    table = MemoryTable()
    script = [*ticks(2), Tick(pl.DataFrame(schema=SCHEMA), fail=HeadraceError("broken"))]
    with pytest.raises(HeadraceError, match="broken"):
        go(program(script, table), memory_store(), ONE_EPOCH)
    assert table.committed == []


def test_instance_that_lost_the_head_stops_as_fenced_and_commits_nothing():
    table = MemoryTable()
    store = memory_store()
    take_over = once(lambda: CheckpointStore(store, "job").acquire("another instance"))
    with pytest.raises(FencedError):
        go(program(Disturbed(ticks(4), 2, take_over), table), store, ONE_EPOCH)
    assert table.committed == []


def test_failed_instance_does_not_take_the_job_back_from_its_successor():
    table = MemoryTable()
    store = memory_store()

    def taken_then_fail():
        CheckpointStore(store, "job").acquire("another instance")
        raise UnavailableError("gone for a moment")

    with pytest.raises(FencedError):
        go(program(Disturbed(ticks(4), 2, once(taken_then_fail)), table), store, ONE_EPOCH)
    assert store.head.read().owner == "another instance"


class Hanging:
    """A blob store whose ``nth`` put of a record hangs until it is let go."""

    def __init__(self, blobs, nth):
        self._blobs = blobs
        self._left = nth
        self.let_go = threading.Event()
        self.went_on = threading.Event()

    def put(self, name, data):
        if name.endswith("record.json"):
            self._left -= 1
            if self._left == 0:
                self.let_go.wait(60)
                self.went_on.set()
        self._blobs.put(name, data)

    def __getattr__(self, name):
        return getattr(self._blobs, name)


def test_checkpoint_that_hangs_fails_its_epoch_and_cannot_decide_later():
    table = MemoryTable()
    memory = memory_store()
    hanging = Hanging(memory.blobs, nth=3)
    store = JobStore(hanging, memory.head)
    result = go(program(ticks(5), table), store, CheckpointPolicy(interval_us=0, timeout_s=0.5))
    assert result.restarts == 1
    assert table.rows()["k"].to_list() == list(range(15))
    decided = memory.head.read()
    hanging.let_go.set()
    assert hanging.went_on.wait(30)
    assert go(program(ticks(5), table), store).records == 0
    assert memory.head.read().record == decided.record


def test_job_fails_after_the_tolerated_number_of_failed_epochs():
    def fail():
        raise UnavailableError("gone for good")

    table = MemoryTable()
    policy = CheckpointPolicy(interval_us=0, timeout_s=30, tolerated_failures=1)
    with pytest.raises(UnavailableError, match="gone for good"):
        go(program(Disturbed(ticks(4), 2, fail), table), memory_store(), policy)
    assert table.rows()["k"].to_list() == list(range(6))


def test_stop_ends_at_an_epoch_and_the_next_run_goes_on():
    table = MemoryTable()
    store = memory_store()
    stop = StopSignal()
    go(program(Disturbed(ticks(6), 3, stop.set), table), store, ONE_EPOCH, stop)
    assert table.rows().height <= 12
    go(program(ticks(6), table), store)
    assert table.rows()["k"].to_list() == list(range(18))
