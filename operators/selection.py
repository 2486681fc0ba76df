"""Selecting columns without losing rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import polars as pl
import polars.selectors as cs

Rows = TypeVar("Rows", pl.DataFrame, pl.LazyFrame)


def selected(rows: Rows, columns: Sequence[pl.Expr], carried: Sequence[str] = ()) -> Rows:
    """Select columns, each with a value for every row.

    Polars gives one row where nothing but constants is selected, however many rows there are.

    Args:
        rows: A frame or a lazy frame.
        columns: What is selected, in this order; at least one.
        carried: Columns that are kept behind these, as far as the rows have them.
    """
    kept = [cs.by_name(*carried, require_all=False)] if carried else []
    if any(column.meta.root_names() or column.meta.has_multiple_outputs() for column in columns):
        return rows.select(*columns, *kept)
    return rows.with_columns(columns).select(*(column.meta.output_name() for column in columns), *kept)
