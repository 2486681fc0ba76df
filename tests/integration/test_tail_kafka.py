"""The Kafka tail on a real broker: positions, gaps, transactions, discovery, watermarks."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import NewPartitions

from headrace.kafka import KafkaCluster
from headrace.kernel import columns as system
from headrace.kernel.boundary import Boundary, PartitionRange, TopicBoundary
from headrace.kernel.errors import GapError, IdentityError, NotFoundError, UnavailableError
from headrace.kernel.protocols import ReadRequest
from headrace.testing import ManualClock
from hybrid_source.hybrid import EventTime
from hybrid_source.stages import OpenTail, TailBatch
from hybrid_source.tail import AtOffsets, AtTime, KafkaTail
from tests.kafka import KafkaHelper
from tests.services import OwnBroker

pytestmark = pytest.mark.services

SCHEMA = pl.Schema({"v": pl.Int64(), "t": pl.Datetime("us", "UTC"), "s": pl.String()})
CAUGHT_UP = ReadRequest(until="caught-up")
LIMIT_S = 30.0
MINUTE = 60_000_000
KEPT = {"retention.ms": "-1"}
"""For records whose timestamps are old."""


@dataclass
class Read:
    """What a reader gave."""

    batches: list[TailBatch] = field(default_factory=list)

    @property
    def rows(self) -> pl.DataFrame:
        return pl.concat([batch.rows for batch in self.batches])

    @property
    def errors(self) -> pl.DataFrame:
        return pl.concat([batch.errors for batch in self.batches if batch.errors is not None])

    def column(self, name: str = "v") -> list[Any]:
        return self.rows[name].to_list()

    @property
    def nexts(self) -> dict[str, int]:
        return {key: state["next"] for key, state in self.batches[-1].position["partitions"].items()}


def tail_of(kafka: KafkaHelper, topic: str, **options: Any) -> KafkaTail:
    return KafkaTail(KafkaCluster("test", {"bootstrap.servers": kafka.bootstrap}), topic, SCHEMA, **options)


def read_until(reader: OpenTail, enough: Callable[[Read], bool], timeout: float = 0.2) -> Read:
    read = Read()
    deadline = time.monotonic() + LIMIT_S
    while not enough(read):
        assert time.monotonic() < deadline, f"not enough in time: {read}"
        batch = reader.poll(timeout)
        if batch is not None:
            read.batches.append(batch)
    return read


def read_bounded(tail: KafkaTail, position: Any = None, request: ReadRequest = CAUGHT_UP) -> Read:
    reader = tail.open(request, tail.start(None) if position is None else position, None)
    try:
        return read_until(reader, lambda _: reader.finished)
    finally:
        reader.close()


def values(*numbers: int) -> list[bytes | None]:
    return [json.dumps({"v": number}).encode() for number in numbers]


def at(**nexts: int) -> dict[str, Any]:
    return {"version": 1, "partitions": {key.removeprefix("p"): {"next": offset} for key, offset in nexts.items()}}


# ------------------------------------------------------------------------------------------------ positions and ends


def test_hyb_01_a_bounded_read_ends_at_a_transaction_marker(kafka: KafkaHelper) -> None:
    topic = kafka.topic()
    with kafka.transaction() as transaction:
        transaction.produce(topic, values(1, 2))
        transaction.commit()
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


# -------------------------------------------------------------------------------------------------------------- gaps


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
    begin = (lambda: tail.start(boundary)) if start else (lambda: tail.open(ReadRequest(), at(p0=100), None))
    with pytest.raises(GapError, match=rf"{topic}.* partition 0: wanted offset 100 is gone, .* 150 to 200") as raised:
        begin()
    assert raised.value.context == {"topic": topic, "partition": 0, "wanted": 100, "earliest": 150, "latest": 200}


def test_hyb_04_by_policy_the_tail_goes_on_and_records_the_loss(kafka: KafkaHelper) -> None:
    topic = gap_topic(kafka)
    read = read_bounded(tail_of(kafka, topic, on_gap="record"), at(p0=100))
    assert read.column() == list(range(150, 200))
    assert read.batches[-1].position["lost"] == [{"partition": 0, "first": 100, "next": 150}]


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
            assert read.batches[0].position["lost"] == [{"partition": 0, "first": 100, "next": 150}]
            transaction.commit()
            rest = read_until(reader, lambda read: bool(read.batches) and read.nexts["0"] == 201)
            assert rest.column() == list(range(150, 200))
    reader.close()


def test_hyb_05_a_recreated_topic_is_refused(kafka: KafkaHelper) -> None:
    topic = kafka.topic()
    kafka.produce(topic, values(*range(10)))
    tail = tail_of(kafka, topic)
    with pytest.raises(IdentityError, match="recorded offset 10000 lies beyond the end 10"):
        tail.open(ReadRequest(), at(p0=10000), None)
    with pytest.raises(IdentityError, match="no partition 1"):
        tail.open(ReadRequest(), at(p0=5, p1=5), None)


def test_hyb_05_a_topic_recreated_while_it_is_read(kafka: KafkaHelper) -> None:
    topic, clock = kafka.topic(), ManualClock()
    before = tail_of(kafka, topic).identity()
    kafka.produce(topic, values(1))
    tail = tail_of(kafka, topic, clock=clock)
    reader = tail.open(ReadRequest(), tail.start(None), None)
    read_until(reader, lambda read: bool(read.batches))
    kafka.delete_topic(topic)
    kafka.topic_named(topic)
    kafka.produce(topic, values(*range(20)))
    assert tail_of(kafka, topic).identity().topic_id != before.topic_id
    clock.advance(31_000_000)
    with pytest.raises(IdentityError, match="created again"):
        read_until(reader, lambda _: False)
    reader.close()


def test_a_topic_that_is_not_there(kafka: KafkaHelper) -> None:
    with pytest.raises(NotFoundError, match="no-such-topic") as raised:
        tail_of(kafka, "no-such-topic").identity()
    assert raised.value.code == "TOPIC_NOT_FOUND"


# --------------------------------------------------------------------------------------------------------- discovery


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


# ------------------------------------------------------------------------------------------------- what enters the job


def test_kaf_01_aborted_records_never_enter(kafka: KafkaHelper) -> None:
    topic = kafka.topic()
    with kafka.transaction("kaf01-" + topic):
        pass
    with kafka.transaction("kaf01-" + topic) as aborted:
        aborted.produce(topic, values(1, 2))
    with kafka.transaction("kaf01-" + topic) as committed:
        committed.produce(topic, values(3))
        committed.commit()
    kafka.produce(topic, values(4))
    assert read_bounded(tail_of(kafka, topic)).column() == [3, 4]


def test_kaf_02_tombstones_are_skipped_and_empty_values_are_dead_letters(kafka: KafkaHelper) -> None:
    topic = kafka.topic(config=KEPT)
    for key, value in ((b"k1", b'{"v":1}'), (b"k1", None), (None, b'{"v":2}'), (None, None), (b"k3", b"")):
        kafka.produce(topic, [value], key=key, timestamp_ms=1_700_000_000_123)
    request = replace(CAUGHT_UP, columns=[system.KEY, "v", system.OFFSET])
    tail = tail_of(kafka, topic)
    reader = tail.open(request, tail.start(None), None)
    read = read_until(reader, lambda _: reader.finished)
    reader.close()
    assert read.rows.rows() == [(b"k1", 1, 0), (None, 2, 2)]
    assert read.errors.schema == system.ERRORS
    assert read.errors.drop("timestamp").rows() == [(topic, 0, 4, b"k3", b"", "Input data was truncated")]
    assert read.errors["timestamp"].to_physical().to_list() == [1_700_000_000_123_000]
    assert reader.tombstones == 2
    assert read.nexts == {"0": 5}
    assert sum(batch.records for batch in read.batches) == 5


def test_dec_02_a_bad_record_becomes_a_dead_letter_with_its_offset(kafka: KafkaHelper) -> None:
    topic = kafka.topic()
    kafka.produce(topic, [b'{"v":1}', b"{bad", b'{"v":3}'])
    read = read_bounded(tail_of(kafka, topic), request=replace(CAUGHT_UP, columns=["v", system.OFFSET]))
    assert read.rows.rows() == [(1, 0), (3, 2)]
    assert read.errors.select("topic", "partition", "offset", "value").rows() == [(topic, 0, 1, b"{bad")]
    assert read.errors["reason"][0].startswith("JSON is malformed")


def test_metadata_columns_and_the_predicate(kafka: KafkaHelper) -> None:
    topic = kafka.topic(2, config=KEPT)
    kafka.produce(topic, values(1, 2, 3), partition=1, key=b"k", timestamp_ms=1_700_000_000_001)
    names = [system.TOPIC, "v", system.PARTITION, system.OFFSET, system.TIMESTAMP, system.KEY, system.ROW_WATERMARK]
    request = replace(CAUGHT_UP, columns=names, predicate=(pl.col(system.OFFSET) > 0) & pl.col("s").is_null())
    read = read_bounded(tail_of(kafka, topic), request=request)
    assert read.rows.schema == {name: {**SCHEMA, **system.SYSTEM}[name] for name in names}
    assert read.rows.drop(system.TIMESTAMP).rows() == [(topic, 2, 1, 1, b"k", None), (topic, 3, 1, 2, b"k", None)]
    assert read.rows[system.TIMESTAMP].to_physical().to_list() == [1_700_000_000_001_000] * 2


def test_all_payload_columns_are_the_default(kafka: KafkaHelper) -> None:
    topic = kafka.topic()
    kafka.produce(topic, [b'{"v":1,"t":"2026-01-01T00:00:00Z","s":"x","other":1}'])
    read = read_bounded(tail_of(kafka, topic))
    assert read.rows.schema == SCHEMA
    assert read.rows.height == 1


def test_without_columns_the_rows_can_still_be_counted(kafka: KafkaHelper) -> None:
    topic = kafka.topic()
    kafka.produce(topic, values(1, 2, 3))
    assert read_bounded(tail_of(kafka, topic), request=replace(CAUGHT_UP, columns=[])).rows.height == 3


def test_an_unknown_column_is_named(kafka: KafkaHelper) -> None:
    tail = tail_of(kafka, kafka.topic())
    with pytest.raises(NotFoundError, match="'nope'") as raised:
        tail.open(ReadRequest(columns=["nope"]), tail.start(None), None)
    assert raised.value.code == "COLUMN_NOT_FOUND"


def test_many_rows_over_many_batches(kafka: KafkaHelper) -> None:
    topic = kafka.topic(3)
    for partition in range(3):
        kafka.produce(topic, values(*range(20_000)), partition=partition)
    read = read_bounded(
        tail_of(kafka, topic), request=replace(CAUGHT_UP, columns=["v", system.PARTITION, system.OFFSET])
    )
    assert read.nexts == {"0": 20_000, "1": 20_000, "2": 20_000}
    assert (read.rows["v"] == read.rows[system.OFFSET]).all()
    for partition in range(3):
        own = read.rows.filter(pl.col(system.PARTITION) == partition)
        assert own[system.OFFSET].to_list() == list(range(20_000))


# ---------------------------------------------------------------------------------------------------- start and groups


def test_start_modes(kafka: KafkaHelper) -> None:
    topic = kafka.topic(2, config=KEPT)
    for index in range(10):
        kafka.produce(topic, values(index), timestamp_ms=1_700_000_000_000 + 1000 * index)

    def starts(mode: Any) -> dict[int, int]:
        tail = tail_of(kafka, topic, start_at=mode)
        return dict(tail.offsets(tail.start(None)))

    assert starts("earliest") == {0: 0, 1: 0}
    assert starts("latest") == {0: 10, 1: 0}
    assert starts(AtTime(1_700_000_003_500)) == {0: 4, 1: 0}
    assert starts(AtTime(1_800_000_000_000)) == {0: 10, 1: 0}
    assert starts(AtOffsets({0: 7})) == {0: 7, 1: 0}
    kafka.delete_records(topic, {0: 5})
    assert starts("earliest") == {0: 5, 1: 0}
    with pytest.raises(GapError):
        starts(AtOffsets({0: 2}))
    with pytest.raises(IdentityError):
        starts(AtOffsets({0: 11}))
    with pytest.raises(IdentityError):
        starts(AtOffsets({5: 0}))


@pytest.mark.parametrize("stored", [450, 900])
def test_kaf_07_a_groups_offset_never_decides(own_broker: OwnBroker, stored: int) -> None:
    kafka = own_broker.kafka
    topic = kafka.topic()
    kafka.produce(topic, values(*range(1000)))
    group = Consumer(kafka.config(group_id="headrace", enable_auto_commit=False))
    group.commit(offsets=[TopicPartition(topic, 0, stored)], asynchronous=False)
    group.close()
    tail = tail_of(kafka, topic, rate_limit=100)
    reader = tail.open(ReadRequest(columns=["v", system.OFFSET]), at(p0=500), None)
    first = read_until(reader, lambda read: bool(read.batches))
    assert first.column(system.OFFSET)[0] == 500
    own_broker.stop(kill=True)
    during = [batch for _ in range(3) if (batch := reader.poll(0.2)) is not None]
    own_broker.start()
    kafka.produce(topic, values(*range(1000, 1100)))
    rest = read_until(reader, lambda read: bool(read.batches) and read.nexts["0"] == 1100)
    reader.close()
    assert Read([*first.batches, *during, *rest.batches]).column() == list(range(500, 1100))


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


# ---------------------------------------------------------------------------------------------------------- event time


def events(*minutes: float | None) -> list[bytes | None]:
    return [
        json.dumps(
            {"v": index, "t": None if minute is None else f"1970-01-01T00:{int(minute):02}:{int(minute % 1 * 60):02}Z"}
        ).encode()
        for index, minute in enumerate(minutes)
    ]


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
    states = reader.position["partitions"]
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
    tail = tail_of(kafka, topic, event_time=EventTime("t"))
    position = at(p0=0, p1=1, p2=0, p3=0)
    assert tail.first_event_times(position, [0, 1, 2, 3]) == {0: 7 * MINUTE}
    assert tail.first_event_times(at(p0=4, p1=0), [1, 0]) == {0: 3 * MINUTE, 1: 9 * MINUTE}


def test_hyb_04_a_gap_is_met_while_peeking(kafka: KafkaHelper) -> None:
    topic = kafka.topic(2)
    kafka.produce(topic, events(1, 2, 3))
    kafka.produce(topic, events(9), partition=1)
    kafka.delete_records(topic, {0: 2})
    time_ = EventTime("t")
    with pytest.raises(GapError, match="partition 0: wanted offset 1 is gone"):
        tail_of(kafka, topic, event_time=time_).first_event_times(at(p0=1, p1=0), [0, 1])
    recording = tail_of(kafka, topic, event_time=time_, on_gap="record")
    assert recording.first_event_times(at(p0=1, p1=0), [0, 1]) == {1: 9 * MINUTE}


def test_the_boundary_gives_the_start(kafka: KafkaHelper) -> None:
    topic = kafka.topic()
    kafka.produce(topic, values(*range(10)))
    tail = tail_of(kafka, topic)
    start = tail.start(Boundary({topic: TopicBoundary({0: PartitionRange(2, 6)})}))
    assert tail.offsets(start) == {0: 6}
    assert read_bounded(tail, start).column() == [6, 7, 8, 9]
