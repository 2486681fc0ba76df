"""Top-N without windows: the first N rows of each key so far, given out as a changelog.

Each batch that changes which rows are kept, or their rank, takes the earlier rows back (``_weight`` -1) and gives the
new ones out (+1). The order is that of :mod:`operators.ranking`, not the one in which rows come. With ``n`` 1 and the
event time as order this is deduplication by key that keeps the first row, or (descending) the last.

Of an append-only input no more than N rows of each key are kept: what is not among them will never be. Of a changelog
all rows are kept, since a row that is taken back lets others move up.

Rows that hold the same are one row that is there several times, and 0.0 and -0.0 are the same.

Which rows in between are given out depends on batches; the final table does not (``EXACT_TABLE``).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

import polars as pl

from headrace.kernel import columns
from headrace.kernel.keyed import KeyedLayout, KeyedState
from headrace.kernel.protocols import MAIN, Determinism, Emission, OperatorContext, OperatorState
from operators import event_time as times
from operators.errors import computing
from operators.partials import ROWS
from operators.passage import Narrowed, Passage, by_key, reading
from operators.ranking import ROW, Ranking, places_of
from operators.untimed import UntimedInstance, UntimedOperator

VERSION: Final = 1
_ROWS: Final = "rows"
_ALL: Final = "_all"
"""The key where there is none: one group for all rows."""


@dataclass(frozen=True, slots=True)
class RunningTop(UntimedOperator):
    """Keep the first N rows of each key; implements :class:`headrace.kernel.protocols.StatefulOperator`.

    Output: the rows that are kept, with all their columns, their ``rank`` (Int64, from 1) if that has a name, and
    ``_weight``. Rows that are given out together are sorted by key, retractions first.

    Args:
        id: Stable id; the state is bound to it.
        n: How many rows, positive.
        order_by: Columns to order by, each with whether it is descending; nulls come last. At least one.
        by: Key columns; none: one ranking of all rows.
        rank: Name of the column that holds a row's place; empty: none.
        event_time: Column with the event time, which orders rows of equal places; None, or a column that the rows do
            not have: they have none.

    Raises:
        SpecError: Something in it cannot be.
    """

    id: str
    n: int
    order_by: Sequence[tuple[str, bool]]
    by: Sequence[str] = ()
    rank: str = ""
    event_time: str | None = None
    _ranking: Ranking = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_ranking", Ranking(self._where, self.n, self.order_by, self.by, self.rank))

    @property
    def _where(self) -> str:
        return f"top {self.id!r}"

    @property
    def keys(self) -> list[str]:
        """Columns of the partials that are the key."""
        return self._ranking.keys or [_ALL]

    @property
    def key_columns(self) -> Sequence[str]:
        """See :class:`headrace.kernel.protocols.StatefulOperator`."""
        return self._ranking.keys

    @property
    def determinism(self) -> Determinism:
        """See :class:`headrace.kernel.protocols.StatefulOperator`."""
        return Determinism.EXACT_TABLE

    @property
    def fingerprint(self) -> str:
        """What the state depends on, as text that people can compare; types are checked when the state is opened."""
        return f"running top {self.n}, {self._ranking}, then {self.event_time or 'content'}"

    def partial(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """The first N rows of each key in a batch, or all changes of a changelog: equal rows once, with their number.

        Raises:
            SpecError: The rows lack a column (``COLUMN_NOT_FOUND``) or have types that do not fit.
        """
        schema = rows.collect_schema()
        self._ranking.check(schema)
        time = None
        if self.event_time is not None and self.event_time in schema:
            time = times.microseconds(self.event_time, schema[self.event_time], self._where)
        made = [expr.alias(name) for name, expr in self._ranking.columns(schema, time).items()]
        made += [] if self.by else [pl.lit(0, pl.Int8).alias(_ALL)]
        if columns.WEIGHT in schema:
            return _once(rows.select(*made, columns.WEIGHT), self.keys, columns.WEIGHT)
        promising = self._promising(rows.select(*made, pl.lit(1, pl.Int64).alias(ROWS)))
        return _once(self._first(promising), self.keys, ROWS)

    def passages(self, rows: pl.Schema) -> Sequence[Passage]:
        """See :class:`operators.passage.PassesPredicates`: rows of different keys never meet."""
        return by_key(self.by, rows)

    def narrowed(self, wanted: Collection[str], rows: pl.Schema) -> Narrowed:
        """See :class:`operators.passage.NarrowsColumns`: rows are held without what nobody needs."""
        time = [] if self.event_time is None else [self.event_time]
        return Narrowed(self, reading([*wanted, *self._ranking.reads, *time], rows))

    def output_schema(self, schema: pl.Schema) -> pl.Schema:
        """See :class:`headrace.kernel.protocols.StatefulOperator`."""
        return self.ranked(pl.DataFrame(schema=schema).rename({columns.WEIGHT: ROWS}, strict=False), 1).schema

    def ranked(self, held: pl.DataFrame, weight: int) -> pl.DataFrame:
        """Rows of the main port, of all rows held of some keys, all with one weight."""
        with computing(self._where):
            there = held.filter(pl.col(ROWS) > 0)
            copies = pl.int_range(pl.len()).repeat_by(pl.min_horizontal(ROWS, self.n)).explode(empty_as_null=False)
            first = self._first(there[there.select(copies).to_series()].lazy())
            kept = self._ranking.finish(first, self.keys).collect()
            return kept.with_columns(pl.lit(weight, columns.WEIGHT_TYPE).alias(columns.WEIGHT))

    def shown(self, table: str, rows: pl.LazyFrame) -> pl.LazyFrame:  # noqa: ARG002 - there is one
        """See :class:`headrace.kernel.protocols.ShowsState`: the rows that are kept."""
        return self.ranked(rows.collect(), 1).drop(columns.WEIGHT).lazy()

    def open(self, schema: pl.Schema, context: OperatorContext) -> RunningTopInstance:
        """An instance over partials of ``schema``.

        Raises:
            GraphChangedError: The state was made by another definition, over other types, or by a newer release.
        """
        appended = columns.WEIGHT not in schema
        stored = pl.Schema({ROWS if name == columns.WEIGHT else name: dtype for name, dtype in schema.items()})
        held = context.keyed(KeyedLayout(_ROWS, stored, self.keys, [ROW], version=VERSION))
        return RunningTopInstance(self, held, appended=appended)

    def pruned(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Of appended rows, those that can be among the first N."""
        before = pl.col(ROWS).cum_sum().over(self.keys) - pl.col(ROWS)
        return self._ranking.sorted(rows.lazy(), self.keys).filter(before < self.n).collect()

    def _first(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        place = pl.int_range(pl.len()).over(self.keys)
        return self._ranking.sorted(rows, self.keys).filter(place < self.n)

    def _promising(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """Without those rows that N others precede by the first column already: cheaper than sorting all."""
        first, falling = places_of(rows.collect_schema())[0], self.order_by[0][1]
        column = pl.col(first)
        better = column.rank("min", descending=falling).over(self.keys).fill_null(column.count().over(self.keys) + 1)
        return rows.filter(better <= self.n)


class RunningTopInstance(UntimedInstance):
    """Implements :class:`headrace.kernel.protocols.OperatorInstance`. State: rows by key, each with its number."""

    def __init__(self, operator: RunningTop, held: KeyedState, *, appended: bool) -> None:
        self._operator = operator
        self._held = held
        self._appended = appended
        self._identity = [*operator.keys, ROW]

    def process(self, partials: pl.DataFrame) -> Emission:
        """Take in rows; gives out what they change."""
        operator = self._operator
        before = self._held.find(partials)
        new = partials.rename({columns.WEIGHT: ROWS}, strict=False).select(before.columns)
        after = _once(pl.concat([before, new]).lazy(), operator.keys, ROWS).collect().filter(pl.col(ROWS) != 0)
        if self._appended:
            after = operator.pruned(after)
        self._held.remove(before.join(after, on=self._identity, how="anti", nulls_equal=True))
        changed = after.join(before, on=[*self._identity, ROWS], how="anti", nulls_equal=True)
        self._held.put(changed.select(before.columns))
        return self._changes(before, after)

    def rows_held(self) -> int:
        """Rows."""
        return self._held.height

    def snapshot(self) -> OperatorState:
        """The rows of each key that are needed."""
        return OperatorState(VERSION, keyed={_ROWS: self._held.snapshot()})

    def _changes(self, before: pl.DataFrame, after: pl.DataFrame) -> Emission:
        operator = self._operator
        both = pl.concat([operator.ranked(before, -1), operator.ranked(after, 1)])
        names = [name for name in both.columns if name != columns.WEIGHT]
        changes = both.group_by(names, maintain_order=True).agg(pl.col(columns.WEIGHT).sum())
        changes = changes.filter(pl.col(columns.WEIGHT) != 0)
        return {MAIN: changes.sort(*operator.by, columns.WEIGHT, maintain_order=True)} if changes.height else {}


def _once(rows: pl.LazyFrame, keys: Sequence[str], count: str) -> pl.LazyFrame:
    """Equal rows once, with how often they are there."""
    places = places_of(rows.collect_schema())
    return rows.group_by(*keys, ROW).agg(pl.col(places).first(), pl.col(count).sum())
