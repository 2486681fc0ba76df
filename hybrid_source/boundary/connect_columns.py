"""Rule: rows of Iceberg's Kafka Connect sink with the metadata transform."""

from __future__ import annotations

from dataclasses import dataclass

from hybrid_source.boundary import layouts
from hybrid_source.boundary.coverage import from_columns
from hybrid_source.boundary.rule import BoundaryContext, Unusable
from hybrid_source.resolution import Resolution


@dataclass(frozen=True, slots=True)
class ConnectColumns:
    """``KafkaMetadataTransform``: ``<field_name>_topic``, ``_partition``, ``_offset``, ``_timestamp``, or one struct.

    The ``field_name`` is ``_kafka_metadata`` unless configured; any is found. The connector's consumer group is never
    asked: it is committed when files are written, before the table has them, and as a boundary would lose rows.
    """

    name: str = "columns of Kafka Connect"
    looks_for: str = "columns of the Kafka Connect metadata transform (_kafka_metadata_topic, ..., any prefix)"

    def resolve(self, context: BoundaryContext) -> Resolution | Unusable | None:
        """See :class:`hybrid_source.boundary.rule.BoundaryRule`."""
        found = layouts.connect(context.history.stored)
        if not found:
            return None
        if len(found) > 1:
            sets = "; ".join(map(str, found))
            return Unusable(f"several sets of columns may be those of the topic: {sets}; name them (boundary: columns)")
        return from_columns(context, self.name, found[0])
