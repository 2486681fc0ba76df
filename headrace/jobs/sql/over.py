"""``OVER``: what is computed of the rows of a key up to each row, by event time (steps ``over``).

``SUM(x) OVER (PARTITION BY k ORDER BY at ROWS BETWEEN 9 PRECEDING AND CURRENT ROW)``, with frames of rows or of time
that end with the row itself; ``LAG``, ``FIRST_VALUE``, ``ROW_NUMBER`` and the like; ``WINDOW`` names definitions, and
``QUALIFY`` asks results.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from sqlglot import exp

from headrace.jobs.sql.errors import SqlError, place_of, refuse
from headrace.jobs.sql.expressions import (
    aggregate_text,
    body,
    conjuncts,
    is_aggregate,
    is_star,
    name_of,
    row_text,
)
from headrace.jobs.sql.intervals import duration
from headrace.jobs.sql.lowering import Lowering
from headrace.jobs.sql.relations import Scope, Side
from headrace.kernel.errors import SpecError
from operators.over_functions import holds_all, over_function

_SIDE: Final = "_over"
_NUMBERS: Final[Mapping[type[exp.Expr], str]] = {
    exp.RowNumber: "ROW_NUMBER()",
    exp.Rank: "RANK()",
    exp.DenseRank: "DENSE_RANK()",
}
_EDGES: Final[Mapping[type[exp.Expr], str]] = {exp.FirstValue: "FIRST", exp.LastValue: "LAST"}
_OTHERS: Final = exp.Ntile | exp.NthValue | exp.CumeDist | exp.PercentRank
_HERE: Final = "here"
_FIRST_ROWS: Final = (
    "in another order the first rows can be kept: (SELECT *, ROW_NUMBER() OVER (…) AS n …) WHERE n <= 3"
)


@dataclass(slots=True)
class _Frames:
    """Windows of one definition: the keys and the frame, and what is computed over them."""

    by: list[str]
    frame: Mapping[str, Any]
    near: exp.Expr
    compute: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Computed:
    """What a query's windows have become.

    Attributes:
        scope: The rows with the results, which belong to no member of FROM.
        texts: The items of the select list that hold windows, by name.
        conditions: QUALIFY.
    """

    scope: Scope
    texts: Mapping[str, str]
    conditions: Sequence[str]


def with_windows_named(query: exp.Select) -> exp.Select:
    """The query with the definitions of its WINDOW clause where they are named.

    Raises:
        SqlError: A name is not defined, or redefined.
    """
    names = {window.name: window for window in query.args.get("windows") or ()}
    if not any(window.args.get("alias") for window in _windows_of(query)) and not names:
        return query
    made = query.copy()
    made.set("windows", None)
    for window in _windows_of(made):
        alias = window.args.get("alias")
        if alias is None:
            continue
        if alias.name not in names:
            known = ", ".join(names) or "there is no WINDOW clause"
            raise refuse(window, f"there is no window named {alias.name!r}", f"known: {known}")
        for key, value in names[alias.name].args.items():
            if key in {"partition_by", "order", "spec"} and value:
                if window.args.get(key):
                    raise refuse(window, f"window {alias.name!r} has this already", "write the whole definition")
                window.set(key, [one.copy() for one in value] if isinstance(value, list) else value.copy())
        window.set("alias", None)
    return made


def compute(to: Lowering, query: exp.Select, owner: str, scope: Scope, ranked: exp.Expr | None) -> Computed:
    """The steps that compute a query's windows, in its select list and QUALIFY.

    Args:
        to: Where they go.
        query: The query.
        owner: What their ids begin with.
        scope: Its rows.
        ranked: An item of the select list that is computed otherwise.

    Raises:
        SqlError: A window is not supported.
    """
    items = [item for item in query.expressions if not is_star(item) and item is not ranked and item.find(exp.Window)]
    asked = [_meant(one, query, scope) for one in conjuncts(query.args.get("qualify"))]
    windows = [window for part in [*items, *asked] for window in _windows_of(part)]
    if not windows:
        if asked:
            raise refuse(query.args["qualify"], "QUALIFY asks no OVER", "conditions on rows stand in WHERE")
        return Computed(scope, {}, [])
    _check_rows(windows[0], scope)
    keys: dict[str, str] = {}
    names: dict[str, str] = {}
    frames: dict[str, _Frames] = {}
    for window in windows:
        written = window.sql()
        if written not in names:
            names[written] = f"{_SIDE}_{len(names) + 1}"
            frame = _frame_of(window, scope, keys)
            same = frames.setdefault(repr((frame.by, frame.frame)), frame)
            bounded = bool(frame.frame) and "unbounded" not in frame.frame.values()
            same.compute[names[written]] = _function(window, scope, bounded=bounded)
    rows = to.with_columns(owner, {name: text for text, name in keys.items()}, scope.rows, windows[0])
    for frame in frames.values():
        spec = {**({"by": frame.by} if frame.by else {}), **frame.frame, "compute": frame.compute}
        rows = replace(to.step(owner, "over", spec, rows, frame.near), changes=False)
    found = replace(scope, rows=rows, extra=(*scope.extra, *keys.values(), *names.values()))
    seeing = replace(found, sides={**scope.sides, _SIDE: Side(tuple(names.values()))})
    texts = {name_of(item): row_text(_replaced(body(item), names), seeing) for item in items}
    return Computed(found, texts, [row_text(_replaced(one, names), seeing) for one in asked])


def _windows_of(node: exp.Expr) -> Iterator[exp.Window]:
    """The windows in a node, not those of queries inside it, nor definitions of WINDOW."""
    for key, value in node.args.items():
        for one in value if isinstance(value, list) else [value]:
            if isinstance(node, exp.Select) and key in {"from_", "joins", "with_", "windows"}:
                continue
            if isinstance(one, exp.Window):
                yield one
            elif isinstance(one, exp.Expr) and not isinstance(one, exp.Query):
                yield from _windows_of(one)
    if isinstance(node, exp.Window) and node.parent is None:
        yield node


def _meant(condition: exp.Expr, query: exp.Select, scope: Scope) -> exp.Expr:
    """A condition of QUALIFY without the names of the select list."""
    named = {item.alias: item.this for item in query.expressions if isinstance(item, exp.Alias)}

    def change(node: exp.Expr) -> exp.Expr:
        if not isinstance(node, exp.Column) or len(node.parts) > 1 or node.name not in named:
            return node
        known = any(side.columns is not None and node.name in side.columns for side in scope.sides.values())
        return node if known else exp.Paren(this=named[node.name].copy())

    return condition.copy().transform(change)


def _check_rows(window: exp.Window, scope: Scope) -> None:
    rows = scope.rows
    if not rows.clocks:
        what = "OVER orders rows by their event time, and these have none"
        changed = "group by the event time itself, or by the bounds of windows (TUMBLE)"
        raise refuse(window, what, changed if rows.changes else "set event_time of the source")


def _frame_of(window: exp.Window, scope: Scope, keys: dict[str, str]) -> _Frames:
    order = window.args["order"].expressions if window.args.get("order") else []
    time = scope.rows.time
    example = f"write ORDER BY {time}" if time else "order by the event time"
    if not order:
        raise refuse(window, "OVER without ORDER BY looks at rows that come later", example)
    by_time = len(order) == 1 and not order[0].args.get("desc") and _column(order[0].this, scope) in scope.rows.clocks
    if not by_time:
        hint = _FIRST_ROWS if isinstance(window.this, exp.RowNumber) else example
        raise refuse(window, "OVER orders rows by their event time, ascending, and by nothing else", hint)
    by = [_column(part, scope) or _computed(part, scope, keys) for part in window.args.get("partition_by") or ()]
    return _Frames(by, _frame(window, window.args.get("spec")), window)


def _column(part: exp.Expr, scope: Scope) -> str | None:
    bound = scope.bound(part) if isinstance(part, exp.Column) else None
    return bound.name if isinstance(bound, exp.Column) else None


def _computed(part: exp.Expr, scope: Scope, keys: dict[str, str]) -> str:
    return keys.setdefault(row_text(part, scope), f"{_SIDE}_key_{len(keys) + 1}")


def _frame(window: exp.Window, spec: exp.Expr | None) -> Mapping[str, Any]:
    """The frame as the step says it."""
    if spec is None:
        return {}
    kind, start, side = str(spec.args.get("kind")), spec.args.get("start"), spec.args.get("start_side")
    if kind not in {"ROWS", "RANGE"} or spec.args.get("exclude"):
        raise refuse(window, "frames are ROWS or RANGE, and leave nothing out", "write RANGE BETWEEN … AND CURRENT ROW")
    if spec.args.get("end") not in (None, "CURRENT ROW") or side == "FOLLOWING":
        raise refuse(
            window,
            "a frame ends with the current row: later ones are not known yet",
            f"write {kind} BETWEEN … PRECEDING AND CURRENT ROW",
        )
    if start == "UNBOUNDED":
        return {kind.lower(): "unbounded"} if kind == "ROWS" else {}
    if start == "CURRENT ROW":
        return {"rows": 0} if kind == "ROWS" else {"range": "0s"}
    if kind == "RANGE" and isinstance(start, exp.Expr):
        return {"range": duration(start)}
    if not isinstance(start, exp.Literal) or not start.is_int:
        raise refuse(window, "a frame of rows begins a whole number of rows before", "write ROWS BETWEEN 9 PRECEDING …")
    return {"rows": int(start.name)}


def _function(window: exp.Window, scope: Scope, *, bounded: bool) -> str:
    call = window.this
    written = _NUMBERS.get(type(call)) or _of_rows(call, scope)
    if written is None:
        function = call.this if isinstance(call, exp.Filter | exp.IgnoreNulls | exp.RespectNulls) else call
        if isinstance(call, exp.IgnoreNulls | exp.RespectNulls | _OTHERS) or not is_aggregate(call):
            name = function.sql_name() if isinstance(function, exp.Func) else function.sql()
            raise refuse(
                window,
                f"{name} is not supported over rows",
                "aggregates, LAG, FIRST_VALUE, LAST_VALUE, ROW_NUMBER, RANK, DENSE_RANK",
            )
        written = aggregate_text(call, scope)
    try:
        wanted = over_function(written, _HERE)
    except SpecError as error:
        raise SqlError(error.message.removeprefix(f"{_HERE}: "), place_of(window), error.hint, error.code) from error
    if holds_all(wanted) and not bounded:
        raise refuse(
            window,
            f"{written} over all rows before would hold every value for ever",
            "give the frame a bound, e.g. RANGE BETWEEN INTERVAL '1' HOUR PRECEDING AND CURRENT ROW",
        )
    return written


def _of_rows(call: exp.Expr, scope: Scope) -> str | None:
    """Functions that give the value of one row; None: it is none of them."""
    ignores = isinstance(call, exp.IgnoreNulls)
    inner = call.this if isinstance(call, exp.IgnoreNulls | exp.RespectNulls) else call
    if type(inner) in _EDGES:
        return f"{_EDGES[type(inner)]}{'' if ignores else '_VALUE'}({row_text(inner.this, scope)})"
    if isinstance(inner, exp.Lag | exp.Lead) and not ignores:
        given = [inner.this, inner.args.get("offset"), inner.args.get("default")]
        return f"{inner.sql_name()}({', '.join(row_text(one, scope) for one in given if one is not None)})"
    return None


def _replaced(node: exp.Expr, names: Mapping[str, str]) -> exp.Expr:
    def change(part: exp.Expr) -> exp.Expr:
        if isinstance(part, exp.Window):
            return exp.column(exp.to_identifier(names[part.sql()], quoted=True), table=_SIDE)
        return part

    return node.copy().transform(change)
