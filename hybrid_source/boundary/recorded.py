"""Rule: Headrace's own record in the table (docs/boundary-format.md)."""

from __future__ import annotations

from dataclasses import dataclass

from catalog.boundary_record import FoundBoundary, find_boundary
from hybrid_source.boundary import layouts
from hybrid_source.boundary.rule import BoundaryContext, Unusable
from hybrid_source.iceberg_history import IcebergHistory
from hybrid_source.resolution import Resolution


@dataclass(frozen=True, slots=True)
class RecordedBoundary:
    """The record of the pinned snapshot or of an ancestor, committed atomically with the rows it speaks of."""

    name: str = "recorded boundary"
    looks_for: str = "a boundary record of Headrace in the table"

    def resolve(self, context: BoundaryContext) -> Resolution | Unusable | None:
        """See :class:`hybrid_source.boundary.rule.BoundaryRule`.

        Raises:
            BoundaryError: There is a record that cannot be read.
        """
        history = context.history
        if not isinstance(history, IcebergHistory):
            return None
        found = find_boundary(history.table, history.snapshot_id)
        if found is None:
            return None
        topic = found.boundary.topics.get(context.topic)
        if topic is None:
            known = ", ".join(sorted(found.boundary.topics)) or "no topic"
            return Unusable(f"the record of snapshot {found.snapshot_id} is about {known}, not about {context.topic}")
        # Offsets in rows of an earlier incarnation of the topic say nothing about the present one.
        columns = None if topic.earlier else layouts.own(history.stored)
        # Rows and record were committed together: without other writers no row lies at or above it.
        trim = bool(found.foreign_changes) or not found.proven
        guarantee = _guarantee(found, trimmed=columns is not None)
        return Resolution(found.boundary, self.name, _evidence(found, context), guarantee, trim, columns)


def _evidence(found: FoundBoundary, context: BoundaryContext) -> str:
    topic = found.boundary.topics[context.topic]
    covered = ", ".join(f"{number}: {covered.next}" for number, covered in sorted(topic.partitions.items()))
    text = f"{found.where} of snapshot {found.snapshot_id}: next offset by partition {{{covered}}}"
    if topic.earlier:
        text += f"; the table also holds rows of {len(topic.earlier)} earlier incarnations of the topic"
    return "; ".join([text, *map(str, found.foreign_changes)])


def _guarantee(found: FoundBoundary, *, trimmed: bool) -> str:
    conditions = []
    if any(change.added for change in found.foreign_changes):
        carry = ", or carry offsets" if trimmed else ""
        conditions.append(f"the rows that other writers added since are not of this topic{carry}")
    if not found.proven:
        conditions.append("the record's snapshot, which has been expired, was an ancestor of the pinned one")
    return "exactly-once" + (" if " + " and ".join(conditions) if conditions else "")
