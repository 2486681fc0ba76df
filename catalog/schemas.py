"""Iceberg schemas and Polars schemas, in both directions (Iceberg spec, "Schemas and Data Types")."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import polars as pl
from polars.datatypes import DataTypeClass
from pyiceberg import types as ice
from pyiceberg.schema import Schema

from headrace.kernel.errors import SchemaError

UTC: Final = "UTC"
KEY: Final = "key"
VALUE: Final = "value"

_SIMPLE: Final[Mapping[type[ice.IcebergType], pl.DataType]] = {
    ice.BooleanType: pl.Boolean(),
    ice.IntegerType: pl.Int32(),
    ice.LongType: pl.Int64(),
    ice.FloatType: pl.Float32(),
    ice.DoubleType: pl.Float64(),
    ice.DateType: pl.Date(),
    ice.TimeType: pl.Time(),
    ice.TimestampType: pl.Datetime("us"),
    ice.TimestamptzType: pl.Datetime("us", UTC),
    ice.TimestampNanoType: pl.Datetime("ns"),
    ice.TimestamptzNanoType: pl.Datetime("ns", UTC),
    ice.StringType: pl.String(),
    ice.UUIDType: pl.Binary(),
    ice.FixedType: pl.Binary(),
    ice.BinaryType: pl.Binary(),
    ice.UnknownType: pl.Null(),
}

_TO_ICEBERG: Final[Mapping[type[pl.DataType], Callable[[], ice.IcebergType]]] = {
    pl.Boolean: ice.BooleanType,
    pl.Int8: ice.IntegerType,
    pl.Int16: ice.IntegerType,
    pl.Int32: ice.IntegerType,
    pl.UInt8: ice.IntegerType,
    pl.UInt16: ice.IntegerType,
    pl.UInt32: ice.LongType,
    pl.Int64: ice.LongType,
    pl.Float32: ice.FloatType,
    pl.Float64: ice.DoubleType,
    pl.String: ice.StringType,
    pl.Categorical: ice.StringType,
    pl.Enum: ice.StringType,
    pl.Binary: ice.BinaryType,
    pl.Date: ice.DateType,
    pl.Time: ice.TimeType,
}

_CURES: Final[Mapping[type[pl.DataType], str]] = {
    pl.UInt64: "cast it to bigint or decimal(20, 0) first",
    pl.Int128: "cast it to bigint or decimal(38, 0) first",
    pl.Duration: "cast it to bigint (microseconds) first",
    pl.Null: "the column is always null: cast it to the type it should have",
}


def to_polars(schema: Schema) -> pl.Schema:
    """The Polars schema of a table: columns in the table's order.

    ``timestamptz`` becomes ``Datetime("us", "UTC")``, ``uuid`` and ``fixed`` become ``Binary``, a map becomes a list
    of structs with the fields ``key`` and ``value``.

    Raises:
        SchemaError: A type that Polars has no counterpart for (``variant``, ``geometry``), naming the column.
    """
    return pl.Schema({field.name: to_polars_type(field.field_type, field.name) for field in schema.fields})


def to_polars_type(kind: ice.IcebergType, column: str) -> pl.DataType:
    """The Polars type of one Iceberg type; ``column`` is for the error message."""
    if isinstance(kind, ice.DecimalType):
        return pl.Decimal(kind.precision, kind.scale)
    if isinstance(kind, ice.ListType):
        return pl.List(to_polars_type(kind.element_type, f"{column}.element"))
    if isinstance(kind, ice.MapType):
        entry = {
            KEY: to_polars_type(kind.key_type, f"{column}.key"),
            VALUE: to_polars_type(kind.value_type, f"{column}.value"),
        }
        return pl.List(pl.Struct(entry))
    if isinstance(kind, ice.StructType):
        return pl.Struct(
            {field.name: to_polars_type(field.field_type, f"{column}.{field.name}") for field in kind.fields}
        )
    found = _SIMPLE.get(type(kind))
    if found is None:
        raise SchemaError(
            f"column {column!r} has the Iceberg type {kind}, which Headrace does not read",
            hint="leave the column out, or change its type in the table",
            code="TYPE_UNSUPPORTED",
        )
    return found


def to_iceberg(schema: Mapping[str, pl.DataType]) -> Schema:
    """An Iceberg schema for frames of ``schema``: all columns optional, ids counted from 1 (a catalog assigns its own).

    Naive datetimes become ``timestamp``, zoned ones ``timestamptz``; both with microseconds, as format version 2 has
    them.

    Raises:
        SchemaError: A type without a counterpart, naming the column and the cure.
    """
    ids = itertools.count(1)
    numbered = [(next(ids), name, kind) for name, kind in schema.items()]
    fields = [
        ice.NestedField(number, name, _to_iceberg(kind, name, ids), required=False) for number, name, kind in numbered
    ]
    return Schema(*fields)


def _to_iceberg(kind: pl.DataType, column: str, ids: Iterator[int]) -> ice.IcebergType:
    if isinstance(kind, pl.Decimal):
        return ice.DecimalType(kind.precision or 38, kind.scale)
    if isinstance(kind, pl.Datetime):
        return ice.TimestamptzType() if kind.time_zone else ice.TimestampType()
    if isinstance(kind, (pl.List, pl.Array)):
        element_id = next(ids)
        element = _to_iceberg(_instance(kind.inner), f"{column}.element", ids)
        return ice.ListType(element_id, element, element_required=False)
    if isinstance(kind, pl.Struct):
        numbered = [(next(ids), field.name, _instance(field.dtype)) for field in kind.fields]
        return ice.StructType(
            *(
                ice.NestedField(number, name, _to_iceberg(inner, f"{column}.{name}", ids), required=False)
                for number, name, inner in numbered
            )
        )
    make = _TO_ICEBERG.get(type(kind))
    if make is None:
        raise SchemaError(
            f"column {column!r} has the type {kind}, which an Iceberg table cannot hold",
            hint=_CURES.get(type(kind), "cast it to another type first, or leave it out"),
            code="TYPE_UNSUPPORTED",
        )
    return make()


def _instance(kind: pl.DataType | DataTypeClass) -> pl.DataType:
    return kind if isinstance(kind, pl.DataType) else kind()
