"""``UNION ALL``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlglot import exp

from headrace.jobs.sql.errors import refuse
from headrace.jobs.sql.expressions import body, is_star, name_of, quoted
from headrace.jobs.sql.lowering import Lowering
from headrace.jobs.sql.relations import Relation


def without_distinct(query: exp.Union) -> exp.Select:
    """``UNION`` as ``SELECT DISTINCT`` over a ``UNION ALL``, whatever stands below it.

    Raises:
        SqlError: The columns are not known.
    """
    made = query.copy()
    _keep_all(made)
    first = _branches(made)[0]
    if not isinstance(first, exp.Select) or any(map(is_star, first.expressions)):
        raise refuse(query, "UNION needs to know the columns", "name them in its first SELECT, or write UNION ALL")
    names = [exp.column(exp.to_identifier(name_of(item), quoted=True)) for item in first.expressions]
    common = made.args.pop("with_", None)
    distinct = exp.Select(expressions=names, distinct=exp.Distinct(), from_=exp.From(this=exp.Subquery(this=made)))
    if common is not None:
        distinct.set("with_", common)
    distinct.meta.update(query.meta)
    return distinct


def _keep_all(query: exp.Expr) -> None:
    """Make every UNION of a tree of them a UNION ALL: the one above leaves out what is there twice."""
    if isinstance(query, exp.Subquery):
        _keep_all(query.this)
    elif isinstance(query, exp.Union):
        query.set("distinct", False)
        _keep_all(query.left)
        _keep_all(query.right)


def branches_of(query: exp.Expr) -> list[exp.Expr]:
    """The queries of a UNION ALL, those of inner ones too; what they select is named as in the first one.

    Raises:
        SqlError: It is a UNION without ALL, or another set operation; or they do not have as many columns.
    """
    branches = _branches(query)
    first = branches[0]
    if not all(isinstance(one, exp.Select) and not any(map(is_star, one.expressions)) for one in branches):
        return branches
    names = [name_of(item) for item in first.expressions]
    return [first, *(_renamed(one, names) for one in branches[1:])]


def _branches(query: exp.Expr) -> list[exp.Expr]:
    if isinstance(query, exp.Subquery) and isinstance(query.this, exp.Query):
        return _branches(query.this)
    if not isinstance(query, exp.Union) or (query.args.get("with_") and isinstance(query.parent, exp.Union)):
        return [query]
    if query.args.get("distinct"):
        raise refuse(
            query,
            "UNION below UNION ALL is not supported",
            "write SELECT DISTINCT ... FROM (... UNION ALL ...) around it",
        )
    return [*_branches(query.left), *_branches(query.right)]


def _renamed(query: exp.Expr, names: Sequence[str]) -> exp.Expr:
    if len(query.expressions) != len(names):
        raise refuse(query, f"UNION ALL of {len(names)} and {len(query.expressions)} columns", "give them as many")
    made = query.copy()
    items = [exp.alias_(body(item), name, quoted=True) for item, name in zip(made.expressions, names, strict=True)]
    made.set("expressions", items)
    return made


def unite(to: Lowering, query: exp.Expr, owner: str, rows: Sequence[Relation]) -> Relation:
    """The step that unites relations: columns by position, named as the first one's; by name where they are not known.

    Raises:
        SqlError: They do not have as many columns.
    """
    first = rows[0]
    hidden = first.hidden and all(one.time == first.time for one in rows)
    named = [_named(to, query, f"{owner}-{n}", first, one, hidden=hidden) for n, one in enumerate(rows, start=1)]
    twice = {one.node for one in named if [other.node for other in named].count(one.node) > 1}
    if twice:
        named = [
            to.filter(f"{owner}-{n}", ["TRUE"], one, query) if one.node in twice and n > 1 else one
            for n, one in enumerate(named, start=1)
        ]
    node = to.steps.add(owner, {"union": [one.node for one in named]}, query)
    times = {one.time for one in named}
    time = first.time if len(times) == 1 else None
    clocks = {name: at for name, at in first.clocks.items() if all(one.clocks.get(name) == at for one in named)}
    changes = any(one.changes for one in named)
    windowed = all(one.windowed for one in named)
    return replace(first, node=node, time=time, clocks=clocks if time else {}, changes=changes, windowed=windowed)


def _named(to: Lowering, query: exp.Expr, owner: str, first: Relation, rows: Relation, *, hidden: bool) -> Relation:
    if first.columns is None or rows.columns is None:
        return rows
    if len(rows.columns) != len(first.columns):
        raise refuse(query, f"UNION ALL of {len(first.columns)} and {len(rows.columns)} columns", "give them as many")
    same = rows.columns == first.columns
    if same and rows.hidden == hidden:
        return rows
    texts = {name: quoted(column) for name, column in zip(first.columns, rows.columns, strict=True)}
    if hidden and rows.time is not None:
        texts.setdefault(rows.time, quoted(rows.time))
    made = to.select(owner, texts, rows, query)
    names = dict(zip(rows.columns, first.columns, strict=True))
    time = rows.time if rows.time is not None and texts.get(rows.time) == quoted(rows.time) else None
    clocks = {names[name]: at for name, at in rows.clocks.items() if name in names}
    return replace(made, columns=first.columns, time=time, clocks=clocks if time else {})
