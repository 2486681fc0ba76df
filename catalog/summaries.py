"""What writers have left in the snapshot summaries of a table, along the line of snapshots that is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from catalog.ancestry import Ancestry

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ForeignChange:
    """A snapshot above a record that changed rows and says nothing of what they cover."""

    snapshot_id: int
    operation: str
    added: int
    deleted: int

    def __str__(self) -> str:
        return (
            f"snapshot {self.snapshot_id} ({self.operation}) has since added {self.added} and deleted {self.deleted} "
            "rows without a record"
        )


@dataclass(frozen=True, slots=True)
class Noted(Generic[_T]):
    """A value from the summary of a snapshot.

    Attributes:
        value: What was found.
        snapshot_id: The snapshot that says it: the pinned one or an ancestor of it.
        foreign_changes: Snapshots after it, up to the pinned one, that changed rows without saying what they cover.
            Compaction (``replace``) changes none.
    """

    value: _T
    snapshot_id: int
    foreign_changes: tuple[ForeignChange, ...] = ()


def newest_note(
    table: Table, snapshot_id: int | None, read: Callable[[Mapping[str, str]], _T | None]
) -> Noted[_T] | None:
    """What ``read`` finds in the summary of a snapshot or of its nearest ancestor.

    Only the line of ancestors is walked, so that nothing of a rolled-back snapshot or of another branch is found.

    Args:
        table: The table.
        snapshot_id: The pinned snapshot; None for a table without snapshots.
        read: Given the properties of a summary; None: nothing there.

    Returns:
        The newest value, or None when no summary of the line holds one.
    """
    foreign: list[ForeignChange] = []
    for snapshot in Ancestry.of(table.metadata, snapshot_id).snapshots:
        value = read(summary(snapshot))
        if value is not None:
            return Noted(value, snapshot.snapshot_id, tuple(foreign))
        if change := foreign_change(snapshot):
            foreign.append(change)
    return None


def summary(snapshot: Snapshot) -> Mapping[str, str]:
    """The properties of a snapshot's summary, without the operation."""
    return snapshot.summary.additional_properties if snapshot.summary else {}


def foreign_change(snapshot: Snapshot) -> ForeignChange | None:
    """What a snapshot changed; None when it changed no rows."""
    operation = snapshot.summary.operation.value if snapshot.summary else "unknown"
    if operation == "replace":
        return None
    facts = summary(snapshot)
    added, deleted = integer(facts.get("added-records")) or 0, integer(facts.get("deleted-records")) or 0
    files = any(
        facts.get(key, "0") != "0"
        for key in ("added-data-files", "deleted-data-files", "added-delete-files", "removed-delete-files")
    )
    if operation != "unknown" and not (added or deleted or files):
        return None
    return ForeignChange(snapshot.snapshot_id, operation, added, deleted)


def integer(text: str | None) -> int | None:
    """A property as an integer; None when it is missing or none."""
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None
