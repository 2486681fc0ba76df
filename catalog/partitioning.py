"""Partition specs as people write them: ``day(ts)``, ``bucket(16, id)``, ``truncate(10, name)``, ``country``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    YearTransform,
)

from headrace.kernel.errors import SpecError

_FIRST_ID: Final = 1000
_CALL: Final = re.compile(r"(?P<name>\w+)\s*\(\s*(?:(?P<width>\d+)\s*,\s*)?(?P<column>[^(),]+?)\s*\)")
_TIME: Final[Mapping[str, Callable[[], Transform[Any, Any]]]] = {
    "year": YearTransform,
    "month": MonthTransform,
    "day": DayTransform,
    "hour": HourTransform,
}
_HINT: Final = "write a column, or year|month|day|hour(column), bucket(16, column), truncate(10, column)"


def partition_spec(fields: Sequence[str], schema: Schema) -> PartitionSpec:
    """The partition spec that the texts in ``fields`` describe, for a table of ``schema``.

    Raises:
        SpecError: A text that is no partition field, an unknown column, or a transform that does not take its type.
    """
    built = []
    for position, text in enumerate(fields):
        column, transform, suffix = _parse(text)
        try:
            source = schema.find_field(column)
        except ValueError as error:
            raise SpecError(
                f"partition field {text!r} names the unknown column {column!r}",
                detail=f"the columns are {', '.join(field.name for field in schema.fields)}",
                hint=_HINT,
                code="PARTITION_INVALID",
            ) from error
        if not source.field_type.is_primitive or not transform.can_transform(source.field_type):
            raise SpecError(
                f"partition field {text!r} does not take a column of type {source.field_type}",
                hint=_HINT,
                code="PARTITION_INVALID",
            )
        name = f"{column.replace('.', '_')}_{suffix}" if suffix else column
        built.append(PartitionField(source.field_id, _FIRST_ID + position, transform, name))
    return PartitionSpec(*built)


def _parse(text: str) -> tuple[str, Transform[Any, Any], str]:
    call = _CALL.fullmatch(text.strip())
    if call is None:
        if not text.strip() or any(mark in text for mark in "(),"):
            raise SpecError(f"{text!r} is no partition field", hint=_HINT, code="PARTITION_INVALID")
        return text.strip(), IdentityTransform(), ""
    name, width, column = call["name"].lower(), call["width"], call["column"]
    name = name.removesuffix("s") if name.removesuffix("s") in _TIME else name
    if name in _TIME and width is None:
        return column, _TIME[name](), name
    if name == "identity" and width is None:
        return column, IdentityTransform(), ""
    if name == "bucket" and width:
        return column, BucketTransform(num_buckets=int(width)), "bucket"
    if name == "truncate" and width:
        return column, TruncateTransform(width=int(width)), "trunc"
    raise SpecError(f"{text!r} is no partition field", hint=_HINT, code="PARTITION_INVALID")
