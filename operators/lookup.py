"""Lookup joins: enrich each row from a table that does not change while the job runs.

The join is stateless, so it fuses with what stands around it, and both projection and predicates on the stream's own
columns pass through it to the source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

import polars as pl

from headrace.kernel.errors import SpecError
from headrace.kernel.protocols import Determinism
from operators.errors import check_added, column_not_found

How: TypeAlias = Literal["left", "inner", "semi", "anti"]

_HOWS: Final = ("left", "inner", "semi", "anti")


@dataclass(frozen=True, slots=True, eq=False)
class LookupJoin:
    """Join each row with the rows of a table that have the same key. Null keys never match.

    ``left`` keeps rows without a match (the table's columns are null there), ``inner`` drops them; ``semi`` keeps the
    rows that have a match and ``anti`` those that have none, both without adding columns. The order of rows is kept.

    Args:
        id: Stable id.
        table: The table's rows.
        on: Key column, or key columns, named alike on both sides; or a mapping from the stream's name to the table's.
        columns: The table's columns to add; None for all but its keys. Not for ``semi`` and ``anti``.
        how: The kind of join.
        prefix: Put before the names of added columns.
        many: Allow several rows of the table for one key: ``left`` and ``inner`` then give a row for each.
        name: What the table is called in error messages.

    Raises:
        SpecError: The table lacks a column (``COLUMN_NOT_FOUND``), or has a key twice without ``many``
            (``LOOKUP_KEY_NOT_UNIQUE``), or something else cannot be.
    """

    id: str
    table: pl.DataFrame = field(repr=False)
    on: str | Sequence[str] | Mapping[str, str]
    columns: Sequence[str] | None = None
    how: How = "left"
    prefix: str = ""
    many: bool = False
    name: str = "the lookup table"
    _keys: Mapping[str, str] = field(init=False, repr=False)
    _right: pl.DataFrame = field(init=False, repr=False)
    _cast: dict[tuple[pl.DataType, ...], pl.DataFrame] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        if self.how not in _HOWS:
            raise SpecError(f"{self._where} is of kind {self.how!r}", hint=f"use one of {', '.join(_HOWS)}")
        keys = _keys(self.on)
        if not keys:
            raise SpecError(f"{self._where} has no key", hint="name the key column in `on`")
        object.__setattr__(self, "_keys", keys)
        for column in [*keys.values(), *(self.columns or ())]:
            if column not in self.table.columns:
                raise column_not_found(column, self.table.columns, f"{self._where}, table {self.name},")
        object.__setattr__(self, "_right", self._prepared())

    @property
    def _where(self) -> str:
        return f"lookup {self.id!r}"

    @property
    def _adds(self) -> bool:
        return self.how in {"left", "inner"}

    @property
    def determinism(self) -> Determinism:
        """Exact: the table is pinned for the life of the lineage."""
        return Determinism.EXACT

    @property
    def added(self) -> Sequence[str]:
        """The columns that the join adds."""
        return self._right.columns[len(self._keys) :]

    def apply(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """The joined rows.

        Raises:
            SpecError: The rows lack the key, have it in a type that does not fit, or have a column that the join would
                add.
        """
        schema = rows.collect_schema()
        self._check(schema)
        return rows.join(
            self._in_types_of(schema).lazy(),
            left_on=list(self._keys),
            right_on=self._right.columns[: len(self._keys)],
            how=self.how,
            nulls_equal=False,
            maintain_order="left",
        )

    def _prepared(self) -> pl.DataFrame:
        """The table's keys under names of their own, then the columns to add under their final names."""
        named = [pl.col(key).alias(f"_lookup_key_{index}") for index, key in enumerate(self._keys.values())]
        if not self._adds:
            if self.columns:
                raise SpecError(
                    f"{self._where} is of kind {self.how!r}, which adds no columns", hint="leave `columns` out"
                )
            return self.table.select(named).drop_nulls()
        if not self.many:
            self._check_unique()
        keys = set(self._keys.values())
        wanted = self.columns if self.columns is not None else [c for c in self.table.columns if c not in keys]
        taken = [pl.col(column).alias(self.prefix + column) for column in wanted]
        return self.table.select(*named, *taken).drop_nulls([f"_lookup_key_{index}" for index in range(len(named))])

    def _check_unique(self) -> None:
        keys = self.table.select(list(self._keys.values())).drop_nulls()
        twice = keys.filter(keys.is_duplicated())
        if twice.height:
            shown = ", ".join(f"{name} = {value!r}" for name, value in twice.row(0, named=True).items())
            raise SpecError(
                f"{self._where}: table {self.name} has several rows for one key",
                detail=f"for example {shown}; {twice.unique().height} keys have more than one row",
                hint="make the keys unique, or set `many: true` to get a row for each",
                code="LOOKUP_KEY_NOT_UNIQUE",
            )

    def _in_types_of(self, schema: pl.Schema) -> pl.DataFrame:
        """The table with keys in the stream's types; no row of the stream has a key that does not fit into them."""
        types = tuple(schema[stream] for stream in self._keys)
        if types not in self._cast:
            keys = self._right.columns[: len(types)]
            cast = [pl.col(key).cast(dtype, strict=False) for key, dtype in zip(keys, types, strict=True)]
            self._cast[types] = self._right.with_columns(cast).drop_nulls(keys)
        return self._cast[types]

    def _check(self, schema: pl.Schema) -> None:
        for (stream, _), key in zip(self._keys.items(), self._right.columns, strict=False):
            if stream not in schema:
                raise column_not_found(stream, schema.names(), self._where)
            mine, other = schema[stream], self._right.schema[key]
            if mine != other and not (mine.is_integer() and other.is_integer()):
                raise SpecError(
                    f"{self._where}: key {stream!r} is {mine} in the stream and {other} in table {self.name}",
                    hint="cast one of them in a with_columns step before the lookup",
                )
        check_added(self.added, schema, self._where)


def _keys(on: str | Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    if isinstance(on, str):
        return {on: on}
    return dict(on) if isinstance(on, Mapping) else {name: name for name in on}
