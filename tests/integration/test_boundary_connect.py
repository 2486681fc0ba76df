"""The boundary of a Kafka Connect sink's table, from its control topic on a real broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField

from headrace.kafka import KafkaCluster, KafkaMetadata
from headrace.kernel.errors import BoundaryError, GapError
from hybrid_source.boundary import BoundaryContext, ConnectReplay, TimeBoundary, Trial, auto_rules, try_rules
from hybrid_source.iceberg_history import open_iceberg
from tests.connect_sink import COMMIT, commit_complete, data_complete, start_commit
from tests.history_tables import arrow, open_catalog
from tests.kafka import KafkaHelper

pytestmark = pytest.mark.services

GROUP = "connect-sink.a"
NEXT = "11111111-0000-0001-0000-000000000002"


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Table]:
    catalog = open_catalog(tmp_path)
    yield catalog.create_table("ns.t", Schema(NestedField(1, "v", LongType(), required=False)))
    catalog.close()


def commit(table: Table, control: str, nexts: dict[int, int], **more: str) -> int:
    """A snapshot as the coordinator commits it."""
    facts = {f"kafka.connect.offsets.{control}.{GROUP}": json.dumps(nexts), "kafka.connect.commit-id": COMMIT, **more}
    table.append(arrow(pl.DataFrame({"v": [1]})).cast(table.schema().as_arrow()), snapshot_properties=facts)
    return table.current_snapshot().snapshot_id


def cluster(kafka: KafkaHelper) -> KafkaCluster:
    return KafkaCluster("default", {"bootstrap.servers": kafka.bootstrap})


def tried(kafka: KafkaHelper, table: Table, topic: str, snapshot: int | None = None, **options: Any) -> Trial:
    rules = [ConnectReplay(cluster(kafka), **options)] if options else auto_rules(cluster(kafka))
    return try_rules(rules, BoundaryContext(open_iceberg(table, "local.ns.t", snapshot_id=snapshot), topic))


def nexts(trial: Trial, topic: str) -> dict[int, int]:
    assert trial.resolution is not None, trial.error
    return {number: covered.next for number, covered in trial.resolution.boundary.topics[topic].partitions.items()}


def why(trial: Trial) -> str:
    return next(v.detail for v in trial.verdicts if v.rule == "control topic of Kafka Connect")


def worker(kafka: KafkaHelper, control: str, value: bytes, partition: int = 0, *, ends: bool = True) -> int:
    """One transaction of a worker; gives the next offset of the control topic behind its marker."""
    with kafka.transaction() as transaction:
        (offset,) = transaction.produce(control, [value], partition=partition)
        if ends:
            transaction.commit()
    return offset + 2


def test_the_events_that_the_snapshot_has_taken_in_say_what_it_covers(kafka: KafkaHelper, table: Table) -> None:
    control, topic = kafka.topic(2, prefix="control.sink"), kafka.topic(3)
    worker(kafka, control, start_commit(GROUP))
    worker(kafka, control, data_complete(GROUP, {(topic, 0): 12, (topic, 1): None, ("other", 0): 99}))
    worker(kafka, control, data_complete("another-group", {(topic, 0): 700}))
    worker(kafka, control, data_complete(GROUP, {(topic, 0): 800}), ends=False)
    second = worker(kafka, control, data_complete(GROUP, {(topic, 2): 5}), partition=1)
    first = worker(kafka, control, commit_complete(GROUP))
    snapshot = commit(table, control, {0: first, 1: second})
    # A later commit: the workers are ahead, and so is the consumer group; the table has none of it yet.
    later = worker(kafka, control, data_complete(GROUP, {(topic, 0): 40, (topic, 1): 7}, commit=NEXT))

    trial = tried(kafka, table, topic)
    assert nexts(trial, topic) == {0: 12, 2: 5}
    assert trial.resolution is not None
    assert trial.resolution.rule == "control topic of Kafka Connect"
    assert trial.resolution.guarantee == "exactly-once"
    assert control in trial.resolution.evidence
    assert f"2 of them are of its commit {COMMIT}" in trial.resolution.evidence

    commit(table, control, {0: later, 1: second}, **{"kafka.connect.commit-id": NEXT})
    assert nexts(tried(kafka, table, topic), topic) == {0: 40, 1: 7, 2: 5}
    assert nexts(tried(kafka, table, topic, snapshot), topic) == {0: 12, 2: 5}


def test_the_key_of_tabulars_first_releases(kafka: KafkaHelper, table: Table) -> None:
    control, topic = kafka.topic(prefix="control"), kafka.topic()
    end = worker(kafka, control, data_complete(GROUP, {(topic, 0): 3}))
    facts = {f"kafka.connect.control.offsets.{control}.{GROUP}": json.dumps({0: end}), "kafka.connect.commitId": COMMIT}
    table.append(arrow(pl.DataFrame({"v": [1]})).cast(table.schema().as_arrow()), snapshot_properties=facts)
    assert nexts(tried(kafka, table, topic), topic) == {0: 3}


def test_a_control_topic_that_has_lost_the_events_gives_nothing(kafka: KafkaHelper, table: Table) -> None:
    control, topic = kafka.topic(prefix="control"), kafka.topic(2)
    lost = worker(kafka, control, data_complete(GROUP, {(topic, 1): 9}))
    end = worker(kafka, control, data_complete(GROUP, {(topic, 0): 3, (topic, 1): None}))
    commit(table, control, {0: end})
    assert nexts(tried(kafka, table, topic), topic) == {0: 3, 1: 9}
    kafka.delete_records(control, {0: lost})
    trial = tried(kafka, table, topic)
    assert trial.resolution is None
    assert f"topic {topic} partition 1" in why(trial)
    with pytest.raises(BoundaryError, match="gives no boundary"):
        raise tried(kafka, table, topic, required=True).error or AssertionError


def test_a_control_topic_that_is_gone_or_was_created_again(kafka: KafkaHelper, table: Table) -> None:
    control, topic = kafka.topic(prefix="control"), kafka.topic()
    commit(table, control, {0: 500})
    assert "created again" in why(tried(kafka, table, topic))
    commit(table, "no-such-topic", {0: 500})
    trial = tried(kafka, table, topic)
    assert "no control topic" in why(trial)
    assert "Kafka Connect" in str(trial.error)


def test_a_record_that_is_no_event_stops(kafka: KafkaHelper, table: Table) -> None:
    control, topic = kafka.topic(prefix="control"), kafka.topic()
    kafka.produce(control, [b"hello"])
    commit(table, control, {0: 1})
    error = tried(kafka, table, topic).error
    assert isinstance(error, BoundaryError)
    assert "partition 0 offset 0" in error.detail


# ------------------------------------------------------------------------------------------------------- a time instead

KEPT = {"retention.ms": "-1"}
START = datetime.fromisoformat("2026-03-01T00:00:00+00:00")


def at(kafka: KafkaHelper, table: Table, topic: str, time: datetime | None, overlap: int = 10) -> Trial:
    rule = TimeBoundary(cluster(kafka), time, timedelta(seconds=overlap))
    return try_rules([rule], BoundaryContext(open_iceberg(table, "local.ns.t"), topic))


def test_a_time_with_an_overlap_is_at_least_once(kafka: KafkaHelper, table: Table) -> None:
    topic = kafka.topic(2, config=KEPT)
    for second in range(60):
        stamp = int((START + timedelta(seconds=second)).timestamp() * 1000)
        kafka.produce(topic, [b"{}"], partition=0, timestamp_ms=stamp)
    commit(table, "c", {}, **{"kafka.connect.valid-through-ts": "2026-03-01T00:00:30Z"})
    trial = at(kafka, table, topic, START + timedelta(seconds=45))
    assert nexts(trial, topic) == {0: 35, 1: 0}
    assert trial.resolution is not None
    assert trial.resolution.guarantee.startswith("at-least-once")
    recorded = at(kafka, table, topic, None)
    assert nexts(recorded, topic) == {0: 20, 1: 0}
    assert recorded.resolution is not None
    assert "kafka.connect.valid-through-ts" in recorded.resolution.evidence
    assert nexts(at(kafka, table, topic, START + timedelta(days=1)), topic) == {0: 60, 1: 0}
    kafka.delete_records(topic, {0: 36})
    error = at(kafka, table, topic, START + timedelta(seconds=45)).error
    assert isinstance(error, GapError)
    assert (error.context["partition"], error.context["available"]) == (0, [36, 60])
    assert nexts(at(kafka, table, topic, START + timedelta(seconds=50)), topic) == {0: 40, 1: 0}
    kafka.delete_records(topic, {0: -1})
    error = at(kafka, table, topic, START + timedelta(days=1)).error
    assert isinstance(error, GapError), "an empty log does not say how old the last record was"


def test_hyb_03_a_record_that_comes_while_the_time_is_looked_up_is_not_skipped(
    kafka: KafkaHelper, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, real = kafka.topic(config=KEPT), KafkaMetadata._offsets
    stamp = int(START.timestamp() * 1000)
    kafka.produce(topic, [b"{}"], timestamp_ms=stamp)
    commit(table, "c", {})

    def busy(self: KafkaMetadata, *args: Any, **options: Any) -> Any:
        found = real(self, *args, **options)
        kafka.produce(topic, [b"{}"], timestamp_ms=stamp + 2000)
        return found

    monkeypatch.setattr(KafkaMetadata, "_offsets", busy)
    assert nexts(at(kafka, table, topic, START + timedelta(seconds=1), overlap=0), topic) == {0: 1}


def test_hyb_03_a_time_at_the_beginning_less_an_overlap_reads_the_topic_from_there(
    kafka: KafkaHelper, table: Table
) -> None:
    topic = kafka.topic(config=KEPT)
    kafka.produce(topic, [b"{}"] * 3, timestamp_ms=1)
    commit(table, "c", {})
    for overlap in (0, 10):
        assert nexts(at(kafka, table, topic, datetime.fromtimestamp(0, UTC), overlap), topic) == {0: 0}


def test_a_recorded_time_that_is_not_there(kafka: KafkaHelper, table: Table) -> None:
    commit(table, "c", {})
    error = at(kafka, table, kafka.topic(), None).error
    assert isinstance(error, BoundaryError)
    assert "valid-through-ts" in error.detail


def test_automqs_watermark_is_a_time(kafka: KafkaHelper, table: Table) -> None:
    topic = kafka.topic(config=KEPT)
    stamp = int(START.timestamp() * 1000)
    for second in range(3):
        kafka.produce(topic, [b"{}"], timestamp_ms=stamp + 1000 * second)
    commit(table, "c", {}, **{"automq.watermark": str(stamp + 2000)})
    assert nexts(at(kafka, table, topic, None, overlap=1), topic) == {0: 1}
