"""The bounded part of a source: what a job reads from the lake before it goes to the tail.

``open_iceberg`` and ``open_parquet`` pin a version; ``plan`` prunes it for one query; ``splits_from`` reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import polars as pl

from headrace.kernel.protocols import Json
from hybrid_source.distinct_rows import DistinctRows
from hybrid_source.history_rows import Trim, net, shape
from hybrid_source.iceberg_plan import PlanReport
from hybrid_source.predicates import all_of, holds_for_bounds
from hybrid_source.resolution import OffsetNames
from hybrid_source.splits import HistoryFile, Split, SplitPlan, SplitTarget, Work


@dataclass(frozen=True, slots=True)
class HistoryQuery:
    """What of a history is wanted.

    Attributes:
        columns: Payload and system columns; None for all payload columns.
        predicate: Exact filter on rows, pushed down from the plan.
        where: The job's own restriction of the history, likewise exact.
        event_time: The event-time column; gives the order of the files and the watermark.
        trim: Leave out rows at or above the boundary.
        target: How much work one split is.
        distinct: The columns whose values stand for one record: of rows that agree in them the first is read. None:
            every row counts.
        absent: Payload columns that this version does not store; null.
        bounds: Columns whose bounds are wanted by file, where statistics give them exactly.
        filters: See :class:`headrace.kernel.protocols.ReadRequest`.
    """

    columns: Sequence[str] | None = None
    predicate: pl.Expr | None = None
    where: pl.Expr | None = None
    event_time: str | None = None
    trim: Trim | None = None
    target: SplitTarget = field(default_factory=SplitTarget)
    distinct: OffsetNames | None = None
    absent: Mapping[str, pl.DataType] = field(default_factory=dict)
    bounds: Sequence[str] = ()
    filters: Sequence[pl.Expr] | None = ()

    def by_bounds(self, stored: pl.Schema) -> bool:
        """Whether row groups may be left out by their bounds (:func:`hybrid_source.predicates.holds_for_bounds`).

        The trim is left aside: what it computes with are numbers of topics and partitions.
        """
        if self.filters is None:
            return False
        asked = (self.where, self.predicate, *self.filters)
        return all(holds_for_bounds(one, stored) for one in asked if one is not None)

    def rows_predicate(self, stored: pl.Schema) -> pl.Expr | None:
        """Every condition that a row must meet."""
        return all_of(self.where, self.predicate, self.trim.predicate(stored) if self.trim is not None else None)


@dataclass(frozen=True, slots=True, eq=False)
class HistorySplit:
    """One unit of work, ready to be collected with ``engine="streaming"``.

    Attributes:
        scan: Looks whether the files are there, and gives the lazy rows with the wanted columns, filtered exactly. May
            be called in any thread, in any order.
        cursor: Where the history stands after this split; JSON, *next*, stable for the pinned version.
        watermark: Event time (microseconds) below which no later row of the history lies; None: unknown;
            ``END_OF_HISTORY`` after the last split.
        records: Input records it stands for, before predicate and deletes.
        nbytes: Stored bytes it stands for.
        files: Paths of the data files.
    """

    scan: Callable[[], pl.LazyFrame]
    cursor: Json
    watermark: int | None
    records: int
    nbytes: int
    files: tuple[str, ...]

    @property
    def rows(self) -> pl.LazyFrame:
        """The lazy rows. Each use needs the files still to be there.

        Raises:
            SnapshotGoneError: A file is gone or has changed.
        """
        return self.scan()


class HistoryPlan:
    """A pruned, ordered view of one pinned version.

    Attributes:
        report: What pruning did.
        residual: Conditions that prune no file (they still filter rows).
        predicate: The exact condition on rows: the job's own, what the plan pushed down, and the trim.
        files_filter: The Iceberg filter that files are pruned by, as text; None when there is none.
    """

    def __init__(
        self,
        splits: SplitPlan,
        report: PlanReport,
        residual: tuple[pl.Expr, ...],
        stored: pl.Schema,
        query: HistoryQuery,
        scan: Callable[[Split], pl.LazyFrame],
        check: Callable[[Split], None],
        files_filter: str | None = None,
    ) -> None:
        self.report = report
        self.residual = residual
        self.files_filter = files_filter
        self._splits = splits
        self._stored = stored
        self._columns = query.columns
        self._distinct = query.distinct
        self._absent = query.absent
        self.predicate = query.rows_predicate(stored)
        self._scan = scan
        self._check = check

    def splits_from(self, cursor: Json = None) -> Iterator[HistorySplit]:
        """The splits from ``cursor`` (None: the start) on, in event-time order.

        Lazy: files are looked at when a split's rows are asked for; of large files, and where rows may be there twice,
        when the split is taken.

        Raises:
            SnapshotGoneError: A file is gone or has changed; never skipped.
        """
        scan = self._scanned if self._distinct is None else self._distinct_scan(self._distinct, cursor)
        for split in self._splits.splits_from(cursor):
            yield HistorySplit(
                partial(self._shaped, scan, split) if self._distinct is None else _given(self._shaped(scan, split)),
                split.cursor,
                split.watermark,
                split.records,
                split.nbytes,
                split.paths,
            )

    def _scanned(self, split: Split) -> pl.LazyFrame:
        self._check(split)
        return self._scan(split)

    def _shaped(self, scan: Callable[[Split], pl.LazyFrame], split: Split) -> pl.LazyFrame:
        rows = shape(scan(split), self._stored, self._columns, self.predicate, self._absent)
        return net(rows) if any(file.changes for file in split.files) else rows

    def _distinct_scan(self, names: OffsetNames, cursor: Json) -> Callable[[Split], pl.LazyFrame]:
        rows = DistinctRows(self._stored, names)
        for split in self._splits.splits_before(cursor):
            rows.skip(self._scanned(split))
        return lambda split: rows.first(self._scanned(split))

    @property
    def files(self) -> Sequence[HistoryFile]:
        """The files, in the order in which they are read."""
        return self._splits.files

    def read(self, cursor: Json) -> int:
        """How many files have been read whole at ``cursor``."""
        return self._splits.read(cursor)

    def remaining(self, cursor: Json = None) -> Work:
        """Files, records and bytes that are left at ``cursor``."""
        return self._splits.remaining(cursor)

    def watermark(self, cursor: Json = None) -> int | None:
        """The watermark of a history that stands at ``cursor``."""
        return self._splits.watermark(cursor)


def _given(rows: pl.LazyFrame) -> Callable[[], pl.LazyFrame]:
    return lambda: rows


class History(Protocol):
    """A pinned version of a table or of a set of files."""

    @property
    def name(self) -> str:
        """For people: the table's name, or the pattern of the files."""

    @property
    def stored(self) -> pl.Schema:
        """The columns as they are stored."""

    @property
    def schema(self) -> pl.Schema:
        """As a source: payload columns, then ``columns.SYSTEM``."""

    @property
    def pin(self) -> Json:
        """Which version this is; opening with it later gives the same rows or an error."""

    @property
    def is_empty(self) -> bool:
        """No data file, so no row."""

    def plan(self, query: HistoryQuery) -> HistoryPlan:
        """Prune, order and check this version for a query. Reads metadata only.

        Raises:
            SnapshotGoneError: Some of it is no longer there.
            UserError: ``TABLE_UNSUPPORTED``: it holds what cannot be read rightly.
        """


__all__ = [
    "History",
    "HistoryPlan",
    "HistoryQuery",
    "HistorySplit",
    "Trim",
]
