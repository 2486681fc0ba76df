"""Upserts by key into a changelog: what a compacted topic or an upsert table says, as insertions and retractions.

The input is a set of *versions*: rows with a key, a position in their topic (``_kafka_offset``) and maybe a deletion
(``_kafka_deleted``). The newest version of a key holds. The output is a changelog: rows with the column ``_weight``, +1
for a row that holds from now on, -1 for the one that held before.

* Versions of one key lie in one partition (that is how Kafka compacts), so their offsets order them, in whatever order
  they come: history may be read by event time, the tail by offset. A version older than the known one changes nothing.
* Rows without an offset are a *state* (an upsert table): older than any version from the topic, and each key once.
* A deletion is remembered, so that an older version that comes later does not bring the key back.

Which versions in between are given out depends on batches; the final table does not (``EXACT_TABLE``).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

import polars as pl

from headrace.kernel import columns
from headrace.kernel.errors import DataError
from headrace.kernel.keyed import KeyedLayout, KeyedState
from headrace.kernel.protocols import MAIN, Determinism, Emission, OperatorContext, OperatorState
from operators.errors import column_not_found
from operators.passage import Narrowed, Passage, by_key
from operators.untimed import UntimedInstance, UntimedOperator

VERSION: Final = 1
_ORDER: Final = "_order"
_STATES: Final = "_states"
_BEFORE: Final = "_before:"
_ROWS: Final = "rows"
_UNORDERED: Final = -1


@dataclass(frozen=True, slots=True)
class ChangelogNormalize(UntimedOperator):
    """Turn versions into a changelog; implements :class:`headrace.kernel.protocols.StatefulOperator`.

    Output: ``columns`` in this order, then ``_weight``. Rows that are given out together are sorted by key, a
    retraction before the insertion that replaces it.

    Args:
        id: Stable id; the state is bound to it.
        key: Columns of the key, never null.
        columns: Columns to give out, the key among them.
    """

    id: str
    key: Sequence[str]
    columns: Sequence[str]

    @property
    def determinism(self) -> Determinism:
        """See :class:`headrace.kernel.protocols.StatefulOperator`."""
        return Determinism.EXACT_TABLE

    @property
    def fingerprint(self) -> str:
        """What the state depends on, as text that people can compare; types are checked when it is opened."""
        return f"changelog by {', '.join(self.key)}"

    @property
    def key_columns(self) -> Sequence[str]:
        """See :class:`headrace.kernel.protocols.StatefulOperator`."""
        return self.key

    def partial(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """The newest version of each key, with its order and whether it is a deletion.

        Raises:
            SpecError: The rows lack a column (``COLUMN_NOT_FOUND``).
        """
        schema = rows.collect_schema()
        for name in (*self.columns, columns.OFFSET, columns.DELETED):
            if name not in schema:
                raise column_not_found(name, schema.names(), f"changelog {self.id!r}")
        order = pl.col(columns.OFFSET).fill_null(_UNORDERED)
        deleted = pl.col(columns.DELETED).fill_null(value=False)
        values = [name for name in self.columns if name not in self.key]
        return (
            rows.select(*self.columns, order.alias(_ORDER), deleted.alias(columns.DELETED))
            .group_by(*self.key)
            .agg(
                *(pl.col(name).max_by(_ORDER) for name in values),
                pl.col(columns.DELETED).max_by(_ORDER),
                (pl.col(_ORDER) == _UNORDERED).sum().cast(pl.Int64).alias(_STATES),
                pl.col(_ORDER).max(),
            )
        )

    def passages(self, rows: pl.Schema) -> Sequence[Passage]:
        """See :class:`operators.passage.PassesPredicates`: versions of different keys never meet."""
        return by_key(self.key, rows)

    def narrowed(self, wanted: Collection[str], rows: pl.Schema) -> Narrowed:  # noqa: ARG002 - the protocol's signature
        """See :class:`operators.passage.NarrowsColumns`: versions are held without what nobody needs."""
        return Narrowed(replace(self, columns=[name for name in self.columns if name in {*self.key, *wanted}]))

    def output_schema(self, schema: pl.Schema) -> pl.Schema:
        """See :class:`headrace.kernel.protocols.StatefulOperator`."""
        return pl.Schema({**{name: schema[name] for name in self.columns}, columns.WEIGHT: columns.WEIGHT_TYPE})

    def open(self, schema: pl.Schema, context: OperatorContext) -> ChangelogInstance:
        """An instance over partials of ``schema``.

        Raises:
            GraphChangedError: The state was made over other columns, or by a newer release.
        """
        stored = pl.Schema({name: dtype for name, dtype in schema.items() if name != _STATES})
        return ChangelogInstance(self, context.keyed(KeyedLayout(_ROWS, stored, self.key, version=VERSION)), stored)


class ChangelogInstance(UntimedInstance):
    """Implements :class:`headrace.kernel.protocols.OperatorInstance`. State: the newest version of each key."""

    def __init__(self, operator: ChangelogNormalize, held: KeyedState, stored: pl.Schema) -> None:
        self._operator = operator
        self._stored = stored.names()
        self._held = held

    def process(self, partials: pl.DataFrame) -> Emission:
        """Take in versions; gives out what they change.

        Raises:
            DataError: ``CHANGELOG_KEY_TWICE``: a state holds a key more than once.
        """
        known = self._held.find(partials)
        joined = partials.join(
            known.rename({name: f"{_BEFORE}{name}" for name in known.columns if name not in self._operator.key}),
            on=list(self._operator.key),
            how="left",
            nulls_equal=True,
        )
        before = pl.col(f"{_BEFORE}{_ORDER}")
        self._check_states(joined, before)
        fresh = joined.filter(before.is_null() | (pl.col(_ORDER) > before))
        if not fresh.height:
            return {}
        self._held.put(fresh.select(self._stored))
        return self._changes(fresh)

    def rows_held(self) -> int:
        """Keys, deleted ones included."""
        return self._held.height

    def snapshot(self) -> OperatorState:
        """The newest version of each key."""
        return OperatorState(VERSION, keyed={_ROWS: self._held.snapshot()})

    def _check_states(self, joined: pl.DataFrame, before: pl.Expr) -> None:
        twice = joined.filter((pl.col(_STATES) + (before == _UNORDERED).fill_null(value=False).cast(pl.Int64)) > 1)
        if twice.height:
            key = twice.row(0, named=True)
            raise DataError(
                f"changelog {self._operator.id!r}: the history holds a key more than once, and no offsets to order "
                "its versions by",
                detail=", ".join(f"{name} = {key[name]!r}" for name in self._operator.key),
                hint="read an upsert table that holds each key once, or an archive with _kafka_offset and "
                "_kafka_deleted (headrace archive --changelog-key)",
                code="CHANGELOG_KEY_TWICE",
            )

    def _changes(self, fresh: pl.DataFrame) -> Emission:
        operator, key = self._operator, set(self._operator.key)
        was = (pl.col(f"{_BEFORE}{columns.DELETED}") == False).fill_null(value=False)  # noqa: E712 - an expression
        now = ~pl.col(columns.DELETED)
        values = [name for name in operator.columns if name not in key]
        same = pl.all_horizontal(
            pl.lit(value=True), *(pl.col(name).eq_missing(pl.col(f"{_BEFORE}{name}")) for name in values)
        )
        changed = fresh.filter(~(was & now & same))
        held = [pl.col(name) if name in key else pl.col(f"{_BEFORE}{name}").alias(name) for name in operator.columns]
        changes = pl.concat(
            [
                changed.filter(was).select(*held, pl.lit(-1, columns.WEIGHT_TYPE).alias(columns.WEIGHT)),
                changed.filter(now).select(*operator.columns, pl.lit(1, columns.WEIGHT_TYPE).alias(columns.WEIGHT)),
            ]
        )
        return {MAIN: changes.sort(*operator.key, columns.WEIGHT)} if changes.height else {}
