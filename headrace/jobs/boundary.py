"""The boundary of a table outside of any job: what every rule says, and the way on after a topic has changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyiceberg.table import Table

from catalog.boundary_record import find_boundary, forgotten
from catalog.catalogs import Catalogs, TableName
from catalog.commit import set_boundary
from headrace.jobs.config import Config
from headrace.kafka.cluster import KafkaCluster
from headrace.kafka.metadata import KafkaMetadata
from headrace.kernel.boundary import Boundary, Incarnation, TopicBoundary
from headrace.kernel.errors import BoundaryError, NotFoundError, UserError
from hybrid_source.boundary import BoundaryContext, Trial, auto_rules, try_rules
from hybrid_source.iceberg_history import open_iceberg


@dataclass(frozen=True, slots=True)
class Explanation:
    """What the rules of ``boundary: auto`` say of a table and a topic.

    Attributes:
        table: The table's name.
        snapshot: The snapshot that was looked at; None for a table without one.
        topic: The topic.
        trial: The verdicts, and the boundary or the error.
    """

    table: str
    snapshot: int | None
    topic: str
    trial: Trial

    def to_json(self) -> dict[str, Any]:
        """As JSON values; ``resolution`` is null when no rule gives a boundary."""
        found = self.trial.resolution
        return {
            "table": self.table,
            "snapshot": self.snapshot,
            "topic": self.topic,
            "resolution": found.to_json() if found is not None else None,
            "tried": [
                {"rule": verdict.rule, "outcome": verdict.outcome, "detail": verdict.detail}
                for verdict in self.trial.verdicts
            ],
        }


def explain_boundary(config: Config, name: str, topic: str, snapshot: int | None, cluster: str) -> Explanation:
    """Try the rules on a table, as a job with ``boundary: auto`` would.

    The cluster is asked only when a control topic of Kafka Connect is to be replayed.

    Raises:
        NotFoundError: There is no such table or snapshot.
    """
    history = open_iceberg(Catalogs(config.catalogs).load(name), name, snapshot_id=snapshot)
    known = KafkaCluster(cluster, config.kafka_cluster(cluster)) if cluster in config.kafka else None
    trial = try_rules(auto_rules(known), BoundaryContext(history, topic))
    return Explanation(name, history.snapshot_id, topic, trial)


@dataclass(frozen=True, slots=True)
class Reset:
    """A record that is to be taken back.

    Attributes:
        table: The table's name.
        topic: The topic of which the table is to cover nothing.
        before: What it covers by its record; None: the record cannot be read.
        now: The topic as it is.
        boundary: The record that takes its place.
    """

    table: str
    topic: str
    before: TopicBoundary | None
    now: Incarnation
    boundary: Boundary

    @property
    def same(self) -> bool:
        """The topic is the one that was recorded: its records will be read again."""
        return (
            self.before is not None and self.before.topic_id is not None and self.before.topic_id == self.now.topic_id
        )


def plan_reset(config: Config, name: str, topic: str | None, cluster: str) -> Reset:
    """What a reset would write.

    Args:
        config: The configuration.
        name: The table.
        topic: The topic; None: the only one of the record.
        cluster: Where the topic is.

    Raises:
        NotFoundError: There is no such table or record, or the record does not know the topic.
        UserError: The record has several topics and none is named.
        UnavailableError: The cluster does not answer.
    """
    record = _record(Catalogs(config.catalogs).load(name), name, topic)
    if topic is None:
        if len(record.topics) != 1:
            raise UserError(
                f"the record of table {name} has {len(record.topics)} topics",
                detail=", ".join(sorted(record.topics)),
                hint="say which one with --topic",
            )
        topic = next(iter(record.topics))
    if topic not in record.topics:
        raise NotFoundError(
            f"the record of table {name} does not know topic {topic!r}",
            detail=f"it knows {', '.join(sorted(record.topics)) or 'none'}",
            code="BOUNDARY_NOT_FOUND",
        )
    now = _now(config, topic, cluster)
    known = record.topics[topic]
    return Reset(name, topic, known if known.partitions else None, now, forgotten(record, topic, now))


def reset_boundary(config: Config, reset: Reset) -> int:
    """Write it, in an empty snapshot of the main branch; rows stay as they are. Gives the snapshot's id.

    Raises:
        HeadraceError: As :func:`catalog.commit.set_boundary`.
    """
    return set_boundary(Catalogs(config.catalogs), TableName.parse(reset.table), reset.boundary)


def _record(table: Table, name: str, topic: str | None) -> Boundary:
    current = table.current_snapshot()
    try:
        found = find_boundary(table, current.snapshot_id if current else None)
    except BoundaryError:
        if topic is None:
            raise
        return Boundary({topic: TopicBoundary({})})
    if found is None:
        raise NotFoundError(
            f"table {name} has no boundary record", hint="there is nothing to reset", code="BOUNDARY_NOT_FOUND"
        )
    return found.boundary


def _now(config: Config, topic: str, cluster: str) -> Incarnation:
    try:
        found = KafkaMetadata(KafkaCluster(cluster, config.kafka_cluster(cluster))).describe(topic)
    except NotFoundError as error:
        if error.code != "TOPIC_NOT_FOUND":
            raise
        return Incarnation()
    return Incarnation(found.topic_id, found.cluster_id)
