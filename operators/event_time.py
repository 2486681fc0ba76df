"""Event time as an expression: microseconds since the Unix epoch."""

from __future__ import annotations

from typing import Final

import polars as pl

from headrace.kernel import columns
from headrace.kernel.errors import SpecError

_DAY_US: Final = 86_400_000_000


LATEST: Final = 2**62
EARLIEST: Final = -LATEST
"""No event time lies outside of them (146,000 years from 1970). A watermark may: nothing has passed then."""


def passed(watermark: int, lateness: int) -> int:
    """The time that has passed for good with a watermark: ``lateness`` before it, and never below ``EARLIEST``."""
    return max(watermark - lateness, EARLIEST)


def time_zone(dtype: pl.DataType) -> str | None:
    """The zone that windows over an event time of this type are shown in: its own; naive ones stay naive."""
    return dtype.time_zone if isinstance(dtype, pl.Datetime) else None


def microseconds(column: str, dtype: pl.DataType, where: str) -> pl.Expr:
    """Event time in microseconds since the epoch (UTC; naive times and dates are taken as UTC), rounded down.

    What lies outside of ``EARLIEST`` and ``LATEST`` (a database's ``infinity``) is no event time but null: the bounds
    of its windows would be beyond 64 bits.

    Args:
        column: The event-time column.
        dtype: Its type: Datetime of any unit, with or without zone, or Date.
        where: For error messages.

    Raises:
        SpecError: Another type.
    """
    physical = pl.col(column).to_physical().cast(pl.Int64)
    if isinstance(dtype, pl.Date):
        return _within(physical, _DAY_US)
    if not isinstance(dtype, pl.Datetime):
        raise SpecError(
            f"{where}: event time column {column!r} has type {dtype}",
            hint='it must be a timestamp or a date; convert it first, e.g. with_columns: {ts: "cast(ts as timestamp)"}',
        )
    match dtype.time_unit:
        case "ns":
            return physical.floordiv(1000)
        case "ms":
            return _within(physical, 1000)
        case _:
            return _within(physical, 1)


def _within(units: pl.Expr, us: int) -> pl.Expr:
    """Numbers of units of so many microseconds, in microseconds where these are event times."""
    most = LATEST // us
    known = pl.when(units.is_between(-most, most)).then(units)
    return known if us == 1 else known * us


def bar(schema: pl.Schema, lateness_us: int) -> pl.Expr | None:
    """The time that has passed where a row came, as :func:`passed`; None: rows of this schema do not say."""
    if columns.ROW_WATERMARK not in schema:
        return None
    mark = pl.col(columns.ROW_WATERMARK)
    return mark - lateness_us if lateness_us else mark


def lateness(time: pl.Expr, schema: pl.Schema, lateness_us: int) -> pl.Expr | None:
    """Whether a row of an event time (microseconds) is late; null: it has none. None: no row is."""
    passed_by = bar(schema, lateness_us)
    return None if passed_by is None else time < passed_by


def kept(rows: pl.LazyFrame, late: pl.Expr | None) -> pl.LazyFrame:
    """The rows that are not late; those without event time are none.

    Args:
        rows: Rows.
        late: As for :func:`left_out`.
    """
    return rows if late is None else rows.filter(~late.fill_null(value=False))


def left_out(rows: pl.LazyFrame, late: pl.Expr | None, timeless: pl.Expr) -> pl.LazyFrame:
    """The rows that an operator leaves out.

    Args:
        rows: Rows.
        late: Whether one is late; null: it is not. None: none is.
        timeless: Whether it has no event time.
    """
    return rows.filter(timeless if late is None else late.fill_null(value=False) | timeless)
