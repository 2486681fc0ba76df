"""Bounded reads of the tail end where they should: markers, aborted tails, open transactions, idle partitions."""

from __future__ import annotations

import logging

import pytest

from headrace.kernel.errors import UnavailableError
from headrace.testing import ManualClock
from tests.kafka import KafkaHelper
from tests.tail import (
    CAUGHT_UP,
    read_bounded,
    read_until,
    tail_of,
    values,
)

pytestmark = pytest.mark.services


def test_hyb_01_a_bounded_read_ends_at_a_transaction_marker(kafka: KafkaHelper) -> None:
    topic = kafka.topic()
    with kafka.transaction() as transaction:
        transaction.produce(topic, values(1, 2))
        transaction.commit()
    kafka.settle(topic, 3)
    read = read_bounded(tail_of(kafka, topic))
    assert read.column() == [1, 2]
    assert read.nexts == {"0": 3}


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
    reader = again.open(CAUGHT_UP, read.batches[-1].position, None)
    assert reader.finished
    reader.close()


def test_a_bounded_read_leaves_what_comes_after_its_end(kafka: KafkaHelper) -> None:
    topic = kafka.topic(2)
    kafka.produce(topic, values(1, 2))
    tail = tail_of(kafka, topic)
    reader = tail.open(CAUGHT_UP, tail.start(None), None)
    kafka.produce(topic, values(3, 4))
    kafka.produce(topic, values(5), partition=1)
    read = read_until(reader, lambda _: reader.finished)
    reader.close()
    assert read.column() == [1, 2]
    assert read.nexts == {"0": 2, "1": 0}
    assert read_bounded(tail, read.batches[-1].position).column("v").__len__() == 3


def test_an_empty_topic_is_finished_at_once(kafka: KafkaHelper) -> None:
    tail = tail_of(kafka, kafka.topic(3))
    reader = tail.open(CAUGHT_UP, tail.start(None), None)
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
    reader = tail.open(CAUGHT_UP, tail.start(None), None)
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
        reader = tail.open(CAUGHT_UP, tail.start(None), None)
        for _ in range(5):
            reader.poll(0.1)
        clock.advance(61_000_000)
        with pytest.raises(UnavailableError, match=rf"{topic}.*partition 0.*open transaction") as raised:
            reader.poll(0.1)
        assert raised.value.context == {"topic": topic, "partition": 0, "stable": 0, "end": 1}
        reader.close()
