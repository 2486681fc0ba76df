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
from operators.ranked_changes import Change
from operators.ranked_order import Ordered
from operators.ranking import ROW, Ranking
from operators.untimed import UntimedInstance, UntimedOperator

VERSION: Final = 2
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
        object.__setattr__(
            self, "_ranking", Ranking(self._where, self.n, self.order_by, self.by, self.rank, self.event_time or "")
        )

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
        if self.event_time is not None and self.event_time in schema:
            times.microseconds(self.event_time, schema[self.event_time], self._where)
        made = [expr.alias(name) for name, expr in self._ranking.columns(schema).items()]
        made += [] if self.by else [pl.lit(0, pl.Int8).alias(_ALL)]
        count = pl.col(columns.WEIGHT) if columns.WEIGHT in schema else pl.lit(1, pl.Int64).alias(ROWS)
        picked = rows.select(*made, count)
        taken = self._summed if columns.WEIGHT in schema else self._first
        return picked.map_batches(taken, schema=picked.collect_schema())

    def passages(self, rows: pl.Schema) -> Sequence[Passage]:
        """See :class:`operators.passage.PassesPredicates`: rows of different keys never meet."""
        return by_key(self.by, rows)

    def narrowed(self, wanted: Collection[str], rows: pl.Schema) -> Narrowed:
        """See :class:`operators.passage.NarrowsColumns`: rows are held without what nobody needs."""
        time = [] if self.event_time is None else [self.event_time]
        return Narrowed(self, reading([*wanted, *self._ranking.reads, *time], rows))

    def output_schema(self, schema: pl.Schema) -> pl.Schema:
        """See :class:`headrace.kernel.protocols.StatefulOperator`."""
        return pl.Schema({**self._ranking.finished(schema), columns.WEIGHT: columns.WEIGHT_TYPE})

    def shown(self, table: str, rows: pl.LazyFrame) -> pl.LazyFrame:  # noqa: ARG002 - there is one
        """See :class:`headrace.kernel.protocols.ShowsState`: the rows that are kept."""
        held = rows.collect()
        change = Change.of(self.ordered(held), held[ROWS].to_numpy(), 0)
        return self.given_out(held, change).drop(columns.WEIGHT).lazy()

    def open(self, schema: pl.Schema, context: OperatorContext) -> RunningTopInstance:
        """An instance over partials of ``schema``.

        Raises:
            GraphChangedError: The state was made by another definition, over other types, or by a newer release.
        """
        appended = columns.WEIGHT not in schema
        stored = pl.Schema({ROWS if name == columns.WEIGHT else name: dtype for name, dtype in schema.items()})
        held = context.keyed(KeyedLayout(_ROWS, stored, self.keys, [ROW], version=VERSION))
        return RunningTopInstance(self, held, appended=appended)

    def ordered(self, rows: pl.DataFrame) -> Ordered:
        """Partials or rows held, by key and place."""
        with computing(self._where):
            return self._ranking.ordered(rows, self.keys)

    def given_out(self, rows: pl.DataFrame, change: Change) -> pl.DataFrame:
        """Rows of the main port: what a change of ``rows`` comes to among the first N."""
        given = change.given(self.n, ranked=bool(self.rank))
        place = [pl.Series(self.rank, given.ranks + 1, pl.Int64)] if self.rank else []
        weight = pl.Series(columns.WEIGHT, given.weights, columns.WEIGHT_TYPE)
        return rows[ROW][given.rows].struct.unnest().with_columns(*place, weight)

    def _first(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The first N of appended rows, equal ones once, with their number."""
        order = self.ordered(rows)
        change = Change.of(order, rows[ROWS].to_numpy(), 0).only(self.n)
        return _counted(rows, change, ROWS)

    def _summed(self, rows: pl.DataFrame) -> pl.DataFrame:
        """All rows, equal ones once, with what they weigh together."""
        return _counted(rows, Change.of(self.ordered(rows), rows[columns.WEIGHT].to_numpy(), 0), columns.WEIGHT)


def _counted(rows: pl.DataFrame, change: Change, count: str) -> pl.DataFrame:
    """The rows that are there after a change, with how often."""
    return rows[change.rows[change.put]].with_columns(pl.Series(count, change.after[change.put], rows.schema[count]))


class RunningTopInstance(UntimedInstance):
    """Implements :class:`headrace.kernel.protocols.OperatorInstance`. State: rows by key, each with its number."""

    def __init__(self, operator: RunningTop, held: KeyedState, *, appended: bool) -> None:
        self._operator = operator
        self._held = held
        self._appended = appended

    def process(self, partials: pl.DataFrame) -> Emission:
        """Take in rows; gives out what they change."""
        operator = self._operator
        before = self._held.find(partials)
        rows = pl.concat([before, partials.rename({columns.WEIGHT: ROWS}, strict=False).select(before.columns)])
        change = Change.of(operator.ordered(rows), rows[ROWS].to_numpy(), before.height)
        if self._appended:
            change = change.only(operator.n)
        self._held.remove(rows[change.rows[change.removed]])
        self._held.put(_counted(rows, change, ROWS))
        given = operator.given_out(rows, change)
        return {MAIN: given} if given.height else {}

    def rows_held(self) -> int:
        """Rows."""
        return self._held.height

    def snapshot(self) -> OperatorState:
        """The rows of each key that are needed."""
        return OperatorState(VERSION, keyed={_ROWS: self._held.snapshot()})
