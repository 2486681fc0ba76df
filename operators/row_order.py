"""The order of rows that everything agrees on, whatever the batches: (event time, partition, offset), then content.

Rows carry partition and offset where the source gives them (``metadata: true``). Where they do not, or where a history
does not hold them, rows of one time are ordered by what they hold, so that the choice among them never depends on the
order in which they came.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from headrace.kernel import columns
from headrace.kernel.errors import SpecError

TIME = "_time"


def order(time: pl.Expr, schema: pl.Schema) -> list[pl.Expr]:
    """What rows are ordered by first: ``_time`` (microseconds), then partition and offset where rows have them."""
    known = [pl.col(name).alias(f"_order{name}") for name in (columns.PARTITION, columns.OFFSET) if name in schema]
    return [time.alias(TIME), *known]


def total_order(time: pl.Expr, schema: pl.Schema, where: str) -> list[pl.Expr]:
    """:func:`order`, then the content of the rows, column by column.

    Raises:
        SpecError: Rows have neither offsets nor only columns that can be ordered.
    """
    nested = [name for name, dtype in schema.items() if dtype.is_nested() or isinstance(dtype, pl.Object)]
    if nested and columns.OFFSET not in schema:
        raise SpecError(
            f"{where} cannot order rows of one time: column {nested[0]!r} has type {schema[nested[0]]}",
            hint="set metadata: true on the source, so that rows have offsets, or drop the column before this step",
        )
    content: Sequence[str] = [name for name in schema if name not in nested and name != columns.ROW_WATERMARK]
    return [*order(time, schema), *(pl.col(name).alias(f"_order:{name}") for name in content)]
