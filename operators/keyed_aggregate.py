"""Aggregates by key without windows: a running result for each key, given out as a changelog.

Each batch that changes a key's result takes the earlier row back (``_weight`` -1) and gives the new one out (+1). The
input may be a changelog itself: rows with ``_weight`` count as often as they weigh, so that a retraction undoes its
insertion exactly, sums of floats included (they are kept as integers, :mod:`operators.aggregates`; only a NaN or an
infinity leaves NaN behind when it is taken back). A key whose rows have all been taken back is gone.

What cannot be subtracted (the least of some values, without the least one) is computed anew of the values: over a
changelog, aggregates other than counts and sums keep each different value of a key, with how often it is there.

Which results in between are given out depends on batches; the final table does not (``EXACT_TABLE``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import polars as pl

from headrace.kernel import columns
from headrace.kernel.keyed import KeyedLayout, KeyedState
from headrace.kernel.merged import engine_for
from headrace.kernel.protocols import MAIN, Determinism, Emission, OperatorContext, OperatorState
from operators import event_time as times
from operators import partials
from operators.aggregate_set import build_all, check_keys, read_aggregates, state_of, wanted_of
from operators.aggregates import Aggregate
from operators.determinism import weakest
from operators.errors import computing
from operators.partials import ROWS
from operators.passage import Narrowed, Passage, by_key
from operators.row_order import order
from operators.untimed import UntimedInstance, UntimedOperator
from operators.weighted import of_values, value_columns, weighted

VERSION: Final = 1
_GROUPS: Final = "groups"
_ALL: Final = "_all"
"""The key where there is none: one group for all rows."""
_OLD: Final = "_old"
_NEW: Final = "_new"


@dataclass(frozen=True, slots=True)
class KeyedAggregate(UntimedOperator):
    """Running aggregates by key; implements :class:`headrace.kernel.protocols.StatefulOperator`.

    Output: the ``by`` columns, the aggregates, ``_weight``. Rows that are given out together are sorted by key, a
    retraction before the insertion that replaces it.

    Args:
        id: Stable id; the state is bound to it.
        aggregates: From the output's name to SQL text (``"sum(delay)"``) or an ``Aggregate``.
        by: Key columns; none: one result over all rows, which is there once there is a row.
        event_time: Column with the event time, by which ``first``, ``last`` and ``list`` order rows;
            None, or a column that the rows do not have: they cannot.

    Raises:
        SpecError: Something in it cannot be.
    """

    id: str
    aggregates: Mapping[str, str | Aggregate]
    by: Sequence[str] = ()
    event_time: str | None = None
    _wanted: Mapping[str, Aggregate] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        wanted = read_aggregates(self.aggregates, self.by, self._where)
        object.__setattr__(self, "_wanted", wanted)

    @property
    def _where(self) -> str:
        return f"aggregate {self.id!r}"

    @property
    def keys(self) -> list[str]:
        """Columns of the partials that are the key."""
        return list(self.by) or [_ALL]

    @property
    def determinism(self) -> Determinism:
        """See :class:`headrace.kernel.protocols.StatefulOperator`."""
        return weakest([Determinism.EXACT_TABLE, *(wanted.determinism for wanted in self._wanted.values())])

    @property
    def fingerprint(self) -> str:
        """What the state depends on, as text that people can compare; types are checked when it is opened."""
        return f"running aggregate by {', '.join(self.by) or 'nothing'}, state {state_of(self._wanted)}"

    @property
    def key_columns(self) -> Sequence[str]:
        """See :class:`headrace.kernel.protocols.StatefulOperator`."""
        return self.by

    def partial(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """Partials: key columns and state columns; over a changelog the values that must be kept, too.

        Raises:
            SpecError: The rows lack a column (``COLUMN_NOT_FOUND``), or have types that do not fit.
        """
        schema = rows.collect_schema()
        check_keys(self.by, schema, self._where)
        build = weighted(build_all(self._wanted, schema, self._where, self._order(schema)), schema)
        keys = {name: partials.one_zero(pl.col(name), schema[name]) for name in self.by} or {_ALL: pl.lit(0, pl.Int8)}
        made, values = build.build.rows, build.values
        # Not select: over literals alone it would lose the number of rows.
        return rows.with_columns(**keys, **made, **values).group_by(*keys, *values).agg(**build.build.state)

    def passages(self, rows: pl.Schema) -> Sequence[Passage]:
        """See :class:`operators.passage.PassesPredicates`: rows of different keys never meet."""
        return by_key(self.by, rows)

    def narrowed(self, wanted: Collection[str], rows: pl.Schema) -> Narrowed:  # noqa: ARG002 - the protocol's signature
        """See :class:`operators.passage.NarrowsColumns`: without the aggregates that nobody needs, but one."""
        return Narrowed(replace(self, aggregates=wanted_of(self.aggregates, wanted)))

    def _order(self, schema: pl.Schema) -> Sequence[pl.Expr]:
        if self.event_time is None or self.event_time not in schema:
            return ()
        return order(times.microseconds(self.event_time, schema[self.event_time], self._where), schema)

    def output_schema(self, schema: pl.Schema) -> pl.Schema:
        """See :class:`headrace.kernel.protocols.StatefulOperator`."""
        return self.results(pl.DataFrame(schema=schema), 1).schema

    def results(self, merged: pl.DataFrame, weight: int) -> pl.DataFrame:
        """Rows of the main port, computed of merged partials, all with one weight."""
        with computing(self._where):
            groups = of_values(merged, self.keys).filter(pl.col(ROWS) != 0)
            return groups.select(
                *self.by,
                *(partials.final(wanted, name, groups.schema) for name, wanted in self._wanted.items()),
                pl.lit(weight, columns.WEIGHT_TYPE).alias(columns.WEIGHT),
            )

    def shown(self, table: str, rows: pl.LazyFrame) -> pl.LazyFrame:  # noqa: ARG002 - there is one
        """See :class:`headrace.kernel.protocols.ShowsState`: the results."""
        return self.results(rows.collect(), 1).drop(columns.WEIGHT).lazy()

    def open(self, schema: pl.Schema, context: OperatorContext) -> KeyedAggregateInstance:
        """An instance over partials of ``schema``.

        Raises:
            GraphChangedError: The state was made by another definition, over other types, or by a newer release.
        """
        held = context.keyed(KeyedLayout(_GROUPS, schema, self.keys, value_columns(schema.names()), version=VERSION))
        return KeyedAggregateInstance(self, held)


class KeyedAggregateInstance(UntimedInstance):
    """Implements :class:`headrace.kernel.protocols.OperatorInstance`. State: merged partials by key (and value)."""

    def __init__(self, operator: KeyedAggregate, held: KeyedState) -> None:
        self._operator = operator
        self._held = held

    def process(self, partials: pl.DataFrame) -> Emission:
        """Take in partials; gives out the results that they change."""
        before = self._held.find(partials)
        after = self._merged(before, partials.select(before.columns))
        self._held.remove(after.filter(pl.col(ROWS) == 0))
        present = after.filter(pl.col(ROWS) != 0)
        self._held.put(present)
        return self._changes(before, present)

    def rows_held(self) -> int:
        """Keys; over a changelog, values of keys where these are kept."""
        return self._held.height

    def snapshot(self) -> OperatorState:
        """The merged partials of each key."""
        return OperatorState(VERSION, keyed={_GROUPS: self._held.snapshot()})

    def _merged(self, before: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
        identity = [*self._operator.keys, *value_columns(before.columns)]
        return (
            pl.concat([before.lazy(), rows.lazy()])
            .group_by(identity)
            .agg(partials.reductions(name for name in before.columns if name not in identity))
            .collect(engine=engine_for(before.height + rows.height))
        )

    def _changes(self, before: pl.DataFrame, after: pl.DataFrame) -> Emission:
        operator = self._operator
        changes = _difference(operator.results(before, -1), operator.results(after, 1), operator.by)
        return {MAIN: changes} if changes.height else {}


def _difference(before: pl.DataFrame, after: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Rows of both whose key has another row in the other one, sorted by key, the one before first."""
    keyed = [*map(pl.col, by), pl.lit(0).alias(_ALL)]
    rows = pl.concat([before, after])
    old = before.select(*keyed, pl.int_range(pl.len()).alias(_OLD)).lazy()
    new = after.select(*keyed, pl.int_range(before.height, rows.height, dtype=pl.Int64).alias(_NEW)).lazy()
    pairs = old.join(new, on=[*by, _ALL], how="full", coalesce=True, nulls_equal=True).collect(
        engine=engine_for(rows.height)
    )
    same = pairs[_OLD].is_not_null() & pairs[_NEW].is_not_null()
    for name in before.columns:
        if name not in {*by, columns.WEIGHT}:
            same &= rows[name].gather(pairs[_OLD]).eq_missing(rows[name].gather(pairs[_NEW]))
    pairs = pairs.filter(~same)
    places = (pairs.sort(by, nulls_last=False) if by else pairs).select(_OLD, _NEW).fill_null(-1).to_numpy().ravel()
    return rows[places[places >= 0]]
