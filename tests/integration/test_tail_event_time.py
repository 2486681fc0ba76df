"""Watermarks of the tail on a real broker."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from types import SimpleNamespace

import polars as pl
import pytest

from headrace.kernel import columns as system
from headrace.kernel.boundary import TopicPartition
from headrace.kernel.protocols import ReadRequest
from headrace.testing import ManualClock
from hybrid_source import tail_peek, tail_reader
from hybrid_source.source_values import EventTime
from tests.kafka import KafkaHelper
from tests.tail import (
    MINUTE,
    at,
    events,
    read_until,
    tail_of,
)

pytestmark = pytest.mark.services

BATCH = 10
"""Records per poll, where a test makes polls small."""


def test_watermarks_by_row_partition_and_source(kafka: KafkaHelper) -> None:
    topic, clock = kafka.topic(2), ManualClock()
    kafka.produce(topic, events(10, 12, None, 11, 5))
    kafka.produce(topic, events(30), partition=1)
    time_ = EventTime("t", out_of_orderness_us=2 * MINUTE, idle_us=60 * 1_000_000)
    tail = tail_of(kafka, topic, clock=clock, event_time=time_)
    request = ReadRequest(columns=["v", system.PARTITION, system.ROW_WATERMARK])
    reader = tail.open(request, tail.start(None), 3 * MINUTE)
    read = read_until(reader, lambda read: sum(batch.records for batch in read.batches) == 6)
    own = read.rows.filter(pl.col(system.PARTITION) == 0)
    assert own[system.ROW_WATERMARK].to_list() == [3 * MINUTE, 8 * MINUTE, 10 * MINUTE, 10 * MINUTE, 10 * MINUTE]
    # A batch of its own has no late row, so it is not stamped.
    assert read.rows.filter(pl.col(system.PARTITION) == 1)[system.ROW_WATERMARK].to_list() in ([3 * MINUTE], [None])
    assert any(batch.maybe_late for batch in read.batches)
    assert read.batches[-1].watermark == 10 * MINUTE
    kafka.produce(topic, events(40), partition=1)
    read = read_until(reader, lambda read: bool(read.batches))
    assert read.batches[-1].watermark == 10 * MINUTE
    states = reader.position["topics"][topic]
    assert {key: state["max_event_time"] for key, state in states.items()} == {"0": 12 * MINUTE, "1": 40 * MINUTE}
    reader.poll(0.2)
    clock.advance(61_000_000)
    # Both are silent now: nothing more is to come from either.
    assert read_until(reader, lambda read: bool(read.batches)).batches[-1].watermark == 38 * MINUTE
    kafka.produce(topic, events(20))
    back = read_until(reader, lambda read: sum(batch.records for batch in read.batches) == 1)
    assert back.column(system.ROW_WATERMARK) == [38 * MINUTE]
    assert back.batches[-1].maybe_late
    assert back.batches[-1].watermark == 38 * MINUTE
    position = reader.position
    reader.close()
    resumed = tail.open(request, position, 38 * MINUTE)
    kafka.produce(topic, events(41), partition=1)
    read = read_until(resumed, lambda read: sum(batch.records for batch in read.batches) == 1)
    assert read.column(system.ROW_WATERMARK) == [None]
    assert not read.batches[-1].maybe_late
    kafka.produce(topic, events(37), partition=1)
    read = read_until(resumed, lambda read: sum(batch.records for batch in read.batches) == 1)
    assert read.column(system.ROW_WATERMARK) == [39 * MINUTE]
    resumed.close()


def test_a_partition_behind_an_open_transaction_holds_the_watermark(kafka: KafkaHelper) -> None:
    topic, clock = kafka.topic(2), ManualClock()
    kafka.produce(topic, events(10))
    time_ = EventTime("t", idle_us=1_000_000)
    tail = tail_of(kafka, topic, clock=clock, event_time=time_)
    with kafka.transaction() as hanging:
        hanging.produce(topic, events(11))
        kafka.produce(topic, events(30), partition=1)
        reader = tail.open(ReadRequest(columns=["v"]), tail.start(None), None)
        read_until(reader, lambda read: sum(batch.records for batch in read.batches) == 2)
        reader.poll(0.3)
        clock.advance(5_000_000)
        kafka.produce(topic, events(31), partition=1)
        read = read_until(reader, lambda read: bool(read.batches))
        assert read.batches[-1].watermark == 10 * MINUTE
        reader.close()


def test_first_event_times_are_peeked(kafka: KafkaHelper) -> None:
    topic = kafka.topic(4)
    kafka.produce(topic, [b"{bad", None, *events(None, 7, 3)])
    kafka.produce(topic, events(9), partition=1)
    with kafka.transaction() as aborted:
        aborted.produce(topic, events(1), partition=3)
    kafka.settle(topic, 2, partition=3)
    tail = tail_of(kafka, topic, event_time=EventTime("t"))
    position = at(topic, p0=0, p1=1, p2=0, p3=0)
    places = [TopicPartition(topic, partition) for partition in range(4)]
    assert tail.first_event_times(position, places) == {places[0]: 7 * MINUTE, **dict.fromkeys(places[1:])}
    found = tail.first_event_times(at(topic, p0=4, p1=0), [places[1], places[0]])
    assert found == {places[0]: 3 * MINUTE, places[1]: 9 * MINUTE}


def test_what_an_open_transaction_hides_is_not_known_when_it_is_peeked_for(kafka: KafkaHelper) -> None:
    topic = kafka.topic(2)
    kafka.produce(topic, events(None), partition=1)
    places = [TopicPartition(topic, partition) for partition in range(2)]
    tail = tail_of(kafka, topic, event_time=EventTime("t"))
    with kafka.transaction() as hanging:
        for partition in range(2):
            hanging.produce(topic, events(5), partition=partition)
        assert tail.first_event_times(at(topic, p0=0, p1=0), places) == {}
        hanging.commit()
    assert tail.first_event_times(at(topic, p0=0, p1=0), places) == dict.fromkeys(places, 5 * MINUTE)


def test_a_peek_goes_on_behind_a_long_run_without_event_times(
    kafka: KafkaHelper, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    topic = kafka.topic()
    kafka.produce(topic, events(*[None] * 30, 7))
    place = TopicPartition(topic, 0)
    tail = tail_of(kafka, topic, event_time=EventTime("t"))
    monkeypatch.setattr(tail_peek, "PEEK_ROWS", 20)
    found: Mapping[TopicPartition, int | None] = {}
    while not found:
        ticks = iter([0.0, 1.0, 99.0])  # time for one poll, which alone never comes to the last record
        monkeypatch.setattr(tail_peek, "time", SimpleNamespace(monotonic=lambda ticks=ticks: next(ticks)))
        found = tail.first_event_times(at(topic, p0=0), [place])
    assert found == {place: 7 * MINUTE}
    assert "no event time yet" in caplog.text


def test_a_partition_that_runs_ahead_waits_for_the_slowest(kafka: KafkaHelper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail_reader, "BATCH_ROWS", BATCH)
    topic, drift = kafka.topic(4), 10
    slow, fast = [minute / 10 for minute in range(600)], [float(minute) for minute in range(60)]
    kafka.produce(topic, events(*fast * 3))
    kafka.produce(topic, events(*slow), partition=1)
    kafka.produce(topic, events(None, None), partition=3)
    with kafka.transaction() as hanging:
        hanging.produce(topic, events(0), partition=2)
        tail = tail_of(kafka, topic, event_time=EventTime("t", max_drift_us=drift * MINUTE))
        reader = tail.open(ReadRequest(columns=["v", system.PARTITION]), tail.start(None), None)
        read = read_until(reader, lambda read: sum(batch.records for batch in read.batches) == 782)
        reader.close()
    for partition, count in ((0, 180), (1, 600), (3, 2)):
        own = read.rows.filter(pl.col(system.PARTITION) == partition)
        assert own["v"].to_list() == list(range(count))
    ahead = 0
    for batch in read.batches:
        states = batch.position["topics"][topic]
        times = {key: state.get("max_event_time") for key, state in states.items()}
        if times["0"] is not None and times["1"] is not None and states["1"]["next"] < 600:
            ahead = max(ahead, times["0"] - times["1"])
    assert ahead <= (drift + BATCH) * MINUTE


def test_live_partitions_wait_for_the_history_that_others_are_in(
    kafka: KafkaHelper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail_reader, "BATCH_ROWS", BATCH)
    topic, drift = kafka.topic(2), 20
    for partition in (0, 1):
        kafka.produce(topic, events(*range(60)), partition=partition)
    tail = tail_of(kafka, topic, event_time=EventTime("t", max_drift_us=drift * MINUTE))
    reader = tail.open(ReadRequest(columns=["v", system.PARTITION]), tail.start(None), None)
    reader.hold(-1)
    polls = itertools.count()
    # As many polls as would give everything, were nobody to wait.
    read = read_until(reader, lambda read: next(polls) == 10 * 120 // BATCH, timeout=0.02)
    assert read.rows["v"].max() <= drift + BATCH  # type: ignore[operator] # an integer
    reader.hold(None)
    missing = 120 - read.rows.height
    rest = read_until(reader, lambda rest: sum(batch.records for batch in rest.batches) == missing)
    reader.close()
    assert sorted([*read.rows["v"], *rest.rows["v"]]) == sorted([*range(60), *range(60)])


def test_times_out_of_range_and_nulls_stop_nothing(kafka: KafkaHelper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail_reader, "BATCH_ROWS", BATCH)
    topic = kafka.topic(2)
    first = [b'{"v":0,"t":"0001-01-01T00:00:00Z"}', b'{"v":1,"t":"2100-01-01T00:00:00Z"}', *events(*range(50), None)]
    kafka.produce(topic, first)
    kafka.produce(topic, events(*range(50)), partition=1)
    tail = tail_of(kafka, topic, event_time=EventTime("t", MINUTE, max_drift_us=5 * MINUTE))
    reader = tail.open(ReadRequest(columns=[system.PARTITION, system.ROW_WATERMARK]), tail.start(None), None)
    read = read_until(reader, lambda read: sum(batch.records for batch in read.batches) == 103)
    reader.close()
    assert dict(read.rows.group_by(system.PARTITION).len().iter_rows()) == {0: 53, 1: 50}
    marks = [batch.watermark for batch in read.batches if batch.watermark is not None]
    assert marks == sorted(marks)
    assert marks[-1] == 48 * MINUTE
    assert any(batch.maybe_late for batch in read.batches)
