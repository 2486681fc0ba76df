"""A pinned snapshot of an Iceberg table as history."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import polars as pl
from pyarrow.fs import FileType
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestContent
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from catalog.errors import mapping
from headrace.kernel.errors import IdentityError, NotFoundError, SnapshotGoneError
from headrace.kernel.protocols import Json
from hybrid_source.history import HistoryPlan, HistoryQuery
from hybrid_source.history_rows import source_schema
from hybrid_source.iceberg_plan import column_bounds, plan_files
from hybrid_source.iceberg_scan import IcebergScanner
from hybrid_source.predicates import plan_filter
from hybrid_source.splits import HistoryFile, Split, SplitPlan


def open_iceberg(table: Table, name: str, *, snapshot_id: int | None = None, pin: Json = None) -> IcebergHistory:
    """Pin a snapshot of a loaded table.

    Args:
        table: The loaded table; its current schema is the job's schema, whatever the snapshot's was.
        name: ``catalog.namespace.table``, for messages and the pin.
        snapshot_id: The snapshot to read; None for the current one.
        pin: A pin from earlier; it decides alone.

    Raises:
        NotFoundError: ``SNAPSHOT_NOT_FOUND``: the asked-for snapshot is not in the table.
        SnapshotGoneError: The pinned snapshot is no longer in the table.
        IdentityError: The table is not the one that was pinned (dropped and created again).
    """
    if pin is None:
        return IcebergHistory(table, name, _chosen(table, name, snapshot_id))
    uuid = str(table.metadata.table_uuid)
    if pin["table_uuid"] != uuid:
        raise IdentityError(
            f"table {name} is not the one this job began with",
            detail=f"recorded uuid {pin['table_uuid']}, found {uuid}",
            hint="start the job afresh under a new uid, or restore the old table",
            context={"table": name, "recorded": pin["table_uuid"], "found": uuid},
        )
    pinned = pin["snapshot_id"]
    snapshot = table.metadata.snapshot_by_id(pinned) if pinned is not None else None
    if pinned is not None and snapshot is None:
        raise snapshot_gone(name, pinned)
    return IcebergHistory(table, name, snapshot)


def snapshot_gone(name: str, snapshot_id: int | None, file: str = "") -> SnapshotGoneError:
    """The error for a pinned snapshot that has been expired, or lost a file."""
    return SnapshotGoneError(
        f"snapshot {snapshot_id} of table {name} is no longer available",
        detail=f"missing file: {file}" if file else "the table's metadata no longer holds it",
        hint="keep snapshots at least as long as a job needs them (a tag), then start the job afresh",
        context={"table": name, "snapshot_id": str(snapshot_id), "file": file},
    )


def _chosen(table: Table, name: str, snapshot_id: int | None) -> Snapshot | None:
    if snapshot_id is None:
        return table.current_snapshot()
    found = table.metadata.snapshot_by_id(snapshot_id)
    if found is None:
        known = ", ".join(str(snapshot.snapshot_id) for snapshot in table.metadata.snapshots[-5:])
        raise NotFoundError(
            f"table {name} has no snapshot {snapshot_id}",
            detail=f"its latest snapshots: {known or 'none'}",
            hint="name one that the table still has, or leave snapshot out for the newest",
            code="SNAPSHOT_NOT_FOUND",
        )
    return found


class IcebergHistory:
    """A table at one snapshot. Columns are those of the table's current schema, matched by field id."""

    def __init__(self, table: Table, name: str, snapshot: Snapshot | None) -> None:
        self._table = table
        self._name = name
        self._snapshot = snapshot
        self._scanner = IcebergScanner(table)

    @property
    def name(self) -> str:
        """See :class:`hybrid_source.history.History`."""
        return self._name

    @property
    def table(self) -> Table:
        """The loaded table."""
        return self._table

    @property
    def snapshot_id(self) -> int | None:
        """The pinned snapshot; None for a table without one."""
        return self._snapshot.snapshot_id if self._snapshot else None

    @property
    def stored(self) -> pl.Schema:
        """See :class:`hybrid_source.history.History`."""
        return self._scanner.schema

    @property
    def schema(self) -> pl.Schema:
        """See :class:`hybrid_source.history.History`."""
        return source_schema(self.stored)

    @property
    def pin(self) -> Json:
        """``{"table", "table_uuid", "snapshot_id"}``."""
        return {
            "table": self._name,
            "table_uuid": str(self._table.metadata.table_uuid),
            "snapshot_id": self.snapshot_id,
        }

    @property
    def is_empty(self) -> bool:
        """See :class:`hybrid_source.history.History`."""
        if self._snapshot is None:
            return True
        with mapping(f"read the manifests of table {self._name}"):
            return not any(
                manifest.has_added_files() or manifest.has_existing_files()
                for manifest in self._snapshot.manifests(self._table.io)
                if manifest.content == ManifestContent.DATA
            )

    def plan(self, query: HistoryQuery) -> HistoryPlan:
        """See :class:`hybrid_source.history.History`."""
        pruning = plan_filter(query.rows_predicate(self.stored), self.schema, self._table)
        with mapping(f"plan table {self._name}"):
            try:
                files, report = plan_files(self._table, self._name, self._snapshot, pruning.iceberg, query.event_time)
            except FileNotFoundError as error:
                raise snapshot_gone(self._name, self.snapshot_id, str(error)) from error
        splits = SplitPlan(files, query.target, self._row_groups)
        pushed = None if isinstance(pruning.iceberg, AlwaysTrue) else str(pruning.iceberg)
        return HistoryPlan(
            splits, report, pruning.residual, self.stored, query, self._scanner.scan, self._check, pushed
        )

    def bounds(self, names: Sequence[str]) -> Iterator[tuple[tuple[Any, Any] | None, ...]]:
        """For each data file the exact (lower, upper) bounds of some columns, by statistics; None without them.

        Args:
            names: Columns of the table's current schema; ``a.b`` is a field of a struct.
        """
        fields = [self._table.schema().find_field(name) for name in names]
        return column_bounds(self._table, self._snapshot, fields)

    def _row_groups(self, file: HistoryFile) -> Sequence[int]:
        try:
            return self._scanner.row_groups(file)
        except FileNotFoundError as error:
            raise snapshot_gone(self._name, self.snapshot_id, file.path) from error

    def _check(self, split: Split) -> None:
        io = self._table.io
        if not isinstance(io, PyArrowFileIO):
            missing = [file.path for file in split.files if not io.new_input(file.path).exists()]
        else:
            scheme, netloc, _ = io.parse_location(split.files[0].path)
            paths = [io.parse_location(file.path)[2] for file in split.files]
            infos = io.fs_by_scheme(scheme, netloc).get_file_info(paths)
            missing = [info.path for info in infos if info.type == FileType.NotFound]
        if missing:
            raise snapshot_gone(self._name, self.snapshot_id, missing[0])
