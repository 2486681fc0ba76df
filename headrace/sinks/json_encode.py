"""Rows to JSON texts, as Polars expressions: no Python per row, and the same digits out as in.

========================  ==========================================================================
type                      JSON
========================  ==========================================================================
integers, Int128 too      number, all digits
Decimal                   number with the digits of its scale (``1.10``), never through a double
Float                     number, the shortest that reads back to the same float; NaN and ±inf: null
Boolean                   true, false
String, Categorical, Enum string
Date, Time, Duration      string, ISO 8601
Datetime with a zone      string, ISO 8601, UTC with ``Z``
Datetime without a zone   string, ISO 8601 without an offset
Binary                    string, base64
Struct                    object
List, Array               array
null                      null; every field is written
========================  ==========================================================================
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from typing import Final

import polars as pl
from polars.datatypes import DataTypeClass

from headrace.kernel.columns import listed
from headrace.kernel.errors import SchemaError

_ISO: Final = "%Y-%m-%dT%H:%M:%S%.f"
_NULL: Final = "null"


def json_object(schema: pl.Schema) -> pl.Expr:
    """An expression that gives each row of ``schema`` as the text of a JSON object (String, never null).

    Raises:
        SchemaError: A column has a type without a JSON form; the message names it.
    """
    for name, dtype in schema.items():
        _check(name, dtype)
    return _object([(name, pl.col(name), dtype) for name, dtype in schema.items()])


def record_key(schema: pl.Schema, columns: Sequence[str]) -> pl.Expr:
    """An expression for the key of a Kafka record (String or Binary).

    One column: its plain text (strings as they are, binary as its bytes, other types as in JSON without quotes); a
    null gives a record without a key. Several: a JSON object of them, in the order of ``columns``. None: null.

    Raises:
        SchemaError: A key column is not in ``schema``, or has a type without a JSON form.
    """
    missing = [name for name in columns if name not in schema]
    if missing:
        raise SchemaError(
            f"the key column {missing[0]!r} is not among the sink's columns",
            detail=f"columns: {', '.join(listed(schema))}",
            hint="add it to the step before the sink, or remove it from the key",
        )
    if not columns:
        return pl.lit(None, pl.String)
    if len(columns) > 1:
        return json_object(pl.Schema({name: schema[name] for name in columns}))
    name, dtype = columns[0], schema[columns[0]]
    _check(name, dtype)
    if dtype == pl.Binary:
        return pl.col(name)
    text = _plain(pl.col(name), dtype)
    if _is_text(dtype):
        return text.cast(pl.String)
    return pl.when(pl.col(name).is_not_null()).then(_value(pl.col(name), dtype).str.strip_chars('"'))


def _check(path: str, dtype: pl.DataType) -> None:
    if isinstance(dtype, pl.Struct):
        for field in dtype.fields:
            _check(f"{path}.{field.name}", _instance(field.dtype))
    elif isinstance(dtype, pl.List | pl.Array):
        _check(f"{path}[]", _instance(dtype.inner))
    elif not (
        dtype.is_numeric() or dtype.is_temporal() or _is_text(dtype) or dtype in {pl.Boolean, pl.Binary, pl.Null}
    ):
        raise SchemaError(
            f"the column {path!r} cannot be written as JSON",
            detail=f"its type is {dtype}",
            hint="cast it in a step before the sink, or leave it out",
        )


def _value(value: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """The JSON text of one value; a null is the text ``null``."""
    if not _has_decimal(dtype):
        one = pl.struct(_plain(value, dtype).alias("v")).struct.json_encode()
        return one.str.strip_prefix('{"v":').str.strip_suffix("}")
    if isinstance(dtype, pl.Decimal):
        return value.cast(pl.String).fill_null(_NULL)
    if isinstance(dtype, pl.Struct):
        fields = [(field.name, value.struct.field(field.name), _instance(field.dtype)) for field in dtype.fields]
        return pl.when(value.is_null()).then(pl.lit(_NULL)).otherwise(_object(fields))
    elements, inner = _as_list(value, dtype)
    joined = elements.list.eval(_value(pl.element(), inner)).list.join(",")
    return pl.concat_str(pl.lit("["), joined, pl.lit("]")).fill_null(_NULL)


def _object(fields: Sequence[tuple[str, pl.Expr, pl.DataType]]) -> pl.Expr:
    """Runs of fields without decimals are encoded in one go; decimals would become strings there."""
    if not any(_has_decimal(dtype) for _, _, dtype in fields):
        return _encoded(fields)
    pieces: list[pl.Expr] = []
    for exact, run in groupby(fields, key=lambda field: _has_decimal(field[2])):
        if exact:
            pieces += [
                pl.concat_str(pl.lit(json.dumps(name, ensure_ascii=False) + ":"), _value(value, dtype))
                for name, value, dtype in run
            ]
        else:
            pieces.append(_encoded(list(run)).str.strip_prefix("{").str.strip_suffix("}"))
    return pl.concat_str(pl.lit("{"), pl.concat_str(pieces, separator=","), pl.lit("}"))


def _encoded(fields: Sequence[tuple[str, pl.Expr, pl.DataType]]) -> pl.Expr:
    return pl.struct([_plain(value, dtype).alias(name) for name, value, dtype in fields]).struct.json_encode()


def _plain(value: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """The value with what Polars' encoder writes otherwise (times, bytes) turned into text, at any depth."""
    if not _needs_text(dtype):
        return value
    if isinstance(dtype, pl.Datetime):
        if dtype.time_zone is None:
            return value.dt.to_string(_ISO)
        return value.dt.convert_time_zone("UTC").dt.to_string(_ISO + "Z")
    if dtype == pl.Binary:
        return value.bin.encode("base64")
    if isinstance(dtype, pl.Struct):
        fields = [
            _plain(value.struct.field(field.name), _instance(field.dtype)).alias(field.name) for field in dtype.fields
        ]
        return pl.when(value.is_not_null()).then(pl.struct(fields))
    elements, inner = _as_list(value, dtype)
    return elements.list.eval(_plain(pl.element(), inner))


def _as_list(value: pl.Expr, dtype: pl.DataType) -> tuple[pl.Expr, pl.DataType]:
    if isinstance(dtype, pl.Array):
        return value.arr.to_list(), _instance(dtype.inner)
    if isinstance(dtype, pl.List):
        return value, _instance(dtype.inner)
    raise TypeError(f"{dtype} has no elements")


def _has_decimal(dtype: pl.DataType) -> bool:
    return isinstance(dtype, pl.Decimal) or any(map(_has_decimal, _inner(dtype)))


def _needs_text(dtype: pl.DataType) -> bool:
    return isinstance(dtype, pl.Datetime) or dtype == pl.Binary or any(map(_needs_text, _inner(dtype)))


def _is_text(dtype: pl.DataType) -> bool:
    return isinstance(dtype, pl.String | pl.Categorical | pl.Enum)


def _inner(dtype: pl.DataType) -> list[pl.DataType]:
    if isinstance(dtype, pl.Struct):
        return [_instance(field.dtype) for field in dtype.fields]
    return [_instance(dtype.inner)] if isinstance(dtype, pl.List | pl.Array) else []


def _instance(dtype: pl.DataType | DataTypeClass) -> pl.DataType:
    return dtype() if isinstance(dtype, DataTypeClass) else dtype
