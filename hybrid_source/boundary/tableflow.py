"""Rule: a table of Confluent Tableflow."""

from __future__ import annotations

from dataclasses import dataclass

from hybrid_source.boundary import layouts
from hybrid_source.boundary.coverage import from_columns
from hybrid_source.boundary.rule import BoundaryContext, Unusable
from hybrid_source.resolution import Resolution


@dataclass(frozen=True, slots=True)
class TableflowColumns:
    """The columns ``$$topic``, ``$$partition``, ``$$offset``, or ``cflt_metadata_topic`` ... of every row.

    Tableflow leaves nothing of offsets in its snapshots.
    """

    name: str = "columns of Confluent Tableflow"
    looks_for: str = "columns $$topic, $$partition, $$offset or cflt_metadata_topic, ..."

    def resolve(self, context: BoundaryContext) -> Resolution | Unusable | None:
        """See :class:`hybrid_source.boundary.rule.BoundaryRule`."""
        found = layouts.tableflow(context.history.stored)
        if not found:
            return None
        return from_columns(context, self.name, found[0])
