"""Rules: rows carry the partition and offset they came from, in Headrace's own columns or in named ones."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.kernel.errors import BoundaryError
from hybrid_source.boundary import layouts
from hybrid_source.boundary.coverage import from_columns
from hybrid_source.boundary.rule import BoundaryContext, Unusable
from hybrid_source.history_rows import column
from hybrid_source.resolution import OffsetNames, Resolution


@dataclass(frozen=True, slots=True)
class OwnColumns:
    """``_kafka_partition`` and ``_kafka_offset``, with ``_kafka_topic`` where it is: Headrace's names, and OLake's."""

    name: str = "columns of Headrace"
    looks_for: str = "columns _kafka_partition and _kafka_offset"

    def resolve(self, context: BoundaryContext) -> Resolution | Unusable | None:
        """See :class:`hybrid_source.boundary.rule.BoundaryRule`."""
        names = layouts.own(context.history.stored)
        return None if names is None else from_columns(context, self.name, names)


@dataclass(frozen=True, slots=True)
class NamedColumns:
    """Columns that the job names; ``a.b`` names a field of a struct."""

    names: OffsetNames

    @property
    def name(self) -> str:
        """See :class:`hybrid_source.boundary.rule.BoundaryRule`."""
        return "columns named by the job"

    @property
    def looks_for(self) -> str:
        """See :class:`hybrid_source.boundary.rule.BoundaryRule`."""
        return f"columns {self.names}"

    def resolve(self, context: BoundaryContext) -> Resolution:
        """See :class:`hybrid_source.boundary.rule.BoundaryRule`.

        Raises:
            NotFoundError: They are not there.
            BoundaryError: They hold no value.
        """
        stored = context.history.stored
        for name in (self.names.partition, self.names.offset, self.names.topic):
            if name is not None:
                column(stored, name)
        found = from_columns(context, self.name, self.names)
        if isinstance(found, Unusable):
            raise BoundaryError(
                f"the columns that the job names give no boundary of topic {context.topic}",
                detail=found.why,
                hint="name the columns that hold each row's partition and offset, or give the next offsets "
                '(boundary: {offsets: {"0": 120}})',
            )
        return found
