"""``ROW_NUMBER() OVER (PARTITION BY … ORDER BY …)`` in a query whose reader keeps the first rows.

Written as elsewhere for streams (Flink: "Deduplication", "Top-N")::

    SELECT a, b FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY at DESC) AS n FROM rows) WHERE n = 1

or shorter, with ``QUALIFY ROW_NUMBER() OVER (...) = 1`` in the query itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlglot import exp

from headrace.jobs.sql.dialect import Streaming
from headrace.jobs.sql.errors import refuse
from headrace.jobs.sql.expressions import conjuncts, quoted, row_text
from headrace.jobs.sql.lowering import Deferred, Lowering, Names
from headrace.jobs.sql.relations import Relation, Scope
from headrace.jobs.sql.windows import ADDED, BOUNDS, WindowCall

_EXAMPLE: Final = "SELECT … FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY at) AS n FROM rows) WHERE n = 1"


@dataclass(frozen=True, slots=True)
class Keep:
    """How many rows of each key the reader of a numbered query keeps.

    Attributes:
        count: How many.
        asked: Whether it asks for the number itself.
    """

    count: int
    asked: bool


@dataclass(frozen=True, slots=True)
class Ranked:
    """A query that reads a numbered one.

    Attributes:
        inner: The numbered query, and what it may name.
        alias: What the reader calls it.
        keep: What is kept of it.
        conditions: What else the reader's WHERE asks for.
    """

    inner: Deferred
    alias: str
    keep: Keep
    conditions: Sequence[exp.Expr]


def numbered(query: exp.Expr) -> exp.Expr | None:
    """The select item of a query that is a ``ROW_NUMBER``; None if there is none."""
    items = query.expressions if isinstance(query, exp.Select) else []
    return next((item for item in items if _is_row_number(item)), None)


def ranked(query: exp.Select, owner: str, names: Names) -> Ranked | None:
    """The ranking that a query reads from; None when it reads something else, or does not keep the first rows."""
    clause = query.args.get("from_")
    member = clause.this if clause is not None else None
    if isinstance(member, exp.Subquery) and not query.args.get("joins"):
        inner = Deferred(member.this, names, f"{owner}-{member.alias}" if member.alias else owner)
    elif isinstance(member, exp.Table) and isinstance(names.get(member.name), Deferred) and not member.db:
        found = names[member.name]
        inner = found if isinstance(found, Deferred) else Deferred(member, names, owner)
    else:
        return None
    item = numbered(inner.query)
    kept = None if item is None else _kept(item.alias, conjuncts(query.args.get("where")))
    if item is None or kept is None:
        return None
    count, rest = kept
    asked = _names(query, item.alias, rest)
    return Ranked(inner, member.alias_or_name, Keep(count, asked), rest)


def qualified(query: exp.Select) -> tuple[exp.Select, Keep] | None:
    """A query with QUALIFY as one that is numbered, and what is kept of it; None if it does not keep the first rows."""
    qualify = query.args.get("qualify")
    if qualify is None:
        return None
    made = query.copy()
    made.set("qualify", None)
    (condition, *more) = conjuncts(qualify)
    number = condition.this
    item = numbered(query)
    if item is not None and isinstance(number, exp.Column) and number.name == item.alias and not more:
        kept = _kept(item.alias, [condition])
        return None if kept is None else (made, Keep(kept[0], asked=True))
    if more or not isinstance(number, exp.Window) or not isinstance(number.this, exp.RowNumber) or item is not None:
        return None
    kept = _kept("_number", [type(condition)(this=exp.column("_number"), expression=condition.expression)])
    made.set("expressions", [*made.expressions, exp.alias_(number.copy(), "_number")])
    return None if kept is None else (made, Keep(kept[0], asked=False))


def in_windows(to: Lowering, owner: str, scope: Scope, window: WindowCall, query: exp.Select) -> Scope | None:
    """The rows of a window with its bounds, if the query numbers the rows of each; None: it does something else.

    Raises:
        SqlError: It does so in windows of which this is not supported.
    """
    item = numbered(query)
    by = (item.this.args.get("partition_by") or []) if item is not None else []
    if not any(isinstance(part, exp.Column) and part.name in ADDED for part in by) or query.args.get("group"):
        return None
    size, bounds = window.assigned()
    rows = to.with_columns(owner, bounds, scope.rows, window.call)
    return scope.on(replace(rows, tumbling=size))


def rank(to: Lowering, owner: str, scope: Scope, item: exp.Expr, keep: Keep) -> Scope:
    """The step that keeps the first rows of each key; with the number, if it is asked for, as a column of its name.

    Raises:
        SqlError: The ranking is not supported.
    """
    over = item.this
    ordered = over.args["order"].expressions if over.args.get("order") else []
    by = over.args.get("partition_by") or []
    if not ordered or over.args.get("spec"):
        raise refuse(over, "ROW_NUMBER needs ORDER BY, and takes all rows before", _EXAMPLE)
    first = next((part for part in ordered if part.args.get("nulls_first")), None)
    if first is not None:
        raise refuse(
            over, "nulls come last in rankings", f"order by {first.this.sql(dialect=Streaming)} IS NOT NULL before it"
        )
    computed: dict[str, str] = {}
    keys = [_column(part, scope, computed) for part in by]
    order = [(_column(part.this, scope, computed), bool(part.args.get("desc"))) for part in ordered]
    unseen = [scope.rows.time] if scope.rows.hidden and scope.rows.time is not None else []
    rows = to.with_columns(owner, computed, scope.rows, over)
    rows = _first_rows(to, owner, rows, (keys, order), item, keep)
    return replace(scope, rows=rows, extra=(*scope.extra, *computed, *unseen))


def _column(part: exp.Expr, scope: Scope, computed: dict[str, str]) -> str:
    bound = scope.bound(part) if isinstance(part, exp.Column) else None
    if isinstance(bound, exp.Column):
        return bound.name
    name = f"_rank_{len(computed) + 1}"
    computed[name] = row_text(part, scope)
    return name


def _first_rows(
    to: Lowering,
    owner: str,
    rows: Relation,
    ranking: tuple[list[str], list[tuple[str, bool]]],
    item: exp.Expr,
    keep: Keep,
) -> Relation:
    keys, order = ranking
    over = item.this
    written = [f"{name} {'desc' if down else 'asc'}" for name, down in order]
    top: dict[str, Any] = {"n": keep.count, "order_by": written}
    top |= {"rank": item.alias} if keep.asked else {}
    if rows.tumbling:
        top |= {"tumbling": rows.tumbling, "by": [name for name in keys if name not in ADDED]}
        return replace(to.step(owner, "top", top, rows, over), tumbling="")
    (column, descending), *more = order
    by_time = keep.count == 1 and rows.clocks.get(column) == 0 and not more and not keep.asked
    if by_time and keys and not descending and not rows.changes and not rows.windowed:
        return to.step(owner, "dedup", {"by": keys, "keep": "first"}, rows, over)
    times = [name for name in keys if rows.clocks.get(name) == 0]
    windowed = rows.windowed and bool(times) and not rows.changes
    top |= {"by": by} if (by := [name for name in keys if not windowed or name not in (*times, *BOUNDS)]) else {}
    if windowed:
        return to.step(owner, "top", top, rows, over)
    made = to.step(owner, "running_top", top, rows, over)
    return replace(made, time=None, clocks={}, changes=True, windowed=False)


def _is_row_number(item: exp.Expr) -> bool:
    return (
        isinstance(item, exp.Alias) and isinstance(item.this, exp.Window) and isinstance(item.this.this, exp.RowNumber)
    )


def _names(query: exp.Select, number: str, rest: Sequence[exp.Expr]) -> bool:
    named = any(column.name == number for part in [*query.expressions, *rest] for column in part.find_all(exp.Column))
    return named or any(item.is_star for item in query.expressions)


def _kept(number: str, parts: Sequence[exp.Expr]) -> tuple[int, list[exp.Expr]] | None:
    """How many rows of each key the conditions keep, and the rest of them; None: others than the first ones."""
    limits = [part for part in parts if isinstance(part, exp.EQ | exp.LTE | exp.LT) and part.this.name == number]
    rest = [part for part in parts if not any(part is limit for limit in limits)]
    if len(limits) != 1 or not limits[0].expression.is_int:
        return None
    count = int(limits[0].expression.name) - isinstance(limits[0], exp.LT)
    if count < 1 or (isinstance(limits[0], exp.EQ) and count != 1):
        return None
    return count, rest


def number_text(item: exp.Expr, keep: Keep) -> str:
    """What the number is in the select list of the numbered query."""
    return quoted(item.alias) if keep.asked else "1"
