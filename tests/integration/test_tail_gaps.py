"""Offsets that are gone, and topics that are not the ones that were recorded."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.kernel.boundary import Boundary, PartitionRange, TopicBoundary, TopicPartition
from headrace.kernel.errors import GapError, IdentityError, NotFoundError
from headrace.kernel.protocols import ReadRequest
from headrace.testing import ManualClock
from hybrid_source.source_values import EventTime
from tests.kafka import KafkaHelper
from tests.tail import (
    MINUTE,
    at,
    events,
    read_bounded,
    read_until,
    tail_of,
    values,
)

pytestmark = pytest.mark.services


def gap_topic(kafka: KafkaHelper) -> str:
    topic = kafka.topic()
    kafka.produce(topic, values(*range(200)))
    kafka.delete_records(topic, {0: 150})
    return topic


@pytest.mark.parametrize("start", [False, True])
def test_hyb_04_a_gap_stops_the_tail_before_it_starts(kafka: KafkaHelper, start: bool) -> None:
    topic = gap_topic(kafka)
    tail = tail_of(kafka, topic)
    boundary = Boundary({topic: TopicBoundary({0: PartitionRange(0, 100)})})
    begin = (lambda: tail.start(boundary)) if start else (lambda: tail.open(ReadRequest(), at(topic, p0=100), None))
    with pytest.raises(GapError, match=rf"{topic}.* partition 0: wanted offset 100 is gone, .* 150 to 200") as raised:
        begin()
    assert raised.value.context == {"topic": topic, "partition": 0, "wanted": 100, "available": [150, 200]}


def test_hyb_04_by_policy_the_tail_goes_on_and_records_the_loss(kafka: KafkaHelper) -> None:
    topic = gap_topic(kafka)
    read = read_bounded(tail_of(kafka, topic, on_gap="record"), at(topic, p0=100))
    assert read.column() == list(range(150, 200))
    assert read.batches[-1].position["lost"] == [{"topic": topic, "partition": 0, "first": 100, "next": 150}]


@pytest.mark.parametrize("on_gap", ["fail", "record"])
def test_hyb_04_a_gap_that_opens_while_the_tail_is_live(kafka: KafkaHelper, on_gap: Any) -> None:
    topic = kafka.topic()
    kafka.produce(topic, values(*range(100)))
    tail = tail_of(kafka, topic, on_gap=on_gap)
    reader = tail.open(ReadRequest(), tail.start(None), None)
    read_until(reader, lambda read: bool(read.batches) and read.nexts["0"] == 100)
    with kafka.transaction() as transaction:
        # As long as it is open, nothing of it can have been fetched ahead.
        transaction.produce(topic, values(*range(100, 200)))
        kafka.delete_records(topic, {0: 150})
        if on_gap == "fail":
            with pytest.raises(GapError, match="wanted offset 100 is gone, available are 150 to 200"):
                read_until(reader, lambda _: False)
        else:
            read = read_until(reader, lambda read: bool(read.batches))
            assert read.batches[0].position["lost"] == [{"topic": topic, "partition": 0, "first": 100, "next": 150}]
            transaction.commit()
            rest = read_until(reader, lambda read: bool(read.batches) and read.nexts["0"] == 201)
            assert rest.column() == list(range(150, 200))
    reader.close()


def test_hyb_05_a_recreated_topic_is_refused(kafka: KafkaHelper) -> None:
    topic = kafka.topic()
    kafka.produce(topic, values(*range(10)))
    tail = tail_of(kafka, topic)
    with pytest.raises(IdentityError, match="recorded offset 10000 lies beyond the end 10"):
        tail.open(ReadRequest(), at(topic, p0=10000), None)
    with pytest.raises(IdentityError, match="no partition 1"):
        tail.open(ReadRequest(), at(topic, p0=5, p1=5), None)


def test_hyb_05_a_topic_recreated_while_it_is_read(kafka: KafkaHelper) -> None:
    topic, clock = kafka.topic(), ManualClock()
    before = tail_of(kafka, topic).identities()[topic]
    kafka.produce(topic, values(1))
    tail = tail_of(kafka, topic, clock=clock)
    reader = tail.open(ReadRequest(), tail.start(None), None)
    read_until(reader, lambda read: bool(read.batches))
    kafka.delete_topic(topic)
    kafka.topic_named(topic)
    kafka.produce(topic, values(*range(20)))
    assert tail_of(kafka, topic).identities()[topic].topic_id != before.topic_id
    clock.advance(31_000_000)
    with pytest.raises(IdentityError, match="created again"):
        read_until(reader, lambda _: False)
    reader.close()


def test_a_topic_that_is_not_there(kafka: KafkaHelper) -> None:
    with pytest.raises(NotFoundError, match="no-such-topic") as raised:
        tail_of(kafka, "no-such-topic").identities()
    assert raised.value.code == "TOPIC_NOT_FOUND"


def test_hyb_04_a_gap_is_met_while_peeking(kafka: KafkaHelper) -> None:
    topic = kafka.topic(2)
    kafka.produce(topic, events(1, 2, 3))
    kafka.produce(topic, events(9), partition=1)
    kafka.delete_records(topic, {0: 2})
    places = [TopicPartition(topic, partition) for partition in range(2)]
    time_ = EventTime("t")
    with pytest.raises(GapError, match="partition 0: wanted offset 1 is gone"):
        tail_of(kafka, topic, event_time=time_).first_event_times(at(topic, p0=1, p1=0), places)
    recording = tail_of(kafka, topic, event_time=time_, on_gap="record")
    found = recording.first_event_times(at(topic, p0=1, p1=0), places)
    assert found == {places[0]: 3 * MINUTE, places[1]: 9 * MINUTE}
