"""The select list: what a query gives of the rows that are left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlglot import exp

from headrace.jobs.sql.errors import refuse
from headrace.jobs.sql.expressions import body, is_star, name_of, quoted, row_text
from headrace.jobs.sql.lowering import Lowering
from headrace.jobs.sql.relations import Relation, Scope


@dataclass(slots=True)
class Items:
    """A select list.

    Attributes:
        texts: Expressions by the name of their column, stars of known columns taken apart.
        open: Members of FROM of which all columns are given, without knowing which; empty if there is none.
    """

    texts: dict[str, str] = field(default_factory=dict)
    open: list[str] = field(default_factory=list)


def items_of(query: exp.Select, scope: Scope, replaced: Mapping[str, str] | None = None) -> Items:
    """The select list of a query, its columns bound.

    Args:
        query: The query.
        scope: What its rows are.
        replaced: Texts that were computed already (``OVER``), by the name of their column.

    Raises:
        SqlError: A column has no name, or one name twice, or is not there.
    """
    found = Items()
    for item in query.expressions:
        if is_star(item):
            _star(item, scope, found)
            continue
        name = name_of(item)
        if name in found.texts:
            raise refuse(item, f"the select list gives {name!r} twice", "write ... AS another name")
        computed = (replaced or {}).get(name)
        found.texts[name] = row_text(body(item), scope) if computed is None else computed
    return found


def _star(item: exp.Expr, scope: Scope, found: Items) -> None:
    star = item.this if isinstance(item, exp.Column) else item
    wanted = [item.table] if isinstance(item, exp.Column) and item.table else list(scope.sides)
    if any(star.args.get(key) for key in ("replace", "rename")):
        raise refuse(item, "* REPLACE and * RENAME are not supported", "name the columns")
    left_out = [column.name for column in star.args.get("except_") or ()]
    for alias in wanted:
        if alias not in scope.sides:
            raise refuse(item, f"{alias}.*: FROM has no {alias!r}", f"FROM has {', '.join(scope.sides)}")
        side = scope.sides[alias]
        if side.columns is None and left_out:
            raise refuse(item, f"the columns of {alias} are not known here, so none can be left out", "name them")
        if side.columns is None:
            if alias in found.open:
                raise refuse(item, "* stands more than once in a select list")
            found.open.append(alias)
        for column in side.columns or ():
            if column in left_out:
                continue
            if column in found.texts:
                raise refuse(item, f"* gives {column!r} twice", "name the columns, e.g. a.x, b.x AS y")
            name = side.physical(column)
            found.texts[column] = column if name == column and name.isidentifier() else quoted(name)


def project(to: Lowering, query: exp.Select, owner: str, scope: Scope, items: Items, *, inner: bool) -> Relation:
    """The step that gives a select list.

    Args:
        to: Where it goes.
        query: The query.
        owner: What its id begins with.
        scope: The rows.
        items: The select list.
        inner: Another query reads it: the event time is kept, seen or not.
    """
    rows = scope.rows
    if items.open:
        return _open(to, query, owner, scope, items)
    same = rows.columns is not None and tuple(items.texts) == rows.columns and set(scope.extra) <= set(rows.columns)
    if same and all(_names(name, text) for name, text in items.texts.items()) and (inner or not rows.hidden):
        return rows
    texts = dict(items.texts)
    if inner and rows.time is not None:
        texts.setdefault(rows.time, quoted(rows.time))
    made = to.select(owner, texts, rows, query)
    clocks = {
        name: offset for name, text in texts.items() for column, offset in rows.clocks.items() if _names(column, text)
    }
    # The engine knows the event time by the name that the source or the window gave it.
    kept = rows.time if rows.time is not None and _names(rows.time, texts.get(rows.time, "")) else None
    return replace(made, columns=tuple(items.texts), time=kept, clocks=clocks if kept else {})


def _open(to: Lowering, query: exp.Select, owner: str, scope: Scope, items: Items) -> Relation:
    rows = scope.rows
    added = {name: text for name, text in items.texts.items() if not _names(name, text)}
    if added:
        rows = to.with_columns(owner, added, rows, query)
    dropped = [name for name in leftovers(scope, items) if name not in items.texts]
    if dropped:
        rows = to.step(owner, "drop", dropped, rows, query)
    time = rows.time if rows.time not in {*added, *dropped} else None
    clocks = {name: offset for name, offset in rows.clocks.items() if name not in {*added, *dropped}}
    return replace(rows, columns=None, time=time, clocks=clocks if time else {})


def leftovers(scope: Scope, items: Items) -> Sequence[str]:
    """Columns of the rows that an open select list does not give."""
    found = list(scope.extra)
    for alias, side in scope.sides.items():
        if alias not in items.open:
            found += [side.physical(column) for column in side.columns or ()]
    kept = {name for alias in items.open for name in scope.sides[alias].shared}
    return [name for name in dict.fromkeys(found) if name not in kept]


def _names(column: str, text: str) -> bool:
    """Whether a text is nothing but this column."""
    return text in (column, quoted(column))
