"""A table as a source that goes on: a snapshot's rows, then what each later snapshot appends. No Kafka.

Snapshots are read one by one in the order of their ancestry, however many a poll finds, so that neither the interval
nor a restart changes what is late or when a window fires:

* Rows of the history are never late. Rows of a later snapshot are measured against the watermark that the snapshots
  *before* it make; within one snapshot no row makes another one late.
* A snapshot's own watermark is its largest event time (by file statistics; a column scan where a file has none) minus
  the out-of-orderness. Where the snapshot carries a boundary record with a watermark, that one counts instead: the
  writer knows how far its partitions have come. So a marker commit without rows moves the watermark of an idle table.
* Neither goes beyond the time of the snapshot's commit: a row that claims to be of the year 2100 says nothing of how
  far the table has come.
* While a snapshot is read, the watermark follows the unread files as in a history, never beyond the snapshot's own.

Deletes and overwrites are refused, passed over, or read as changes with weights, as ``on_change`` says. Changes are not
measured against a watermark: none of them is late.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import polars as pl
from pyiceberg.table import Table

from catalog.boundary_record import BOUNDARY, find_boundary, read
from headrace.kernel.boundary import microseconds
from headrace.kernel.clock import Clock, SystemClock
from headrace.kernel.errors import SchemaError, SpecError
from headrace.kernel.protocols import Json, Position, ReadRequest
from hybrid_source.history import HistoryQuery
from hybrid_source.iceberg_history import IcebergHistory, open_iceberg
from hybrid_source.iceberg_increments import OnChange
from hybrid_source.source_values import EventTime
from hybrid_source.splits import END_CURSOR, SplitTarget
from hybrid_source.table_position import TablePosition
from hybrid_source.table_reader import TableReader


@dataclass(frozen=True, slots=True)
class TableSource:
    """See :class:`headrace.kernel.protocols.Source`. Building it does no I/O.

    Attributes:
        name: Its name in the job.
        table: ``catalog.namespace.table``.
        load_table: Loads it from its catalog, afresh at each call.
        schema: All columns it can give.
        history: Read all rows of the first snapshot; else only what is appended after it.
        snapshot_id: The first snapshot; None: the newest one when the job starts.
        where: The job's restriction of the history.
        event_time: None: no watermarks.
        on_change: What to do with snapshots that change or delete rows.
        interval_s: How often to look for new snapshots.
        target: How much work one split is.
        concurrency: Splits that are read at once; see :class:`hybrid_source.hybrid.HybridSource`.
        clock: For the interval.
        sleep: Waits for the rest of a poll.
    """

    name: str
    table: str
    load_table: Callable[[], Table]
    schema: pl.Schema
    history: bool = False
    snapshot_id: int | None = None
    where: pl.Expr | None = None
    event_time: EventTime | None = None
    on_change: OnChange = "fail"
    interval_s: float = 10.0
    target: SplitTarget = field(default_factory=SplitTarget)
    concurrency: int = 0
    clock: Clock = field(default_factory=SystemClock)
    sleep: Callable[[float], None] = time.sleep

    def begin(self) -> Position:
        """See :meth:`headrace.kernel.protocols.Source.begin`."""
        return self.plan().to_json()

    def open(self, request: ReadRequest, position: Position | None) -> TableReader:
        """See :meth:`headrace.kernel.protocols.Source.open`.

        Raises:
            SpecError: The position is half-way through a version in the order of another event-time column.
            SnapshotGoneError: The version it stands in is no longer there.
        """
        at = TablePosition.from_json(position) if position is not None else self.plan()
        if at.cursor is not None and not at.is_read and at.event_time != self.time_column:
            raise SpecError(
                f"source {self.name!r} has read part of a snapshot in the order of {at.event_time!r}, "
                f"and is to go on in that of {self.time_column!r}",
                hint="restore event_time.column until that snapshot has been read, or give the job another uid",
            )
        return TableReader(self, request, at)

    @property
    def time_column(self) -> str | None:
        """The event-time column."""
        return self.event_time.column if self.event_time else None

    def plan(self) -> TablePosition:
        """Decide afresh where to start.

        Raises:
            HeadraceError: The table or the snapshot is not there.
        """
        history = open_iceberg(self.load_table(), self.table, snapshot_id=self.snapshot_id)
        if not self.history:
            return TablePosition("tail", history.pin, END_CURSOR, event_time=self.time_column)
        after = self.watermark_after(history, None)
        return TablePosition("history", history.pin, after=after, event_time=self.time_column)

    def pins(self, position: Position) -> list[Json]:
        """The version that a restart at ``position`` would open again, while that is the history.

        Later snapshots are read soon after they were made; holding each of them would write to the table for each.
        """
        at = TablePosition.from_json(position)
        return [] if at.phase == "tail" or at.is_read else [at.pin]

    def open_version(self, pin: Json, table: Table | None = None) -> IcebergHistory:
        """A version that the source has pinned.

        Args:
            pin: The pin.
            table: The table, where it has been loaded just now.

        Raises:
            SchemaError: The table has lost a column, or changed its type, since the job was compiled.
            HeadraceError: As :func:`hybrid_source.iceberg_history.open_iceberg`.
        """
        history = open_iceberg(table or self.load_table(), self.table, pin=pin, on_change=self.on_change)
        self._check_columns(history.schema)
        return history

    def query(self, request: ReadRequest, at: TablePosition) -> HistoryQuery:
        """What is read of a version."""
        where = self.where if at.phase == "history" else None
        return HistoryQuery(
            request.columns, request.predicate, where, self.time_column, target=self.target, filters=request.filters
        )

    def watermark_after(self, history: IcebergHistory, before: int | None) -> int | None:
        """The watermark once a version has been read; never below ``before``."""
        if self.event_time is None:
            return None
        own, late_by = _recorded(history), 0
        if own is None:
            own, late_by = history.event_times(self.event_time.column).highest, self.event_time.out_of_orderness_us
        if own is not None and history.snapshot is not None:
            own = min(own, history.snapshot.timestamp_ms * 1000) - late_by
        return before if own is None else own if before is None else max(own, before)

    def _check_columns(self, found: pl.Schema) -> None:
        for name, dtype in self.schema.items():
            if found.get(name) != dtype:
                raise SchemaError(
                    f"column {name!r} of table {self.table} has changed since the job was started",
                    detail=f"it was {dtype}, now it is {found.get(name, 'not there')}",
                    hint="restore the column, or adapt the job and run it again",
                    context={"table": self.table, "column": name},
                )


def _recorded(history: IcebergHistory) -> int | None:
    """The watermark (microseconds) that was recorded with the version's rows, if one was."""
    if history.increment is None:
        found = find_boundary(history.table, history.snapshot_id)
        text = found.boundary.watermark if found is not None and not found.foreign_changes else None
    else:
        facts = history.snapshot.summary if history.snapshot is not None else None
        record = facts.additional_properties.get(BOUNDARY) if facts is not None else None
        text = read(history.table.io, record).watermark if record is not None else None
    return None if text is None else microseconds(text)
