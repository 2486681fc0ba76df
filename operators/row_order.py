"""The order of rows that everything agrees on, whatever the batches: (event time, partition, offset), then content.

Rows carry partition and offset where the source gives them (``metadata: true``). Where they do not, or where a history
does not hold them, rows of one time are ordered by what they hold, so that the choice among them never depends on the
order in which they came.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from headrace.kernel import columns

ORDER: Final = "_order:"
"""Names of columns that only say what rows are ordered by begin with it."""


def order(time: pl.Expr | None, schema: pl.Schema) -> list[pl.Expr]:
    """What rows are ordered by first: time (microseconds, where they have one), then partition and offset (as well)."""
    known = {"partition": columns.PARTITION, "offset": columns.OFFSET}
    held = [pl.col(name).alias(f"{ORDER}{word}") for word, name in known.items() if name in schema]
    return [*([] if time is None else [time.alias(f"{ORDER}time")]), *held]


def total_order(time: pl.Expr | None, schema: pl.Schema) -> list[pl.Expr]:
    """:func:`order`, then the columns of the rows under their own names: a row, and its place among all."""
    return [*order(time, schema), *(pl.col(name) for name in schema if name != columns.ROW_WATERMARK)]
