"""What may go wrong beside the epochs: observers, tidying up, stops while a job recovers, takeovers in between."""

from __future__ import annotations

import logging
from collections.abc import Callable

import polars as pl
import pytest

from headrace.kernel.errors import FencedError, UnavailableError
from headrace.kernel.protocols import BlobStore, Head, HeadStore
from headrace.runtime import restarts
from headrace.runtime.graph import Graph, SinkNode, SourceNode, Stream
from headrace.runtime.job import CheckpointPolicy, RunOptions, RunResult
from headrace.runtime.observer import EpochReport, Event, Level, Observer, Progress, SilentObserver, StopSignal
from headrace.state.checkpoint import CheckpointStore
from headrace.state.stores import JobStore
from headrace.testing import MemorySink, MemoryTable, ScriptedSource, StaticProgram, Tick, memory_store

SCHEMA = pl.Schema({"k": pl.Int64()})
EVERY_BATCH = CheckpointPolicy(interval_us=0, retain=1, timeout_s=30)


class Events(SilentObserver):
    """Notes events, and does something at each."""

    def __init__(self, action: Callable[[Event], None] = lambda event: None) -> None:
        self.seen: list[Event] = []
        self._action = action

    def on_event(self, event: Event) -> None:
        self.seen.append(event)
        self._action(event)

    def coded(self, code: str) -> list[Event]:
        return [event for event in self.seen if event.code == code]


def program(table: MemoryTable, ticks: int = 4, fail_at: int | None = None) -> StaticProgram:
    script = [Tick(pl.DataFrame({"k": [number]}, schema=SCHEMA)) for number in range(ticks)]
    if fail_at is not None:
        script.insert(fail_at, Tick(pl.DataFrame(schema=SCHEMA), fail=UnavailableError("the broker is out")))
    sink = SinkNode("out", Stream("s"), MemorySink("out", table), "s")
    return StaticProgram("job", Graph([SourceNode("s", ScriptedSource("s", SCHEMA, script)), sink]))


def go(
    job: StaticProgram, store: JobStore, observer: Observer | None = None, stop: StopSignal | None = None
) -> RunResult:
    options = RunOptions(until="caught-up")
    return restarts.run(job, store, EVERY_BATCH, options, observer or SilentObserver(), stop or StopSignal())


class Last(SilentObserver):
    """Keeps what it was told last."""

    def on_progress(self, progress: Progress) -> None:
        self.progress = progress


def test_a_finished_run_says_how_far_it_has_come_however_short_it_was() -> None:
    last = Last()
    go(program(MemoryTable(), ticks=4), memory_store(), last)
    assert [(lag.next, lag.end) for lag in last.progress.lag] == [(4, 4)]


class Broken:
    """Fails whenever it is told something."""

    def on_progress(self, progress: Progress) -> None:
        raise OSError("no space left for progress")

    def on_epoch(self, report: EpochReport) -> None:
        raise ValueError(f"cannot show epoch {report.epoch}")

    def on_event(self, event: Event) -> None:
        raise UnavailableError(f"cannot tell of {event.code}")


def test_an_observer_that_fails_is_logged_and_ends_no_run(caplog: pytest.LogCaptureFixture) -> None:
    table, store = MemoryTable(), memory_store()
    with caplog.at_level(logging.WARNING):
        assert go(program(table), store, Broken()).restarts == 0
        assert go(program(table, 5), store, Broken()).status == "suspended"
    assert table.rows()["k"].to_list() == [0, 1, 2, 3, 4]
    for text in ("no space left for progress", "cannot show epoch 1", "cannot tell of recovered"):
        assert text in caplog.text


class StuckBlobs:
    """Blobs that cannot be deleted, the first ``times``."""

    def __init__(self, real: BlobStore, times: int) -> None:
        self._real = real
        self._left = times

    def delete(self, name: str) -> None:
        self._left -= 1
        if self._left >= 0:
            raise UnavailableError(f"{name} cannot be deleted")
        self._real.delete(name)

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)


def test_a_failure_to_tidy_up_is_a_warning_and_is_made_good_later() -> None:
    table, memory, events = MemoryTable(), memory_store(), Events()
    store = JobStore(StuckBlobs(memory.blobs, 2), memory.head)  # type: ignore[arg-type]
    result = go(program(table), store, events)
    assert (result.restarts, result.epoch) == (0, 4)
    assert table.rows()["k"].to_list() == [0, 1, 2, 3]
    warned = events.coded("retire-failed")
    assert [(event.level, event.context["epoch"]) for event in warned] == [(Level.WARNING, 1), (Level.WARNING, 2)]
    assert "cannot be deleted" in warned[0].message
    records = [name for name in memory.blobs.list("epochs/") if name.endswith("record.json")]
    assert len(records) == 1


def test_a_stop_during_the_back_off_is_a_clean_suspend() -> None:
    table, store, stop = MemoryTable(), memory_store(), StopSignal()
    events = Events(lambda event: stop.set() if event.code == "restart" else None)
    result = go(program(table, fail_at=2), store, events, stop)
    assert (result.status, result.epoch, result.restarts) == ("suspended", 2, 0)
    (logged,) = events.coded("stopped-after-failure")
    assert (logged.level, logged.context["code"]) == (Level.WARNING, "UNAVAILABLE")
    assert "the broker is out" in logged.message
    go(program(table), store)
    assert table.rows()["k"].to_list() == [0, 1, 2, 3]


def test_a_stop_whose_last_checkpoint_fails_is_a_clean_suspend_at_the_one_before() -> None:
    table, memory, stop, events = MemoryTable(), memory_store(), StopSignal(), Events()

    def fail() -> None:
        stop.set()
        raise UnavailableError("the store is out")

    result = go(program(table), JobStore(memory.blobs, Heads(memory.head, {4: fail})), events, stop)
    assert (result.status, result.epoch) == ("suspended", 1)
    assert [event.code for event in events.seen] == ["stopped-after-failure"]
    go(program(table), memory)
    assert table.rows()["k"].to_list() == [0, 1, 2, 3]


class Heads:
    """A head store in which something happens before the calls whose numbers are given, from 0 on."""

    def __init__(self, real: HeadStore, before: dict[int, Callable[[], object]]) -> None:
        self._real = real
        self._before = before
        self.calls = 0

    def _tell(self) -> None:
        action = self._before.get(self.calls)
        self.calls += 1
        if action is not None:
            action()

    def read(self) -> Head | None:
        self._tell()
        return self._real.read()

    def swap(self, expected: Head | None, new: Head) -> None:
        self._tell()
        self._real.swap(expected, new)


FAILED_SWAP = 4


@pytest.mark.parametrize("call", range(FAILED_SWAP + 1, FAILED_SWAP + 6))
def test_a_restart_takes_nothing_back_wherever_a_successor_takes_over(
    call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restarts, "FIRST_PAUSE_S", 0.0)
    table, memory = MemoryTable(), memory_store()

    def fail() -> None:
        raise UnavailableError("the store is out")

    def take_over() -> None:
        CheckpointStore(memory, "job").acquire("successor")

    heads = Heads(memory.head, {FAILED_SWAP: fail, call: take_over})
    with pytest.raises(FencedError):
        go(program(table), JobStore(memory.blobs, heads))
    assert heads.calls > call
    head = memory.head.read()
    assert head is not None
    assert head.owner == "successor"
    go(program(table), memory)
    assert table.rows()["k"].to_list() == [0, 1, 2, 3]
