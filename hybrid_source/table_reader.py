"""Reads a table snapshot by snapshot. See :mod:`hybrid_source.table_source` for what counts as late."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

import polars as pl

from headrace.kernel.boundary import Boundary
from headrace.kernel.protocols import Batch, Json, Position, ReadRequest
from headrace.kernel.until import until_ms, until_text
from hybrid_source.history import HistoryPlan, HistorySplit
from hybrid_source.iceberg_versions import newer_snapshots
from hybrid_source.read_ahead import ReadAhead, Taken, read_ahead
from hybrid_source.splits import END_CURSOR
from hybrid_source.table_position import TablePosition

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from hybrid_source.iceberg_history import IcebergHistory
    from hybrid_source.table_source import TableSource


class TableReader:
    """See :class:`headrace.kernel.protocols.SourceReader`."""

    def __init__(self, source: TableSource, request: ReadRequest, at: TablePosition) -> None:
        self._source = source
        self._request = request
        self._at = at
        self._clock = source.clock
        self._pending: deque[Json] = deque()
        self._table: Table | None = None
        self._looked = float("-inf")
        self._plan: HistoryPlan | None = None
        self._splits: ReadAhead[HistorySplit] = ReadAhead(iter(()))
        self._maybe_late = False
        if not at.is_read:
            self._begin(source.open_version(at.pin))
        self._at = replace(at, bound=self._bound(at))

    def _bound(self, at: TablePosition) -> Json:
        """The end of the run: that of the position, where it is of a run to the same end that was interrupted."""
        until = self._request.until
        if until is None:
            return None
        self._look()
        asked = until_text(until)
        if self._request.goes_on and at.bound is not None and at.bound["until"] == asked:
            return at.bound
        coming = list(self._before(until_ms(until)) if isinstance(until, datetime) else self._pending)
        return {"until": asked, "snapshot_id": (coming[-1] if coming else at.pin)["snapshot_id"]}

    # ------------------------------------------------------------------------------------------------------ protocol

    def poll(self, timeout: float) -> Batch | None:
        """See :meth:`headrace.kernel.protocols.SourceReader.poll`."""
        if not self._at.is_read:
            if not self._splits.ready(timeout):
                return None
            taken = self._splits.take()
            return self._ended() if taken is None else self._batch(taken)
        if self.finished:
            return None
        if not self._pending:
            self._wait(timeout)
        if not self._pending:
            return None
        self._enter(self._pending.popleft())
        return self.poll(timeout)

    @property
    def finished(self) -> bool:
        """See :attr:`headrace.kernel.protocols.SourceReader.finished`."""
        bound = self._at.bound
        return bound is not None and self._at.is_read and bool(self._at.pin["snapshot_id"] == bound["snapshot_id"])

    @property
    def position(self) -> Position:
        """See :attr:`headrace.kernel.protocols.SourceReader.position`."""
        return self._at.to_json()

    def coverage(self, position: Position) -> Boundary | None:  # noqa: ARG002 - a table has no topic
        """See :meth:`headrace.kernel.protocols.SourceReader.coverage`."""
        return None

    def progress(self) -> Mapping[str, Json]:
        """See :meth:`headrace.kernel.protocols.SourceReader.progress`. The lag is in snapshots."""
        facts: dict[str, Json] = {"phase": self._at.phase, "watermark": self._at.watermark}
        if self._at.phase == "history" and self._plan is not None:
            facts["history_fraction"] = self._fraction(self._plan)
        waiting = len(self._pending) + (not self._at.is_read)
        facts["lag"] = [{"topic": self._source.table, "partition": 0, "next": 0, "end": waiting}]
        return facts

    def close(self) -> None:
        """See :meth:`headrace.kernel.protocols.SourceReader.close`."""
        self._splits.close()

    # ------------------------------------------------------------------------------------------------------ versions

    def _wait(self, timeout: float) -> None:
        """Look for new snapshots when it is time to, else let the timeout pass."""
        due = self._looked + self._source.interval_s - self._clock.monotonic()
        if due > 0:
            self._source.sleep(min(due, timeout))
            return
        self._look()

    def _look(self) -> None:
        self._table = self._source.load_table()
        self._looked = self._clock.monotonic()
        self._pending.extend(newer_snapshots(self._table, self._source.table, self._at.pin))

    def _before(self, limit_ms: int) -> Iterator[Json]:
        """The snapshots to come that were committed before a time; the first later one ends them."""
        for pin in self._pending:
            snapshot = self._table.snapshot_by_id(pin["snapshot_id"]) if self._table is not None else None
            if snapshot is None or snapshot.timestamp_ms >= limit_ms:
                return
            yield pin

    def _enter(self, pin: Json) -> None:
        history = self._source.open_version(pin, self._table)
        before = self._at.after
        self._at = TablePosition(
            "tail",
            pin,
            None,
            self._at.watermark,
            before,
            self._source.watermark_after(history, before),
            self._source.time_column,
            self._at.bound,
        )
        self._begin(history)

    def _begin(self, history: IcebergHistory) -> None:
        self._plan = history.plan(self._source.query(self._request, self._at))
        self._maybe_late = self._may_be_late(history)
        self._splits.close()
        self._splits = read_ahead(
            self._plan.splits_from(self._at.cursor),
            self._request,
            self._source.concurrency,
            origin=self._at.phase,
            late_below=self._at.before if self._maybe_late else None,
        )

    def _may_be_late(self, history: IcebergHistory) -> bool:
        if self._source.event_time is None or self._at.before is None:
            return False
        lowest = history.event_times(self._source.event_time.column).lowest
        return lowest is not None and lowest < self._at.before

    # ------------------------------------------------------------------------------------------------------- batches

    def _batch(self, taken: Taken[HistorySplit]) -> Batch:
        split = taken.split
        self._at = replace(self._at, cursor=split.cursor, watermark=self._watermark(split.watermark))
        return Batch(
            taken.rows,
            self.position,
            self._at.watermark,
            self._at.phase,
            self._maybe_late,
            records=split.records,
            nbytes=split.nbytes,
            files=split.files,
            computed=taken.computed,
        )

    def _ended(self) -> Batch:
        """A version without a further split has been read; without any, this is the batch that says so."""
        self._at = replace(self._at, cursor=END_CURSOR, watermark=self._watermark(self._at.after))
        columns, schema = self._request.columns, self._source.schema
        rows = pl.LazyFrame(schema=schema if columns is None else {name: schema[name] for name in columns})
        return Batch(rows, self.position, self._at.watermark, self._at.phase)

    def _watermark(self, unread: int | None) -> int | None:
        """What the unread files of the version allow, at most the version's own watermark; never back."""
        known, after = self._at.watermark, self._at.after
        if unread is None or after is None:
            return known
        reached = min(unread, after)
        return reached if known is None else max(known, reached)

    def _fraction(self, plan: HistoryPlan) -> float:
        total, left = plan.remaining(), plan.remaining(self._at.cursor)
        return 1 - left.records / total.records if total.records else 1.0
