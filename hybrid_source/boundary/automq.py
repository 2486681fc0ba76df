"""Rule: a table of AutoMQ's table topics."""

from __future__ import annotations

from dataclasses import dataclass

from hybrid_source.boundary import layouts
from hybrid_source.boundary.coverage import from_columns
from hybrid_source.boundary.rule import BoundaryContext, Unusable
from hybrid_source.resolution import Resolution


@dataclass(frozen=True, slots=True)
class AutoMqColumns:
    """The struct ``_kafka_metadata{partition, offset, timestamp}`` of every row.

    The summary's ``automq.watermark`` bounds time only: ``boundary: {timestamp: recorded}`` uses it. Snapshots expire
    after an hour by default: pin what a long job reads.
    """

    name: str = "columns of AutoMQ"
    looks_for: str = "a struct column _kafka_metadata{partition, offset, timestamp}"

    def resolve(self, context: BoundaryContext) -> Resolution | Unusable | None:
        """See :class:`hybrid_source.boundary.rule.BoundaryRule`."""
        names = layouts.automq(context.history.stored)
        return None if names is None else from_columns(context, self.name, names)
