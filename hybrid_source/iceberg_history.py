"""A pinned snapshot of an Iceberg table as history."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Final

import polars as pl
from pyarrow.fs import FileType
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestContent, ManifestEntry
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from catalog.errors import mapping
from headrace.kernel.protocols import Json
from hybrid_source.history import HistoryPlan, HistoryQuery
from hybrid_source.history_rows import source_schema
from hybrid_source.iceberg_bounds import event_time_bounds, exact_bounds, lacks_event_time
from hybrid_source.iceberg_changes import plan_changes
from hybrid_source.iceberg_increments import (
    Increment,
    OnChange,
    added_entries,
    added_manifests,
    increment,
    plan_increment,
)
from hybrid_source.iceberg_native import check_defaults
from hybrid_source.iceberg_pins import chosen_snapshot, pinned_snapshot, snapshot_gone
from hybrid_source.iceberg_plan import (
    Compactor,
    PlanReport,
    data_entries,
    plan_files,
)
from hybrid_source.iceberg_scan import IcebergScanner
from hybrid_source.predicates import plan_filter
from hybrid_source.read_errors import reading
from hybrid_source.splits import HistoryFile, Split, SplitPlan


def open_iceberg(
    table: Table,
    name: str,
    *,
    snapshot_id: int | None = None,
    since: int | None = None,
    on_change: OnChange = "fail",
    pin: Json = None,
) -> IcebergHistory:
    """Pin a snapshot of a loaded table, or the increment that leads to it from an earlier snapshot.

    Args:
        table: The loaded table; its current schema is the job's schema, whatever the snapshot's was.
        name: ``catalog.namespace.table``, for messages and the pin.
        snapshot_id: The snapshot to read; None for the current one.
        since: Read only what the snapshots after this one (exclusive) have appended; None: all rows.
        on_change: What to do with snapshots of an increment that changed or deleted rows. With ``changelog`` all rows
            have a weight.
        pin: A pin from earlier; it decides alone, but for ``on_change``.

    Raises:
        NotFoundError: ``SNAPSHOT_NOT_FOUND``: the asked-for snapshot is not in the table.
        SnapshotGoneError: The pinned snapshot, or one that an increment needs, is no longer in the table.
        IdentityError: The table is not the one that was pinned (dropped and created again).
        DataError: As :func:`hybrid_source.iceberg_increments.increment`.
        UserError: ``TABLE_UNSUPPORTED``: fields that cannot be read rightly.
    """
    if pin is None:
        chosen = chosen_snapshot(table, name, snapshot_id)
    else:
        chosen, since = pinned_snapshot(table, name, pin), pin.get("since")
    weights = on_change == "changelog"
    if since is None or chosen is None:
        return IcebergHistory(table, name, chosen, weights=weights)
    return IcebergHistory(table, name, chosen, increment(table, name, since, chosen, on_change), weights=weights)


_FILES_AT_ONCE: Final = 64


@dataclass(frozen=True, slots=True)
class EventTimes:
    """Smallest and largest event time (microseconds, inclusive); None where no row has one."""

    lowest: int | None
    highest: int | None


class IcebergHistory:
    """A table at one snapshot, or an increment up to it. Columns are those of the current schema, by field id."""

    def __init__(
        self,
        table: Table,
        name: str,
        snapshot: Snapshot | None,
        increment: Increment | None = None,
        *,
        weights: bool = False,
    ) -> None:
        check_defaults(table.schema(), name)
        self._table = table
        self._name = name
        self._snapshot = snapshot
        self._increment = increment
        self._scanner = IcebergScanner(table, weights=weights)
        self._times: dict[str, EventTimes] = {}

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
    def snapshot(self) -> Snapshot | None:
        """The pinned snapshot; None for a table without one."""
        return self._snapshot

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
        """``{"table", "table_uuid", "snapshot_id"}``; with ``since`` (exclusive) for an increment."""
        return {
            "table": self._name,
            "table_uuid": str(self._table.metadata.table_uuid),
            "snapshot_id": self.snapshot_id,
            **({"since": self._increment.since} if self._increment else {}),
        }

    @property
    def increment(self) -> Increment | None:
        """The snapshots it reads; None for a history of all rows."""
        return self._increment

    @property
    def is_empty(self) -> bool:
        """See :class:`hybrid_source.history.History`."""
        if self._snapshot is None:
            return True
        with mapping(f"read the manifests of table {self._name}"):
            if self._increment is not None:
                return self._increment.before is None and not any(
                    added_manifests(self._table, snapshot) for snapshot in self._increment.appends
                )
            return not any(
                manifest.has_added_files() or manifest.has_existing_files()
                for manifest in self._snapshot.manifests(self._table.io)
                if manifest.content == ManifestContent.DATA
            )

    def plan(self, query: HistoryQuery) -> HistoryPlan:
        """See :class:`hybrid_source.history.History`."""
        pruning = plan_filter(
            query.rows_predicate(self.stored), pl.Schema({**self.schema, **query.absent}), self._table
        )
        with mapping(f"plan table {self._name}"):
            try:
                files, report = self._files(pruning.iceberg, query)
            except FileNotFoundError as error:
                raise snapshot_gone(self._name, self.snapshot_id, str(error)) from error
        splits = SplitPlan(files, query.target, self._row_groups)
        scan = partial(self._scan, statistics=query.by_bounds(self.stored))
        pushed = None if isinstance(pruning.iceberg, AlwaysTrue) else str(pruning.iceberg)
        return HistoryPlan(splits, report, pruning.residual, self.stored, query, scan, self._check, pushed)

    def _files(self, wanted: BooleanExpression, query: HistoryQuery) -> tuple[list[HistoryFile], PlanReport]:
        if self._increment is not None and self._increment.before is not None and self._snapshot is not None:
            return plan_changes(
                self._table, self._name, self._increment.before, self._snapshot, wanted, query.event_time
            )
        if self._increment is not None:
            return plan_increment(self._table, self._name, self._increment, wanted, query.event_time, query.bounds)
        return plan_files(self._table, self._name, self._snapshot, wanted, query.event_time, query.bounds)

    def bounds(self, names: Sequence[str]) -> Iterator[tuple[tuple[Any, Any] | None, ...]]:
        """For each data file the exact (lower, upper) bounds of some columns, by statistics; None without them.

        Args:
            names: Columns of the table's current schema; ``a.b`` is a field of a struct.
        """
        fields = [self._table.schema().find_field(name) for name in names]
        for entries in self._entries():
            yield from (exact_bounds(entry.data_file, fields) for entry in entries)

    def event_times(self, column: str) -> EventTimes:
        """The smallest and largest event time of all its files, pruned or not, deleted rows included.

        From the files' statistics; of a file without, the column is read.
        """
        if column not in self._times:
            field = self._table.schema().find_field(column)
            compact = Compactor(self._table, self._name, None, None)
            bounds: list[tuple[int, int]] = []
            unknown: list[HistoryFile] = []
            for entry in chain.from_iterable(self._entries()):
                if (found := event_time_bounds(entry.data_file, field)) is not None:
                    bounds.append(found)
                elif not lacks_event_time(entry.data_file, field):
                    unknown.append(compact(entry))
            bounds += self._read_bounds(unknown, column)
            self._times[column] = EventTimes(
                min((low for low, _ in bounds), default=None), max((high for _, high in bounds), default=None)
            )
        return self._times[column]

    def _read_bounds(self, files: Sequence[HistoryFile], column: str) -> Iterator[tuple[int, int]]:
        at = pl.col(column).cast(pl.Datetime("us")).to_physical()
        for begin in range(0, len(files), _FILES_AT_ONCE):
            some = Split(tuple(files[begin : begin + _FILES_AT_ONCE]), None, 0, 0, None, None)
            self._check(some)
            with reading(f"table {self._name}", [file.path for file in some.files]):
                rows = self._scanner.scan(some).select(at.min().alias("low"), at.max().alias("high"))
                low, high = rows.collect(engine="streaming").row(0)
            if low is not None:
                yield low, high

    def _entries(self) -> Iterator[list[ManifestEntry]]:
        if self._increment is None:
            return data_entries(self._table, self._snapshot)
        manifests = [m for snapshot in self._increment.giving for m in added_manifests(self._table, snapshot)]
        return added_entries(self._table, manifests, AlwaysTrue())

    def _scan(self, split: Split, *, statistics: bool) -> pl.LazyFrame:
        try:
            return self._scanner.scan(split, statistics=statistics)
        except FileNotFoundError as error:  # a delete file
            raise snapshot_gone(self._name, self.snapshot_id, str(error)) from error

    def _row_groups(self, file: HistoryFile) -> Sequence[int]:
        try:
            return self._scanner.row_groups(file)
        except FileNotFoundError as error:
            raise snapshot_gone(self._name, self.snapshot_id, file.path) from error

    def _check(self, split: Split) -> None:
        io = self._table.io
        if not isinstance(io, PyArrowFileIO):
            missing = [path for path in split.paths if not io.new_input(path).exists()]
        else:
            scheme, netloc, _ = io.parse_location(split.paths[0])
            paths = [io.parse_location(path)[2] for path in split.paths]
            infos = io.fs_by_scheme(scheme, netloc).get_file_info(paths)
            missing = [info.path for info in infos if info.type == FileType.NotFound]
        if missing:
            raise snapshot_gone(self._name, self.snapshot_id, missing[0])
