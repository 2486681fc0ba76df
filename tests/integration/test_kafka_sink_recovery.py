"""The Kafka sink on a real broker: what another writer finishes, aborts or leaves alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace.kernel.errors import (
    DataError,
    IdentityError,
    InternalError,
    UnavailableError,
)
from headrace.sinks import commit_marker, kafka_transaction
from headrace.testing import CRASH_VARIABLE
from tests.kafka_target import Target, marker_partition, prepared, rows

if TYPE_CHECKING:
    from tests.services import OwnBroker

pytestmark = pytest.mark.services


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
