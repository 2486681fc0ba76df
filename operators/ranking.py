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
from operators import event_time as times
from operators import partials
from operators.aggregate_set import check_keys
from operators.errors import column_not_found
from operators.ranked_order import Ordered, ordered
from operators.row_order import order

ROW: Final = "_row"
_KEY: Final = "_key_"


@dataclass(frozen=True, slots=True)
class Ranking:
    """The first rows of each group.

    Args:
        where: Names the operator in error messages.
        n: How many rows, positive.
        order_by: Columns to order by, each with whether it is descending. At least one.
        by: Key columns.
        rank: Name of the column that holds a row's place; empty: none.
        event_time: Column with the event time, if the rows have it; empty: none.

    Raises:
        SpecError: Something in it cannot be.
    """

    where: str
    n: int
    order_by: Sequence[tuple[str, bool]]
    by: Sequence[str]
    rank: str
    event_time: str

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

    def columns(self, schema: pl.Schema) -> Mapping[str, pl.Expr]:
        """Keys and the row itself, of rows of a schema; what is about rows (``_weight``) is no part of it."""
        return {
            **{
                key: partials.one_zero(pl.col(name), schema[name]) for key, name in zip(self.keys, self.by, strict=True)
            },
            ROW: pl.struct(pl.col(name) for name in schema if name not in _ABOUT_ROWS),
        }

    def ordered(self, rows: pl.DataFrame, groups: Sequence[str]) -> Ordered:
        """Rows that have the columns of :meth:`columns`, by group and place."""
        held = rows[ROW].struct.unnest()
        places = held.select(expr.alias(f"{index}") for index, expr in enumerate(self._places(held.schema)))
        falling = [descending for _, descending in self.order_by]
        return ordered(rows.select(groups), places, held, falling + [False] * (places.width - len(falling)))

    def finish(self, rows: pl.LazyFrame, groups: Sequence[str]) -> pl.LazyFrame:
        """The rows as they were, with their rank if that has a name; sorted by group and place."""
        return rows.map_batches(lambda some: self._finished(some, groups), schema=self.finished(rows.collect_schema()))

    def finished(self, schema: pl.Schema) -> pl.Schema:
        """The columns of :meth:`finish`."""
        held = pl.DataFrame(schema={ROW: schema[ROW]}).unnest(ROW).schema
        return pl.Schema({**held, self.rank: pl.Int64()}) if self.rank else held

    def _finished(self, rows: pl.DataFrame, groups: Sequence[str]) -> pl.DataFrame:
        order = self.ordered(rows, groups)
        held = rows[ROW][order.rows].struct.unnest()
        return held.with_columns(pl.Series(self.rank, order.ranks + 1, pl.Int64)) if self.rank else held

    def _places(self, held: pl.Schema) -> list[pl.Expr]:
        """What rows are ordered by before all that they hold is looked at."""
        wanted = [partials.one_zero(pl.col(name), held[name]) for name, _ in self.order_by]
        time = None
        if self.event_time in held and self.event_time not in {name for name, _ in self.order_by}:
            time = times.microseconds(self.event_time, held[self.event_time], self.where)
        return [*wanted, *order(time, held)]


_ABOUT_ROWS: Final = frozenset({columns.ROW_WATERMARK, columns.WEIGHT})
