"""How columns lie in run files: as they are, but integers of 128 bits, which Arrow does not have, as two halves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

if TYPE_CHECKING:
    from polars._typing import PolarsDataType

_HIGH: Final = "high"
_LOW: Final = "low"
_HALF: Final = 2**64


def has_wide(dtype: pl.DataType) -> bool:
    """Whether a type has integers of 128 bits in it."""
    match dtype:
        case pl.List() | pl.Array():
            return has_wide(_inner(dtype))
        case pl.Struct():
            return any(has_wide(_instance(field.dtype)) for field in dtype.fields)
        case _:
            return dtype in {pl.Int128, pl.UInt128}


def encoded(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows as they are stored."""
    wide = {name: dtype for name, dtype in rows.schema.items() if has_wide(dtype)}
    return rows.with_columns(_encode(pl.col(name), dtype).alias(name) for name, dtype in wide.items())


def decoded(rows: pl.DataFrame, schema: pl.Schema) -> pl.DataFrame:
    """The columns of ``schema`` of rows that :func:`encoded` gave."""
    return rows.select(
        (_decode(pl.col(name), dtype) if has_wide(dtype) else pl.col(name)).alias(name)
        for name, dtype in schema.items()
    )


def _encode(value: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    match dtype:
        case pl.List():
            return value.list.eval(_encode(pl.element(), _inner(dtype)))
        case pl.Array():
            return value.arr.to_list().list.eval(_encode(pl.element(), _inner(dtype)))
        case pl.Struct():
            fields = [
                _encode(value.struct.field(field.name), _instance(field.dtype)).alias(field.name)
                for field in dtype.fields
            ]
        case pl.Int128() | pl.UInt128():
            half = pl.Int64 if isinstance(dtype, pl.Int128) else pl.UInt64
            fields = [
                value.floordiv(pl.lit(_HALF, dtype)).cast(half).alias(_HIGH),
                (value % pl.lit(_HALF, dtype)).cast(pl.UInt64).alias(_LOW),
            ]
        case _:
            return value
    return pl.when(value.is_not_null()).then(pl.struct(fields))


def _decode(value: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    match dtype:
        case pl.List():
            return value.list.eval(_decode(pl.element(), _inner(dtype)))
        case pl.Array():
            return value.list.eval(_decode(pl.element(), _inner(dtype))).list.to_array(dtype.size)
        case pl.Struct():
            fields = [
                _decode(value.struct.field(field.name), _instance(field.dtype)).alias(field.name)
                for field in dtype.fields
            ]
            return pl.when(value.is_not_null()).then(pl.struct(fields))
        case pl.Int128() | pl.UInt128():
            high, low = value.struct.field(_HIGH).cast(dtype), value.struct.field(_LOW).cast(dtype)
            return high * pl.lit(_HALF, dtype) + low
        case _:
            return value


def _inner(dtype: pl.List | pl.Array) -> pl.DataType:
    return _instance(dtype.inner)


def _instance(dtype: PolarsDataType) -> pl.DataType:
    return dtype() if isinstance(dtype, type) else dtype
