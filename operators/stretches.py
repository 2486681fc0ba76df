"""Stretches: rows of one key that follow each other closely, each less than a gap after the one before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

RUN: Final = "_run"
"""The number of a stretch, across keys."""


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
