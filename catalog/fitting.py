"""Whether frames fit a table, and the exact casts that make them fit. Nothing is ever rounded, wrapped or dropped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import polars as pl
from pyiceberg import types as ice
from pyiceberg.schema import Schema

from catalog.required_values import lacks, null_inside, requires
from catalog.schemas import to_polars
from headrace.kernel.errors import SchemaError

_EXACT: Final[Mapping[type[pl.DataType], frozenset[type[pl.DataType]]]] = {
    pl.Int32: frozenset({pl.Int8, pl.Int16, pl.UInt8, pl.UInt16}),
    pl.Int64: frozenset({pl.Int8, pl.Int16, pl.Int32, pl.UInt8, pl.UInt16, pl.UInt32}),
    pl.Float64: frozenset({pl.Float32}),
    pl.String: frozenset({pl.Categorical, pl.Enum}),
}


@dataclass(frozen=True, slots=True)
class Fit:
    """How rows of one schema become rows of a table.

    Attributes:
        target: All columns of the table, in its order.
        missing: Columns of the table that the rows do not have; they are written as null.
        required: Columns that must not hold nulls.
        checked: Columns whose cast is exact only for some values, and is checked value by value.
        lengths: Columns that take binary values of one length only.
        inner: Columns with something inside that must not be null: a field of a struct, an element, a map's key.
    """

    target: pl.Schema
    missing: frozenset[str]
    required: frozenset[str]
    checked: frozenset[str]
    lengths: Mapping[str, int]
    inner: Mapping[str, ice.IcebergType]


def fit(rows: Mapping[str, pl.DataType], table: Schema, name: str) -> Fit:
    """Check that rows with the columns ``rows`` may be written to ``table``.

    Exact upcasts are allowed (int to long, float to double, coarser to finer datetimes, a wider decimal, all-null to
    anything); missing optional columns are filled with nulls. Datetimes of finer units than the table's pass here and
    are checked by value in :func:`cast`.

    Args:
        rows: Column types of the frames.
        table: The table's schema.
        name: The table's name, for messages.

    Raises:
        SchemaError: An extra column, a missing required one, or a type that does not fit; it names the column and the
            cure.
    """
    target = to_polars(table)
    if extra := [column for column in rows if column not in target]:
        raise SchemaError(
            f"table {name} has no column {', '.join(repr(column) for column in extra)}",
            detail=f"its columns are {', '.join(target)}",
            hint="leave the column out with a select step, or add it to the table",
            code="COLUMN_UNKNOWN",
        )
    required = frozenset(field.name for field in table.fields if field.required)
    missing = frozenset(column for column in target if column not in rows)
    kinds = {field.name: field.field_type for field in table.fields}
    lacking = sorted(missing & required)
    if lacking := lacking or [
        path for column, source in rows.items() if (path := lacks(source, kinds[column], column))
    ]:
        raise SchemaError(
            f"table {name} requires column {', '.join(repr(column) for column in lacking)}",
            hint="add it with a with_columns step, or make it optional in the table",
            code="COLUMN_MISSING",
        )
    for column, source in rows.items():
        if reason := _misfit(source, target[column]):
            raise SchemaError(
                f"column {column!r} of type {source} does not fit {target[column]} of table {name}",
                detail=reason,
                hint="cast it in a with_columns step, or evolve the table's column",
                code="COLUMN_TYPE",
            )
    return Fit(
        target,
        missing,
        required,
        frozenset(column for column, source in rows.items() if _finer(source, target[column])),
        {field.name: length for field in table.fields if (length := _fixed_length(field.field_type))},
        {column: kinds[column] for column in rows if requires(kinds[column])},
    )


def cast(frame: pl.DataFrame, how: Fit, name: str) -> pl.DataFrame:
    """The rows with the table's columns and types, exactly.

    Raises:
        SchemaError: A value that does not fit without loss (nanoseconds into microseconds), a null in a required
            column, a binary value of the wrong length.
    """
    cast_frame = frame.select(
        (pl.lit(None, kind) if column in how.missing else _aligned(pl.col(column), frame.schema[column], kind)).alias(
            column
        )
        for column, kind in how.target.items()
    )
    for column in how.checked:
        if not _same(frame[column], cast_frame[column]):
            raise SchemaError(
                f"column {column!r} has nanoseconds that table {name} cannot hold",
                detail=f"its type there is {how.target[column]}",
                hint=f"truncate it: with_columns: {{{column}: date_trunc('microsecond', {column})}}",
                code="VALUE_NOT_EXACT",
            )
    for column in how.required:
        if cast_frame[column].null_count():
            raise _null(column, name)
    for column, kind in how.inner.items():
        if path := null_inside(cast_frame[column], kind, column):
            raise _null(path, name)
    for column, length in how.lengths.items():
        sizes = cast_frame[column].bin.size()
        if not (sizes.drop_nulls() == length).all():
            raise SchemaError(
                f"column {column!r} of table {name} takes values of {length} bytes",
                detail=f"a value has {int(sizes.filter(sizes != length)[0])} bytes",
                hint="make every value that long, or use a binary column",
                code="VALUE_LENGTH",
            )
    return cast_frame


def _null(column: str, table: str) -> SchemaError:
    return SchemaError(
        f"column {column!r} of table {table} is required, and a row has null",
        hint="filter such rows out, or make the column optional in the table",
        code="VALUE_NULL",
    )


def _fixed_length(kind: ice.IcebergType) -> int | None:
    if isinstance(kind, ice.UUIDType):
        return 16
    return len(kind) if isinstance(kind, ice.FixedType) else None


def _misfit(source: pl.DataType, target: pl.DataType) -> str | None:
    """Why ``source`` cannot become ``target`` exactly, or None when it can."""
    if isinstance(source, pl.Null) or source == target or type(source) in _EXACT.get(type(target), ()):
        return None
    if isinstance(source, pl.Datetime) and isinstance(target, pl.Datetime):
        return _misfit_datetime(source, target)
    if isinstance(source, pl.Decimal) and isinstance(target, pl.Decimal):
        room = (target.precision or 38) - target.scale >= (source.precision or 38) - source.scale
        return None if room and target.scale >= source.scale else "digits would be lost"
    if isinstance(source, (pl.List, pl.Array)) and isinstance(target, pl.List):
        return _misfit(_inner(source), _inner(target))
    if isinstance(source, pl.Struct) and isinstance(target, pl.Struct):
        return _misfit_struct(source, target)
    return "only exact upcasts are made without being asked for"


def _misfit_datetime(source: pl.Datetime, target: pl.Datetime) -> str | None:
    if source.time_zone and not target.time_zone:
        return "it has a time zone and the table's column has none; name the wall clock that is meant"
    if target.time_zone and not source.time_zone:
        return "it has no time zone and the table's column is an instant; name the zone that it is in"
    return None


def _misfit_struct(source: pl.Struct, target: pl.Struct) -> str | None:
    known = _fields(target)
    for field, kind in _fields(source).items():
        if field not in known:
            return f"the table's column has no field {field!r}"
        if reason := _misfit(kind, known[field]):
            return f"field {field!r}: {reason}"
    return None


def _inner(kind: pl.List | pl.Array) -> pl.DataType:
    return kind.inner if isinstance(kind.inner, pl.DataType) else kind.inner()


def _fields(kind: pl.Struct) -> dict[str, pl.DataType]:
    return {field.name: field.dtype if isinstance(field.dtype, pl.DataType) else field.dtype() for field in kind.fields}


def _finer(source: pl.DataType, target: pl.DataType) -> bool:
    """Whether some value of ``source`` has more digits of time than ``target`` holds."""
    if isinstance(source, pl.Datetime) and isinstance(target, pl.Datetime):
        return source.time_unit == "ns" and target.time_unit != "ns"
    if isinstance(source, pl.Time):
        return True
    if isinstance(source, (pl.List, pl.Array)) and isinstance(target, pl.List):
        return _finer(_inner(source), _inner(target))
    if isinstance(source, pl.Struct) and isinstance(target, pl.Struct):
        known = _fields(target)
        return any(_finer(kind, known[field]) for field, kind in _fields(source).items())
    return False


def _same(before: pl.Series, after: pl.Series) -> bool:
    if isinstance(before.dtype, pl.Time):
        return bool((before.cast(pl.Int64) % 1000 == 0).all())
    if isinstance(before.dtype, pl.Datetime):
        return before.equals(after.cast(before.dtype))
    back = after.to_frame().select(_aligned(pl.col(after.name), after.dtype, before.dtype)).to_series()
    return before.equals(back)


def _aligned(value: pl.Expr, source: pl.DataType, target: pl.DataType) -> pl.Expr:
    """Cast, with struct fields matched by name: Polars itself matches by name only when both have the same fields."""
    if source == target or not _has_struct(target) or isinstance(source, pl.Null):
        return value if source == target else value.cast(target)
    if isinstance(source, (pl.List, pl.Array)) and isinstance(target, pl.List):
        value = value.arr.to_list() if isinstance(source, pl.Array) else value
        return value.list.eval(_aligned(pl.element(), _inner(source), _inner(target)))
    if isinstance(source, pl.Struct) and isinstance(target, pl.Struct):
        have = _fields(source)
        built = pl.struct(
            (_aligned(value.struct.field(name), have[name], kind) if name in have else pl.lit(None, kind)).alias(name)
            for name, kind in _fields(target).items()
        )
        return pl.when(value.is_not_null()).then(built).otherwise(None)
    return value.cast(target)


def _has_struct(kind: pl.DataType) -> bool:
    if isinstance(kind, pl.Struct):
        return True
    return isinstance(kind, (pl.List, pl.Array)) and _has_struct(_inner(kind))
