"""Dates and times in texts.

A text is an ISO 8601 date, maybe with a time behind ``T`` or a space: ``2026-01-02``, ``2026-01-02 03:04``,
``2026-01-02T03:04:05.123456Z``. An offset (``Z``, ``+02``, ``+0200``, ``+02:00``) is taken into account; without one it
is UTC. Digits behind microseconds are dropped. Which format a text has is decided text by text, not by the first one of
a batch.
"""

from __future__ import annotations

from functools import reduce
from typing import Final

import polars as pl

TIMES: Final = frozenset({"Date", "Datetime", "Time"})
"""The types that texts are read as, as trees of expressions name them."""

_FORMAT: Final = "%Y-%m-%d %H:%M:%S%.f%:z"
_INTO_FORMAT: Final = [
    (r"^(\d{4}-\d{2}-\d{2})$", "${1} 00:00:00"),
    (r"^(\d{4}-\d{2}-\d{2})T", "${1} "),
    (r"^(.{10} \d{2}:\d{2})($|[Z+-])", "${1}:00${2}"),
    (r"Z$", "+00:00"),
    (r"^(.{11}.*[+-]\d{2})$", "${1}:00"),
    (r"^(.{11}.*[+-]\d{2})(\d{2})$", "${1}:${2}"),
    (r"^(.{10} \d{2}:\d{2}:\d{2}(\.\d*)?)$", "${1}+00:00"),
]


def read(text: pl.Expr, wanted: pl.DataType, *, strict: bool) -> pl.Expr:
    """Texts as dates or times.

    Args:
        text: The texts.
        wanted: Date, Time or Datetime, microseconds.
        strict: A text that is no time is an error, or null.
    """
    text = text.str.strip_chars()
    if isinstance(wanted, pl.Time):
        return text.str.to_time("%H:%M:%S%.f", strict=strict)
    plain = reduce(lambda made, form: made.str.replace(*form), _INTO_FORMAT, text)
    instant = plain.str.to_datetime(_FORMAT, time_unit="us", strict=strict)
    if isinstance(wanted, pl.Date):
        return instant.dt.date()
    zone = wanted.time_zone if isinstance(wanted, pl.Datetime) else None
    return instant.dt.replace_time_zone(None) if zone is None else instant.dt.convert_time_zone(zone)
