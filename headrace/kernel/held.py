"""Rows that an operator holds by event time: what it says of them, and what it gets.

They come in any order and leave in that of a time column, earliest first. What has come since the last snapshot is
written once, as a *segment*: an immutable file, sorted by time, of which the rows that are still held are a slice. So a
snapshot costs what has changed, and what has gone needs no more than a number for each segment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import polars as pl

from headrace.kernel.keyed import KeyedRun, KeyGroups

Merge: TypeAlias = Callable[[pl.LazyFrame], pl.LazyFrame]
"""Merges rows of several frames; associative and commutative, keeps the columns in their order."""


@dataclass(frozen=True, slots=True)
class HeldLayout:
    """What an operator holds by time.

    Attributes:
        name: Unique within the operator.
        schema: Columns of a row.
        key: The operator's ``key_columns``, maybe none: rows of different keys may come to different instances.
        time: The column by which rows leave, Int64 or Datetime in microseconds; never null.
        version: Of the meaning of the columns; an operator that changes it cannot read what is there.
        merge: Makes one row, or none, of several that belong together; None: rows stay as they are.
        flag: The last column, Boolean, that :meth:`HeldState.mark` sets; None: that removes rows.
    """

    name: str
    schema: pl.Schema
    key: Sequence[str]
    time: str
    version: int = 1
    merge: Merge | None = None
    flag: str | None = None


@dataclass(frozen=True, slots=True)
class HeldSegment:
    """Rows of a file.

    Attributes:
        run: Those that are held; without the flag.
        marks: A file with one Boolean column: which rows of the whole file have been marked; None: none.
    """

    run: KeyedRun
    marks: KeyedRun | None = None


@dataclass(frozen=True, slots=True)
class HeldPart:
    """What one instance has written.

    Attributes:
        groups: The key groups that it owned.
        segments: What it has written of their rows.
    """

    groups: KeyGroups
    segments: Sequence[HeldSegment]


@dataclass(frozen=True, slots=True)
class HeldSnapshot:
    """Held rows at a barrier, opaque to operators: immutable, valid however the state goes on.

    Attributes:
        version: As in the layout.
        schema: As in the layout.
        key: As in the layout.
        time: As in the layout.
        flag: As in the layout.
        probe: :func:`headrace.kernel.keyed.hash_probe` of the process that wrote it.
        parts: What different instances wrote, of which no two hold one key.
        rows: Rows in it; those that wait to be merged are counted each.
    """

    version: int
    schema: pl.Schema
    key: Sequence[str]
    time: str
    flag: str | None
    probe: str
    parts: Sequence[HeldPart] = field(default=())
    rows: int = 0


def united_held(snapshots: Sequence[HeldSnapshot]) -> HeldSnapshot:
    """What several instances of one operator hold of one layout, as one snapshot. At least one."""
    first = snapshots[0]
    parts = [part for snapshot in snapshots for part in snapshot.parts]
    rows = sum(snapshot.rows for snapshot in snapshots)
    return HeldSnapshot(first.version, first.schema, first.key, first.time, first.flag, first.probe, parts, rows)


class HeldState(Protocol):
    """Rows by time, larger than memory. Used by one thread. Times are microseconds, whatever the column's type."""

    @property
    def schema(self) -> pl.Schema:
        """The columns."""

    @property
    def height(self) -> int:
        """Rows held; those that belong together are counted each while they wait to be merged."""

    @property
    def earliest(self) -> int | None:
        """The earliest time; None without rows."""

    @property
    def latest(self) -> int | None:
        """The latest time; None without rows."""

    def add(self, rows: pl.DataFrame) -> None:
        """Take rows in, of these columns in this order."""

    def take(self, before: int) -> pl.DataFrame:
        """Take out the rows whose time lies before ``before``, merged."""

    def peek(self, before: int) -> pl.DataFrame:
        """The rows that :meth:`take` would take out."""

    def settle(self) -> bool:
        """Merge everything, if all of it is in memory; gives whether it was."""

    def drop(self, before: int) -> None:
        """Let go of the rows whose time lies before ``before``; some may stay until it pays to look at all."""

    def numbered(self, place: str, keys: pl.DataFrame | None = None) -> pl.LazyFrame:
        """Everything, with its place in a further column (Int64); places hold until the next change.

        Args:
            place: The column.
            keys: Rows with the columns of the key: what has none of their keys may be left out, if that is cheaper.
        """

    def mark(self, places: pl.Series) -> None:
        """Set the flag of the rows at some places, or remove them; each may be named more than once."""

    def frames(self) -> list[pl.DataFrame]:
        """Everything as it stands, in no order, not merged; frames may lie on disk. At least one, maybe empty."""

    def merged(self) -> pl.DataFrame:
        """Everything, merged."""

    def snapshot(self) -> HeldSnapshot:
        """The rows at this barrier; costs what has changed since the last one."""
