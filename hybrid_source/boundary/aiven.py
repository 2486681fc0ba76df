"""Rule: a table of Aiven's Iceberg topics."""

from __future__ import annotations

from dataclasses import dataclass

from hybrid_source.boundary import layouts
from hybrid_source.boundary.coverage import from_columns
from hybrid_source.boundary.rule import BoundaryContext, Unusable
from hybrid_source.resolution import Resolution


@dataclass(frozen=True, slots=True)
class AivenColumns:
    """The struct ``kafka{partition, offset, timestamp, ...}`` of every row.

    A segment that two brokers have uploaded is in the table twice: rows are read once for each offset.
    """

    name: str = "columns of Aiven"
    looks_for: str = "a struct column kafka{partition, offset, timestamp}"

    def resolve(self, context: BoundaryContext) -> Resolution | Unusable | None:
        """See :class:`hybrid_source.boundary.rule.BoundaryRule`."""
        names = layouts.aiven(context.history.stored)
        return None if names is None else from_columns(context, self.name, names, distinct=True)
