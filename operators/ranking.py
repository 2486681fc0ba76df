"""What rankings share: the rows of a group in an order that everybody agrees on, and the first N of them.

Ties are broken by (event time, partition, offset) and then by what rows hold (:mod:`operators.row_order`), so that
which rows are kept never depends on the order in which they come. Nulls come last, whichever way is up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from headrace.kernel import columns
from headrace.kernel.errors import SpecError
from operators import partials
from operators.aggregate_set import check_keys
from operators.errors import column_not_found
from operators.row_order import total_order

ROW: Final = "_row"
_KEY: Final = "_key_"
_PLACE: Final = "_place_"


@dataclass(frozen=True, slots=True)
class Ranking:
    """The first rows of each group.

    Args:
        where: Names the operator in error messages.
        n: How many rows, positive.
        order_by: Columns to order by, each with whether it is descending. At least one.
        by: Key columns.
        rank: Name of the column that holds a row's place; empty: none.

    Raises:
        SpecError: Something in it cannot be.
    """

    where: str
    n: int
    order_by: Sequence[tuple[str, bool]]
    by: Sequence[str]
    rank: str

    def __post_init__(self) -> None:
        if self.n < 1:
            raise SpecError(f"{self.where} keeps {self.n} rows", hint="give a number from 1 on")
        if not self.order_by:
            raise SpecError(f"{self.where} has no order", hint="name the columns to order by, e.g. price desc")

    def __str__(self) -> str:
        order = ", ".join(f"{name} desc" if descending else name for name, descending in self.order_by)
        return f"by {', '.join(self.by) or 'nothing'}, {order}"

    @property
    def keys(self) -> list[str]:
        """The key's columns as :meth:`columns` names them."""
        return [f"{_KEY}{index}" for index in range(len(self.by))]

    @property
    def reads(self) -> list[str]:
        """The columns that it needs of rows, whatever else they hold."""
        return [*self.by, *(name for name, _ in self.order_by)]

    def check(self, schema: pl.Schema) -> None:
        """Check a definition against the columns of rows.

        Raises:
            SpecError: A column is not there (``COLUMN_NOT_FOUND``), cannot be ordered, or is in the rank's way.
        """
        ordered = [name for name, _ in self.order_by]
        check_keys(self.by, schema, self.where)
        for name in ordered:
            if name not in schema:
                raise column_not_found(name, schema.names(), self.where)
            if schema[name].is_nested() or isinstance(schema[name], pl.Object):
                raise SpecError(f"{self.where}: {name!r} has type {schema[name]}", hint="take scalars of it")
        if self.rank in schema:
            raise SpecError(
                f"{self.where} would add {self.rank!r}, which the stream already has",
                hint="give the rank another name",
                code="COLUMN_CLASH",
            )

    def columns(self, schema: pl.Schema, time: pl.Expr | None) -> Mapping[str, pl.Expr]:
        """Keys, places and the row itself, of rows of a schema.

        Args:
            schema: The rows; ``_row_watermark`` and ``_weight`` are no part of what they hold.
            time: Their event time in microseconds, if they have one.
        """
        held = pl.Schema({name: dtype for name, dtype in schema.items() if name not in _ABOUT_ROWS})
        wanted = [partials.one_zero(pl.col(name), schema[name]) for name, _ in self.order_by]
        places = [*wanted, *total_order(time, held)]
        return {
            **{
                key: partials.one_zero(pl.col(name), schema[name]) for key, name in zip(self.keys, self.by, strict=True)
            },
            **{f"{_PLACE}{index}": expr for index, expr in enumerate(places)},
            ROW: pl.struct(pl.col(name) for name in held),
        }

    def sorted(self, rows: pl.LazyFrame, groups: Sequence[str]) -> pl.LazyFrame:
        """Rows by group, and by place in it."""
        places = places_of(rows.collect_schema())
        falling = [descending for _, descending in self.order_by] + [False] * (len(places) - len(self.order_by))
        return rows.sort(
            [*groups, *places],
            descending=[False] * len(groups) + falling,
            nulls_last=[False] * len(groups) + [True] * len(places),
        )

    def finish(self, rows: pl.LazyFrame, groups: Sequence[str]) -> pl.LazyFrame:
        """The rows as they were, with their rank if that has a name; sorted by group and place."""
        ordered = self.sorted(rows, groups)
        if not self.rank:
            return ordered.select(ROW).unnest(ROW)
        place = (pl.int_range(pl.len(), dtype=pl.Int64) + 1).over(groups).alias(self.rank)
        return ordered.select(ROW, place).unnest(ROW)


_ABOUT_ROWS: Final = frozenset({columns.ROW_WATERMARK, columns.WEIGHT})


def places_of(schema: pl.Schema) -> list[str]:
    """The columns that rows are ordered by within their group, the first one first."""
    return sorted((name for name in schema if name.startswith(_PLACE)), key=lambda name: int(name.removeprefix(_PLACE)))
