"""Joins with static tables (a step ``lookup``)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from sqlglot import exp

from headrace.jobs.sql.conditions import Clocks, sort
from headrace.jobs.sql.errors import refuse
from headrace.jobs.sql.expressions import row_text, text
from headrace.jobs.sql.joins import Join
from headrace.jobs.sql.lowering import Lowering
from headrace.jobs.sql.relations import Scope, Side
from headrace.jobs.sql.uses import Uses
from headrace.jobs.sql.windows import is_clock

_ADDS: Final = frozenset({"left", "inner"})
_COMPUTED: Final = "_lookup_{}"
"""Columns that are computed to be keys."""


def join_table(to: Lowering, owner: str, left: Scope, join: Join, table: str, uses: Uses) -> Scope:
    """Join the rows so far with a static table.

    Raises:
        SqlError: The join is not supported.
    """
    if join.how not in {"inner", "left", "semi", "anti"}:
        raise refuse(join.node, f"a static table cannot be joined by {join.how.upper()}", "INNER, LEFT, SEMI or ANTI")
    version = join.version
    if version is not None and not is_clock(version):
        raise refuse(
            version,
            f"table {table!r} is pinned: it has no versions by {text(version)}",
            "write FOR SYSTEM_TIME AS OF PROCTIME(), or ASOF JOIN ... ON ... AND rows.time >= versions.valid_from",
        )
    found = sort(join.on, set(left.sides), join.alias, uses.where, Clocks({}, {}))
    as_of = _as_of(join, left, found.rest, uses) if join.as_of else {}
    if join.as_of:
        found.rest = found.rest[1:]
    wrong = [*found.right, *found.rest, *(found.left if join.how != "inner" else [])]
    if wrong:
        raise refuse(wrong[0], "a static table is joined by equal columns alone", "filter in a query around the join")
    rows = to.filter(owner, [row_text(one, left) for one in found.left], left.rows, join.node)
    keys, computed = _pairs(join, left, found.keys)
    rows = to.with_columns(owner, computed, rows, join.node)
    _check_keys(join, keys.values(), uses)
    same = all(here == there for here, there in keys.items())
    body: dict[str, Any] = {"table": table, "on": list(keys) if same else keys, "how": join.how, **as_of}
    starred = join.alias in uses.stars
    wanted = [name for name in uses.columns.get(join.alias, ()) if name not in keys.values()]
    if join.how in _ADDS and wanted and not starred:
        body["columns"] = wanted
    clash = not starred and any(_may_have(side, name) for side in left.sides.values() for name in wanted)
    prefix = f"{join.alias}." if clash and join.how in _ADDS else ""
    body |= {"prefix": prefix} if prefix else {}
    node = to.steps.add(owner, {"lookup": body, "from": rows.node}, join.node)
    sides = dict(left.sides)
    if join.how in _ADDS:
        names = {there: here for here, there in keys.items()}
        sides |= _sharing(left, found.keys)
        sides[join.alias] = Side(None if starred else (*names, *wanted), names, prefix)
    extra = [*left.extra, *computed]
    return replace(left, rows=replace(rows, node=node, columns=None), sides=sides, extra=tuple(dict.fromkeys(extra)))


def _may_have(side: Side, name: str) -> bool:
    return side.columns is None or name in side.columns


def _check_keys(join: Join, keys: Iterable[str], uses: Uses) -> None:
    """A key of the table is the row's own value here, and null where a LEFT JOIN finds nothing in SQL."""
    for key in keys if join.how == "left" else ():
        if (join.alias, key) in uses.outside:
            raise refuse(
                join.node,
                f"{join.alias}.{key} cannot be read behind a LEFT JOIN: it is a key of the join",
                "name the column of the rows that is equal to it, or look whether another column is null",
            )


def _pairs(join: Join, left: Scope, keys: Sequence[tuple[exp.Expr, exp.Expr]]) -> tuple[dict[str, str], dict[str, str]]:
    """Columns of the rows, and those of the table that they are equal to; and what must be computed for it first."""
    if not keys:
        raise refuse(join.node, "a join needs ON with equal columns", f"write ON rows.k = {join.alias}.k AND ...")
    pairs: dict[str, str] = {}
    computed: dict[str, str] = {}
    for here, there in keys:
        if not isinstance(there, exp.Column):
            raise refuse(there, f"{text(there)} is no column of the table", "compare columns of the table as they are")
        bound = left.bound(here) if isinstance(here, exp.Column) else None
        name = bound.name if isinstance(bound, exp.Column) else ""
        if not name or name in pairs:
            name = _COMPUTED.format(len(left.extra) + len(computed) + 1)
            computed[name] = row_text(here, left)
        pairs[name] = there.name
    return pairs, computed


def _sharing(left: Scope, keys: Sequence[tuple[exp.Expr, exp.Expr]]) -> dict[str, Side]:
    """The members whose columns are keys, which are the table's columns, too."""
    sides = dict(left.sides)
    for here, _ in keys:
        alias = left.side_of(here) if isinstance(here, exp.Column) else None
        bound = left.bound(here) if isinstance(here, exp.Column) else None
        if alias is not None and isinstance(bound, exp.Column):
            sides[alias] = replace(sides[alias], shared=sides[alias].shared | {bound.name})
    return sides


def _as_of(join: Join, left: Scope, rest: Sequence[exp.Expr], uses: Uses) -> dict[str, Any]:
    """``ASOF JOIN``: the latest version whose time is not later than that of the rows."""
    condition = rest[0] if rest else None
    if isinstance(condition, exp.LTE):
        condition = exp.GTE(this=condition.expression, expression=condition.this)
    here, there = (condition.left, condition.right) if isinstance(condition, exp.GTE) else (None, None)
    if not (isinstance(here, exp.Column) and isinstance(there, exp.Column)) or uses.where(there) != join.alias:
        raise refuse(join.node, "an ASOF JOIN compares times", f"add ON ... AND rows.time >= {join.alias}.valid_from")
    return {"as_of": {"column": there.name, "time": left.bound(here).name}}
