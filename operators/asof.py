"""As-of joins with a static table: for each row, the table's row of the same key that is nearest in time.

The table holds versions: rows with a key and a time, in any order. ``backward`` (the default) takes the latest version
at or before the row's time, ``forward`` the earliest at or after it, ``nearest`` the closer one (of two as close, the
later). The operator sorts both sides itself. Null keys and null times never match.

Two versions of one key and time are told apart by partition and offset, if the table has those columns: the last holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

import polars as pl

from headrace.kernel import columns as system
from headrace.kernel.errors import SpecError
from headrace.kernel.protocols import Determinism
from operators.aggregate_set import check_keys
from operators.errors import check_added, column_not_found

Direction: TypeAlias = Literal["backward", "forward", "nearest"]

_TIME: Final = "_asof_time"
_MATCHED: Final = "_asof_matched"


@dataclass(frozen=True, slots=True, eq=False)
class AsofJoin:
    """Join each row with one version of its key, if there is one.

    Args:
        id: Stable id.
        table: The table's rows, in any order.
        on: Key columns, by the stream's name to the table's; a row matches versions of an equal key.
        time: The stream's time column: Datetime or Date.
        version: The table's time column, of the same type.
        columns: The table's columns to add; None for all but the keys and ``version``.
        how: ``left`` keeps rows without a match, with nulls; ``inner`` drops them.
        direction: Which version.
        within_us: How far away in time a version may be, microseconds; None: any distance. Not for dates.
        prefix: Put before the names of added columns.
        name: What the table is called in error messages.

    Raises:
        SpecError: The table lacks a column (``COLUMN_NOT_FOUND``), has a version twice (``LOOKUP_KEY_NOT_UNIQUE``), or
            something else cannot be.
    """

    id: str
    table: pl.DataFrame = field(repr=False)
    on: Mapping[str, str]
    time: str
    version: str
    columns: Sequence[str] | None = None
    how: Literal["left", "inner"] = "left"
    direction: Direction = "backward"
    within_us: int | None = None
    prefix: str = ""
    name: str = "the lookup table"
    _right: pl.DataFrame = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.on:
            raise SpecError(f"{self._where} has no key", hint="name the key column in `on`")
        for column in [*self.on.values(), self.version, *(self.columns or ())]:
            if column not in self.table.columns:
                raise column_not_found(column, self.table.columns, f"{self._where}, table {self.name},")
        check_keys(list(self.on.values()), self.table.schema, f"{self._where}, table {self.name}")
        if not isinstance(self.table.schema[self.version], pl.Datetime | pl.Date):
            raise SpecError(
                f"{self._where}: {self.version!r} of table {self.name} has type {self.table.schema[self.version]}",
                hint="as_of names a timestamp or a date of the table: since when a row holds",
            )
        if self.within_us is not None and isinstance(self.table.schema[self.version], pl.Date):
            raise SpecError(f"{self._where}: within needs timestamps, not dates", hint="leave within out")
        object.__setattr__(self, "_right", self._prepared())

    @property
    def _where(self) -> str:
        return f"lookup {self.id!r}"

    @property
    def determinism(self) -> Determinism:
        """Exact: the table is pinned for the life of the lineage."""
        return Determinism.EXACT

    @property
    def _keys(self) -> list[str]:
        return [f"_asof_key_{index}" for index in range(len(self.on))]

    @property
    def added(self) -> Sequence[str]:
        """The columns that the join adds."""
        return self._right.columns[len(self.on) + 2 :]

    def apply(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """The joined rows, sorted by time.

        Raises:
            SpecError: The rows lack a column, have it in another type, or have a column that the join would add.
        """
        self._check(rows.collect_schema())
        keys = {key: pl.col(name) for key, name in zip(self._keys, self.on, strict=True)}
        joined = (
            rows.with_columns(pl.col(self.time).alias(_TIME), **keys)
            .sort(_TIME, nulls_last=True)
            .join_asof(
                self._right.lazy(),
                on=_TIME,
                by=self._keys,
                strategy=self.direction,
                tolerance=None if self.within_us is None else f"{self.within_us}us",
                check_sortedness=False,  # sorted above, whatever the groups
            )
        )
        if self.how == "inner":
            joined = joined.filter(pl.col(_MATCHED))
        return joined.drop(_TIME, _MATCHED, *self._keys)

    def _prepared(self) -> pl.DataFrame:
        """Keys, time and a mark under names of their own, then the columns to add; sorted, each version once."""
        keys = [*self.on.values(), self.version]
        versions = self.table.drop_nulls(keys)
        order = [name for name in (system.PARTITION, system.OFFSET) if name in versions.columns]
        if order:
            versions = versions.sort([*keys, *order]).unique(keys, keep="last", maintain_order=True)
        twice = versions.filter(versions.select(keys).is_duplicated())
        if twice.height:
            shown = ", ".join(f"{name} = {value!r}" for name, value in twice.select(keys).row(0, named=True).items())
            raise SpecError(
                f"{self._where}: table {self.name} has several rows for one key and time",
                detail=f"for example {shown}",
                hint=f"make them unique, or keep {system.PARTITION} and {system.OFFSET} in the table to order them by",
                code="LOOKUP_KEY_NOT_UNIQUE",
            )
        wanted = self.columns if self.columns is not None else [c for c in self.table.columns if c not in keys]
        return versions.select(
            *(pl.col(name).alias(key) for key, name in zip(self._keys, self.on.values(), strict=True)),
            pl.col(self.version).alias(_TIME),
            pl.lit(value=True).alias(_MATCHED),
            *(pl.col(name).alias(self.prefix + name) for name in wanted),
        ).sort(_TIME)

    def _check(self, schema: pl.Schema) -> None:
        pairs = {self.time: self.version, **self.on}
        for name, column in pairs.items():
            if name not in schema:
                raise column_not_found(name, schema.names(), self._where)
            if schema[name] != self.table.schema[column]:
                raise SpecError(
                    f"{self._where}: {name!r} is {schema[name]} in the stream, and {column!r} is "
                    f"{self.table.schema[column]} in table {self.name}",
                    hint="cast one of them in a with_columns step before the lookup",
                )
        check_added(self.added, schema, self._where)
