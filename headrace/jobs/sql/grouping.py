"""GROUP BY, aggregates and HAVING: a step ``window`` or ``aggregate``, and what is computed of its results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from sqlglot import exp

from headrace.jobs.sql.errors import refuse
from headrace.jobs.sql.expressions import (
    aggregate_text,
    aggregates,
    body,
    is_aggregate,
    is_star,
    name_of,
    of_window,
    row_text,
    text,
)
from headrace.jobs.sql.lowering import Lowering
from headrace.jobs.sql.relations import Relation, Scope, Side
from headrace.jobs.sql.windows import ADDED, BOUNDS, LAST, LAST_OF, WindowCall

_GROUPS: Final = "_groups"
_INSTANT: Final = {"tumbling": "1us"}
"""Windows that hold one event time: results of one earlier window."""


@dataclass(slots=True)
class _Grouping:
    """A grouping under construction.

    Attributes:
        scope: The rows that are grouped.
        keys: Key columns by the text that stands for them.
        computed: Those that must be computed first.
        calls: Columns of aggregates by the text of the call.
    """

    scope: Scope
    keys: dict[str, str] = field(default_factory=dict)
    computed: dict[str, str] = field(default_factory=dict)
    calls: dict[str, str] = field(default_factory=dict)


def is_grouped(query: exp.Select, window: WindowCall | None) -> bool:
    """Whether a query gives rows of groups."""
    having = query.args.get("having")
    parts = [*query.expressions, *([having] if having else [])]
    distinct = query.args.get("distinct") is not None
    return bool(window or query.args.get("group") or distinct or any(True for part in parts for _ in aggregates(part)))


def with_bounds_asked(query: exp.Select, where: Sequence[exp.Expr]) -> tuple[exp.Select, Sequence[exp.Expr]]:
    """A query over windows whose HAVING asks what WHERE asked of their bounds alone; and the rest of WHERE."""
    asked = [
        condition
        for condition in where
        if {column.name for column in condition.find_all(exp.Column)} & {*ADDED} and not condition.find(exp.Query)
    ]
    if not asked:
        return query, where
    made, having = query.copy(), query.args.get("having")
    parts = [*([having.this] if having else []), *asked]
    made.set("having", exp.Having(this=exp.and_(*parts)))
    return made, [condition for condition in where if not any(condition is one for one in asked)]


def group(
    to: Lowering, query: exp.Select, owner: str, scope: Scope, window: WindowCall | None
) -> tuple[exp.Select, Scope]:
    """The step that groups rows. What HAVING asks of them is left to be asked.

    Args:
        to: Where it goes.
        query: The query.
        owner: What its id begins with.
        scope: The rows.
        window: The windows that they are grouped by.

    Returns:
        The query over the results, with columns in place of keys and aggregates, also in HAVING; and the results.

    Raises:
        SqlError: Something in it is not supported.
    """
    query = _without_aliases(query, scope)
    found = _Grouping(scope)
    bounds = _keys(query, found, window)
    for item in query.expressions:
        inner = body(item)
        if isinstance(item, exp.Alias) and is_aggregate(inner):
            found.calls.setdefault(aggregate_text(inner, scope), item.alias)
    having = query.args.get("having")
    for part in [*query.expressions, *([having] if having else [])]:
        for call in aggregates(part):
            found.calls.setdefault(aggregate_text(call, scope), f"_value_{len(found.calls) + 1}")
    rows = _step(to, query, owner, found, window, bounds)
    names = {**found.keys, **found.calls}
    results = Scope(rows, {_GROUPS: Side(tuple(dict.fromkeys(names.values())))})
    over = query.copy()
    over.set("expressions", [_item(item, found, names) for item in over.expressions])
    if having:
        over.set("having", exp.Having(this=_replaced(having.this, found, names)))
    return over, results


def _keys(query: exp.Select, found: _Grouping, window: WindowCall | None) -> dict[str, str]:
    """Read the keys; gives the bounds of windows among them, by the text that stands for them."""
    group = query.args.get("group")
    sets = group is not None and group.find(exp.Rollup, exp.Cube, exp.GroupingSets) is not None
    if group is not None and (sets or any(group.args.get(kind) for kind in ("all", "totals"))):
        raise refuse(group, "ROLLUP, CUBE, GROUPING SETS and GROUP BY ALL are not supported", "name the keys")
    bounds: dict[str, str] = {}
    for node in _written_keys(query, group):
        written = row_text(node, found.scope)
        if isinstance(node, exp.Column) and window is not None and node.name in ADDED:
            bounds[written] = found.keys[written] = node.name
        elif isinstance(node, exp.Column):
            name = found.scope.bound(node)
            if found.scope.rows.windowed and not found.scope.rows.changes and _is_time(name, found.scope.rows):
                bounds[written] = found.keys[written] = BOUNDS[0]
                continue
            plain = isinstance(name, exp.Column) and name.name not in BOUNDS
            found.keys[written] = name.name if plain else f"_key_{len(found.computed) + 1}"
            if not plain:
                found.computed[found.keys[written]] = written
        else:
            found.keys[written] = f"_key_{len(found.computed) + 1}"
            found.computed[found.keys[written]] = written
    if window is not None and not bounds:
        cure = "GROUP BY window_start, window_end; or keep the first rows of each by ROW_NUMBER"
        raise refuse(window.call, "the windows of FROM are not grouped by", cure)
    return bounds


def _is_time(bound: exp.Expr, rows: Relation) -> bool:
    return isinstance(bound, exp.Column) and rows.clocks.get(bound.name) == 0


def _written_keys(query: exp.Select, group: exp.Expr | None) -> list[exp.Expr]:
    items = query.expressions
    if query.args.get("distinct"):
        if group is not None or any(True for item in items for _ in aggregates(item)):
            raise refuse(query, "DISTINCT over aggregates is not supported", "aggregate in a query inside")
        star = next((item for item in items if is_star(item)), None)
        if star is not None:
            raise refuse(star, "SELECT DISTINCT * is not supported", "name the columns")
        return [body(item) for item in items]
    found = []
    for node in group.expressions if group else ():
        if isinstance(node, exp.Literal) and node.is_int:
            if not 1 <= int(node.name) <= len(items):
                raise refuse(
                    query, f"GROUP BY {node.name}: the select list has {len(items)} columns", "name the column"
                )
            found.append(body(items[int(node.name) - 1]))
        elif isinstance(node, exp.Tuple | exp.Paren):
            found += node.expressions or [node.this]
        else:
            found.append(node)
    return found


def _step(
    to: Lowering,
    query: exp.Select,
    owner: str,
    found: _Grouping,
    window: WindowCall | None,
    bounds: Mapping[str, str],
) -> Relation:
    near = query.args.get("group") or query
    rows = to.with_columns(owner, found.computed, found.scope.rows, near)
    calls = {name: call for call, name in found.calls.items()} or {"_rows": "COUNT(*)"}
    spec: dict[str, Any] = {"aggregate": calls}
    by = list(dict.fromkeys(name for text, name in found.keys.items() if text not in bounds))
    if by:
        spec["by"] = by
    clash = sorted(set(by) & set(calls))
    if clash:
        raise refuse(query, f"{clash[0]!r} is a key and the name of an aggregate", "write ... AS another name")
    if window is None and not bounds:
        timed = rows.time in by
        return replace(
            to.step(owner, "aggregate", spec, rows, near),
            columns=None,
            time=rows.time if timed else None,
            clocks=_kept_clocks(found, rows.clocks) if timed else {},
            changes=True,
            windowed=False,
        )
    if window is not None and window.partition and set(window.partition) != set(by):
        raise refuse(window.call, "PARTITION BY and GROUP BY differ", "GROUP BY the same columns, and the window")
    kept = {} if window else _kept_clocks(found, rows.clocks)
    clocks = {**(window.clocks if window else {BOUNDS[0]: 0}), **kept}
    made = to.step(
        owner, "window", {**(window.spec if window else _INSTANT), **spec}, rows, window.call if window else near
    )
    if LAST in bounds.values():
        made = to.with_columns(owner, {LAST: LAST_OF}, made, near)
    if window is not None and window.time is None:
        return replace(made, columns=None, time=None, clocks={})
    return replace(made, columns=None, time=BOUNDS[0], clocks=clocks, windowed=True)


def _kept_clocks(found: _Grouping, clocks: Mapping[str, int]) -> dict[str, int]:
    """Keys that lie a fixed time behind the event time still do so: the other bound of an earlier window."""
    kept = {name: clocks[name] for name in found.keys.values() if name in clocks}
    for name, written in found.computed.items():
        if written.strip('"') in clocks:
            kept[name] = clocks[written.strip('"')]
    return kept


def _without_aliases(query: exp.Select, scope: Scope) -> exp.Select:
    """GROUP BY and HAVING may name columns of the select list, where FROM does not have them."""
    named = {item.alias: item.this for item in query.expressions if isinstance(item, exp.Alias)}

    def change(node: exp.Expr) -> exp.Expr:
        if not isinstance(node, exp.Column) or len(node.parts) > 1 or node.name not in named:
            return node
        meant = named[node.name]
        known = any(side.columns is not None and node.name in side.columns for side in scope.sides.values())
        itself = any(column.name == node.name for column in meant.find_all(exp.Column))
        return node if known or itself else meant.copy()

    made = query.copy()
    for clause in ("group", "having"):
        if made.args.get(clause):
            made.set(clause, made.args[clause].transform(change))
    return made


def _item(item: exp.Expr, found: _Grouping, names: Mapping[str, str]) -> exp.Expr:
    if is_star(item):
        raise refuse(item, "* does not go with GROUP BY", "name the keys and aggregates")
    return exp.alias_(_replaced(body(item), found, names), name_of(item), quoted=True)


def _replaced(node: exp.Expr, found: _Grouping, names: Mapping[str, str]) -> exp.Expr:
    """An expression over the results: calls and keys become the columns that hold them.

    Raises:
        SqlError: A column is neither.
    """
    if isinstance(node, exp.Query):
        return node.copy()
    if is_aggregate(node) and not of_window(node):
        return _column(names[aggregate_text(node, found.scope)])
    whole = next(aggregates(node), None) is None and node.find(exp.Window, exp.Query) is None
    if isinstance(node, exp.Condition) and whole:
        written = text(node, found.scope)
        if written in names:
            return _column(names[written])
    if isinstance(node, exp.Column):
        raise refuse(
            node,
            f"{node.sql()} is neither grouped by nor aggregated",
            f"add it to GROUP BY, or aggregate it, e.g. max({node.name})",
        )
    made = node.copy()
    for key, value in node.args.items():
        if isinstance(value, exp.Expr) and not isinstance(value, exp.Identifier | exp.DataType | exp.Var):
            made.set(key, _replaced(value, found, names))
        elif isinstance(value, list):
            made.set(key, [_replaced(one, found, names) if isinstance(one, exp.Expr) else one for one in value])
    return made


def _column(name: str) -> exp.Expr:
    return exp.column(exp.to_identifier(name, quoted=True), table=_GROUPS)
