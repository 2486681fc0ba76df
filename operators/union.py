"""Union: the rows of several streams as one stream.

What makes them one is done by the graph: a union node reads several streams. The operator gives every row the same
columns in the same order. Where one stream is a changelog, so is the union, and the rows of the others weigh 1. Rows
of one event time keep no order among streams, and nothing behind a union may need one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import polars as pl
import polars.selectors as cs

from headrace.kernel import columns
from headrace.kernel.errors import SpecError
from headrace.kernel.protocols import Determinism


@dataclass(frozen=True, slots=True)
class Union:
    """Give rows the columns of the union's first stream.

    Args:
        id: Stable id.
        schema: Columns that every stream must have, and no others; ``_row_watermark`` passes through by itself.
    """

    id: str
    schema: pl.Schema = field(compare=False)

    @property
    def determinism(self) -> Determinism:
        """Exact."""
        return Determinism.EXACT

    def apply(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """The rows with their columns in the union's order.

        Raises:
            SpecError: They have other columns or types than the union: types are never changed silently.
        """
        if columns.WEIGHT in self.schema and columns.WEIGHT not in rows.collect_schema():
            rows = rows.with_columns(pl.lit(1, columns.WEIGHT_TYPE).alias(columns.WEIGHT))
        found = {name: dtype for name, dtype in rows.collect_schema().items() if name != columns.ROW_WATERMARK}
        wanted = {name: dtype for name, dtype in self.schema.items() if name != columns.ROW_WATERMARK}
        if found != wanted:
            raise SpecError(
                f"union {self.id!r}: its streams have different columns",
                detail="; ".join(_differences(wanted, found)),
                hint="make them alike before the union: select: {name: cast(... as ...), ...}",
                code="UNION_MISMATCH",
            )
        return rows.select(*wanted, cs.by_name(columns.ROW_WATERMARK, require_all=False))


def _differences(wanted: dict[str, pl.DataType], found: dict[str, pl.DataType]) -> list[str]:
    missing = [f"{name!r} ({dtype}) is missing in one" for name, dtype in wanted.items() if name not in found]
    more = [f"{name!r} ({dtype}) is only in one" for name, dtype in found.items() if name not in wanted]
    other = [
        f"{name!r} is {dtype} and {found[name]}"
        for name, dtype in wanted.items()
        if name in found and found[name] != dtype
    ]
    return [*missing, *more, *other]
