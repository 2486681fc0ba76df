"""What the statistics of a data file say of its columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.types import (
    DateType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
)

from hybrid_source.splits import NO_EVENT_TIME

_DAY_US: Final = 86_400_000_000
_DATE_BYTES: Final = 4
_INT_BYTES: Final = 4


def exact_bounds(file: DataFile, fields: Sequence[NestedField]) -> tuple[tuple[Any, Any] | None, ...]:
    """The (lower, upper) bounds of some fields in a data file; None where they are not exact.

    Bounds do not show nulls: a file with nulls in a field, or that does not count them, has none.
    """
    return tuple(_exact_bounds(file, field) for field in fields)


def _exact_bounds(file: DataFile, field: NestedField) -> tuple[Any, Any] | None:
    low = (file.lower_bounds or {}).get(field.field_id)
    high = (file.upper_bounds or {}).get(field.field_id)
    nulls = (file.null_value_counts or {}).get(field.field_id)
    if low is None or high is None or nulls != 0:
        return None
    kind = field.field_type
    if not isinstance(kind, PrimitiveType):
        return None
    if isinstance(kind, LongType) and len(low) == _INT_BYTES:  # an int that was promoted since
        kind = IntegerType()
    return from_bytes(kind, low), from_bytes(kind, high)


def lowest_event_time(file: DataFile, field: NestedField) -> int | None:
    """Lower bound of the event time in microseconds, floored; None without statistics."""
    low = _event_time((file.lower_bounds or {}).get(field.field_id), field)
    return NO_EVENT_TIME if low is None and lacks_event_time(file, field) else low


def lacks_event_time(file: DataFile, field: NestedField) -> bool:
    """Whether the statistics say that no row of a file has an event time."""
    nulls = (file.null_value_counts or {}).get(field.field_id)
    return nulls is not None and nulls == file.record_count


def event_time_bounds(file: DataFile, field: NestedField) -> tuple[int, int] | None:
    """Bounds of the event time in microseconds, both floored, both inclusive; None without statistics."""
    low = _event_time((file.lower_bounds or {}).get(field.field_id), field)
    high = _event_time((file.upper_bounds or {}).get(field.field_id), field)
    return None if low is None or high is None else (low, high)


def _event_time(bound: bytes | None, field: NestedField) -> int | None:
    if bound is None:
        return None
    kind = field.field_type
    if isinstance(kind, DateType) or len(bound) == _DATE_BYTES:  # a date that was promoted to a timestamp since
        return int(from_bytes(DateType(), bound)) * _DAY_US
    if isinstance(kind, (TimestampNanoType, TimestamptzNanoType)):
        return int(from_bytes(kind, bound)) // 1000
    if isinstance(kind, (TimestampType, TimestamptzType)):
        return int(from_bytes(kind, bound))
    return None
