"""Column types by name: the words of Iceberg and of Polars, to Polars types."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import polars as pl

from headrace.jobs.names import suggest

_SIMPLE: Final[Mapping[str, pl.DataType]] = {
    "boolean": pl.Boolean(),
    "bool": pl.Boolean(),
    "int": pl.Int32(),
    "int32": pl.Int32(),
    "long": pl.Int64(),
    "bigint": pl.Int64(),
    "int64": pl.Int64(),
    "float": pl.Float32(),
    "float32": pl.Float32(),
    "double": pl.Float64(),
    "float64": pl.Float64(),
    "string": pl.String(),
    "binary": pl.Binary(),
    "date": pl.Date(),
    "time": pl.Time(),
    "timestamp": pl.Datetime("us"),
    "timestamptz": pl.Datetime("us", "UTC"),
}
TYPE_NAMES: Final = (*_SIMPLE, "decimal(p,s)", "list<type>", "struct<name: type, ...>")
"""What a type may be called."""

_DECIMAL: Final = re.compile(r"decimal\(\s*(\d+)\s*,\s*(\d+)\s*\)")
_MAX_PRECISION: Final = 38
_MAX_DEPTH: Final = 32


def parse_type(text: str) -> pl.DataType:
    """The Polars type that ``text`` names, e.g. ``int64``, ``decimal(10,2)``, ``list<struct<a: int, b: string>>``.

    Raises:
        ValueError: No such type; the message says what was probably meant.
    """
    return _parse(text.strip(), 0)


def parse_schema(columns: Mapping[str, str]) -> pl.Schema:
    """The Polars schema of ``{column: type}``.

    Raises:
        ValueError: As :func:`parse_type`.
    """
    return pl.Schema({name: parse_type(text) for name, text in columns.items()})


def type_name(dtype: Any) -> str:
    """The name of a Polars type, the one that :func:`parse_type` reads.

    Raises:
        ValueError: Job specs have no name for this type.
    """
    if isinstance(dtype, pl.List):
        return f"list<{type_name(dtype.inner)}>"
    if isinstance(dtype, pl.Struct):
        return f"struct<{', '.join(f'{field.name}: {type_name(field.dtype)}' for field in dtype.fields)}>"
    if isinstance(dtype, pl.Decimal):
        return f"decimal({dtype.precision},{dtype.scale})"
    for name, known in _SIMPLE.items():
        if dtype == known and name not in ("bool", "int", "bigint", "long", "float", "double"):
            return name
    raise ValueError(f"job specs have no name for the Polars type {dtype}")


def _parse(text: str, depth: int) -> pl.DataType:
    if depth > _MAX_DEPTH:
        raise ValueError(f"a type may be nested {_MAX_DEPTH} levels deep")
    simple = _SIMPLE.get(text)
    if simple is not None:
        return simple
    decimal = _DECIMAL.fullmatch(text)
    if decimal:
        precision, scale = int(decimal[1]), int(decimal[2])
        if not 1 <= precision <= _MAX_PRECISION or scale > precision:
            raise ValueError(
                f"{text!r}: a decimal has 1 to {_MAX_PRECISION} digits, and no more of them after the point"
            )
        return pl.Decimal(precision, scale)
    if text.startswith("list<") and text.endswith(">"):
        return pl.List(_parse(text[5:-1].strip(), depth + 1))
    if text.startswith("struct<") and text.endswith(">"):
        return pl.Struct(dict(_parse_field(part, depth + 1) for part in _split_fields(text[7:-1])))
    raise ValueError(f"unknown type {text!r}; {suggest(text, TYPE_NAMES)}")


def _parse_field(text: str, depth: int) -> tuple[str, pl.DataType]:
    name, colon, kind = text.partition(":")
    if not colon or not name.strip():
        raise ValueError(f"{text.strip()!r} is no field of a struct; write struct<name: type, ...>")
    return name.strip(), _parse(kind.strip(), depth)


def _split_fields(text: str) -> list[str]:
    fields, depth, start = [], 0, 0
    for at, char in enumerate(text):
        if char in "<(":
            depth += 1
        elif char in ">)":
            depth -= 1
        elif char == "," and depth == 0:
            fields.append(text[start:at])
            start = at + 1
    return [*fields, text[start:]]
