"""Splits: the files of a history in their total order, and how they are cut into units of work.

The order is by the lower bound of the event time, then by path; files without bounds come first. It does not depend
on manifests, on pruning or on how files were bundled, so that a cursor, the sort key of the next unfinished file,
finds its place again in a fresh plan of the same pinned snapshot.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Final

from headrace.kernel.errors import InternalError
from headrace.kernel.protocols import Json
from hybrid_source.source_values import END_OF_HISTORY

END_CURSOR: Final = {"end": True}

NO_EVENT_TIME: Final = END_OF_HISTORY
"""Lower bound of a file none of whose rows has an event time: it never holds the watermark back."""


@dataclass(frozen=True, slots=True)
class SplitTarget:
    """How much work one split should be: files are bundled up to it, and cut at row groups beyond it.

    A million rows is the row-group size of the usual writers, large enough to hide the cost of starting a scan (a
    few milliseconds) and small enough to hold in memory when a plan passes rows through.
    """

    rows: int = 1 << 20
    nbytes: int = 128 << 20


@dataclass(frozen=True, slots=True)
class DeleteFile:
    """A file of deleted rows.

    Attributes:
        path: Its location.
        vector: A Puffin file of deletion vectors (Iceberg v3), not a Parquet file.
        equality: Ids of the fields by whose values it names deleted rows; empty: it names them by path and position.
    """

    path: str
    vector: bool
    equality: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class FileChange:
    """What a change of a table did to one data file.

    Attributes:
        file: The file.
        before: Where the rows stand that were deleted before; None: the file was not there.
        after: Likewise afterwards; None: the file is there no longer.
    """

    file: HistoryFile
    before: tuple[DeleteFile, ...] | None
    after: tuple[DeleteFile, ...] | None


@dataclass(frozen=True, slots=True)
class HistoryFile:
    """One data file, compactly; or what a change did to several files, which is read as one.

    Attributes:
        path: Its location.
        records: Rows in it, before deletes; 0 when the writer did not say.
        nbytes: Size.
        low: Smallest event time in microseconds; None without statistics.
        partition: Iceberg partition (spec id, values) where reading needs it.
        deletes: Where its deleted rows stand.
        bounds: Exact (lower, upper) bounds of the columns that the query asked for; None where there are none.
        changes: The changed files, instead of one file.
    """

    path: str
    records: int
    nbytes: int
    low: int | None = None
    partition: tuple[int, Any] | None = None
    deletes: tuple[DeleteFile, ...] = ()
    bounds: tuple[tuple[Any, Any] | None, ...] = ()
    changes: tuple[FileChange, ...] = ()

    @property
    def alone(self) -> bool:
        """It makes a split of its own: positions count within one file, and a change is one."""
        return bool(self.deletes or self.changes)

    @property
    def paths(self) -> tuple[str, ...]:
        """The locations of all data files."""
        return tuple(change.file.path for change in self.changes) or (self.path,)

    @property
    def key(self) -> tuple[bool, int, str]:
        """Place in the total order."""
        return (self.low is not None, self.low or 0, self.path)


@dataclass(frozen=True, slots=True)
class Split:
    """A unit of work: whole files, or the rows ``[offset, offset + records)`` of one.

    Attributes:
        files: The files, in order.
        rows: ``(offset, count)`` within the only file, or None for whole files.
        records: Rows before deletes and predicate.
        nbytes: Bytes of the files, in proportion for a part of one.
        cursor: Where the history stands after this split (next, not last).
        watermark: Event time below which no later split has a row; None while a file without statistics is left.
    """

    files: tuple[HistoryFile, ...]
    rows: tuple[int, int] | None
    records: int
    nbytes: int
    cursor: Json
    watermark: int | None

    @property
    def paths(self) -> tuple[str, ...]:
        """The locations of its data files."""
        return tuple(path for file in self.files for path in file.paths)


RowGroups = Callable[[HistoryFile], Sequence[int]]
"""Rows in each row group of a file (reads its footer)."""


@dataclass(frozen=True, slots=True)
class Work:
    """An amount of history."""

    files: int
    records: int
    nbytes: int


class SplitPlan:
    """The files of a pinned history, ordered, and the splits they make from any cursor on."""

    def __init__(self, files: Sequence[HistoryFile], target: SplitTarget, row_groups: RowGroups) -> None:
        self._files = sorted(files, key=lambda file: file.key)
        self._keys = [file.key for file in self._files]
        self._target = target
        self._row_groups = row_groups
        self._records = [0, *accumulate(file.records for file in self._files)]
        self._nbytes = [0, *accumulate(file.nbytes for file in self._files)]

    @property
    def files(self) -> Sequence[HistoryFile]:
        """All files, in order."""
        return self._files

    def remaining(self, cursor: Json) -> Work:
        """What is left at ``cursor`` (the start for None). A file begun counts by its unread rows."""
        index, row = self._locate(cursor)
        end = len(self._files)
        records = self._records[end] - self._records[index] - row
        return Work(end - index, max(records, 0), self._nbytes[end] - self._nbytes[index])

    def read(self, cursor: Json) -> int:
        """How many files have been read whole at ``cursor``."""
        return self._locate(cursor)[0]

    def watermark(self, cursor: Json) -> int | None:
        """The watermark at ``cursor``: nothing unread has an event time below it. None: unknown."""
        return self._watermark(self._locate(cursor)[0])

    def splits_from(self, cursor: Json) -> Iterator[Split]:
        """The splits from ``cursor`` (the start for None) on, in order; lazily, as row groups are looked up."""
        index, row = self._locate(cursor)
        while index < len(self._files):
            file = self._files[index]
            if self._is_large(file):
                yield from self._parts(index, row)
                index += 1
            else:
                end = self._bundle(index)
                yield self._whole(index, end)
                index = end
            row = 0

    def splits_before(self, cursor: Json) -> Iterator[Split]:
        """What lies before ``cursor``, in order, cut for looking at it again: their cursors mean nothing."""
        index, row = self._locate(cursor)
        start = 0
        while start < index:
            end = min(self._bundle(start), index)
            yield self._whole(start, end)
            start = end
        if row:
            yield replace(self._whole(index, index + 1), rows=(0, row), records=row)

    def _locate(self, cursor: Json) -> tuple[int, int]:
        if cursor is None:
            return 0, 0
        if cursor.get("end"):
            return len(self._files), 0
        try:
            low, path, row = cursor["low"], cursor["path"], cursor["row"]
        except KeyError as error:
            raise InternalError("a history cursor lacks a field", detail=repr(cursor)) from error
        key = (low is not None, low or 0, path)
        index = bisect_left(self._keys, key)
        found = index < len(self._keys) and self._keys[index] == key
        return index, row if found else 0

    def _cursor(self, index: int, row: int = 0) -> Json:
        if index >= len(self._files):
            return END_CURSOR
        file = self._files[index]
        return {"low": file.low, "path": file.path, "row": row}

    def _watermark(self, index: int) -> int | None:
        if index >= len(self._files):
            return END_OF_HISTORY
        low = self._files[index].low
        return None if low is None else low - 1 if low != NO_EVENT_TIME else END_OF_HISTORY

    def _is_large(self, file: HistoryFile) -> bool:
        return not file.changes and self._exceeds(file)

    def _exceeds(self, file: HistoryFile) -> bool:
        return file.records > self._target.rows * 3 // 2 or file.nbytes > self._target.nbytes * 3 // 2

    def _bundle(self, start: int) -> int:
        """Index after the last file of the split that begins at ``start``: at least one file."""
        end = start + 1
        if self._files[start].alone:
            return end
        while (
            end < len(self._files)
            and not self._files[end].alone
            and self._records[end + 1] - self._records[start] <= self._target.rows
            and self._nbytes[end + 1] - self._nbytes[start] <= self._target.nbytes
        ):
            end += 1
        return end

    def _whole(self, start: int, end: int) -> Split:
        return Split(
            tuple(self._files[start:end]),
            None,
            self._records[end] - self._records[start],
            self._nbytes[end] - self._nbytes[start],
            self._cursor(end),
            self._watermark(end),
        )

    def _parts(self, index: int, row: int) -> Iterator[Split]:
        file = self._files[index]
        groups = self._row_groups(file)
        total = sum(groups)
        bounds = [bound for bound in self._cuts(file, groups) if bound > row]
        for end in bounds:
            count = end - row
            finished = end == total
            yield Split(
                (file,),
                (row, count),
                count,
                file.nbytes * count // total,
                self._cursor(index + 1) if finished else self._cursor(index, end),
                self._watermark(index + 1 if finished else index),
            )
            row = end

    def _cuts(self, file: HistoryFile, groups: Sequence[int]) -> Iterator[int]:
        """Row numbers at row-group ends, about a target apart; the last is the end of the file."""
        total = sum(groups)
        rows = min(self._target.rows, max(1, total * self._target.nbytes // max(file.nbytes, 1)))
        start = 0
        ends = list(accumulate(groups))
        for end, following in zip(ends, [*ends[1:], None], strict=True):
            if following is None or following - start > rows:
                yield end
                start = end
