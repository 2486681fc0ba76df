"""Rule that gives no boundary: writers whose snapshots are known to hold none, so that a refusal can say it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from catalog.summaries import newest_note
from hybrid_source.boundary.rule import BoundaryContext, Unusable
from hybrid_source.iceberg_history import IcebergHistory

NAME_COLUMNS: Final = "name the columns that hold each row's partition and offset, if there are such"
TIME_ONLY: Final = "it bounds time only: boundary: {timestamp: recorded, overlap: 5m} uses it, at least once"

_MARKS: Final[Mapping[str, str]] = {
    "flink.max-committed-checkpoint-id": f"Flink records no offsets in the table: {NAME_COLUMNS}",
    "flink.job-id": f"Flink records no offsets in the table: {NAME_COLUMNS}",
    "spark.sql.streaming.queryId": "Spark records no offsets in the table (they are in the query's checkpoint folder): "
    + NAME_COLUMNS,
    "redpanda.commit-metadata": "redpanda.commit-metadata is an offset of Redpanda's coordinator log, not of the topic",
    "automq.watermark": f"automq.watermark of AutoMQ is no offset: {TIME_ONLY}",
    "kafka.connect.valid-through-ts": f"kafka.connect.valid-through-ts is no offset: {TIME_ONLY}",
    "kafka.connect.vtts": f"kafka.connect.vtts is no offset: {TIME_ONLY}",
    "kafka.connect.commit-id": "Kafka Connect's sink records offsets of its control topic, not of the topic",
}


@dataclass(frozen=True, slots=True)
class ForeignMarks:
    """Summary properties of Flink, Spark, Redpanda, AutoMQ and Kafka Connect that are no source offsets."""

    name: str = "marks of other writers"
    looks_for: str = "marks of Flink, Spark, Redpanda, AutoMQ or Kafka Connect in the snapshot summary"

    def resolve(self, context: BoundaryContext) -> Unusable | None:
        """See :class:`hybrid_source.boundary.rule.BoundaryRule`."""
        history = context.history
        if not isinstance(history, IcebergHistory):
            return None
        noted = newest_note(history.table, history.snapshot_id, _marks)
        return Unusable("; ".join(dict.fromkeys(noted.value))) if noted else None


def _marks(facts: Mapping[str, str]) -> tuple[str, ...] | None:
    return tuple(text for mark, text in _MARKS.items() if mark in facts) or None
