"""Rule: Headrace's own record in the table (docs/boundary-format.md)."""

from __future__ import annotations

from dataclasses import dataclass

from catalog.boundary_record import FoundBoundary, find_boundary
from hybrid_source.boundary.rule import BoundaryContext
from hybrid_source.iceberg_history import IcebergHistory
from hybrid_source.stages import Resolution


@dataclass(frozen=True, slots=True)
class RecordedBoundary:
    """The record of the pinned snapshot or of an ancestor, committed atomically with the rows it speaks of."""

    @property
    def looks_for(self) -> str:
        """See :class:`hybrid_source.boundary.rule.BoundaryRule`."""
        return "a boundary record of Headrace in the table"

    def resolve(self, context: BoundaryContext) -> Resolution | None:
        """See :class:`hybrid_source.boundary.rule.BoundaryRule`.

        Raises:
            BoundaryError: There is a record that cannot be read.
        """
        history = context.history
        if not isinstance(history, IcebergHistory):
            return None
        found = find_boundary(history.table, history.snapshot_id)
        if found is None or context.topic not in found.boundary.topics:
            return None
        # Rows and record were committed together: without other writers no row lies at or above it.
        trim = bool(found.foreign_changes) or not found.proven
        return Resolution(found.boundary, "recorded boundary", _evidence(found, context), _guarantee(found), trim)


def _evidence(found: FoundBoundary, context: BoundaryContext) -> str:
    partitions = found.boundary.topics[context.topic].partitions
    covered = ", ".join(f"{number}: {covered.next}" for number, covered in sorted(partitions.items()))
    text = f"{found.where} of snapshot {found.snapshot_id}: next offset by partition {{{covered}}}"
    for change in found.foreign_changes:
        text += (
            f"; snapshot {change.snapshot_id} ({change.operation}) has since added {change.added} and deleted "
            f"{change.deleted} rows without a record"
        )
    return text


def _guarantee(found: FoundBoundary) -> str:
    conditions = []
    if any(change.added for change in found.foreign_changes):
        conditions.append("the rows that other writers added since are not of this topic, or carry offsets")
    if not found.proven:
        conditions.append("the record's snapshot, which has been expired, was an ancestor of the pinned one")
    return "exactly-once" + (" if " + " and ".join(conditions) if conditions else "")
