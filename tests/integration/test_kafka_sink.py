"""The Kafka sink on a real broker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from headrace.kafka import KafkaCluster
from headrace.kernel.errors import (
    ConfigError,
    DataError,
    FencedError,
    IdentityError,
    InternalError,
    NotFoundError,
    RejectedRecordError,
    SchemaError,
    TransactionAbortedError,
    UnavailableError,
)
from headrace.kernel.protocols import EpochId, SinkContext
from headrace.sinks import commit_marker, kafka_transaction
from headrace.sinks import kafka as kafka_sink
from headrace.sinks.kafka import KafkaSink, KafkaSinkWriter
from headrace.state.stores import JobStore, open_store
from headrace.testing import CRASH_VARIABLE

if TYPE_CHECKING:
    from tests.kafka import KafkaHelper
    from tests.services import OwnBroker

pytestmark = pytest.mark.services

SCHEMA = pl.Schema({"k": pl.String, "n": pl.Int64, "d": pl.Decimal(38, 2)})


def rows(*numbers: int) -> pl.DataFrame:
    return pl.DataFrame(
        {"k": [f"k{n % 3}" for n in numbers], "n": list(numbers), "d": [Decimal(n) for n in numbers]}, schema=SCHEMA
    )


@dataclass
class Target:
    """A job with one Kafka sink into a topic of its own."""

    kafka: KafkaHelper
    folder: Path
    job: str
    topic: str
    writers: list[KafkaSinkWriter] = field(default_factory=list)

    @property
    def store(self) -> JobStore:
        return open_store(str(self.folder))

    def cluster(self, **options: Any) -> KafkaCluster:
        return KafkaCluster(
            "test",
            {"bootstrap.servers": self.kafka.bootstrap, **{k.replace("_", "."): v for k, v in options.items()}},
        )

    def sink(self, **options: Any) -> KafkaSink:
        return KafkaSink("out", self.cluster(**options), self.topic, ("k",))

    def writer(self, sink: KafkaSink | None = None, **options: Any) -> KafkaSinkWriter:
        """An open writer that has not recovered yet."""
        context = SinkContext(self.job, "lineage", self.store.blobs)
        writer = (sink or self.sink(**options)).open(SCHEMA, context)
        self.writers.append(writer)
        return writer

    def ready(self, **options: Any) -> KafkaSinkWriter:
        writer = self.writer(**options)
        writer.recover(None)
        return writer

    def epoch(self, number: int, attempt: str = "a") -> EpochId:
        return EpochId(self.job, "lineage", number, attempt)

    def visible(self) -> list[int]:
        return sorted(json.loads(value or b"")["n"] for value in self.kafka.values(self.topic))

    def open_transaction(self) -> bool:
        """Whether a transaction holds back the topic's last stable offset."""
        return any(
            self.kafka.watermarks(self.topic, partition)[1]
            < self.kafka.watermarks(self.topic, partition, isolation="read_uncommitted")[1]
            for partition in self.kafka.partitions(self.topic)
        )


@pytest.fixture
def target(kafka: KafkaHelper, tmp_path: Path) -> Iterator[Target]:
    target = Target(kafka, tmp_path / "store", f"job-{uuid.uuid4().hex[:8]}", kafka.topic(2, prefix="out"))
    yield target
    for writer in target.writers:
        writer.close()


def marker_partition(target: Target) -> int:
    return commit_marker.ensure_marker_topic(target.cluster(), target.job, "out", 0)


def prepared(writer: KafkaSinkWriter, epoch: EpochId, frame: pl.DataFrame) -> dict[str, Any]:
    writer.write(frame)
    found = writer.prepare(epoch, None)
    assert found is not None
    # Pre-commits go through the checkpoint record.
    return dict(json.loads(json.dumps(found)))


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


# ----------------------------------------------------------------------------------------------------------- recovery


def test_recovery_finishes_what_was_prepared(target: Target) -> None:
    old = target.ready()
    old.commit(prepared(old, target.epoch(1), rows(1)))
    pre_commit = prepared(old, target.epoch(2), rows(2, 3))
    new = target.writer()
    new.recover(pre_commit)
    assert target.visible() == [1, 2, 3]
    new.recover(pre_commit)
    assert target.visible() == [1, 2, 3]
    new.commit(pre_commit)
    new.commit(prepared(new, target.epoch(3), rows(4)))
    assert target.visible() == [1, 2, 3, 4]


def test_recovery_leaves_alone_what_was_committed(target: Target) -> None:
    old = target.ready()
    pre_commit = prepared(old, target.epoch(1), rows(1, 2))
    old.commit(pre_commit)
    del old
    for name in pre_commit["staging"]:
        target.store.blobs.delete(name)
    target.writer().recover(pre_commit)
    assert target.visible() == [1, 2]


def test_recovery_aborts_what_was_not_decided(target: Target) -> None:
    old = target.ready()
    prepared(old, target.epoch(1, "undecided"), rows(1))
    new = target.ready()
    assert not target.open_transaction()
    new.commit(prepared(new, target.epoch(1, "next"), rows(1)))
    assert target.visible() == [1]


def test_commit_in_another_writer(target: Target) -> None:
    pre_commit = prepared(target.ready(), target.epoch(1), rows(1))
    other = target.ready()
    other.commit(pre_commit)
    other.commit(pre_commit)
    assert target.visible() == [1]


def test_another_lineage_s_marker_does_not_count(target: Target) -> None:
    writer = target.ready()
    pre_commit = prepared(writer, replace(target.epoch(9), lineage="former"), rows(1))
    writer.commit(pre_commit)
    second = prepared(writer, target.epoch(3), rows(2))
    target.writer().recover(second)
    assert target.visible() == [1, 2]


def test_a_marker_of_another_attempt_is_a_fault(target: Target) -> None:
    writer = target.ready()
    pre_commit = prepared(writer, target.epoch(1), rows(1))
    writer.commit(pre_commit)
    with pytest.raises(InternalError, match="another attempt"):
        target.writer().recover({**pre_commit, "attempt": "b"})


def test_a_marker_behind_another_job_s_transaction_is_waited_for(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = target.ready()
    with target.kafka.transaction() as other:
        other.producer.produce(commit_marker.TOPIC, b"{}", b"another job", marker_partition(target))
        assert other.producer.flush(30) == 0
        pre_commit = prepared(writer, target.epoch(1), rows(1))
        writer.commit(pre_commit)
        monkeypatch.setattr(commit_marker, "_SECONDS", 6.0)
        with pytest.raises(UnavailableError, match="to its end"):
            target.writer().recover(pre_commit)
        monkeypatch.undo()
    target.writer().recover(pre_commit)
    assert target.visible() == [1]


def test_another_job_s_transaction_behind_our_marker_is_not_waited_for(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be that of another sink of the same job, which is fenced only after this one has recovered."""
    writer = target.ready()
    writer.commit(prepared(writer, target.epoch(1), rows(1)))
    pre_commit = prepared(writer, target.epoch(2), rows(2))
    with target.kafka.transaction() as other:
        other.producer.produce(commit_marker.TOPIC, b"{}", b"another job", marker_partition(target))
        assert other.producer.flush(30) == 0
        monkeypatch.setattr(commit_marker, "_SECONDS", 20.0)
        target.writer().recover(pre_commit)
        assert target.visible() == [1, 2]


def test_staged_records_that_are_gone_are_an_error(target: Target) -> None:
    pre_commit = prepared(target.ready(), target.epoch(1), rows(1))
    target.store.blobs.delete(pre_commit["staging"][0])
    with pytest.raises(DataError, match="staged records staging/lineage/000000000001-a/out/"):
        target.writer().recover(pre_commit)
    assert target.visible() == []
    assert not target.open_transaction()


def test_a_recreated_topic_is_refused(target: Target) -> None:
    pre_commit = prepared(target.ready(), target.epoch(1), rows(1))
    target.kafka.delete_topic(target.topic)
    target.kafka.topic_named(target.topic, 2)
    with pytest.raises(IdentityError, match=target.topic) as caught:
        target.writer().recover(pre_commit)
    assert caught.value.context["recorded"] == pre_commit["topic_id"]
    assert target.visible() == []


def test_a_broker_that_dies_at_the_commit(
    own_broker: OwnBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Target(own_broker.kafka, tmp_path / "store", "job", own_broker.kafka.topic(2, prefix="out"))
    writer = target.ready()
    pre_commit = prepared(writer, target.epoch(1), rows(1, 2))
    monkeypatch.setattr(kafka_transaction, "_ANSWER_SECONDS", 1.0)
    monkeypatch.setattr(kafka_transaction, "_CALL_SECONDS", 1.0)
    own_broker.stop(kill=True)
    with pytest.raises(UnavailableError):
        writer.commit(pre_commit)
    own_broker.start()
    monkeypatch.undo()
    new = target.writer()
    new.recover(pre_commit)
    assert target.visible() == [1, 2]
    new.commit(prepared(new, target.epoch(2), rows(3)))
    assert target.visible() == [1, 2, 3]
    new.close()


# -------------------------------------------------------------------------------------------------- KAF-04 and KAF-05


@pytest.mark.parametrize("client_limit", [None, 8_000_000])
def test_kaf_04_a_record_over_the_limit_ends_the_epoch(target: Target, client_limit: int | None) -> None:
    """Once refused by the client, once by the broker."""
    options = {} if client_limit is None else {"message.max.bytes": client_limit}
    writer = target.ready(**options)
    small = rows(1, 3)
    big = small.head(1).with_columns(k=pl.lit(os.urandom(1_500_000).hex()))
    sink = replace(target.sink(**options), key=("n",))
    writer = target.writer(sink)
    writer.recover(None)
    writer.write(pl.concat([small.head(1), big.with_columns(n=pl.lit(2, pl.Int64)), small.tail(1)]))
    with pytest.raises(RejectedRecordError, match="with key '2'") as caught:
        writer.prepare(target.epoch(1), None)
    context = caught.value.context
    assert context["size"] > 2_000_000
    assert 1_000_000 <= context["limit"] < 1_100_000
    assert not caught.value.retryable
    assert target.visible() == []
    assert not target.open_transaction()
    writer.abort()
    writer.commit(prepared(writer, target.epoch(1, "b"), small))
    assert target.visible() == [1, 3]


def test_kaf_05_a_transaction_that_was_timed_out(target: Target) -> None:
    writer = target.ready(transaction_timeout_ms=1000)
    pre_commit = prepared(writer, target.epoch(1), rows(1, 2))
    wait_for(lambda: not target.open_transaction())
    assert target.visible() == []
    with pytest.raises(TransactionAbortedError) as caught:
        writer.commit(pre_commit)
    assert caught.value.code == "TRANSACTION_TIMED_OUT"
    writer.recover(pre_commit)
    assert target.visible() == [1, 2]
    writer.commit(prepared(writer, target.epoch(2), rows(3)))
    assert target.visible() == [1, 2, 3]


def test_kaf_05_a_fenced_writer_commits_nothing(target: Target) -> None:
    paused = target.ready()
    pre_commit = prepared(paused, target.epoch(1), rows(1))
    second = target.ready()
    with pytest.raises(FencedError) as caught:
        paused.commit(pre_commit)
    assert (caught.value.code, caught.value.retryable) == ("PRODUCER_FENCED", False)
    paused.abort()
    paused.close()
    assert target.visible() == []
    second.commit(prepared(second, target.epoch(1, "b"), rows(1)))
    assert target.visible() == [1]


def test_kaf_05_a_writer_that_was_fenced_while_idle_prepares_nothing(target: Target) -> None:
    paused = target.ready()
    paused.write(rows(1))
    target.ready()
    with pytest.raises(FencedError):
        paused.prepare(target.epoch(1), None)
    paused.abort()
    paused.close()
    assert target.visible() == []


def wait_for(condition: Callable[[], bool]) -> None:
    from infra.dev.process import wait_until

    assert wait_until(condition, 30.0)


# -------------------------------------------------------------------------------------------------------------- kills

CHILD = """
import json, sys
import polars as pl
from headrace.kafka import KafkaCluster
from headrace.kernel.protocols import EpochId, SinkContext
from headrace.sinks.kafka import KafkaSink
from headrace.state.stores import open_store
spec = json.loads(sys.argv[1])
sink = KafkaSink("out", KafkaCluster("test", {"bootstrap.servers": spec["bootstrap"]}), spec["topic"], ("k",))
schema = pl.Schema({"k": pl.String, "n": pl.Int64, "d": pl.Decimal(38, 2)})
writer = sink.open(schema, SinkContext(spec["job"], "lineage", open_store(spec["folder"]).blobs))
if spec["pre_commit"]:
    writer.recover(spec["pre_commit"])
else:
    writer.recover(None)
    writer.write(pl.DataFrame({"k": ["a", "b"], "n": [1, 2], "d": [1, 2]}, schema=schema))
    pre_commit = writer.prepare(EpochId(spec["job"], "lineage", 1, "a"), None)
    with open(spec["record"], "w") as file:
        json.dump(pre_commit, file)
    writer.commit(pre_commit)
"""


def run_child(target: Target, crash: str, pre_commit: dict[str, Any] | None) -> dict[str, Any]:
    record = target.folder.parent / "record.json"
    spec = {
        "bootstrap": target.kafka.bootstrap,
        "topic": target.topic,
        "job": target.job,
        "folder": str(target.folder),
        "record": str(record),
        "pre_commit": pre_commit,
    }
    child = subprocess.run(
        [sys.executable, "-c", CHILD, json.dumps(spec)], env={**os.environ, CRASH_VARIABLE: crash}, check=False
    )
    assert child.returncode == -9
    return dict(json.loads(record.read_text()))


@pytest.mark.parametrize("first", ["kafka-before-commit", "kafka-after-commit"])
def test_snk_04_killed_at_the_commit_each_row_is_there_once(target: Target, first: str) -> None:
    pre_commit = run_child(target, first, None)
    assert target.visible() == ([] if first == "kafka-before-commit" else [1, 2])
    if first == "kafka-before-commit":
        run_child(target, "kafka-before-commit", pre_commit)
        assert target.visible() == []
        run_child(target, "kafka-after-commit", pre_commit)
    writer = target.writer()
    writer.recover(pre_commit)
    writer.commit(pre_commit)
    assert target.visible() == [1, 2]
    writer.commit(prepared(writer, target.epoch(2), rows(3)))
    assert target.visible() == [1, 2, 3]


# --------------------------------------------------------------------------------------------------------- opening


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
