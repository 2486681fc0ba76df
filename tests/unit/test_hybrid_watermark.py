"""The watermark while the lake is read: silent partitions, hidden ones, and those whose records are still to come."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import polars as pl
import pytest

from headrace.kernel import columns as system
from headrace.kernel.boundary import TopicPartition
from headrace.kernel.errors import UnavailableError
from headrace.kernel.protocols import ReadRequest
from headrace.testing.clock import ManualClock
from headrace.testing.script import Script, ScriptedLog, World
from headrace.testing.stages import ScriptedTail, source_of
from hybrid_source.handover_policy import HandoverPolicy
from hybrid_source.hybrid_watermark import TailStartTimes
from hybrid_source.source_values import END_OF_HISTORY, EventTime

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.kernel.protocols import Json
    from hybrid_source.tail_protocols import Begins

SECOND = 1_000_000
IDLE = 3 * SECOND
P0, P1, P2 = (TopicPartition("t", number) for number in range(3))
PAYLOAD = pl.Schema({"ts": pl.Datetime("us")})


def times(*seconds: int) -> pl.DataFrame:
    return pl.DataFrame({"ts": [second * SECOND for second in seconds]}, schema={"ts": pl.Int64()}).cast(PAYLOAD)


def world(script: Script, *partitions: pl.DataFrame, idle_us: int | None = IDLE) -> World:
    rows = {TopicPartition("t", number): frame for number, frame in enumerate(partitions)}
    return World(ScriptedLog(PAYLOAD, rows, EventTime("ts", SECOND, idle_us)), script)


def watermarks(made: World, phases: tuple[str, ...]) -> list[int | None]:
    """The watermark after each batch with rows, in seconds, while the lake is read."""
    reader = source_of(made).open(ReadRequest(["ts", system.ROW_WATERMARK]), None)
    found: list[int | None] = []
    while not reader.finished:
        batch = reader.poll(0)
        lake = made.script.policy.as_live and reader.position.get("lake") is not None
        if batch is not None and batch.records and (reader.position["phase"] in phases or lake):
            assert not batch.maybe_late
            found.append(None if batch.watermark is None else batch.watermark // SECOND)
    return found


LAKE = HandoverPolicy(chase=False, as_live=True)
TEN = times(*range(10, 20))


def lake_read(*others: pl.DataFrame, covered: int = 0, idle_us: int | None = IDLE) -> list[int | None]:
    """The watermarks of a lake read of ten rows, a second each, in two windows a row, beside other partitions."""
    ends = {P0: 10, **dict.fromkeys((P1, P2)[: len(others)], covered)}
    polls = [(number, 1) for number in range(3)]
    script = Script([ends], polls=polls, policy=LAKE, window_rows=1, step_us=SECOND)
    return watermarks(world(script, TEN, *others, idle_us=idle_us), ())


def test_an_empty_partition_holds_a_lake_read_only_until_it_is_idle() -> None:
    found = lake_read(times())
    assert found[:2] == [None, None]
    assert found[-1] == 18
    assert lake_read(times(), idle_us=None) == [None] * 10


def test_a_partition_whose_records_the_topic_has_holds_a_lake_read_at_the_first_of_them() -> None:
    found = lake_read(times(14, 30))
    assert found[-1] == 13  # 14 less the out-of-orderness
    assert found == sorted(found, key=lambda at: -1 if at is None else at)


def test_a_partition_that_has_arrived_holds_where_its_own_rows_have_brought_it() -> None:
    assert lake_read(times(12), covered=1, idle_us=None)[-1] == 11
    assert lake_read(times(12), covered=1)[-1] == 18  # silent, then
    assert lake_read(times(12, 17), covered=1)[-1] == 16


def live_beside(*others: pl.DataFrame, idle_us: int | None) -> list[int | None]:
    """The raw watermarks while the first partition is live and the history of the second is read, row by row."""
    script = Script([{P0: 2, P1: 2}], [[0, 1], [2], [3]], [(0, 5), (1, 5)], policy=HandoverPolicy(), step_us=4 * SECOND)
    made = world(script, *others, idle_us=idle_us)
    reader, found = source_of(made).open(ReadRequest(["ts", system.ROW_WATERMARK]), None), []
    while not reader.finished:
        if (batch := reader.poll(0)) is not None:
            assert batch.rows.filter(pl.col(system.ROW_WATERMARK) < -1).collect().is_empty()
            found.append(batch.watermark)
    return found


def test_a_live_partition_leaves_an_unknown_watermark_unknown_while_another_holds_it() -> None:
    found = live_beside(times(0, 1, 60, 90), times(5, 50), idle_us=None)
    assert found == [None] * len(found)
    assert len(found) > 3


def test_the_end_of_the_history_is_no_time_for_a_topic_that_is_silent() -> None:
    found = live_beside(times(0, 1), times(5, 50), idle_us=IDLE)
    assert found[-1] == 50 * SECOND - 1  # what the last split could hold: nothing later is known


def test_a_topic_without_records_does_not_hold_the_history_once_it_is_idle() -> None:
    script = Script([{P0: 10}], [[number] for number in range(10)], policy=HandoverPolicy(chase=False), step_us=SECOND)
    found = watermarks(world(script, TEN), ("history",))
    assert found[:2] == [None, None]
    assert found[-2] == 18
    assert watermarks(world(script, TEN, idle_us=None), ("history",)) == [None] * 10


@dataclass(frozen=True, slots=True)
class Told(ScriptedTail):
    """A topic that says this of what its partitions begin with."""

    says: Begins | None = None

    def first_event_times(self, position: Json, partitions: Sequence[TopicPartition]) -> Begins:
        if self.says is None:
            raise UnavailableError("the topic does not answer")
        return {at: self.says[at] for at in partitions if at in self.says}


CAPS = [
    ({P0: 5 * SECOND, P1: 3 * SECOND}, 2 * SECOND, 2 * SECOND),
    ({P0: 5 * SECOND, P1: None}, None, 4 * SECOND),
    ({P0: None, P1: None}, None, END_OF_HISTORY),
    ({P0: 5 * SECOND}, None, None),  # what an open transaction hides is no silence
    (None, None, None),
]


@pytest.mark.parametrize(("says", "at_first", "when_idle"), CAPS)
def test_what_is_silent_caps_until_it_is_idle_and_what_is_unknown_always(
    says: Begins | None, at_first: int | None, when_idle: int | None
) -> None:
    clock, made = ManualClock(), world(Script([{}]), times(), times())
    starts = TailStartTimes(Told(made, says=says), made.log.event_time, clock)
    assert starts.cap({}, [P0, P1]) == at_first
    clock.advance(IDLE)
    assert starts.cap({}, [P0, P1]) == when_idle


@pytest.mark.parametrize(("idle_us", "named"), [(None, True), (60 * SECOND, True), (IDLE, False)])
def test_what_is_silent_while_the_lake_is_read_is_named(idle_us: int | None, *, named: bool) -> None:
    clock, made = ManualClock(), world(Script([{}]), times(), times(), idle_us=idle_us)
    starts = TailStartTimes(Told(made, says={P0: None, P1: 3 * SECOND}), made.log.event_time, clock)
    starts.begins({}, [P0, P1])
    assert starts.silent([P0, P1]) == ()
    clock.advance(10 * SECOND)
    assert list(starts.silent([P0, P1])) == ([P0] if named else [])


@pytest.mark.parametrize("until", [None, "caught-up"])
def test_a_reader_says_what_its_watermark_waits_for(until: Literal["caught-up"] | None) -> None:
    made = world(Script([{P0: 10, P1: 0}], polls=[(0, 5)]), times(*range(12)), times(), idle_us=None)
    reader = source_of(made).open(ReadRequest(["ts"], None, until), None)
    while reader.progress()["phase"] != "tail" or not reader.poll(0):
        reader.poll(0)
    assert reader.progress()["silent"] == []
    made.clock.advance(10 * SECOND)
    facts = reader.progress()
    told = [found["message"] for found in facts["warnings"] if found["code"] == "silent"]
    if until is None:
        assert facts["silent"] == [{"topic": "t", "partition": 1}]
        assert len(told) == 1
        assert "waits for t[1]" in told[0]
        assert "event_time.idle" in told[0]
    else:  # its end is a drain, which waits for nothing
        assert (facts["silent"], told) == ([], [])


def test_what_was_silent_and_no_longer_answers_is_not_known() -> None:
    clock, made = ManualClock(), world(Script([{}]), times(), times())
    tail = Told(made, says={P0: None, P1: 3 * SECOND})
    starts = TailStartTimes(tail, made.log.event_time, clock)
    assert starts.begins({}, [P0, P1]) == tail.says
    starts._tail = replace(tail, says=None)
    clock.advance(2 * SECOND)
    assert starts.begins({}, [P0, P1]) == {P1: 3 * SECOND}
