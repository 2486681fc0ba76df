"""Stretches: rows of one key that follow each other closely, each less than a gap after the one before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from headrace.kernel.held import HeldState

RUN: Final = "_run"
"""The number of a stretch, across keys."""

_FIRST: Final = "_stretch_first"
_AT: Final = "_stretch"
_GOES_ON: Final = "_stretch_goes_on"


def numbered(rows: pl.LazyFrame, by: Sequence[str], first: pl.Expr, last: pl.Expr, gap: int) -> pl.LazyFrame:
    """Number the stretches that shorter ones make up.

    Args:
        rows: Stretches, in any order; they may overlap.
        by: Key columns; null is a key value like others.
        first: Time of a stretch's first row (Int64).
        last: Time of its last row.
        gap: Stretches of one key at least this far apart stay two.

    Returns:
        The rows, sorted by key and time, with the column ``_run``.
    """
    reached = last.cum_max()
    reached = (reached.over(by) if by else reached).shift(1)
    apart = (first - reached >= gap).fill_null(value=True)
    other_key = [pl.col(name).ne_missing(pl.col(name).shift(1)) for name in by]
    ordered = rows.sort([*map(pl.col, by), first])
    return ordered.with_columns(pl.any_horizontal(apart, *other_key).cum_sum().alias(RUN))


def ended(held: HeldState, before: int, by: Sequence[str], first: pl.Expr, last: str, gap: int) -> pl.DataFrame:
    """Take out the stretches whose last row is far enough back, if no other one goes them on.

    Args:
        held: Stretches, held by ``last``, merged by their numbers.
        before: The end of the time that is far enough back, exclusive.
        by: Key columns.
        first: Time of a stretch's first row (Int64).
        last: Column with the time of its last row.
        gap: As in :func:`numbered`.
    """
    is_settled, due = held.settle(), held.take(before)
    reach = due[last].max()
    if is_settled or not isinstance(reach, int):
        return due
    near = pl.concat(held.frames()).lazy().filter(first < reach + gap)
    if by:
        near = near.join(due.lazy().select(pl.col(name) for name in by), on=list(by), how="semi", nulls_equal=True)
    bounds = [*map(pl.col, by), first.alias(_FIRST), pl.col(last)]
    going = near.select(*bounds, pl.lit(None, pl.UInt32).alias(_AT)).collect()
    if not going.height:
        return due
    both = pl.concat([going, due.with_row_index(_AT).select(*bounds, _AT)]).lazy()
    goes_on, ends = pl.col(_AT).is_null().any().over(RUN), pl.col(last).max().over(RUN)
    runs = numbered(both, by, pl.col(_FIRST), pl.col(last), gap).select(_AT, ends, goes_on.alias(_GOES_ON))
    marks = runs.filter(pl.col(_AT).is_not_null()).sort(_AT).collect()
    # With the last time of what they are part of they still meet what comes behind them, and end with it.
    held.add(due.with_columns(marks[last]).filter(marks[_GOES_ON]))
    return due.filter(~marks[_GOES_ON])
