"""The line of snapshots that a branch or a pinned snapshot stands on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot


@dataclass(frozen=True, slots=True)
class Ancestry:
    """A snapshot and its known ancestors, newest first.

    Expiry cuts the line: the oldest known snapshot then either names a parent that is gone (``dangling``), or, after
    pyiceberg's own expiry, names none although it is not the table's first.
    """

    snapshots: tuple[Snapshot, ...]

    @classmethod
    def of(cls, metadata: TableMetadata, snapshot_id: int | None) -> Ancestry:
        """The ancestry of ``snapshot_id``; empty when that is None or unknown."""
        by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
        return cls(tuple(_walk(by_id, snapshot_id)))

    @classmethod
    def of_ref(cls, metadata: TableMetadata, ref: str) -> Ancestry:
        """The ancestry of a branch or tag; empty when it does not exist."""
        found = metadata.refs.get(ref)
        return cls.of(metadata, found.snapshot_id if found else None)

    @property
    def head(self) -> Snapshot | None:
        """The newest snapshot."""
        return self.snapshots[0] if self.snapshots else None

    def __contains__(self, snapshot_id: object) -> bool:
        return any(snapshot.snapshot_id == snapshot_id for snapshot in self.snapshots)

    @property
    def dangling(self) -> int | None:
        """The id of a parent that is named but no longer there."""
        return self.snapshots[-1].parent_snapshot_id if self.snapshots else None

    def may_precede(self, snapshot_id: int, sequence: int | None) -> bool:
        """Whether a snapshot that is not in the known line can be an ancestor whose descendants have expired.

        Args:
            snapshot_id: The snapshot asked for.
            sequence: Its sequence number; None when it is not known, which decides nothing.
        """
        if not self.snapshots or snapshot_id in self:
            return False
        if self.dangling == snapshot_id:
            return True
        oldest = self.snapshots[-1].sequence_number
        return sequence is not None and oldest is not None and 0 < sequence < oldest


def _walk(by_id: dict[int, Snapshot], snapshot_id: int | None) -> Iterator[Snapshot]:
    while snapshot_id is not None and snapshot_id in by_id:
        snapshot = by_id.pop(snapshot_id)
        yield snapshot
        snapshot_id = snapshot.parent_snapshot_id
