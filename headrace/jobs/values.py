"""Kinds of values in job specs, as pydantic types: durations, sizes, expressions, column types, one-or-many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Any, Final, Literal

import polars as pl
from annotated_types import Len
from pydantic import BeforeValidator, Discriminator, Field, PlainSerializer, PlainValidator, Tag, WithJsonSchema
from pydantic_core import PydanticCustomError

from headrace.jobs.column_types import parse_type
from headrace.jobs.sizes import parse_size
from headrace.kernel.durations import format_duration_us, parse_duration_us
from headrace.kernel.errors import SpecError
from operators.aggregate_text import aggregate
from operators.aggregates import Aggregate
from operators.expressions import row_expression
from operators.over_functions import over_function

_HERE: Final = "here"
"""Stands for the place of an expression, which the caller of the model knows."""
_MICROSECOND: Final = timedelta(microseconds=1)


def _wrong(kind: str, message: str) -> PydanticCustomError:
    return PydanticCustomError(kind, "{message}", {"message": message})


def _duration(value: Any) -> int:
    if isinstance(value, timedelta):
        return value // _MICROSECOND
    if not isinstance(value, str):
        raise _wrong("duration", f"{value!r} is no duration; write for example 500ms, 10s, 5m, 1h30m or 7d")
    try:
        return parse_duration_us(value)
    except ValueError as error:
        raise _wrong("duration", str(error)) from error


def _positive_duration(value: Any) -> int:
    us = _duration(value)
    if us <= 0:
        raise _wrong("duration", "this duration must be longer than zero")
    return us


_DURATION_SCHEMA: Final = WithJsonSchema(
    {"type": "string", "pattern": r"^(\d+(us|ms|s|m|h|d) *)+$", "examples": ["500ms", "10s", "1h30m"]}
)

Duration = Annotated[
    int, PlainValidator(_duration), PlainSerializer(format_duration_us, return_type=str), _DURATION_SCHEMA
]
"""Microseconds, zero or more; written as ``10s``."""

PositiveDuration = Annotated[
    int, PlainValidator(_positive_duration), PlainSerializer(format_duration_us, return_type=str), _DURATION_SCHEMA
]
"""Microseconds, one or more; written as ``10s``."""


def _signed_duration(value: Any) -> int:
    if isinstance(value, str) and value.strip().startswith("-"):
        return -_duration(value.strip()[1:])
    return _duration(value)


def _format_signed(us: int) -> str:
    return format_duration_us(us) if us >= 0 else f"-{format_duration_us(-us)}"


SignedDuration = Annotated[
    int,
    PlainValidator(_signed_duration),
    PlainSerializer(_format_signed, return_type=str),
    WithJsonSchema({"type": "string", "pattern": r"^-?(\d+(us|ms|s|m|h|d) *)+$", "examples": ["-10m", "0s", "1h"]}),
]
"""Microseconds, of either sign; written as ``10s`` or ``-10s``."""


def lasting(default: str, description: str) -> Any:
    """A field that holds a duration; its default stands in the JSON Schema as people write it."""
    return Field(default=parse_duration_us(default), description=description, json_schema_extra={"default": default})


def _size(value: Any) -> int:
    try:
        return parse_size(value)
    except ValueError as error:
        raise _wrong("size", str(error)) from error


Size = Annotated[
    int,
    PlainValidator(_size),
    WithJsonSchema({"type": ["integer", "string"], "examples": ["64MiB", 1000000]}),
]
"""Bytes, one or more; written as a number or as ``64MiB``."""


def _wrong_sql(error: SpecError) -> PydanticCustomError:
    facts = {
        "message": error.message.removeprefix(f"{_HERE}: "),
        "detail": error.detail,
        "hint": error.hint,
        "code": error.code,
    }
    return PydanticCustomError("sql", "{message}", facts)


def _expression(value: Any) -> str | pl.Expr:
    if not isinstance(value, pl.Expr) and not (isinstance(value, str) and value.strip()):
        raise _wrong("expression", f'{value!r} is no expression; write SQL in quotes, for example "amount > 0"')
    try:
        row_expression(value, _HERE)
    except SpecError as error:
        raise _wrong_sql(error) from error
    return value


def _expression_text(value: str | pl.Expr) -> str:
    return value if isinstance(value, str) else f"polars: {value}"


Expression = Annotated[
    str | pl.Expr,
    PlainValidator(_expression),
    PlainSerializer(_expression_text, return_type=str),
    WithJsonSchema({"type": "string", "minLength": 1, "description": "A SQL expression over the columns of a row."}),
]
"""A SQL expression over one row, or in Python jobs a Polars expression. In JSON the latter cannot be read back."""


def _aggregate(value: Any) -> str | Aggregate:
    if not isinstance(value, str | Aggregate):
        raise _wrong("aggregate", f"{value!r} is no aggregate; write for example count(*) or sum(amount)")
    try:
        aggregate(value, _HERE)
    except SpecError as error:
        raise _wrong_sql(error) from error
    return value


def _aggregate_text(value: str | Aggregate) -> str:
    return value if isinstance(value, str) else value.text


AggregateExpression = Annotated[
    str | Aggregate,
    PlainValidator(_aggregate),
    PlainSerializer(_aggregate_text, return_type=str),
    WithJsonSchema({"type": "string", "minLength": 1, "examples": ["count(*)", "sum(price * quantity)"]}),
]
"""An aggregate in SQL, or in Python jobs one of :mod:`operators.aggregates`."""


def _over_function(value: Any) -> str | Aggregate:
    if not isinstance(value, str | Aggregate):
        raise _wrong("aggregate", f"{value!r} is nothing that can be computed; write for example sum(amount) or lag(x)")
    try:
        over_function(value, _HERE)
    except SpecError as error:
        raise _wrong_sql(error) from error
    return value


OverExpression = Annotated[
    str | Aggregate,
    PlainValidator(_over_function),
    PlainSerializer(_aggregate_text, return_type=str),
    WithJsonSchema({"type": "string", "minLength": 1, "examples": ["sum(x)", "lag(x, 1, 0)", "row_number()"]}),
]
"""What a step ``over`` computes, in SQL: an aggregate, or ``lag``, ``first_value``, ``last_value``, ``row_number`` …"""

UNBOUNDED: Final = "unbounded"
_MOST_ROWS: Final = 1_000_000_000


def _rows_before(value: Any) -> int | str:
    if value == UNBOUNDED or (isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_ROWS):
        return UNBOUNDED if value == UNBOUNDED else int(value)
    raise _wrong("rows", f"{value!r} is no number of rows before; write 0 to {_MOST_ROWS:,}, or unbounded")


RowsBefore = Annotated[
    int | Literal["unbounded"],
    PlainValidator(_rows_before),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"const": UNBOUNDED}]}),
]
"""How many rows before a row; or all."""


def _time_before(value: Any) -> int | str:
    return UNBOUNDED if value == UNBOUNDED else _duration(value)


TimeBefore = Annotated[
    int | Literal["unbounded"],
    PlainValidator(_time_before),
    PlainSerializer(lambda us: us if us == UNBOUNDED else format_duration_us(us), return_type=str),
    WithJsonSchema({"type": "string", "examples": ["1h", UNBOUNDED]}),
]
"""How long before a row, microseconds; or any time."""


def _column_type(value: Any) -> str:
    if not isinstance(value, str):
        raise _wrong("column_type", f"{value!r} is no column type; write for example int64, string or decimal(10,2)")
    try:
        parse_type(value)
    except ValueError as error:
        raise _wrong("column_type", str(error)) from error
    return value


ColumnType = Annotated[
    str,
    PlainValidator(_column_type),
    WithJsonSchema({"type": "string", "examples": ["int64", "string", "timestamptz", "decimal(10,2)"]}),
]
"""The name of a column type (``headrace.jobs.column_types``)."""


def _to_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


OneOrMany = Annotated[
    tuple[str, ...],
    BeforeValidator(_to_list),
    Len(min_length=1),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}),
]
"""One string, or a list of at least one."""


def _shape(value: Any) -> str:
    return "@map" if isinstance(value, Mapping) else "@list"


KeyPairs = Annotated[
    Annotated[OneOrMany, Tag("@list")] | Annotated[Annotated[dict[str, str], Len(min_length=1)], Tag("@map")],
    Discriminator(_shape),
]
"""Columns that both sides of a join have, or a mapping from one side's to the other's."""


def pairs_of(on: Sequence[str] | Mapping[str, str]) -> list[tuple[str, str]]:
    """Pairs of columns that are equal."""
    return list(on.items()) if isinstance(on, Mapping) else [(name, name) for name in on]


AnyNumber = Annotated[
    tuple[str, ...],
    BeforeValidator(_to_list),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]
"""One string, or a list of them, which may be empty."""

Option = str | int | float | bool
"""The value of an option that is handed on to librdkafka."""
