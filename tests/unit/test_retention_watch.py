"""The watch on retention: what threatens is said once."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import polars as pl
import pytest

from headrace.kernel.boundary import TopicPartition
from headrace.kernel.errors import GapError, UnavailableError
from headrace.kernel.protocols import Json, ReadRequest
from headrace.runtime.dataflow import Counters
from headrace.runtime.observer import Event, Level, Phase, SilentObserver
from headrace.runtime.progress import Meter
from headrace.testing import ManualClock
from headrace.testing.script import Script, ScriptedLog
from headrace.testing.stages import scripted_source
from hybrid_source.handover_policy import HandoverPolicy
from hybrid_source.hybrid_reader import HybridReader
from hybrid_source.retention_watch import EVERY_S, RetentionWatch
from hybrid_source.source_values import EventTime
from hybrid_source.tail_protocols import Expiry

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
PERIOD_US = int(EVERY_S * 1e6)


class Tail:
    """Estimates as a script."""

    def __init__(self) -> None:
        self.found: Sequence[Expiry] = ()
        self.asked = 0
        self.answers = True

    def expiries(self, position: Json) -> Sequence[Expiry]:
        self.asked += 1
        if not self.answers:
            raise UnavailableError("no broker answers")
        return self.found


def test_a_partition_is_named_while_the_history_may_outlast_it_in_the_same_words() -> None:
    tail, clock = Tail(), ManualClock()
    watch = RetentionWatch(tail, clock)  # type: ignore[arg-type]

    def look(seconds: float | None, history_s: float | None) -> list[str]:
        clock.advance(PERIOD_US)
        tail.found = [Expiry(P0, 5, 0, seconds), Expiry(P1, 5, 0, None)]
        assert watch.look({}, history_s)
        return [found["message"] for found in watch.facts()["warnings"]]

    assert look(1000, 100) == []
    (first,) = look(120, 100)
    assert first.startswith("retention may delete t[0] from offset 5 on in 2m, and the history takes about 1m40s")
    assert look(110, 100) == [first]
    assert look(1000, 100) == []
    assert len(look(0, 100)) == 1
    assert look(1000, None) == []
    assert len(look(800, None)) == 1
    assert look(None, 10**9) == []
    assert not watch.passed
    assert watch.facts()["retention"] == [
        {"topic": "t", "partition": partition, "next": 5, "log_start": 0, "seconds": None} for partition in (0, 1)
    ]
    tail.found = [Expiry(P0, 5, 9, 0.0)]
    clock.advance(PERIOD_US)
    watch.look({}, None)
    assert watch.passed
    assert watch.facts()["warnings"] == [
        {"code": "retention", "message": "retention has deleted t[0] up to offset 9; wanted is 5"}
    ]


def test_it_looks_once_a_minute() -> None:
    tail, clock = Tail(), ManualClock()
    watch = RetentionWatch(tail, clock)  # type: ignore[arg-type]
    looks = []
    for _ in range(13):
        looks.append(watch.look({}, None))
        clock.advance(PERIOD_US // 6 + 1)
    assert [index for index, looked in enumerate(looks) if looked] == [6, 12]
    assert tail.asked == 2


def test_a_topic_that_does_not_answer_is_asked_again_a_minute_later() -> None:
    tail, clock = Tail(), ManualClock()
    watch = RetentionWatch(tail, clock)  # type: ignore[arg-type]
    tail.found, tail.answers = [Expiry(P0, 5, 9, 0.0)], False
    clock.advance(PERIOD_US)
    assert not watch.look({}, None)
    assert not watch.look({}, None)
    assert (tail.asked, watch.passed) == (1, False)
    tail.answers = True
    clock.advance(PERIOD_US)
    assert watch.look({}, None)
    assert watch.passed


def reader_that_looks_at_every_poll(policy: HandoverPolicy) -> tuple[HybridReader, ManualClock]:
    """Two splits of a history of four records; after the first one the topic loses what the tail begins with."""
    payload, clock = pl.Schema({"v": pl.Int64()}), ManualClock()
    log = ScriptedLog(payload, {P0: pl.DataFrame({"v": range(8)}, schema=payload)}, EventTime("v"))
    script = Script([{P0: 4}], [[0, 1], [2, 3]], truncations=[(1, {P0: 6})], policy=policy)
    source = replace(scripted_source(log, script), clock=clock, event_time=None)
    return source.open(ReadRequest(), None), clock


def test_hyb_04_what_is_lost_while_the_history_is_read_ends_it_at_once() -> None:
    reader, clock = reader_that_looks_at_every_poll(HandoverPolicy(chase=False, on_truncation=False))
    assert reader.poll(0) is not None
    assert reader.progress()["warnings"] == []
    clock.advance(PERIOD_US)
    with pytest.raises(GapError, match="wanted offset 4 is gone"):
        reader.poll(0)
    assert reader.position["phase"] == "history"
    assert [found["message"] for found in reader.progress()["warnings"]] == [
        "retention has deleted t[0] up to offset 6; wanted is 4"
    ]


def test_where_a_newer_version_may_have_it_the_history_is_read_on() -> None:
    reader, clock = reader_that_looks_at_every_poll(HandoverPolicy(per_partition=False))
    reader.poll(0)
    clock.advance(PERIOD_US)
    assert reader.poll(0) is not None
    assert reader.progress()["retention"][0]["log_start"] == 6
    with pytest.raises(GapError):
        reader.poll(0)


def test_what_threatens_is_told_once_as_an_event() -> None:
    events: list[Event] = []

    class Told(SilentObserver):
        def on_event(self, event: Event) -> None:
            events.append(event)

    warnings = [{"code": "retention", "message": "soon"}]
    pump = SimpleNamespace(progress={"phase": "history", "warnings": warnings})
    flow = SimpleNamespace(counters=Counters(), state_rows=lambda: 0)
    meter = Meter()

    def report() -> None:
        meter.report(Told(), {"s": pump}, flow, 1, {}, ManualClock(), Phase.HISTORY)  # type: ignore[arg-type, dict-item]

    for _ in range(3):
        report()
    warnings.clear()
    report()
    warnings.append({"code": "retention", "message": "soon"})
    report()
    assert events == [Event(Level.WARNING, "retention", "soon", {"source": "s"})] * 2
