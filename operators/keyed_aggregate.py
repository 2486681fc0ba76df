"""Aggregates by key without windows: a running result for each key, given out as a changelog.

Each batch that changes a key's result takes the earlier row back (``_weight`` -1) and gives the new one out (+1). The
input may be a changelog itself: rows with ``_weight`` count as often as they weigh, so that a retraction undoes its
insertion exactly, sums of floats included (they are kept as integers, :mod:`operators.aggregates`; only a NaN or an
infinity leaves NaN behind when it is taken back). A key whose rows have all been taken back is gone.

Which results in between are given out depends on batches; the final table does not (``EXACT_TABLE``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import polars as pl

from headrace.kernel import columns
from headrace.kernel.errors import SpecError
from headrace.kernel.keyed import KeyedLayout, KeyedState
from headrace.kernel.protocols import MAIN, Determinism, Emission, OperatorContext, OperatorState
from operators import partials
from operators.aggregate_set import build_all, check_keys, read_aggregates, state_of
from operators.aggregates import Aggregate
from operators.determinism import weakest
from operators.errors import computing
from operators.partials import ROWS
from operators.untimed import UntimedInstance, UntimedOperator

VERSION: Final = 1
_GROUPS: Final = "groups"
_ALL: Final = "_all"
"""The key where there is none: one group for all rows."""


@dataclass(frozen=True, slots=True)
class KeyedAggregate(UntimedOperator):
    """Running aggregates by key; implements :class:`headrace.kernel.protocols.StatefulOperator`.

    Output: the ``by`` columns, the aggregates, ``_weight``. Rows that are given out together are sorted by key, a
    retraction before the insertion that replaces it.

    Args:
        id: Stable id; the state is bound to it.
        aggregates: From the output's name to SQL text (``"sum(delay)"``) or an ``Aggregate``.
        by: Key columns; none: one result over all rows, which is there once there is a row.

    Raises:
        SpecError: Something in it cannot be.
    """

    id: str
    aggregates: Mapping[str, str | Aggregate]
    by: Sequence[str] = ()
    _wanted: Mapping[str, Aggregate] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        wanted = read_aggregates(self.aggregates, self.by, self._where)
        object.__setattr__(self, "_wanted", wanted)

    @property
    def _where(self) -> str:
        return f"aggregate {self.id!r}"

    @property
    def _keys(self) -> list[str]:
        return list(self.by) or [_ALL]

    @property
    def determinism(self) -> Determinism:
        """See :class:`headrace.kernel.protocols.StatefulOperator`."""
        return weakest([Determinism.EXACT_TABLE, *(wanted.determinism for wanted in self._wanted.values())])

    @property
    def fingerprint(self) -> str:
        """What the state depends on, as text that people can compare; types are checked when it is opened."""
        return f"running aggregate by {', '.join(self.by) or 'nothing'}, state {state_of(self._wanted)}"

    def partial(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """Partials: key columns and state columns.

        Raises:
            SpecError: The rows lack a column (``COLUMN_NOT_FOUND``), have types that do not fit, or are a changelog
                and an aggregate cannot take rows back (``AGGREGATE_NOT_RETRACTABLE``).
        """
        schema = rows.collect_schema()
        check_keys(self.by, schema, self._where)
        build = build_all(self._wanted, schema, self._where)
        state = build.state
        if columns.WEIGHT in schema:
            state = {name: self._weighted(name, expr) for name, expr in build.state.items()}
        keys = {name: partials.one_zero(pl.col(name), schema[name]) for name in self.by} or {_ALL: pl.lit(0, pl.Int8)}
        # Not select: over literals alone it would lose the number of rows.
        return rows.with_columns(**keys, **build.rows).group_by(*keys).agg(**state)

    def output_schema(self, schema: pl.Schema) -> pl.Schema:
        """See :class:`headrace.kernel.protocols.StatefulOperator`."""
        return self.finish(pl.LazyFrame(schema=schema), 1).collect_schema()

    def finish(self, merged: pl.LazyFrame, weight: int) -> pl.LazyFrame:
        """Rows of the main port, computed of merged partials, all with one weight."""
        schema = merged.collect_schema()
        return merged.select(
            *self.by,
            *(partials.final(wanted, name, schema) for name, wanted in self._wanted.items()),
            pl.lit(weight, columns.WEIGHT_TYPE).alias(columns.WEIGHT),
        )

    def shown(self, table: str, rows: pl.LazyFrame) -> pl.LazyFrame:  # noqa: ARG002 - there is one
        """See :class:`headrace.kernel.protocols.ShowsState`: the results."""
        return self.finish(rows, 1).drop(columns.WEIGHT)

    def open(self, schema: pl.Schema, context: OperatorContext) -> KeyedAggregateInstance:
        """An instance over partials of ``schema``.

        Raises:
            GraphChangedError: The state was made by another definition, over other types, or by a newer release.
        """
        held = context.keyed(KeyedLayout(_GROUPS, schema, self._keys, version=VERSION))
        return KeyedAggregateInstance(self, held, schema)

    def _weighted(self, name: str, built: pl.Expr) -> pl.Expr:
        """A reduction of rows that count as often as they weigh; every state column but an extreme is a sum."""
        weight = pl.col(columns.WEIGHT)
        match name.partition(":")[0]:
            case "rows":
                return weight.sum()
            case "count":
                return (weight * pl.col(*built.meta.root_names()).is_not_null().cast(columns.WEIGHT_TYPE)).sum()
            case "sum" | "coarse" | "fine" | "beyond":
                return (pl.col(*built.meta.root_names()) * weight).sum()
            case other:
                raise SpecError(
                    f"{self._where}: {other} over a changelog cannot take a row back",
                    hint="use count, sum or avg, or aggregate an append-only source",
                    code="AGGREGATE_NOT_RETRACTABLE",
                )


class KeyedAggregateInstance(UntimedInstance):
    """Implements :class:`headrace.kernel.protocols.OperatorInstance`. State: merged partials by key."""

    def __init__(self, operator: KeyedAggregate, held: KeyedState, schema: pl.Schema) -> None:
        self._operator = operator
        self._held = held
        self._keys = list(operator.by) or [_ALL]
        self._state = [name for name in schema if name not in self._keys]

    def process(self, partials: pl.DataFrame) -> Emission:
        """Take in partials; gives out the results that they change."""
        before = self._held.find(partials)
        after = _merged([before, partials.select(before.columns)], self._keys, self._state)
        present = after.filter(pl.col(ROWS) != 0)
        gone = after.filter(pl.col(ROWS) == 0)
        if gone.height:
            self._held.remove(gone)
        self._held.put(present)
        return self._changes(before, present)

    def rows_held(self) -> int:
        """Keys."""
        return self._held.height

    def snapshot(self) -> OperatorState:
        """The merged partials of each key."""
        return OperatorState(VERSION, keyed={_GROUPS: self._held.snapshot()})

    def _changes(self, before: pl.DataFrame, after: pl.DataFrame) -> Emission:
        operator = self._operator
        with computing(f"aggregate {operator.id!r}"):
            both = pl.concat(pl.collect_all([operator.finish(before.lazy(), -1), operator.finish(after.lazy(), 1)]))
        names = [name for name in both.columns if name != columns.WEIGHT]
        changes = both.group_by(names).agg(pl.col(columns.WEIGHT).sum()).filter(pl.col(columns.WEIGHT) != 0)
        return {MAIN: changes.sort(*operator.by, columns.WEIGHT, nulls_last=False)} if changes.height else {}


def _merged(frames: list[pl.DataFrame], keys: list[str], state: list[str]) -> pl.DataFrame:
    return pl.concat(frames).lazy().group_by(keys).agg(partials.reductions(state)).collect()
