"""Rows of one side of a join that are held because the other side may still have a match for them."""

from __future__ import annotations

from typing import Final

import polars as pl

from operators.join_sides import TIME

MATCHED: Final = "_matched"
"""Whether a row has been given out with a match."""

ROW: Final = "_row"
"""The place of a row among those that are held."""

_MAX_CHUNKS: Final = 32


class HeldRows:
    """Rows in the order in which they came.

    Args:
        rows: Where to resume: rows with event time, and maybe :data:`MATCHED`.
        by: The column by which rows are let go of, microseconds.
    """

    def __init__(self, rows: pl.DataFrame, by: str = TIME) -> None:
        self._rows = rows
        self._by = by
        self._earliest = _earliest(rows, by)

    @property
    def rows(self) -> pl.DataFrame:
        """All rows; later changes do not touch it."""
        return self._rows

    @property
    def height(self) -> int:
        """Number of rows."""
        return self._rows.height

    @property
    def earliest(self) -> int | None:
        """The earliest event time; None without rows."""
        return self._earliest if self._by == TIME else _earliest(self._rows, TIME)

    @property
    def latest(self) -> int | None:
        """The latest time by which rows are let go of; None without rows."""
        time = self._rows[self._by].max()
        return time if isinstance(time, int) else None

    def numbered(self) -> pl.LazyFrame:
        """All rows with their places (:data:`ROW`)."""
        return self._rows.lazy().with_row_index(ROW)

    def add(self, rows: pl.DataFrame) -> None:
        """Take rows in, behind those that are held."""
        if not rows.height:
            return
        self._rows = self._rows.vstack(rows)
        if self._rows.n_chunks() > _MAX_CHUNKS:
            self._rows = self._rows.rechunk()
        times = [time for time in (self._earliest, _earliest(rows, self._by)) if time is not None]
        self._earliest = min(times, default=None)

    def mark(self, places: pl.Series) -> None:
        """Note that the rows at some places have a match."""
        if places.len():
            matched = self._rows[MATCHED].rechunk().clone().scatter(places, value_of(places))
            self._rows = self._rows.with_columns(matched)

    def take_at(self, places: pl.Series) -> pl.DataFrame:
        """Take out the rows at some places, each named once."""
        if not places.len():
            return self._rows.clear()
        gone = pl.int_range(self._rows.height, eager=True).is_in(places.implode())
        return self._taken(gone)

    def take_before(self, time: int) -> pl.DataFrame:
        """Take out the rows whose time is up before ``time``."""
        if self._earliest is None or self._earliest >= time:
            return self._rows.clear()
        return self._taken(self._rows[self._by] < time)

    def drop_before(self, time: int) -> None:
        """Let go of the rows whose time is up before ``time``; some stay until it pays to look at all."""
        if self._earliest is None or self._earliest >= time:
            return
        gone = self._rows[self._by] < time
        if int(gone.sum()) * 4 >= self._rows.height:
            self._taken(gone)

    def _taken(self, gone: pl.Series) -> pl.DataFrame:
        taken = self._rows.filter(gone)
        self._rows = self._rows.filter(~gone)
        self._earliest = _earliest(self._rows, self._by)
        return taken


def value_of(places: pl.Series) -> pl.Series:
    """True for each place."""
    return pl.repeat(value=True, n=places.len(), dtype=pl.Boolean(), eager=True)


def _earliest(rows: pl.DataFrame, by: str) -> int | None:
    time = rows[by].min()
    return time if isinstance(time, int) else None
