"""Rule: a table of Redpanda's Iceberg topics."""

from __future__ import annotations

from dataclasses import dataclass

from hybrid_source.boundary import layouts
from hybrid_source.boundary.coverage import from_columns
from hybrid_source.boundary.rule import BoundaryContext, Unusable
from hybrid_source.resolution import Resolution


@dataclass(frozen=True, slots=True)
class RedpandaColumns:
    """The struct ``redpanda{partition, offset, timestamp, headers, key, ...}`` of every row.

    Each file holds one partition; files of newer releases carry bounds, so that manifests suffice. The summary's
    ``redpanda.commit-metadata`` is an offset of the coordinator's own log and is never used.
    """

    name: str = "columns of Redpanda"
    looks_for: str = "a struct column redpanda{partition, offset, timestamp}"

    def resolve(self, context: BoundaryContext) -> Resolution | Unusable | None:
        """See :class:`hybrid_source.boundary.rule.BoundaryRule`."""
        names = layouts.redpanda(context.history.stored)
        return None if names is None else from_columns(context, self.name, names)
