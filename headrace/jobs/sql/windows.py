"""Windowing table functions (``TUMBLE``, ``HOP``, ``CUMULATE``, ``SESSION``) as the windows of a spec.

Arguments as in Apache Flink: the rows, ``DESCRIPTOR(time column)``, then intervals: TUMBLE size; HOP slide, size;
CUMULATE step, size; SESSION gap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from headrace.jobs.sql.errors import refuse
from headrace.jobs.sql.expressions import text

BOUNDS: Final = ("window_start", "window_end")
"""Columns that a window adds to its rows."""

_INTERVALS: Final[Mapping[str, tuple[str, ...]]] = {
    "TUMBLE": ("tumbling",),
    "HOP": ("every", "hopping"),
    "CUMULATE": ("every", "cumulating"),
    "SESSION": ("session",),
}
_UNITS: Final = {
    "MICROSECOND": "us",
    "MILLISECOND": "ms",
    "SECOND": "s",
    "MINUTE": "m",
    "HOUR": "h",
    "DAY": "d",
}
_FEWEST: Final = 2


@dataclass(frozen=True, slots=True)
class WindowCall:
    """A windowing function.

    Attributes:
        rows: Its first argument: a name, or a query in parentheses.
        time: The column that its descriptor names.
        spec: The keys of the spec's window that say which windows.
        call: The call, for messages.
    """

    rows: exp.Expr
    time: str
    spec: Mapping[str, str]
    call: exp.Expr


def window_call(node: exp.Expr) -> WindowCall | None:
    """The windowing function that a member of FROM is; None for something else.

    Raises:
        SqlError: It is one, with arguments that it does not take.
    """
    call = node.this if isinstance(node, exp.Table) else node
    if isinstance(call, exp.Anonymous) and call.name.upper() == "TABLE" and len(call.expressions) == 1:
        call = call.expressions[0]
    if not isinstance(call, exp.Anonymous) or call.name.upper() not in _INTERVALS:
        return None
    name, arguments = call.name.upper(), call.expressions
    wanted = _INTERVALS[name]
    if len(arguments) < _FEWEST or not isinstance(arguments[0], exp.Table | exp.Subquery):
        raise refuse(call, f"{name} needs a table first", f"write {name}(TABLE rows, DESCRIPTOR(time), INTERVAL ...)")
    sizes = dict(zip((*wanted, "offset"), map(_duration, arguments[2:]), strict=False))
    most = len(wanted) + (name != "SESSION")
    if not len(wanted) <= len(arguments) - _FEWEST <= most:
        raise refuse(call, f"{name} takes {len(wanted)} intervals, not {len(arguments) - _FEWEST}")
    return WindowCall(arguments[0], _descriptor(arguments[1], name), sizes, call)


def _descriptor(node: exp.Expr, name: str) -> str:
    if not isinstance(node, exp.Anonymous) or node.name.upper() != "DESCRIPTOR" or len(node.expressions) != 1:
        raise refuse(node, f"the second argument of {name} must be DESCRIPTOR(column)")
    return str(node.expressions[0].name)


def _duration(node: exp.Expr) -> str:
    unit = str(node.args["unit"].name).upper() if isinstance(node, exp.Interval) and node.args.get("unit") else ""
    value = str(node.this.name) if unit else ""
    if unit.removesuffix("S") not in _UNITS or not value.isdigit():
        raise refuse(
            node, f"{text(node)} is no interval that a window can have", "write for example INTERVAL '10' MINUTE"
        )
    return f"{value}{_UNITS[unit.removesuffix('S')]}"
