"""Frames: which rows of a key a row's aggregates look at, and the reduction of a column over many frames at once.

Rows stand sorted by key, event time and :mod:`operators.row_order`; a frame is a range of places. Sums are differences
of running sums, which are exact since they are whole numbers (:mod:`operators.partials`). The least and largest of a
range are those of two ranges of a power of two that cover it (a sparse table, Bender and Farach-Colton, 2000), taken
over the ranks of the values. What holds every value is computed of the frames taken apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from headrace.kernel.durations import format_duration_us
from operators import partials

Places: TypeAlias = npt.NDArray[np.int64]

FIRST_VALUE: Final = "begin:"
LAST_VALUE: Final = "end:"
"""Columns with the value of a frame's first, or last, row begin with these."""

_LARGEST: Final = frozenset({"max", "last", "arg_max"})
_LISTS: Final = frozenset({"list", "values", "distinct", "codes"})
_AT_ONCE: Final = 2_000_000
_ROW: Final = "_row"


@dataclass(frozen=True, slots=True)
class Frame:
    """Which rows of its key a row's aggregates look at: some before it, up to the row itself.

    Attributes:
        unit: ``rows``: so many rows before. ``range``: rows at most so many microseconds before, and all rows of the
            row's own event time, whatever their order (SQL:2003, 7.11: peers).
        preceding: How many, at least 0; None: all.
    """

    unit: Literal["rows", "range"] = "range"
    preceding: int | None = None

    def __str__(self) -> str:
        if self.preceding is None:
            return f"{self.unit} unbounded"
        return f"{self.unit} {self.preceding if self.unit == 'rows' else format_duration_us(self.preceding)}"


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """Rows in their order, and which of them are new.

    Attributes:
        codes: A number for each row's key; rows of one key stand together.
        times: Event times, microseconds, ascending within a key.
        starts: Where the stretch of rows begins that a row belongs to: its key, unless keys are forgotten.
        new: The places of the rows that are given out.
    """

    codes: Places
    times: Places
    starts: Places
    new: Places

    @classmethod
    def of(cls, codes: pl.Series, times: pl.Series, new: pl.Series, ttl_us: int | None) -> Placed:
        """Place rows.

        Args:
            codes: See :class:`Placed`.
            times: As well.
            new: Whether a row is given out.
            ttl_us: Rows of a key at least this far apart belong to two stretches; None: never.
        """
        code, time = codes.cast(pl.Int64).to_numpy(), times.to_numpy()
        begins = np.ones(code.size, dtype=bool)
        if code.size:
            begins[1:] = code[1:] != code[:-1]
            if ttl_us is not None:
                begins[1:] |= time[1:] - time[:-1] >= ttl_us
        starts = np.maximum.accumulate(np.where(begins, np.arange(code.size), 0))
        return cls(code, time, starts, np.flatnonzero(new.to_numpy()))

    def frames(self, frame: Frame) -> tuple[Places, Places]:
        """Where the frames of the new rows begin, and the places behind their ends."""
        starts = self.starts[self.new]
        if frame.unit == "rows":
            begins = starts if frame.preceding is None else np.maximum(starts, self.new - frame.preceding)
            return begins, self.new + 1
        times = self.times[self.new]
        ends = self._found(times, "right")
        if frame.preceding is None:
            return starts, ends
        return np.maximum(starts, self._found(times - frame.preceding, "left")), ends

    def peers(self) -> Places:
        """The places of the first rows with the event times of the new ones, in their stretches."""
        return np.maximum(self.starts[self.new], self._found(self.times[self.new], "left"))

    def last_of_keys(self) -> Places:
        """The place of the last row of each key."""
        return np.flatnonzero(np.diff(self.codes, append=-1))

    def _found(self, times: Places, side: Literal["left", "right"]) -> Places:
        """The places of times among those of the keys of the new rows."""
        known, ranks = np.unique(np.concatenate([self.times, times]), return_inverse=True)
        both = np.concatenate([self.codes, self.codes[self.new]]) * known.size + ranks
        places: Places = np.searchsorted(both[: self.times.size], both[self.times.size :], side)
        return places


def reduced(rows: pl.DataFrame, names: Sequence[str], begins: Places, ends: Places) -> pl.DataFrame:
    """State columns of frames.

    Args:
        rows: What each row contributes to them (:func:`operators.partials.contribution`), in order.
        names: Which columns.
        begins: Where frames begin.
        ends: The places behind their ends; no frame is empty.
    """
    return pl.DataFrame([_reduced(rows[name], begins, ends).alias(name) for name in names])


def _reduced(column: pl.Series, begins: Places, ends: Places) -> pl.Series:
    kind = column.name.partition(":")[0]
    if column.name.startswith(FIRST_VALUE):
        return column.gather(begins)
    if column.name.startswith(LAST_VALUE):
        return column.gather(ends - 1)
    if kind in _LISTS:
        return _taken_apart(column, begins, ends)
    if not partials.is_linear(column.name):
        return _extreme(column, begins, ends, largest=kind in _LARGEST)
    return _beyond(column, begins, ends) if column.dtype.is_float() else _sums(column, begins, ends)


def _sums(column: pl.Series, begins: Places, ends: Places) -> pl.Series:
    running = pl.concat([pl.Series([0]).cast(column.dtype), column.fill_null(0).cum_sum()])
    return running.gather(ends) - running.gather(begins)


def _beyond(column: pl.Series, begins: Places, ends: Places) -> pl.Series:
    """Sums of infinities, NaN and values that are too large for whole numbers; nearly all are 0."""
    if not (column.fill_null(0.0) != 0.0).any():
        return pl.repeat(0.0, begins.size, dtype=pl.Float64(), eager=True)
    kinds = pl.DataFrame({"x": column.fill_null(0.0)}).select(
        pl.col("x").is_nan().alias("nan"),
        (pl.col("x") == np.inf).alias("up"),
        (pl.col("x") == -np.inf).alias("down"),
        pl.when(pl.col("x").is_finite()).then("x").otherwise(0.0).alias(column.name),
    )
    held = pl.DataFrame([_sums(kinds[name].cast(pl.Int64), begins, ends).alias(name) for name in ("nan", "up", "down")])
    nan, up, down = (pl.col(name) > 0 for name in held.columns)
    finite = _taken_apart(kinds[column.name], begins, ends)
    return held.select(
        pl.when(nan | (up & down)).then(np.nan).when(up).then(np.inf).when(down).then(-np.inf).otherwise(finite)
    ).to_series()


def _extreme(column: pl.Series, begins: Places, ends: Places, *, largest: bool) -> pl.Series:
    """The least or largest value of each frame, nulls left out, and NaN where there is something else."""
    ranks = (
        pl.DataFrame({column.name: column})
        .select(pl.when(pl.first().is_not_null()).then(pl.first().rank("dense").cast(pl.Int64)))
        .to_series()
    )
    count = ranks.max()
    if not isinstance(count, int):
        return pl.Series(column.name, [None], dtype=column.dtype).gather(np.zeros(begins.size, dtype=np.int64))
    order = ranks + 1 if largest else count + 2 - ranks
    if largest and column.dtype.is_float():
        order = order.zip_with(~column.is_nan().fill_null(value=False), pl.Series([1]))
    numbers = order.fill_null(0).to_numpy()
    best = _most(numbers, begins, ends)
    places = np.full(count + 3, -1, dtype=np.int64)
    places[numbers] = np.arange(numbers.size)
    places[0] = -1
    chosen = pl.Series(places[best])
    return column.gather(chosen.set(chosen < 0, None))


def _most(numbers: Places, begins: Places, ends: Places) -> Places:
    """The largest number of each range."""
    levels = np.frexp(ends - begins)[1] - 1
    found = np.zeros(begins.size, dtype=np.int64)
    for level in range(int(levels.max(initial=-1)) + 1):
        at, step = np.flatnonzero(levels == level), 1 << level
        found[at] = np.maximum(numbers[begins[at]], numbers[ends[at] - step])
        numbers = np.maximum(numbers[:-step], numbers[step:])
    return found


def _taken_apart(column: pl.Series, begins: Places, ends: Places) -> pl.Series:
    """Frames as rows of their own, so many at once as fit into memory."""
    lengths = ends - begins
    reached = np.cumsum(lengths)
    built = partials.building(column.name)
    pieces, first = [pl.DataFrame({_ROW: [], column.name: column.clear()}).group_by(_ROW).agg(built)], 0
    while first < begins.size:
        done = reached[first - 1] if first else 0
        stop = max(first + 1, int(np.searchsorted(reached, done + _AT_ONCE, "right")))
        some = lengths[first:stop]
        row = np.repeat(np.arange(stop - first), some)
        within = np.arange(row.size) - np.repeat(np.cumsum(some) - some, some)
        values = column.gather(np.repeat(begins[first:stop], some) + within)
        pieces.append(pl.DataFrame({_ROW: row, column.name: values}).group_by(_ROW, maintain_order=True).agg(built))
        first = stop
    return pl.concat([piece[column.name] for piece in pieces])
