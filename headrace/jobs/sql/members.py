"""FROM: its members, one after the other, joined into the rows that the rest of a query looks at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from sqlglot import exp

from headrace.jobs.sql.custom import custom_call, custom_rows
from headrace.jobs.sql.errors import refuse
from headrace.jobs.sql.expressions import conjuncts, row_text
from headrace.jobs.sql.joins import Join, join_rows
from headrace.jobs.sql.lookups import join_table
from headrace.jobs.sql.lowering import Deferred, Names
from headrace.jobs.sql.relations import Relation, Scope, Side
from headrace.jobs.sql.unnest import element_name, unnest
from headrace.jobs.sql.uses import Uses, uses_of
from headrace.jobs.sql.windows import ADDED, BOUNDS, WindowCall, whole, window_call

if TYPE_CHECKING:
    from headrace.jobs.sql.queries import Queries

_HOWS: Final[Mapping[str, str]] = {
    "": "inner",
    "INNER": "inner",
    "CROSS": "inner",
    "LEFT": "left",
    "RIGHT": "right",
    "FULL": "full",
    "SEMI": "semi",
    "ANTI": "anti",
}


@dataclass(frozen=True, slots=True)
class Member:
    """A member of FROM.

    Attributes:
        alias: What the query calls it.
        node: Where it stands.
        rows: Its rows; None: it is a static table.
        table: The static table.
        window: It is a windowing function over ``rows``.
        element: It is UNNEST, whose elements have this name.
    """

    alias: str
    node: exp.Expr
    rows: Relation | None
    table: str = ""
    window: WindowCall | None = None
    element: str = ""

    @property
    def columns(self) -> tuple[str, ...] | None:
        """What it has; None: not known."""
        if self.element:
            return (self.element,)
        if self.rows is None or self.rows.columns is None:
            return None
        added = ADDED if self.window else ()
        return (*(name for name in self.rows.columns if name not in added), *added)


@dataclass(frozen=True, slots=True)
class From:
    """What FROM gives.

    Attributes:
        scope: The rows.
        window: The windows that they are to be grouped by, if any.
        conditions: Those of WHERE that are left to be asked.
    """

    scope: Scope
    window: WindowCall | None
    conditions: Sequence[exp.Expr]


def read_from(queries: Queries, query: exp.Select, owner: str, names: Names, where: Sequence[exp.Expr]) -> From:
    """The rows that a query looks at.

    Args:
        queries: For queries in FROM.
        query: The query.
        owner: What ids of steps begin with.
        names: What FROM may name.
        where: Conditions of WHERE; those that only say what joins are used up.

    Raises:
        SqlError: A member cannot be read, or a join is not supported.
    """
    clause = query.args.get("from_")
    if clause is None:
        raise refuse(query, "a query needs FROM", f"name one of {', '.join(sorted(names))}")
    first, rows = _first(queries, clause.this, owner, names)
    joins = query.args.get("joins") or ()
    if not joins:
        return From(Scope(rows, {first.alias: Side(first.columns)}), first.window, where)
    members = [first, *(_member(queries, join.this, owner, names) for join in joins)]
    twice = next((one for one in members if [other.alias for other in members].count(one.alias) > 1), None)
    if twice is not None:
        raise refuse(twice.node, f"FROM has {twice.alias!r} twice", "give one of them another name: ... AS b")
    tables = frozenset(member.alias for member in members if member.table)
    uses = uses_of(query, {member.alias: Side(member.columns) for member in members}, tables)
    scope = Scope(rows, {first.alias: Side(first.columns)}, tables=tables)
    window, left = first.window, list(where)
    for number, (join, member) in enumerate(zip(joins, members[1:], strict=True), start=1):
        how = _how(join)
        if member.element:
            scope = unnest(queries.to, owner, scope, join, how)
            continue
        on = conjuncts(join.args.get("on")) + _using(join, members[:number], member)
        asked = Join(join, member.alias, member.node, how, on)
        if how == "inner":
            # WHERE asks the version that holds, which a version that it leaves out may be.
            after = member.alias if asked.as_of or asked.version is not None else None
            on, left = _taken(on, left, uses, {one.alias for one in members[: number + 1]}, after)
        elif how == "left":
            before, left = _taken([], left, uses, {one.alias for one in members[:number]})
            texts = condition_texts(before, scope)
            scope = scope.on(queries.to.filter(owner, texts, scope.rows, before[0] if before else join))
        asked = replace(asked, on=on)
        if member.rows is None:
            scope = join_table(queries.to, owner, scope, asked, member.table, uses)
        else:
            scope = join_rows(queries.to, owner, scope, asked, member.rows, (window, member.window), uses)
            window = None
    return From(scope, window, left)


def _first(queries: Queries, node: exp.Expr, owner: str, names: Names) -> tuple[Member, Relation]:
    """The first member of FROM, and its rows."""
    first = _member(queries, node, owner, names)
    if first.element:
        raise refuse(node, "UNNEST stands behind the rows that have the list", "FROM rows CROSS JOIN UNNEST(…) AS t(x)")
    if first.rows is None:
        raise refuse(
            node, f"{first.table!r} is a static table", "read rows, and join it: FROM rows LEFT JOIN ... ON ..."
        )
    return first, first.rows


def _taken(
    on: list[exp.Expr], where: list[exp.Expr], uses: Uses, known: set[str], after: str | None = None
) -> tuple[list[exp.Expr], list[exp.Expr]]:
    """The conditions of WHERE that an inner join can ask itself go to it; those on ``after`` alone cannot."""
    taken = []
    for condition in where:
        if condition.find(exp.Query) is not None:
            continue
        sides = {uses.where(column) for column in condition.find_all(exp.Column)}
        if sides and sides <= known and sides != {after}:
            taken.append(condition)
    return [*on, *taken], [condition for condition in where if not any(condition is one for one in taken)]


def _how(join: exp.Join) -> str:
    word = (join.kind if join.kind in ("SEMI", "ANTI") else join.side or join.kind or "").upper()
    if word not in _HOWS or (join.method or "").upper() not in ("", "ASOF") or join.args.get("hint"):
        raise refuse(
            join, f"a {word or join.method} JOIN is not supported", "INNER, LEFT, RIGHT, FULL, SEMI, ANTI, ASOF"
        )
    return _HOWS[word]


def _using(join: exp.Join, before: Sequence[Member], member: Member) -> list[exp.Expr]:
    using = join.args.get("using") or ()
    if using and len(before) > 1:
        raise refuse(join, "USING goes with the first join only", "write ON a.k = b.k")
    return [
        exp.EQ(
            this=exp.column(column.name, table=before[0].alias), expression=exp.column(column.name, table=member.alias)
        )
        for column in using
    ]


def _member(queries: Queries, node: exp.Expr, owner: str, names: Names) -> Member:
    if isinstance(node, exp.Unnest):
        element = element_name(node)
        return Member(node.alias or element, node, None, element=element)
    window = window_call(whole(node))
    custom = None if window else custom_call(node)
    source = window.rows if window else custom.rows if custom else node
    alias = node.alias or source.alias_or_name
    if custom is not None:
        read = _member(queries, source, owner, names)
        if read.rows is None:
            raise refuse(source, f"{read.table!r} is a static table", "give the operator rows of a source or a view")
        return Member(alias, node, custom_rows(queries.to, owner, read.rows, custom))
    if isinstance(source, exp.Subquery):
        _check_alias(source)
        inner = f"{owner}-{source.alias}" if source.alias else owner
        given = queries.relation(source.this, inner, names, inner=True)
        return _timed(queries, owner, Member(alias, node, given, window=window))
    if not isinstance(source, exp.Table) or not isinstance(source.this, exp.Identifier):
        raise refuse(
            node,
            f"{source.sql()} cannot be read from",
            "name a source, a view, or TUMBLE, HOP and the like",
        )
    _check_plain(source)
    name = source.name
    if name in queries.to.tables and name not in names and not source.db and window is None:
        return Member(alias, node, None, name)
    if source.db or name not in names:
        full = ".".join(part.name for part in source.parts)
        raise refuse(node, f"there is no source or view named {full!r}", f"known: {', '.join(sorted(names))}")
    found = names[name]
    rows = queries.deferred(found) if isinstance(found, Deferred) else found
    return _timed(queries, owner, Member(alias, node, rows, window=window))


def _timed(queries: Queries, owner: str, member: Member) -> Member:
    """A member whose windows are by the event time of its rows, or by another bound of the windows that they are of.

    Raises:
        SqlError: They are by something else.
    """
    window, rows = member.window, member.rows
    if window is None or rows is None:
        return member
    if rows.time == BOUNDS[0] and window.time in ADDED and rows.clocks.get(window.time, 0) > 0:
        # Rows get the later instant as their event time, under the name that it has for the engine.
        moved = queries.to.with_columns(owner, {rows.time: window.time}, rows, window.call)
        return replace(member, rows=replace(moved, clocks={rows.time: 0}, windowed=False))
    if window.time is not None and rows.clocks.get(window.time) != 0:
        known = f"its event time is {rows.time}" if rows.time else "it has no event time"
        raise refuse(
            window.call,
            f"DESCRIPTOR({window.time}): {known}",
            "set event_time of the source to the column" if not rows.time else f"write DESCRIPTOR({rows.time})",
        )
    return member


def _check_alias(node: exp.Expr) -> None:
    alias = node.args.get("alias")
    if alias is not None and alias.columns:
        raise refuse(node, "new names for the columns behind an alias are not supported", "name them in the SELECT")


def _check_plain(table: exp.Table) -> None:
    """Refuse what a name in FROM may carry elsewhere: samples, hints, new names for columns."""
    _check_alias(table)
    more = [
        key for key, value in table.args.items() if value and key not in {"this", "alias", "db", "catalog", "version"}
    ]
    if more:
        raise refuse(table, f"{table.name}: what stands behind the name is not supported ({', '.join(more)})")


def condition_texts(conditions: Sequence[exp.Expr], scope: Scope) -> list[str]:
    """Conditions as texts of row expressions."""
    return [row_text(condition, scope) for condition in conditions]
