"""Where a tail starts, what a group's offsets decide (nothing), how fast it reads."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ClientPartition

from headrace.kernel import columns as system
from headrace.kernel.boundary import Boundary, PartitionRange, TopicBoundary, TopicPartition
from headrace.kernel.errors import GapError, IdentityError
from headrace.kernel.protocols import ReadRequest
from headrace.testing import ManualClock
from hybrid_source.tail import AtOffsets, AtTime
from tests.kafka import KafkaHelper
from tests.services import OwnBroker
from tests.tail import (
    KEPT,
    LIMIT_S,
    Read,
    at,
    read_bounded,
    read_until,
    tail_of,
    values,
)

pytestmark = pytest.mark.services


def test_start_modes(kafka: KafkaHelper) -> None:
    topic = kafka.topic(2, config=KEPT)
    for index in range(10):
        kafka.produce(topic, values(index), timestamp_ms=1_700_000_000_000 + 1000 * index)

    def starts(mode: Any) -> dict[int, int]:
        tail = tail_of(kafka, topic, start_at=mode)
        return {at.partition: offset for at, offset in tail.offsets(tail.start(None)).items()}

    assert starts("earliest") == {0: 0, 1: 0}
    assert starts("latest") == {0: 10, 1: 0}
    assert starts(AtTime(1_700_000_003_500)) == {0: 4, 1: 0}
    assert starts(AtTime(1_800_000_000_000)) == {0: 10, 1: 0}
    assert starts(AtOffsets({TopicPartition(topic, 0): 7})) == {0: 7, 1: 0}
    kafka.delete_records(topic, {0: 5})
    assert starts("earliest") == {0: 5, 1: 0}
    with pytest.raises(GapError):
        starts(AtOffsets({TopicPartition(topic, 0): 2}))
    with pytest.raises(IdentityError):
        starts(AtOffsets({TopicPartition(topic, 0): 11}))
    with pytest.raises(IdentityError):
        starts(AtOffsets({TopicPartition(topic, 5): 0}))


@pytest.mark.parametrize("before_1970_ms", [-1, -2, -3, -300_000])
def test_a_time_before_1970_begins_at_the_first_record_not_at_the_end(kafka: KafkaHelper, before_1970_ms: int) -> None:
    topic = kafka.topic(config=KEPT)
    kafka.produce(topic, values(1, 2), timestamp_ms=1)
    tail = tail_of(kafka, topic, start_at=AtTime(before_1970_ms))
    assert list(tail.offsets(tail.start(None)).values()) == [0]


def test_kaf_07_a_groups_offsets_never_decide(own_broker: OwnBroker) -> None:
    """Neither one below the position nor one above it, at the start or behind a broker's end."""
    kafka = own_broker.kafka
    topic = kafka.topic(2)
    for partition in (0, 1):
        kafka.produce(topic, values(*range(1000)), partition=partition)
    group = Consumer(kafka.config(group_id="headrace", enable_auto_commit=False))
    group.commit(offsets=[ClientPartition(topic, 0, 450), ClientPartition(topic, 1, 900)], asynchronous=False)
    group.close()
    tail = tail_of(kafka, topic, rate_limit=200)
    reader = tail.open(ReadRequest(columns=["v", system.PARTITION]), at(topic, p0=500, p1=500), None)
    first = read_until(reader, lambda read: bool(read.batches))
    own_broker.stop(kill=True)
    during = [batch for _ in range(3) if (batch := reader.poll(0.2)) is not None]
    own_broker.start()
    for partition in (0, 1):
        kafka.produce(topic, values(*range(1000, 1050)), partition=partition)
    ends = {"0": 1050, "1": 1050}
    rest = read_until(reader, lambda read: bool(read.batches) and read.nexts == ends, seconds=4 * LIMIT_S)
    reader.close()
    rows = Read([*first.batches, *during, *rest.batches]).rows
    for partition in (0, 1):
        assert rows.filter(pl.col(system.PARTITION) == partition)["v"].to_list() == list(range(500, 1050))


def test_a_rate_limit_holds_on_the_clock(kafka: KafkaHelper) -> None:
    topic, clock = kafka.topic(), ManualClock()
    kafka.produce(topic, values(*range(100)))
    tail = tail_of(kafka, topic, clock=clock, rate_limit=30)
    reader = tail.open(ReadRequest(), tail.start(None), None)
    read = read_until(reader, lambda read: sum(batch.records for batch in read.batches) == 30)
    for _ in range(3):
        assert reader.poll(0.02) is None
    clock.advance(500_000)
    read = read_until(reader, lambda read: sum(batch.records for batch in read.batches) == 15)
    assert read.column() == list(range(30, 45))
    assert reader.poll(0.02) is None
    assert reader.lag() == [{"topic": topic, "partition": 0, "next": 45, "end": 100}]
    reader.close()


def test_the_boundary_gives_the_start(kafka: KafkaHelper) -> None:
    topic = kafka.topic()
    kafka.produce(topic, values(*range(10)))
    tail = tail_of(kafka, topic)
    start = tail.start(Boundary({topic: TopicBoundary({0: PartitionRange(2, 6)})}))
    assert tail.offsets(start) == {TopicPartition(topic, 0): 6}
    assert read_bounded(tail, start).column() == [6, 7, 8, 9]
