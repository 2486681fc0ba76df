"""The state of a custom operator, as it sees it: tables by name, rows by key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import polars as pl

from headrace.kernel.errors import SpecError, UserError
from headrace.kernel.keyed import KeyedLayout, KeyedSnapshot, KeyedState
from headrace.kernel.protocols import OperatorContext
from operators import event_time as times
from operators.custom import StateTable
from operators.custom_calls import OPERATOR_INVALID, fitted, schema_of

ALL: Final = "_all"
"""The key of everything, where an operator has no key columns."""

HELD: Final = "held"
EVENT_TIMERS: Final = "event_timers"
PROCESSING_TIMERS: Final = "processing_timers"
RESERVED: Final = (HELD, EVENT_TIMERS, PROCESSING_TIMERS)
"""What else is in the state of an operator."""

KEPT_SINCE: Final = "_time"
"""Column of rows that are forgotten some time after it, microseconds."""


def table_of(declared: object, key: pl.Schema, where: str, name: str) -> StateTable:
    """A table as it is declared, checked.

    Raises:
        SpecError: Something in it cannot be.
    """
    table = declared if isinstance(declared, StateTable) else StateTable(schema_of(declared, where, f"table {name!r}"))
    columns = schema_of(table.columns, where, f"table {name!r}")
    taken = [column for column in columns if column in key or column in {ALL, KEPT_SINCE} or column.startswith("__")]
    unknown = [column for column in (*table.within, *([table.time] if table.time else [])) if column not in columns]
    if taken or unknown:
        wrong = f"column {taken[0]!r}, whose name is taken" if taken else f"no column {unknown[0]!r}, which it names"
        raise SpecError(f"{where} has table {name!r} with {wrong}", code=OPERATOR_INVALID)
    if name in RESERVED:
        raise SpecError(f"{where} has table {name!r}, whose name is taken", code=OPERATOR_INVALID)
    if (table.time is None) != (table.ttl is None):
        raise SpecError(
            f"{where} has table {name!r} with {'ttl' if table.time is None else 'time'} alone",
            hint="a table whose rows are forgotten has both",
            code=OPERATOR_INVALID,
        )
    if table.time is not None:
        times.microseconds(table.time, columns[table.time], f"{where}, table {name!r}")
    return StateTable(columns, tuple(table.within), table.time, table.ttl)


class Table:
    """Rows by key.

    Args:
        name: The table's name.
        table: What was declared.
        key: The key columns.
        version: Of the operator.
        where: Names the operator in error messages.
        context: Gives the keyed state.
    """

    def __init__(
        self, name: str, table: StateTable, key: pl.Schema, version: int, where: str, context: OperatorContext
    ) -> None:
        self._what = f"{where}, table {name!r}: "
        self._key = list(key)
        self._schema = pl.Schema({**key, **table.columns})
        self._time = table.time
        self._identity = [*self._key, *table.within]
        held = {**(key or {ALL: pl.Int8()}), **table.columns, **({KEPT_SINCE: pl.Int64()} if table.time else {})}
        self._held: KeyedState = context.keyed(
            KeyedLayout(
                name,
                pl.Schema(held),
                self._key or [ALL],
                tuple(table.within),
                version,
                KEPT_SINCE if table.time else None,
                None if table.ttl is None else int(table.ttl.total_seconds() * 1_000_000),
            )
        )

    @property
    def schema(self) -> pl.Schema:
        """Columns of a row: the key's, then those that were declared."""
        return self._schema

    @property
    def height(self) -> int:
        """Rows held; some may be counted more than once until they are merged."""
        return self._held.height

    def find(self, keys: pl.DataFrame) -> pl.DataFrame:
        """The rows held for the keys of a frame, in any order, each once however often its key is there.

        Args:
            keys: Has at least the key columns; without key columns all rows are found, whatever it is.

        Raises:
            UserError: It has not.
        """
        asked = self._cut(keys, self._key) if self._key else _everything()
        return self._held.find(asked).select(self._schema.names())

    def put(self, rows: pl.DataFrame) -> None:
        """Insert rows, or replace those of the same key and ``within``; each at most once in the frame.

        Raises:
            UserError: The rows have other columns than :attr:`schema`, or one is there twice.
        """
        rows = fitted(rows, self._schema, f"{self._what}put of rows")
        twice = rows.height - (rows.select(self._identity).unique().height if self._identity else min(rows.height, 1))
        if twice:
            raise UserError(
                f"{self._what}put of {rows.height} rows, {twice} of which have the key of another one",
                detail=f"the key is {', '.join(self._identity) or 'empty: there is one row'}",
                hint="aggregate them to one row for each key first",
                code=OPERATOR_INVALID,
            )
        rows = self._keyed(rows)
        if self._time is not None:
            time = times.microseconds(self._time, self._schema[self._time], self._what)
            rows = rows.with_columns(time.alias(KEPT_SINCE))
        self._held.put(rows)

    def remove(self, rows: pl.DataFrame) -> None:
        """Remove rows, where they are held.

        Args:
            rows: Has at least the columns of the key and ``within``.

        Raises:
            UserError: It has not.
        """
        self._held.remove(self._keyed(self._cut(rows, self._identity)) if self._identity else _everything())

    def rows(self) -> Iterator[pl.DataFrame]:
        """All rows, in pieces that fit into memory, in no order. The table must not change meanwhile."""
        return (piece.select(self._schema.names()) for piece in self._held.rows())

    def expire(self, now_us: int) -> None:
        """Forget rows whose time plus ttl is not above an event time."""
        self._held.expire(now_us)

    def snapshot(self) -> KeyedSnapshot:
        """The rows at a barrier."""
        return self._held.snapshot()

    def _cut(self, rows: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
        found = rows.select(name for name in names if name in rows.columns)
        wanted = pl.Schema({name: self._schema[name] for name in names})
        return fitted(found, wanted, f"{self._what}asked with columns")

    def _keyed(self, rows: pl.DataFrame) -> pl.DataFrame:
        return rows if self._key else rows.with_columns(pl.lit(0, pl.Int8()).alias(ALL))


class State(Mapping[str, Table]):
    """The tables of an operator, by name.

    Args:
        tables: The tables.
        where: Names the operator in error messages.
    """

    def __init__(self, tables: Mapping[str, Table], where: str) -> None:
        self._tables = tables
        self._where = where

    def __getitem__(self, name: str) -> Table:
        if name not in self._tables:
            raise UserError(
                f"{self._where} has no table {name!r}",
                hint=f"tables() declares {', '.join(map(repr, self._tables)) or 'none'}",
                code=OPERATOR_INVALID,
            )
        return self._tables[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)


def _everything() -> pl.DataFrame:
    """The one key; not made when the module is imported, as that would start the threads of Polars."""
    return pl.DataFrame({ALL: [0]}, schema={ALL: pl.Int8()})
