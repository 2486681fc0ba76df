"""Event time as expressions: microseconds since the Unix epoch, and the window that an instant lies in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import polars as pl

from headrace.kernel.durations import format_duration_us
from headrace.kernel.errors import SpecError

_DAY_US: Final = 86_400_000_000


def time_zone(dtype: pl.DataType) -> str | None:
    """The zone that windows over an event time of this type are shown in: its own; naive ones stay naive."""
    return dtype.time_zone if isinstance(dtype, pl.Datetime) else None


def microseconds(column: str, dtype: pl.DataType, where: str) -> pl.Expr:
    """Event time in microseconds since the epoch (UTC; naive times and dates are taken as UTC), rounded down.

    Args:
        column: The event-time column.
        dtype: Its type: Datetime of any unit, with or without zone, or Date.
        where: For error messages.

    Raises:
        SpecError: Another type.
    """
    physical = pl.col(column).to_physical().cast(pl.Int64)
    if isinstance(dtype, pl.Date):
        return physical * _DAY_US
    if not isinstance(dtype, pl.Datetime):
        raise SpecError(
            f"{where}: event time column {column!r} has type {dtype}",
            hint='it must be a timestamp or a date; convert it first, e.g. with_columns: {ts: "cast(ts as timestamp)"}',
        )
    match dtype.time_unit:
        case "ns":
            return physical.floordiv(1000)
        case "ms":
            return physical * 1000
        case _:
            return physical


@dataclass(frozen=True, slots=True)
class FixedWindows:
    """Windows of one length, side by side: ``offset + n * size`` from the epoch.

    The one place that knows where windows begin and end; operators and their state ask it, so that windows whose
    length varies (days in a time zone) need nothing but another class of this shape.

    Attributes:
        size_us: Length, positive.
        offset_us: Where windows begin, relative to the epoch.
    """

    size_us: int
    offset_us: int = 0

    def start(self, time: pl.Expr) -> pl.Expr:
        """Start of the window that holds an instant, so that start <= time < end also before 1970 (floored modulo)."""
        return time - (time - self.offset_us) % self.size_us

    def end(self, start: pl.Expr) -> pl.Expr:
        """End of a window, exclusive."""
        return start + self.size_us

    def start_at(self, time: int) -> int:
        """:meth:`start` for one instant."""
        return time - (time - self.offset_us) % self.size_us

    def end_at(self, start: int) -> int:
        """:meth:`end` for one window."""
        return start + self.size_us

    def __str__(self) -> str:
        offset = format_duration_us(self.offset_us % self.size_us)
        return f"{format_duration_us(self.size_us)}, offset {offset}"
