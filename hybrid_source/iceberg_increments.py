"""Increments of an Iceberg table: what the snapshots after one, up to another, have added.

The increment is read from the manifests of the appending snapshots themselves (entries that this snapshot ADDED), so
that a file which compaction has rewritten since is still read once, as it was appended. Deletes that came later do not
take anything back: an increment is what happened, not what is left.

Operations (Iceberg spec, snapshot summary): ``append`` is read, ``replace`` changes no rows and is passed over,
``overwrite`` and ``delete``, and any snapshot that adds delete files, go by the declared policy
(:mod:`hybrid_source.iceberg_changes` reads them).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from pyiceberg.expressions import BooleanExpression
from pyiceberg.manifest import ManifestContent, ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from catalog.ancestry import Ancestry
from headrace.kernel.errors import DataError, SnapshotGoneError
from hybrid_source.iceberg_plan import Compactor, PlanReport, opened_manifests
from hybrid_source.iceberg_planner import Planner
from hybrid_source.splits import HistoryFile

OnChange: TypeAlias = Literal["fail", "skip", "changelog"]
"""What to do with a snapshot that changed or deleted rows: refuse it, pass over it with its rows unread, or read what
it took away and gave."""

CHANGED: Final = "TABLE_CHANGED"
NOT_AN_ANCESTOR: Final = "SNAPSHOT_NOT_ANCESTOR"


@dataclass(frozen=True, slots=True)
class Increment:
    """The snapshots of a table in (since, to], by what they did.

    Attributes:
        since: The snapshot before the increment (exclusive).
        appends: Snapshots whose files are read, oldest first.
        changes: Snapshots that changed or deleted rows, oldest first; passed over, unless ``before`` is there.
        before: The snapshot before the increment, where the difference of the two is read. ``appends`` is empty then.
    """

    since: int
    appends: tuple[Snapshot, ...]
    changes: tuple[Snapshot, ...] = ()
    before: Snapshot | None = None

    @property
    def giving(self) -> tuple[Snapshot, ...]:
        """The snapshots whose added files are read."""
        return self.appends if self.before is None else self.changes


def increment(table: Table, name: str, since: int, to: Snapshot, on_change: OnChange = "fail") -> Increment:
    """The increment from snapshot ``since`` (exclusive) to ``to`` (inclusive). Reads the loaded metadata only.

    Raises:
        SnapshotGoneError: Snapshots between the two have been expired, so that what they did cannot be known; or the
            first itself, from which a change takes rows away.
        DataError: ``SNAPSHOT_NOT_ANCESTOR``: the table was rolled back behind ``since``, or replaced.
        DataError: ``TABLE_CHANGED``: a snapshot overwrote or deleted rows, and the policy is ``fail``.
    """
    line = between(table, name, since, to)
    changes = tuple(snapshot for snapshot in line if is_change(snapshot))
    if changes and on_change == "fail":
        raise _changed(name, changes[0])
    if changes and on_change == "changelog":
        before = table.metadata.snapshot_by_id(since)
        if before is None:
            raise _expired(name, since, to)
        return Increment(since, (), line, before)
    return Increment(since, tuple(s for s in line if operation(s) == "append" and s not in changes), changes)


def between(table: Table, name: str, since: int | None, to: Snapshot) -> tuple[Snapshot, ...]:
    """The line of snapshots from ``since`` (exclusive; None: the beginning) to ``to`` (inclusive), oldest first.

    Raises:
        SnapshotGoneError: Some of it has been expired.
        DataError: ``SNAPSHOT_NOT_ANCESTOR``.
    """
    ancestry = Ancestry.of(table.metadata, to.snapshot_id)
    line = ancestry.snapshots
    for index, snapshot in enumerate(line):
        if snapshot.snapshot_id == since:
            return line[:index][::-1]
    if ancestry.dangling == since and (since is not None or (line[-1].sequence_number or 0) <= 1):
        return line[::-1]
    known = table.metadata.snapshot_by_id(since) if since is not None else None
    if known is None or ancestry.may_precede(known.snapshot_id, known.sequence_number):
        raise _expired(name, since, to)
    raise DataError(
        f"snapshot {since} of table {name} is not an ancestor of snapshot {to.snapshot_id}",
        detail="the table was rolled back or replaced after that snapshot had been read",
        hint="roll the table forward again, or start the job afresh under a new uid",
        code=NOT_AN_ANCESTOR,
        context={"table": name, "wanted": str(since), "available": str(to.snapshot_id)},
    )


def operation(snapshot: Snapshot) -> str:
    """The operation of a snapshot's summary; ``overwrite`` for one without a summary, of which all can be true."""
    return snapshot.summary.operation.value if snapshot.summary else "overwrite"


def is_change(snapshot: Snapshot) -> bool:
    """Whether a snapshot may have changed or deleted rows that were there before it."""
    if operation(snapshot) == "append":
        facts = snapshot.summary.additional_properties if snapshot.summary else {}
        return facts.get("added-delete-files", "0") != "0"
    return operation(snapshot) != "replace"


def plan_increment(
    table: Table,
    name: str,
    wanted: Increment,
    row_filter: BooleanExpression,
    event_time: str | None,
    bounds: Sequence[str] = (),
) -> tuple[list[HistoryFile], PlanReport]:
    """The files that an increment added and that may hold rows of ``row_filter``, in no order.

    Opens the manifests of the increment's snapshots only, however many files the table has.

    Args:
        table: The loaded table.
        name: For messages.
        wanted: The increment.
        row_filter: See :func:`hybrid_source.predicates.plan_filter`.
        event_time: The event-time column, for lower bounds.
        bounds: Columns whose bounds are wanted by file.

    Raises:
        FileNotFoundError: A manifest is gone.
        UserError: ``TABLE_UNSUPPORTED``.
    """
    compact = Compactor(table, name, None, event_time, bounds)
    manifests = {snapshot.snapshot_id: added_manifests(table, snapshot) for snapshot in wanted.appends}
    every = [manifest for found in manifests.values() for manifest in found]
    files: list[HistoryFile] = []
    count = 0
    for entries in added_entries(table, every, row_filter):
        count += 1
        files.extend(compact(entry) for entry in entries)
    return files, PlanReport(
        len(files),
        sum(file.nbytes for file in files),
        sum(file.records for file in files),
        sum(manifest.added_files_count or 0 for manifest in every),
        None,
        sum(manifest.added_rows_count or 0 for manifest in every),
        count,
        len(every),
    )


def added_manifests(table: Table, snapshot: Snapshot) -> list[ManifestFile]:
    """The data manifests that a snapshot wrote and that name files it added."""
    return [
        manifest
        for manifest in snapshot.manifests(table.io)
        if manifest.content == ManifestContent.DATA
        and manifest.added_snapshot_id == snapshot.snapshot_id
        and manifest.has_added_files()
    ]


def added_entries(
    table: Table, manifests: Sequence[ManifestFile], row_filter: BooleanExpression
) -> Iterator[list[ManifestEntry]]:
    """For each manifest the entries that its own snapshot added.

    A merged manifest carries files of earlier snapshots as EXISTING; those belong to the snapshots that added them.
    """
    planner = Planner(table.metadata, table.io, row_filter)
    own = {manifest.added_snapshot_id for manifest in manifests}
    for entries in opened_manifests(planner, manifests):
        yield [entry for entry in entries if entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id in own]


def _changed(name: str, snapshot: Snapshot) -> DataError:
    facts: dict[str, Any] = dict(snapshot.summary.additional_properties) if snapshot.summary else {}
    kind = operation(snapshot)
    shown = ("added-records", "deleted-records", "added-delete-files")
    counts = ", ".join(f"{key} {facts[key]}" for key in shown if key in facts)
    return DataError(
        f"snapshot {snapshot.snapshot_id} of table {name} is no append: its operation is {kind}",
        detail=f"rows that were there before may have been changed or deleted{f' ({counts})' if counts else ''}",
        hint="set on_change: skip to read appended rows only, as if it had not happened, or on_change: changelog (with "
        "another uid) to read what it changed; or start the job afresh",
        code=CHANGED,
        context={"table": name, "snapshot_id": str(snapshot.snapshot_id), "wanted": "append", "available": kind},
    )


def _expired(name: str, since: int | None, to: Snapshot) -> SnapshotGoneError:
    return SnapshotGoneError(
        f"snapshots of table {name} after {since or 'its first'} have been expired before they were read",
        detail=f"no known line of snapshots leads from {since} to {to.snapshot_id}",
        hint="keep snapshots at least as long as a job may be down (history.expire.max-snapshot-age-ms), "
        "then start the job afresh",
        context={"table": name, "wanted": str(since), "available": str(to.snapshot_id)},
    )
