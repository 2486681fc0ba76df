"""``INTERVAL '10' MINUTE`` as a duration of a spec."""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from headrace.jobs.sql.dialect import Streaming
from headrace.jobs.sql.errors import refuse
from headrace.kernel.durations import parse_duration_us

_UNITS: Final = {
    "MICROSECOND": "us",
    "MILLISECOND": "ms",
    "SECOND": "s",
    "MINUTE": "m",
    "HOUR": "h",
    "DAY": "d",
}


def duration(node: exp.Expr) -> str:
    """An interval as a spec writes it, e.g. ``10m``.

    Raises:
        SqlError: It is none, has no fixed length as months have none, or is too long.
    """
    unit = str(node.args["unit"].name).upper() if isinstance(node, exp.Interval) and node.args.get("unit") else ""
    value = str(node.this.name) if unit else ""
    if unit.removesuffix("S") not in _UNITS or not value.isdigit():
        written = node.sql(dialect=Streaming)
        raise refuse(node, f"{written} is no interval of a fixed length", "write for example INTERVAL '10' MINUTE")
    written = f"{value}{_UNITS[unit.removesuffix('S')]}"
    try:
        parse_duration_us(written)
    except ValueError as error:
        raise refuse(node, str(error), "write for example INTERVAL '10' MINUTE") from error
    return written
