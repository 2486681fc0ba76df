"""Pairs of rows that match, of two frames with the columns of one side each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from headrace.kernel.merged import engine_for
from operators.errors import computing
from operators.join_sides import TIME, JoinSides

ROW: Final = "_row"
"""The place of a row among those of its side."""

_BUCKET: Final = "_bucket"


def right_name(name: str) -> str:
    """What a column that both sides have besides keys and payload is called for the right row of a pair."""
    return f"{name}:right"


def pairs(
    sides: JoinSides,
    left: pl.LazyFrame,
    right: pl.LazyFrame,
    bounds: tuple[int, int] | None,
    rows: int,
    also: Sequence[str] = (),
    near: pl.Expr | None = None,
) -> pl.DataFrame:
    """The pairs that match: the columns of both sides, keys and shared columns once.

    Args:
        sides: The sides.
        left: Left rows: keys, own columns, maybe others.
        right: Right rows likewise; columns that are neither keys nor their own get :func:`right_name`.
        bounds: How much later the left row is, at least and at most, microseconds; None: time says nothing.
        rows: How many rows both have, about.
        also: Further columns that must be equal.
        near: A further condition, over the columns of pairs.
    """
    on = [*sides.keys, *also]
    own = sides.own("right")
    right = right.rename(
        {name: right_name(name) for name in right.collect_schema() if name not in own and name not in on}
    )
    right = right.drop(sides.shared)
    if bounds is not None:
        left, right = _in_buckets(left, right, *bounds)
        on = [*on, _BUCKET]
    found = left.join(right, on=on, how="inner", nulls_equal=False)
    if bounds is not None:
        found = found.filter((pl.col(TIME) - pl.col(right_name(TIME))).is_between(*bounds)).drop(_BUCKET)
    if near is not None:
        found = found.filter(near)
    with computing(sides.label):
        return sides.matching(found).collect(engine=engine_for(rows))


def _in_buckets(left: pl.LazyFrame, right: pl.LazyFrame, lower: int, upper: int) -> tuple[pl.LazyFrame, pl.LazyFrame]:
    """Rows with buckets of time, as long as the interval, so that those of a hot key meet near ones only."""
    width = upper - lower + 1
    first = (pl.col(TIME) - upper).floordiv(width)
    last = (pl.col(TIME) - lower).floordiv(width)
    twice = [left.with_columns(first.alias(_BUCKET)), left.filter(first != last).with_columns(last.alias(_BUCKET))]
    return pl.concat(twice), right.with_columns(pl.col(right_name(TIME)).floordiv(width).alias(_BUCKET))
