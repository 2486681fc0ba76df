"""History splits that are read ahead: their order, how many at once, errors in their place, and who passes whom."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import polars as pl
import pytest

from headrace.kernel import columns as system
from headrace.kernel.boundary import TopicPartition
from headrace.kernel.protocols import ReadRequest
from headrace.testing.script import Script, ScriptedLog
from headrace.testing.stages import scripted_source
from hybrid_source.read_ahead import ReadAhead
from hybrid_source.source_values import EventTime

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LONG_S = 30.0
P0, P1 = TopicPartition("bids", 0), TopicPartition("bids", 1)


@dataclass(frozen=True, slots=True)
class Part:
    number: int
    files: Sequence[str] = ()

    @property
    def rows(self) -> pl.LazyFrame:
        return pl.LazyFrame({"number": [self.number]})


def of(rows: pl.LazyFrame) -> int:
    return int(rows.collect().item())


def parts(count: int) -> Iterator[Part]:
    return (Part(number) for number in range(count))


def numbers(ahead: ReadAhead[Part]) -> list[int]:
    found = []
    while (taken := ahead.take()) is not None:
        found.append(taken.split.number)
    ahead.close()
    return found


@pytest.mark.parametrize("concurrency", [1, 2, 5])
def test_splits_come_in_their_order_whichever_is_computed_first(concurrency: int) -> None:
    later = threading.Event()

    def compute(rows: pl.LazyFrame, _: Sequence[str]) -> int:
        # The first one is computed last, where two can be at once.
        number = of(rows)
        if number == 0 and concurrency > 1:
            assert later.wait(LONG_S)
        elif number == 1:
            later.set()
        return number * 10

    ahead = ReadAhead(parts(9), compute, concurrency)
    taken = [ahead.take() for _ in range(9)]
    assert [(one.split.number, one.computed) for one in taken if one is not None] == [(n, n * 10) for n in range(9)]
    assert ahead.take() is None
    assert ahead.take() is None
    ahead.close()


def test_so_many_are_computed_at_once_and_no_more() -> None:
    together, begun = threading.Barrier(3), []

    def compute(rows: pl.LazyFrame, _: Sequence[str]) -> None:
        number = of(rows)
        begun.append(number)
        if number < 3:
            together.wait(LONG_S)

    ahead = ReadAhead(parts(9), compute, 3)
    assert ahead.ready(LONG_S)
    assert sorted(begun) == [0, 1, 2]  # what has been computed and not been taken counts
    assert numbers(ahead) == list(range(9))


def test_an_error_is_raised_in_its_place() -> None:
    def compute(rows: pl.LazyFrame, _: Sequence[str]) -> None:
        if of(rows) == 2:
            raise ZeroDivisionError

    ahead = ReadAhead(parts(5), compute, 4)
    for _ in range(2):
        assert ahead.take() is not None
    with pytest.raises(ZeroDivisionError):
        ahead.take()
    ahead.close()


def test_an_error_of_planning_ends_the_splits() -> None:
    def planned() -> Iterator[Part]:
        yield Part(0)
        raise FileNotFoundError

    ahead = ReadAhead(planned(), lambda *_: None, 2)
    assert ahead.take() is not None
    with pytest.raises(FileNotFoundError):
        ahead.take()
    assert ahead.take() is None
    ahead.close()


def test_a_scan_that_hangs_does_not_hold_up_the_end(caplog: pytest.LogCaptureFixture) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def compute(rows: pl.LazyFrame, _: Sequence[str]) -> int:
        begun.set()
        assert goes_on.wait(LONG_S)
        return of(rows)

    ahead = ReadAhead(parts(3), compute, 1, close_s=0.01)
    assert begun.wait(LONG_S)
    ahead.close()
    assert "1 splits of the history are still being read" in caplog.text
    goes_on.set()


def test_nothing_is_planned_ahead_without_somebody_who_computes() -> None:
    planned: list[int] = []

    def plan() -> Iterator[Part]:
        for number in range(3):
            planned.append(number)
            yield Part(number)

    ahead = ReadAhead(plan())
    assert ahead.ready(0)
    assert planned == []
    assert numbers(ahead) == [0, 1, 2]


def test_live_partitions_pass_a_split_that_is_still_being_read() -> None:
    rows = {
        P0: pl.DataFrame({"v": range(4)}, schema={"v": pl.Int64()}),
        P1: pl.DataFrame({"v": range(100, 140)}, schema={"v": pl.Int64()}),
    }
    log = ScriptedLog(pl.Schema({"v": pl.Int64()}), rows, EventTime("v"))
    # Partition 0 has its history in the first split and goes live; the second split, of partition 1, hangs.
    script = Script([{P0: 2, P1: 10}], splits=[[0, 1]], polls=[(0, 1), (1, 7)])
    go_on, seen = threading.Event(), []

    def compute(rows: pl.LazyFrame, *_: object, **__: object) -> pl.DataFrame:
        frame = rows.collect()
        if 100 in frame["v"]:
            assert go_on.wait(LONG_S)
        return frame

    source = replace(scripted_source(log, script), concurrency=2)
    reader = source.open(ReadRequest(["v", system.PARTITION, system.OFFSET], None, "caught-up", compute), None)
    while not reader.finished:
        batch = reader.poll(1)
        if batch is None:
            continue
        frame = batch.computed if isinstance(batch.computed, pl.DataFrame) else batch.rows.collect()
        seen += frame["v"].to_list()
        if {0, 1, 2, 3} == set(seen):
            # All of partition 0 is there, from the topic too, and the position names nothing of the hanging split.
            assert reader.progress()["history_fraction"] == 0.5
            go_on.set()
    assert sorted(seen) == [0, 1, 2, 3, *range(100, 140)]
    reader.close()
