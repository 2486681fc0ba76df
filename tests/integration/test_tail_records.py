"""What of a topic enters the job: committed records, columns, dead letters."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

from headrace.kernel import columns as system
from headrace.kernel.boundary import TopicPartition
from headrace.kernel.errors import NotFoundError
from headrace.kernel.protocols import ReadRequest
from hybrid_source.tail_offsets import starting_at
from tests.kafka import KafkaHelper
from tests.tail import (
    CAUGHT_UP,
    KEPT,
    SCHEMA,
    opened,
    read_bounded,
    read_until,
    tail_of,
    values,
)

pytestmark = pytest.mark.services


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
    reader = opened(tail, request, tail.start(None))
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


OPEN_TIMES = {
    **KEPT,
    "message.timestamp.before.max.ms": str(2**63 - 1),
    "message.timestamp.after.max.ms": str(2**63 - 1),
}
"""For a topic that takes any timestamp, as all did before Kafka 3.6."""


def test_timestamps_that_are_none_or_beyond_microseconds_are_null_and_stop_nothing(kafka: KafkaHelper) -> None:
    topic = kafka.topic(config=OPEN_TIMES)
    largest = (2**63 - 1) // 1000
    for stamp in (-1, 1_700_000_000_000_000, 1_700_000_000_000_000_000, 2**63 - 1, largest):
        kafka.produce(topic, [b'{"v":1}', b"bad"], timestamp_ms=stamp)
    read = read_bounded(tail_of(kafka, topic), request=replace(CAUGHT_UP, columns=["v", system.TIMESTAMP]))
    expected = [None, 1_700_000_000_000_000_000, None, None, largest * 1000]
    assert read.rows[system.TIMESTAMP].to_physical().to_list() == expected
    assert read.errors["timestamp"].to_physical().to_list() == expected


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_a_position_within_a_compressed_batch_begins_there(kafka: KafkaHelper, codec: str) -> None:
    topic = kafka.topic()
    kafka.produce(topic, values(*range(50)), compression_type=codec, linger_ms=100)
    start = starting_at({TopicPartition(topic, 0): 23}).to_json()
    assert read_bounded(tail_of(kafka, topic), start).column() == list(range(23, 50))


def test_kaf_01_a_position_within_a_transaction_gives_what_it_committed_from_there(kafka: KafkaHelper) -> None:
    topic = kafka.topic()
    with kafka.transaction() as aborted:
        aborted.produce(topic, values(*range(5)))
    with kafka.transaction() as committed:
        committed.produce(topic, values(*range(10, 15)))
        committed.commit()
    kafka.settle(topic, 12)
    for first, expected in ((2, [10, 11, 12, 13, 14]), (5, [10, 11, 12, 13, 14]), (8, [12, 13, 14]), (11, [])):
        start = starting_at({TopicPartition(topic, 0): first}).to_json()
        read = read_bounded(tail_of(kafka, topic), start)
        assert [value for batch in read.batches for value in batch.rows["v"]] == expected


def test_kaf_04_a_record_larger_than_any_fetch_is_read(kafka: KafkaHelper) -> None:
    topic = kafka.topic(config={"max.message.bytes": "8000000"})
    kafka.produce(
        topic, [*values(0), b'{"v":1,"s":"' + b"x" * 5_000_000 + b'"}', *values(2)], message_max_bytes=8_000_000
    )
    assert read_bounded(tail_of(kafka, topic)).column() == [0, 1, 2]
