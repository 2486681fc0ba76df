"""Union: the rows of several streams as one stream.

What makes them one is done by the graph: a union node reads several streams. The operator gives every row the same
columns in the same order. Where one stream is a changelog, so is the union, and the rows of the others weigh 1. Rows
of one event time keep no order among streams, and nothing behind a union may need one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import polars as pl
import polars.selectors as cs

from headrace.kernel import columns
from headrace.kernel.errors import SpecError
from headrace.kernel.protocols import Determinism
from operators.widening import common_type


def united(streams: Sequence[pl.Schema]) -> pl.Schema:
    """The columns of the first stream, with types that hold what every stream has in columns of these names.

    Where no type does, it is the first stream's, and :class:`Union` refuses the others.
    """
    first = streams[0]
    common = {name: common_type(one[name] for one in streams if name in one) for name in first}
    return pl.Schema({name: common[name] or dtype for name, dtype in first.items()})


@dataclass(frozen=True, slots=True)
class Union:
    """Give rows the columns of the union.

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
            SpecError: They have other columns than the union, or a type that its type does not hold every value of.
        """
        if columns.WEIGHT in self.schema and columns.WEIGHT not in rows.collect_schema():
            rows = rows.with_columns(pl.lit(1, columns.WEIGHT_TYPE).alias(columns.WEIGHT))
        found = {name: dtype for name, dtype in rows.collect_schema().items() if name != columns.ROW_WATERMARK}
        wanted = {name: dtype for name, dtype in self.schema.items() if name != columns.ROW_WATERMARK}
        wider = [name for name in found if name in wanted and common_type([wanted[name], found[name]]) == wanted[name]]
        if not found.keys() == wanted.keys() == set(wider):
            raise SpecError(
                f"union {self.id!r}: its streams have different columns",
                detail="; ".join(_differences(wanted, found)),
                hint="make them alike before the union: select: {name: cast(... as ...), ...}",
                code="UNION_MISMATCH",
            )
        given = [pl.col(name) if found[name] == dtype else pl.col(name).cast(dtype) for name, dtype in wanted.items()]
        return rows.select(*given, cs.by_name(columns.ROW_WATERMARK, require_all=False))


def _differences(wanted: dict[str, pl.DataType], found: dict[str, pl.DataType]) -> list[str]:
    missing = [f"{name!r} ({dtype}) is missing in one" for name, dtype in wanted.items() if name not in found]
    more = [f"{name!r} ({dtype}) is only in one" for name, dtype in found.items() if name not in wanted]
    other = [
        f"{name!r} is {dtype} and {found[name]}"
        for name, dtype in wanted.items()
        if name in found and found[name] != dtype
    ]
    return [*missing, *more, *other]
