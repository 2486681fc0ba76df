"""New partitions, and partitions that nobody recorded."""

from __future__ import annotations

from dataclasses import replace

import pytest
from confluent_kafka.admin import NewPartitions

from headrace.kernel import columns as system
from headrace.kernel.boundary import Boundary, PartitionRange, TopicBoundary
from headrace.kernel.errors import GapError
from headrace.kernel.protocols import ReadRequest
from headrace.testing import ManualClock
from tests.kafka import KafkaHelper
from tests.tail import (
    CAUGHT_UP,
    LIMIT_S,
    read_bounded,
    read_until,
    tail_of,
    values,
)

pytestmark = pytest.mark.services


def test_hyb_09_new_partitions_are_read_from_their_beginning(kafka: KafkaHelper) -> None:
    topic, clock = kafka.topic(2), ManualClock()
    for partition in (0, 1):
        kafka.produce(topic, values(*range(10)), partition=partition)
    tail = tail_of(kafka, topic, clock=clock)
    boundary = Boundary({topic: TopicBoundary({0: PartitionRange(0, 10), 1: PartitionRange(0, 10)})})
    reader = tail.open(ReadRequest(), tail.start(boundary), None)
    assert reader.poll(0.3) is None
    admin = kafka.admin()
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(LIMIT_S)
    read_until(reader, lambda _: kafka.partitions(topic) == [0, 1, 2])
    kafka.produce(topic, values(20, 21, 22), partition=2)
    clock.advance(31_000_000)
    read = read_until(reader, lambda read: sum(batch.records for batch in read.batches) == 3)
    assert read.column() == [20, 21, 22]
    assert read.nexts == {"0": 10, "1": 10, "2": 3}
    position = reader.position
    reader.close()
    kafka.produce(topic, values(23), partition=2)
    assert read_bounded(tail, position).column() == [23]


def test_hyb_09_a_partition_that_the_boundary_does_not_know(kafka: KafkaHelper) -> None:
    topic = kafka.topic(3)
    for partition in range(3):
        kafka.produce(topic, values(*range(10, 13)), partition=partition)
    tail = tail_of(kafka, topic)
    boundary = Boundary({topic: TopicBoundary({0: PartitionRange(0, 3), 1: PartitionRange(0, 3)})})
    read = read_bounded(tail, tail.start(boundary), replace(CAUGHT_UP, columns=["v", system.PARTITION]))
    assert read.rows.rows() == [(10, 2), (11, 2), (12, 2)]


def test_hyb_09_an_unknown_partition_whose_beginning_is_gone_is_a_gap(kafka: KafkaHelper) -> None:
    topic = kafka.topic(2)
    kafka.produce(topic, values(*range(5)), partition=1)
    kafka.delete_records(topic, {1: 2})
    with pytest.raises(GapError, match="partition 1: wanted offset 0 is gone"):
        tail_of(kafka, topic).start(Boundary({topic: TopicBoundary({0: PartitionRange(0, 0)})}))
