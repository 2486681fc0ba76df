"""Bounded reads of the tail end where they should: markers, aborted tails, open transactions, idle partitions."""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime
from typing import Any

import pytest

from headrace.kernel.boundary import TopicPartition
from headrace.kernel.errors import UnavailableError
from headrace.kernel.protocols import ReadRequest
from headrace.kernel.until import Until
from headrace.testing import ManualClock
from hybrid_source.source_values import EventTime
from infra.dev.process import wait_until
from tests.kafka import KafkaHelper
from tests.tail import (
    CAUGHT_UP,
    KEPT,
    LIMIT_S,
    MINUTE,
    at,
    events,
    opened,
    read_bounded,
    read_until,
    tail_of,
    values,
)

pytestmark = pytest.mark.services


T_MS = int(time.time() * 1000) + 86_400_000
ENDS = ["caught-up", datetime.fromtimestamp(T_MS / 1000, UTC)]
"""Both ways to bound a read. The time is to come, as markers have the broker's time and are to be older, too."""
AHEAD = {**KEPT, "message.timestamp.after.max.ms": str(2**63 - 1)}
"""Topics that take records of a day ahead; a shorter time could pass while other tests run."""
BEFORE: dict[str, Any] = {"timestamp_ms": T_MS - 1}
AFTER: dict[str, Any] = {"timestamp_ms": T_MS}

both_ends = pytest.mark.parametrize("until", ENDS, ids=["caught-up", "time"])


def test_hyb_01_a_bounded_read_ends_behind_an_aborted_transaction(kafka: KafkaHelper) -> None:
    topic = kafka.topic()
    with kafka.transaction() as transaction:
        transaction.produce(topic, values(1, 2))
        transaction.commit()
    with kafka.transaction() as transaction:
        transaction.produce(topic, values(7, 8, 9))
    kafka.settle(topic, 7)
    read = read_bounded(tail_of(kafka, topic))
    assert read.column() == [1, 2]
    assert read.nexts == {"0": 7}
    again = tail_of(kafka, topic)
    reader = opened(again, CAUGHT_UP, read.batches[-1].position)
    assert reader.finished
    reader.close()


@both_ends
def test_hyb_01_a_bounded_read_ends_at_a_transaction_marker(kafka: KafkaHelper, until: Until) -> None:
    """What follows the end makes no end-of-partition event there, and its first record is beyond the end."""
    topic = kafka.topic(config=AHEAD)
    with kafka.transaction() as transaction:
        transaction.produce(topic, values(1, 2), **BEFORE)
        transaction.commit()
    kafka.settle(topic, 3)
    tail = tail_of(kafka, topic)
    if until == "caught-up":
        reader = opened(tail, ReadRequest(until=until), tail.start(None))
        kafka.produce(topic, values(*range(10)), **AFTER)
    else:
        kafka.produce(topic, values(*range(10)), **AFTER)
        reader = opened(tail, ReadRequest(until=until), tail.start(None))
    read = read_until(reader, lambda _: reader.finished)
    reader.close()
    assert read.column() == [1, 2]
    assert read.nexts == {"0": 3}


@both_ends
def test_hyb_01_an_aborted_tail_and_idle_partitions_hold_nothing_up(kafka: KafkaHelper, until: Until) -> None:
    topic = kafka.topic(4, config=AHEAD)
    kafka.produce(topic, values(1, 2), **BEFORE)
    kafka.produce(topic, values(3), partition=1, **BEFORE)
    with kafka.transaction() as transaction:
        transaction.produce(topic, values(7, 8), **BEFORE)
        transaction.produce(topic, values(9), partition=2, **BEFORE)
    kafka.settle(topic, 5)
    kafka.settle(topic, 2, partition=2)
    read = read_bounded(tail_of(kafka, topic), request=ReadRequest(until=until))
    assert sorted(read.column()) == [1, 2, 3]
    assert read.nexts == {"0": 5, "1": 1, "2": 2, "3": 0}


@both_ends
@pytest.mark.parametrize("ended", ["aborted", "committed"])
def test_hyb_02_what_stands_above_an_open_transaction_is_waited_for(
    kafka: KafkaHelper, until: Until, ended: str
) -> None:
    topic = kafka.topic(config=AHEAD)
    hanging = kafka.begin()
    hanging.produce(topic, values(0), **BEFORE)
    with kafka.transaction() as transaction:
        transaction.produce(topic, values(1, 2), **BEFORE)
        transaction.commit()
    if until != "caught-up":
        kafka.produce(topic, values(5), **AFTER)
    tail = tail_of(kafka, topic)
    reader = opened(tail, ReadRequest(until=until), tail.start(None))
    for _ in range(3):
        assert reader.poll(0.1) is None
        assert not reader.finished
    hanging.abort() if ended == "aborted" else hanging.commit()
    read = read_until(reader, lambda _: reader.finished)
    reader.close()
    assert read.column() == ([1, 2] if ended == "aborted" else [0, 1, 2])
    assert read.nexts == {"0": 4}


def test_hyb_02_a_transaction_that_is_open_beyond_the_end_is_not_waited_for(kafka: KafkaHelper) -> None:
    topic = kafka.topic(config=AHEAD)
    kafka.produce(topic, values(1, 2), **BEFORE)
    with kafka.transaction() as hanging:
        hanging.produce(topic, values(3), **AFTER)
        read = read_bounded(tail_of(kafka, topic), request=ReadRequest(until=ENDS[1]))
        assert read.column() == [1, 2]
        assert read.nexts == {"0": 2}


@both_ends
def test_hyb_01_compacted_holes_hold_nothing_up_and_are_no_gap(kafka: KafkaHelper, until: Until) -> None:
    config = {**AHEAD, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "3600000"}
    topic, hour = kafka.topic(config=config), 3_600_000
    for number in range(10):
        kafka.produce(topic, values(number), key=b"k%d" % (number % 2), timestamp_ms=T_MS - 9 * hour)
    for number, back in ((10, 4), (11, 2), (12, 0)):  # each begins a segment; the ones before can be compacted
        kafka.produce(topic, values(number), key=b"n%d" % number, timestamp_ms=T_MS - back * hour)
    assert wait_until(lambda: len(kafka.drain(topic)) == 5, LIMIT_S)
    last = [12] if until == "caught-up" else []
    tail = tail_of(kafka, topic, compacted=True)
    assert tail.offsets(tail.start(None)) == {TopicPartition(topic, 0): 0}
    for start in (0, 3, 8):
        read = read_bounded(tail, at(topic, p0=start), ReadRequest(until=until))
        assert read.column() == [8, 9, 10, 11, *last]
        assert read.nexts == {"0": 12 + len(last)}
        assert "lost" not in read.batches[-1].position


def test_a_time_ends_each_partition_at_its_first_record_then(kafka: KafkaHelper) -> None:
    topic = kafka.topic(3, config=AHEAD)
    kafka.produce(topic, values(1), **BEFORE)
    kafka.produce(topic, values(2, 3), **AFTER)
    kafka.produce(topic, values(4), **BEFORE)  # out of order, behind the end
    kafka.produce(topic, values(5), partition=1, **AFTER)
    kafka.produce(topic, values(6), partition=2, **BEFORE)
    tail = tail_of(kafka, topic)
    read = read_bounded(tail, request=ReadRequest(until=ENDS[1]))
    assert sorted(read.column()) == [1, 6]
    assert read.nexts == {"0": 1, "1": 0, "2": 1}
    beyond = opened(tail, ReadRequest(until=ENDS[1]), at(topic, p0=3, p1=0, p2=1))
    assert beyond.finished
    beyond.close()


def test_a_bounded_read_leaves_what_comes_after_its_end(kafka: KafkaHelper) -> None:
    topic = kafka.topic(2)
    kafka.produce(topic, values(1, 2))
    tail = tail_of(kafka, topic)
    reader = opened(tail, CAUGHT_UP, tail.start(None))
    kafka.produce(topic, values(3, 4))
    kafka.produce(topic, values(5), partition=1)
    read = read_until(reader, lambda _: reader.finished)
    reader.close()
    assert read.column() == [1, 2]
    assert read.nexts == {"0": 2, "1": 0}
    assert read_bounded(tail, read.batches[-1].position).column("v").__len__() == 3


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_partition_whose_log_goes_on_behind_the_end_of_a_read_is_not_silent(
    kafka: KafkaHelper, *, goes_on: bool
) -> None:
    topic, clock = kafka.topic(2), ManualClock()
    kafka.produce(topic, events(10))
    kafka.produce(topic, events(30), partition=1)
    tail = tail_of(kafka, topic, clock=clock, event_time=EventTime("t", idle_us=1_000_000))
    ends = {TopicPartition(topic, 0): 1, TopicPartition(topic, 1): 2}
    reader = tail.open(ReadRequest(columns=["v"]), tail.start(None), None, ends=ends)
    read_until(reader, lambda read: sum(batch.records for batch in read.batches) == 2)
    if goes_on:
        kafka.produce(topic, events(11))
    clock.advance(5_000_000)
    kafka.produce(topic, events(31), partition=1)
    read = read_until(reader, lambda _: reader.finished)
    assert read.batches[-1].watermark == (10 if goes_on else 31) * MINUTE
    reader.close()


def test_an_empty_topic_is_finished_at_once(kafka: KafkaHelper) -> None:
    tail = tail_of(kafka, kafka.topic(3))
    reader = opened(tail, CAUGHT_UP, tail.start(None))
    assert reader.finished
    reader.close()


def test_hyb_02_a_bounded_read_waits_for_an_open_transaction(
    kafka: KafkaHelper, caplog: pytest.LogCaptureFixture
) -> None:
    topic, clock = kafka.topic(), ManualClock()
    hanging = kafka.begin()
    hanging.produce(topic, values(0))
    with kafka.transaction() as transaction:
        transaction.produce(topic, values(1, 2))
        transaction.commit()
    tail = tail_of(kafka, topic, clock=clock)
    reader = opened(tail, CAUGHT_UP, tail.start(None))
    for _ in range(5):
        assert reader.poll(0.1) is None
        assert not reader.finished
    clock.advance(11_000_000)
    with caplog.at_level(logging.WARNING):
        reader.poll(0.1)
    assert f"topic '{topic}' partition 0" in caplog.text
    assert "last stable offset 0, wanted end 4" in caplog.text
    hanging.abort()
    read = read_until(reader, lambda _: reader.finished)
    reader.close()
    assert read.column() == [1, 2]
    assert read.nexts == {"0": 4}


def test_hyb_02_the_wait_has_a_limit(kafka: KafkaHelper) -> None:
    topic, clock = kafka.topic(), ManualClock()
    with kafka.transaction() as hanging:
        hanging.produce(topic, values(0))
        tail = tail_of(kafka, topic, clock=clock, transaction_wait_s=60)
        reader = opened(tail, CAUGHT_UP, tail.start(None))
        for _ in range(5):
            reader.poll(0.1)
        clock.advance(61_000_000)
        with pytest.raises(UnavailableError, match=rf"{topic}.*partition 0.*open transaction") as raised:
            reader.poll(0.1)
        assert raised.value.context == {"topic": topic, "partition": 0, "wanted": 1, "available": 0}
        reader.close()
