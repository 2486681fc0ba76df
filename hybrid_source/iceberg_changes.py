"""What snapshots that overwrite or delete rows have changed: rows taken away and rows added.

The difference of two snapshots, by data file: rows of a file that is gone, as far as they were live, are taken away;
those of a new file are added; of a file whose delete files have changed, the rows are taken away that are deleted now
and were not before, whether by position or by value. So copy-on-write and merge-on-read give the same changes. Rows
that a rewrite has only moved are in both and cancel out (:func:`hybrid_source.history_rows.net`), for which the whole
change is read as one split.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pyiceberg.expressions import BooleanExpression
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from hybrid_source.iceberg_deletes import DeleteIndex
from hybrid_source.iceberg_plan import Compactor, PlanReport, opened_manifests
from hybrid_source.iceberg_planner import Planner
from hybrid_source.splits import FileChange, HistoryFile


def plan_changes(
    table: Table,
    name: str,
    before: Snapshot,
    after: Snapshot,
    row_filter: BooleanExpression,
    event_time: str | None,
) -> tuple[list[HistoryFile], PlanReport]:
    """The difference of two snapshots, as far as it may hold rows of ``row_filter``: files to read.

    Files that only append are given one by one; else one entry has all changed files.

    Args:
        table: The loaded table.
        name: For messages.
        before: The earlier snapshot.
        after: The later one.
        row_filter: See :func:`hybrid_source.predicates.plan_filter`.
        event_time: The event-time column, for lower bounds.

    Raises:
        FileNotFoundError: A manifest is gone.
        UserError: ``TABLE_UNSUPPORTED``: deletes among them that cannot be applied.
    """
    old, new = _Manifests(table, before), _Manifests(table, after)
    if old.deletes.keys() == new.deletes.keys():  # then what stands in one manifest of both is unchanged
        shared = old.data.keys() & new.data.keys()
        old.leave_out(shared)
        new.leave_out(shared)
    was = {file.path: file for file in old.files(table, name, row_filter, event_time)}
    now = {file.path: file for file in new.files(table, name, row_filter, event_time)}
    changes = list(_differences(was, now))
    nbytes, records = sum(one.file.nbytes for one in changes), sum(one.file.records for one in changes)
    read = len(old.data) + len(new.data)
    report = PlanReport(len(changes), nbytes, records, manifests=read, manifests_total=read)
    if all(change.before is None for change in changes):
        return [change.file for change in changes], report
    lows = [change.file.low for change in changes]
    known = [low for low in lows if low is not None]
    low = min(known) if len(known) == len(lows) else None
    return [HistoryFile(f"snapshot {after.snapshot_id}", records, nbytes, low, changes=tuple(changes))], report


def _differences(was: dict[str, HistoryFile], now: dict[str, HistoryFile]) -> Iterator[FileChange]:
    for path in sorted(was.keys() | now.keys()):
        before, after = was.get(path), now.get(path)
        if before is None and after is not None:
            yield FileChange(after, None, after.deletes)
        elif before is not None and after is None:
            yield FileChange(before, before.deletes, None)
        elif before is not None and after is not None and before.deletes != after.deletes:
            yield FileChange(after, before.deletes, after.deletes)


class _Manifests:
    """The manifests of a snapshot, by path."""

    def __init__(self, table: Table, snapshot: Snapshot) -> None:
        found = snapshot.manifests(table.io)
        self.data = {one.manifest_path: one for one in found if one.content == ManifestContent.DATA}
        self.deletes = {one.manifest_path: one for one in found if one.content == ManifestContent.DELETES}

    def leave_out(self, paths: Sequence[str] | set[str]) -> None:
        """Leave some data manifests unopened."""
        self.data = {path: one for path, one in self.data.items() if path not in paths}

    def files(
        self, table: Table, name: str, row_filter: BooleanExpression, event_time: str | None
    ) -> Iterator[HistoryFile]:
        """The live files that may hold wanted rows, with the deletes that apply to them."""
        planner = Planner(table.metadata, table.io, row_filter)
        data: list[ManifestFile] = list(self.data.values())
        deletes = DeleteIndex(table, name).read(list(self.deletes.values()), row_filter)
        compact = Compactor(table, name, deletes, event_time)
        for entries in opened_manifests(planner, data):
            yield from map(compact, entries)
