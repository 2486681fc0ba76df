"""The row to keep of each group: the first or the last one in the order of all rows (:mod:`operators.row_order`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

import numpy as np
import polars as pl

from operators.ranked_order import Ordered, Places, by_row

FIRST: Final = "_first"
"""Event time of a stretch's first row, microseconds."""

LAST: Final = "_last"
"""Event time of a stretch's last row, microseconds."""

COUNT: Final = "_count"
"""How many rows it stands for."""

ROW: Final = "_row"
"""The row to keep, a struct that begins with its place (:func:`operators.row_order.total_order`)."""

Keep: TypeAlias = Literal["first", "last"]


def candidates(rows: pl.DataFrame, groups: Sequence[str], time: str, keep: Keep) -> pl.DataFrame:
    """Rows by group, each a stretch: the groups' columns, first and last time, number of rows, the row to keep.

    Args:
        rows: Columns of the groups, the time and the row.
        groups: What they are grouped by.
        time: Their event time (Int64); null for all rows of a group or for none.
        keep: Which row.
    """
    order = by_row(rows, groups, ROW)
    starts, stops = _edges(order)
    times = rows[time]
    kept = order.rows[starts if keep == "first" else stops - 1]
    return rows[kept].select(
        *groups,
        times[order.rows[starts]].alias(FIRST),
        times[order.rows[stops - 1]].alias(LAST),
        pl.Series(COUNT, stops - starts, pl.Int64),
        ROW,
    )


def joined(stretches: pl.DataFrame, groups: Sequence[str], keep: Keep) -> pl.DataFrame:
    """Stretches by group, each one stretch; further columns are those of the row that is kept.

    Args:
        stretches: What :func:`candidates` gives; all with times.
        groups: Which are one.
        keep: Which row.
    """
    order = by_row(stretches, groups, ROW)
    starts, stops = _edges(order)
    if not starts.size:
        return stretches
    inside = stretches.select(FIRST, LAST, pl.col(COUNT).fill_null(0))[order.rows]
    first, last, count = (inside[name].to_numpy() for name in (FIRST, LAST, COUNT))
    kept = order.rows[starts if keep == "first" else stops - 1]
    return stretches[kept].with_columns(
        pl.Series(FIRST, np.minimum.reduceat(first, starts), pl.Int64),
        pl.Series(LAST, np.maximum.reduceat(last, starts), pl.Int64),
        pl.Series(COUNT, np.add.reduceat(count, starts), pl.Int64),
    )


def _edges(order: Ordered) -> tuple[Places, Places]:
    """Where each group begins, and where it ends (exclusive)."""
    starts = np.flatnonzero(order.begins)
    return starts, np.append(starts, order.begins.size)[1:]
