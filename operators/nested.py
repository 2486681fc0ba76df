"""Stateless operators on nested columns: explode lists into rows, unnest structs into columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from headrace.kernel.errors import SpecError
from headrace.kernel.protocols import Determinism
from operators.errors import column_not_found


@dataclass(frozen=True, slots=True)
class Explode:
    """A row for each element of a list, in order; the other columns are repeated.

    Args:
        id: Stable id.
        columns: List columns, at least one; several are taken apart together and must be of one length in each row.
        keep_empty: Whether a row whose list is null or empty stays, with null for an element; else it is dropped.

    Raises:
        SpecError: No column is named.
    """

    id: str
    columns: Sequence[str]
    keep_empty: bool = False

    def __post_init__(self) -> None:
        _check_any(self.columns, self.id)

    @property
    def determinism(self) -> Determinism:
        """Exact: each output row depends on one input row."""
        return Determinism.EXACT

    def apply(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """The rows with elements instead of lists.

        Raises:
            SpecError: A column is not there (``COLUMN_NOT_FOUND``) or is no list.
        """
        _check(rows.collect_schema(), self.columns, self.id, (pl.List,), "list")
        return rows.explode(self.columns, empty_as_null=self.keep_empty, keep_nulls=self.keep_empty)


@dataclass(frozen=True, slots=True)
class Unnest:
    """The fields of a struct as columns of their own, where the struct stood; null structs give null fields.

    Args:
        id: Stable id.
        columns: Struct columns, at least one.
        prefix: Put before the names of the fields.

    Raises:
        SpecError: No column is named.
    """

    id: str
    columns: Sequence[str]
    prefix: str = ""

    def __post_init__(self) -> None:
        _check_any(self.columns, self.id)

    @property
    def determinism(self) -> Determinism:
        """Exact: each output row depends on one input row."""
        return Determinism.EXACT

    def apply(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """The rows with fields instead of structs.

        Raises:
            SpecError: A column is not there (``COLUMN_NOT_FOUND``), is no struct, or two columns would have one name.
        """
        schema = rows.collect_schema()
        _check(schema, self.columns, self.id, (pl.Struct,), "struct")
        picked: dict[str, pl.Expr] = {}
        twice = []
        for name, dtype in schema.items():
            if name not in self.columns:
                fields = {name: pl.col(name)}
            else:
                names = [field.name for field in dtype.fields] if isinstance(dtype, pl.Struct) else []
                fields = {f"{self.prefix}{field}": pl.col(name).struct.field(field) for field in names}
            twice += [field for field in fields if field in picked]
            picked |= fields
        if twice:
            raise SpecError(
                f"step {self.id!r} would give {', '.join(map(repr, twice))} twice",
                hint="set `prefix`, or leave one of them out in a select step before it",
                code="COLUMN_CLASH",
                context={"columns": twice},
            )
        return rows.select(expr.alias(name) for name, expr in picked.items())


def _check_any(columns: Sequence[str], step: str) -> None:
    if not columns:
        raise SpecError(f"step {step!r} names no column", hint="name at least one column")


def _check(
    schema: pl.Schema, columns: Sequence[str], step: str, kinds: tuple[type[pl.DataType], ...], word: str
) -> None:
    for name in columns:
        if name not in schema:
            raise column_not_found(name, schema.names(), f"step {step!r}")
        if not isinstance(schema[name], kinds):
            raise SpecError(
                f"step {step!r}: column {name!r} has type {schema[name]}, which is no {word}",
                hint=f"name columns of type {word}",
            )
