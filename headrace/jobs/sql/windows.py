"""Windowing table functions (``TUMBLE``, ``HOP``, ``CUMULATE``, ``SESSION``) as the windows of a spec.

Arguments as in Apache Flink: the rows, ``DESCRIPTOR(time column)``, then intervals: TUMBLE size; HOP slide, size;
CUMULATE step, size; SESSION gap. They may be named (``SIZE => …``). As in RisingWave, ``TABLE`` and ``DESCRIPTOR`` may
be left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from headrace.jobs.sql.dialect import ORDER, PARTITION
from headrace.jobs.sql.errors import refuse
from headrace.jobs.sql.expressions import quoted
from headrace.jobs.sql.intervals import duration
from headrace.kernel.durations import parse_duration_us

BOUNDS: Final = ("window_start", "window_end")
"""Columns that a window adds to its rows: its first instant, and the first one behind it."""

LAST: Final = "window_time"
"""Another one: the last millisecond of the window, as in Apache Flink."""
LAST_OF: Final = f"{BOUNDS[1]} - INTERVAL '1' MILLISECOND"
ADDED: Final = (*BOUNDS, LAST)

_INTERVALS: Final[Mapping[str, tuple[str, ...]]] = {
    "TUMBLE": ("tumbling",),
    "HOP": ("every", "hopping"),
    "CUMULATE": ("every", "cumulating"),
    "SESSION": ("session",),
}
_FEWEST: Final = 2
_MILLISECOND: Final = 1000
_ARGUMENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "TUMBLE": ("DATA", "TIMECOL", "SIZE", "OFFSET"),
    "HOP": ("DATA", "TIMECOL", "SLIDE", "SIZE", "OFFSET"),
    "CUMULATE": ("DATA", "TIMECOL", "STEP", "SIZE", "OFFSET"),
    "SESSION": ("DATA", "TIMECOL", "GAP"),
}


@dataclass(frozen=True, slots=True)
class WindowCall:
    """A windowing function.

    Attributes:
        rows: Its first argument: a name, or a query in parentheses.
        time: The column that its descriptor names; None: the clock on the wall (``PROCTIME()``).
        spec: The keys of the spec's window that say which windows.
        partition: The columns of PARTITION BY, whose sessions are apart.
        call: The call, for messages.
    """

    rows: exp.Expr
    time: str | None
    spec: Mapping[str, str]
    partition: tuple[str, ...]
    call: exp.Expr

    @property
    def clocks(self) -> dict[str, int]:
        """The bounds that follow from the event time of a result, with how far they lie behind it."""
        written = self.spec.get("tumbling") or self.spec.get("hopping")
        length = parse_duration_us(written) if written else 0
        return {BOUNDS[0]: 0} | ({BOUNDS[1]: length, LAST: length - _MILLISECOND} if length else {})

    def assigned(self) -> tuple[str, dict[str, str]]:
        """The length of the window that a row lies in, and its bounds as row expressions.

        Raises:
            SqlError: A row may lie in several, or in one that rows themselves make.
        """
        size = self.spec.get("tumbling")
        if size is None or self.time is None or "offset" in self.spec:
            raise refuse(
                self.call,
                "the first rows of windows are those of TUMBLE by event time, without an offset",
                "GROUP BY the bounds first, and rank the results",
            )
        start = f"date_bin('{size}', {quoted(self.time)})"
        length = parse_duration_us(size)
        ends = {BOUNDS[1]: length, LAST: length - _MILLISECOND}
        return size, {BOUNDS[0]: start} | {name: f"{start} + INTERVAL '{us} MICROSECONDS'" for name, us in ends.items()}


def table_call(node: exp.Expr) -> exp.Expr:
    """A member of FROM without ``TABLE(...)`` around it."""
    call = node.this if isinstance(node, exp.Table) else node
    if isinstance(call, exp.Anonymous) and call.name.upper() == "TABLE" and len(call.expressions) == 1:
        call = call.expressions[0]
    return call


def window_call(node: exp.Expr) -> WindowCall | None:
    """The windowing function that a member of FROM is; None for something else.

    Raises:
        SqlError: It is one, with arguments that it does not take.
    """
    call = table_call(node)
    if not isinstance(call, exp.Anonymous) or call.name.upper() not in _INTERVALS:
        return None
    name = call.name.upper()
    arguments, wanted = _arguments(call, name), _INTERVALS[name]
    if len(arguments) < _FEWEST or not isinstance(arguments[0], exp.Table | exp.Subquery):
        raise refuse(call, f"{name} needs a table first", f"write {name}(TABLE rows, DESCRIPTOR(time), INTERVAL ...)")
    most = len(wanted) + (name != "SESSION")
    if not len(wanted) <= len(arguments) - _FEWEST <= most:
        hint = f"write {name}(TABLE rows, DESCRIPTOR(time), INTERVAL ...)"
        raise refuse(call, f"{name} takes {len(wanted)} intervals, not {len(arguments) - _FEWEST}", hint)
    sizes = dict(zip((*wanted, "offset"), map(duration, arguments[2:]), strict=False))
    by = tuple(str(column.name) for column in arguments[0].meta.get(PARTITION) or ())
    if arguments[0].meta.get(ORDER) or (by and name != "SESSION"):
        raise refuse(call, f"the table of {name} is neither partitioned nor ordered", "GROUP BY the columns")
    time = _descriptor(arguments[1], name)
    clock = {"time": "processing"} if time is None else {}
    return WindowCall(arguments[0], time, {**sizes, **clock}, by, call)


def _arguments(call: exp.Expr, name: str) -> list[exp.Expr]:
    """The arguments in their order."""
    given = list(call.expressions)
    if given and all(isinstance(one, exp.Kwarg) for one in given):
        names = [str(one.this.name).upper() for one in given]
        order = [known for known in _ARGUMENTS[name] if known in names]
        if sorted(names) != sorted(order) or tuple(order) != _ARGUMENTS[name][: len(order)]:
            raise refuse(call, f"{name} takes other arguments", f"it takes {', '.join(_ARGUMENTS[name])}")
        given = [given[names.index(known)].expression for known in order]
    if given and isinstance(given[0], exp.Column) and len(given[0].parts) == 1:
        given[0] = exp.Table(this=given[0].this)
    return given


def _descriptor(node: exp.Expr, name: str) -> str | None:
    if isinstance(node, exp.Column) and len(node.parts) == 1:
        return node.name
    if not isinstance(node, exp.Anonymous) or node.name.upper() != "DESCRIPTOR" or len(node.expressions) != 1:
        raise refuse(node, f"the second argument of {name} must be DESCRIPTOR(column)")
    return None if is_clock(node.expressions[0]) else str(node.expressions[0].name)


def is_clock(node: exp.Expr) -> bool:
    """Whether an expression is ``PROCTIME()``."""
    return isinstance(node, exp.Anonymous) and node.name.upper() == "PROCTIME"


def whole(node: exp.Expr) -> exp.Expr:
    """The windowing function of ``(SELECT * FROM TUMBLE(…))``, which is the same as its rows; else what is given."""
    query = node.this if isinstance(node, exp.Subquery) else None
    if not isinstance(query, exp.Select) or [key for key, value in query.args.items() if value] != [
        "expressions",
        "from_",
    ]:
        return node
    (item, *more), member = query.expressions, query.args["from_"].this
    plain = isinstance(item, exp.Star) and not any(item.args.values()) and not more
    return member if plain and window_call(member) is not None else node
