"""The Kafka sink on a real broker: epochs, keys, topics."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal

import pytest

from headrace.kernel.errors import (
    ConfigError,
    InternalError,
    NotFoundError,
    SchemaError,
)
from headrace.sinks import commit_marker
from headrace.sinks import kafka as kafka_sink
from headrace.sinks.kafka import KafkaSink
from tests.kafka_target import Target, marker_partition, prepared, rows

pytestmark = pytest.mark.services


def test_an_epoch_is_invisible_until_its_commit(target: Target) -> None:
    writer = target.ready()
    writer.write(rows(1, 2))
    pre_commit = prepared(writer, target.epoch(1), rows(3))
    assert pre_commit["rows"] == 3
    assert target.visible() == []
    assert target.open_transaction()
    writer.commit(pre_commit)
    assert target.visible() == [1, 2, 3]
    writer.commit(pre_commit)
    assert target.visible() == [1, 2, 3]
    message = target.kafka.drain(target.topic)[0]
    row = json.loads(message.value() or b"", parse_float=Decimal)
    assert (message.key(), row) == (
        f"k{row['n'] % 3}".encode(),
        {"k": f"k{row['n'] % 3}", "n": row["n"], "d": row["n"]},
    )


def test_an_epoch_without_rows_has_no_transaction(target: Target) -> None:
    writer = target.ready()
    partition = marker_partition(target)
    before = target.kafka.watermarks(commit_marker.TOPIC, partition, isolation="read_uncommitted")
    writer.write(rows())
    assert writer.prepare(target.epoch(1), None) is None
    assert target.kafka.watermarks(commit_marker.TOPIC, partition, isolation="read_uncommitted") == before
    writer.commit(prepared(writer, target.epoch(2), rows(1)))
    assert target.visible() == [1]


def test_records_with_one_key_keep_their_order_and_java_s_partition(target: Target) -> None:
    writer = target.ready()
    for start in range(0, 40_000, 10_000):
        writer.write(rows(*range(start, start + 10_000)))
    pre_commit = writer.prepare(target.epoch(1), None)
    assert pre_commit is not None
    writer.commit(pre_commit)
    messages = target.kafka.drain(target.topic)
    partitions = {message.key(): message.partition() for message in messages}
    assert partitions == {f"k{n}".encode(): (murmur2(f"k{n}".encode()) & 0x7FFFFFFF) % 2 for n in range(3)}
    for key in partitions:
        numbers = [json.loads(message.value() or b"")["n"] for message in messages if message.key() == key]
        assert numbers == list(range(int(key[1:] if key else 0), 40_000, 3))


def murmur2(data: bytes) -> int:
    """Kafka's own hash (org.apache.kafka.common.utils.Utils)."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = (0x9747B28C ^ len(data)) & mask
    for at in range(0, len(data) // 4 * 4, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        k = (k ^ (k >> 24)) * m & mask
        h = (h * m & mask) ^ k
    tail = data[len(data) // 4 * 4 :]
    if tail:
        h = (h ^ int.from_bytes(tail, "little")) * m & mask
    h = (h ^ (h >> 13)) * m & mask
    return h ^ (h >> 15)


def test_an_epoch_larger_than_memory_is_staged_in_parts(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_sink, "_STAGE_BYTES", 10_000)
    writer = target.ready(queue_buffering_max_messages=100)
    for start in range(0, 2000, 500):
        writer.write(rows(*range(start, start + 500)))
    pre_commit = prepared(writer, target.epoch(1), rows(2000))
    assert len(pre_commit["staging"]) == 5
    writer.close()
    target.writer().recover(pre_commit)
    assert target.visible() == list(range(2001))
    by_key = [json.loads(m.value() or b"")["n"] for m in target.kafka.drain(target.topic) if m.key() == b"k0"]
    assert by_key == list(range(0, 2001, 3))


def test_abort_drops_the_epoch_and_what_was_staged(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_sink, "_STAGE_BYTES", 100)
    writer = target.ready()
    writer.write(rows(*range(100)))
    assert target.store.blobs.list("staging/")
    writer.abort()
    assert target.store.blobs.list("staging/") == []
    writer.write(rows(1))
    assert writer.prepare(target.epoch(1), None) is not None
    writer.abort()
    assert not target.open_transaction()
    writer.commit(prepared(writer, target.epoch(2), rows(2)))
    assert target.visible() == [2]


def test_topics_are_created_only_when_asked(target: Target) -> None:
    sink = KafkaSink("out", target.cluster(), f"{target.topic}-new", (), partitions=3)
    with pytest.raises(NotFoundError):
        target.writer(sink)
    target.writer(replace(sink, create=True))
    assert target.kafka.partitions(sink.topic) == [0, 1, 2]
    target.writer(sink)


def test_a_marker_topic_that_would_forget_is_refused(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_marker, "TOPIC", target.kafka.topic(prefix="not-compacted"))
    with pytest.raises(ConfigError, match="not compacted"):
        target.writer()


def test_a_missing_key_column_is_refused_at_once(target: Target) -> None:
    with pytest.raises(SchemaError, match="gone"):
        target.writer(replace(target.sink(), key=("gone",)))


def test_a_writer_that_did_not_recover_cannot_prepare(target: Target) -> None:
    writer = target.writer()
    writer.write(rows(1))
    with pytest.raises(InternalError, match="not recovered"):
        writer.prepare(target.epoch(1), None)
