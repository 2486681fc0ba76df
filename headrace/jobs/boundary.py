"""The boundary of a table outside of any job: what every rule says, and the way on after a topic has changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from pyiceberg.table import Table

from catalog.boundary_record import find_boundary, forgotten
from catalog.catalogs import Catalogs, TableName
from catalog.commit import set_boundary
from headrace.jobs.config import Config
from headrace.jobs.planning_tiers import tiers
from headrace.kafka.cluster import KafkaCluster
from headrace.kafka.metadata import KafkaMetadata
from headrace.kernel.boundary import Boundary, Incarnation, TopicBoundary
from headrace.kernel.errors import AccessDeniedError, BoundaryError, ExternalError, NotFoundError, UserError
from hybrid_source.boundary import BoundaryContext, Trial, auto_rules, try_rules
from hybrid_source.iceberg_history import open_iceberg

_LOG_DEADLINE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class LogFacts:
    """What a partition holds: ``earliest`` (its log start, in whichever tier) to ``latest`` (exclusive).

    ``local`` is the first offset that the brokers hold themselves, of a topic with tiered storage; None: it has none,
    or that is not known.
    """

    earliest: int
    latest: int
    local: int | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """What the rules of ``boundary: auto`` say of a table and a topic.

    Attributes:
        table: The table's name.
        snapshot: The snapshot that was looked at; None for a table without one.
        topic: The topic.
        trial: The verdicts, and the boundary or the error.
        logs: What the topic's partitions hold now, by number; empty where no cluster says.
        notes: What could not be found out of them.
    """

    table: str
    snapshot: int | None
    topic: str
    trial: Trial
    logs: Mapping[int, LogFacts] = field(default_factory=dict)
    notes: Sequence[str] = ()

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
            "logs": {str(number): asdict(log) for number, log in self.logs.items()},
            "notes": list(self.notes),
        }


def explain_boundary(config: Config, name: str, topic: str, snapshot: int | None, cluster: str) -> Explanation:
    """Try the rules on a table, as a job with ``boundary: auto`` would.

    The cluster is asked for the topic's log, too, with where the brokers' own part of it begins; if it does not answer
    soon, that is a note.

    Raises:
        NotFoundError: There is no such table or snapshot.
    """
    history = open_iceberg(Catalogs(config.catalogs).load(name), name, snapshot_id=snapshot)
    known = KafkaCluster(cluster, config.kafka_cluster(cluster)) if cluster in config.kafka else None
    trial = try_rules(auto_rules(known), BoundaryContext(history, topic))
    logs, notes = _logs(known, topic) if known is not None else ({}, ())
    return Explanation(name, history.snapshot_id, topic, trial, logs, notes)


def _logs(cluster: KafkaCluster, topic: str) -> tuple[Mapping[int, LogFacts], Sequence[str]]:
    metadata = KafkaMetadata(cluster, deadline=_LOG_DEADLINE_S)
    try:
        held = metadata.ranges(metadata.describe(topic).places)
    except (ExternalError, NotFoundError, AccessDeniedError) as error:
        return {}, [f"what topic {topic} holds now is not known: {error.message}"]
    local, notes = tiers(cluster, held)
    return {at.partition: LogFacts(log.earliest, log.latest, local.get(at)) for at, log in sorted(held.items())}, notes


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
