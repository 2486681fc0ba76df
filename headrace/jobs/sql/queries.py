"""A SELECT as steps: FROM and JOIN, WHERE, GROUP BY and aggregates, HAVING, the select list."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlglot import exp

from headrace.jobs.sql.errors import refuse
from headrace.jobs.sql.expressions import aggregate_text, aggregates, body, name_of, quoted, text
from headrace.jobs.sql.ranking import Ranking, ranking
from headrace.jobs.sql.steps import Relation, Steps
from headrace.jobs.sql.windows import BOUNDS, WindowCall, window_call

_UNSUPPORTED: Final[Mapping[str, tuple[str, str]]] = {
    "distinct": ("SELECT DISTINCT is not supported", "GROUP BY the columns"),
    "order": ("ORDER BY is not supported: a stream has no end to sort by", "leave it out"),
    "limit": ("LIMIT is not supported", "leave it out"),
    "offset": ("OFFSET is not supported", "leave it out"),
    "qualify": ("QUALIFY is not supported", "filter in a query around this one"),
    "windows": ("a WINDOW clause is not supported", "use a windowing function in FROM, e.g. TUMBLE"),
    "laterals": ("LATERAL is not supported", ""),
    "pivots": ("PIVOT is not supported", ""),
    "into": ("SELECT INTO is not supported", "write INSERT INTO sink SELECT ..."),
    "sample": ("TABLESAMPLE is not supported: a replay must give the same rows", ""),
}
_SIDES: Final = ("left", "right")
_JOINS: Final = {"": "inner", "INNER": "inner", "LEFT": "left", "SEMI": "semi", "ANTI": "anti"}


@dataclass(frozen=True, slots=True)
class Queries:
    """Translates queries into steps.

    Attributes:
        steps: Where steps are added.
        tables: Names of static tables, which can be joined.
    """

    steps: Steps
    tables: Collection[str]

    def relation(self, query: exp.Expr, owner: str, names: Mapping[str, Relation]) -> Relation:
        """The rows of a query.

        Args:
            query: SELECT, maybe in parentheses.
            owner: The name that its steps get.
            names: What FROM may name.

        Raises:
            SqlError: Something in it is not supported.
        """
        if isinstance(query, exp.Subquery):
            return self.relation(query.this, owner, names)
        known = dict(names)
        common = query.args.get("with_")
        for part in common.expressions if common else ():
            known[part.alias] = self.relation(part.this, part.alias, known)
        if isinstance(query, exp.Union):
            return self._union(query, owner, known)
        if not isinstance(query, exp.Select):
            raise refuse(query, f"{query.key.upper()} is not supported", "write a SELECT")
        return self._select(query, owner, known)

    def _union(self, query: exp.Union, owner: str, names: Mapping[str, Relation]) -> Relation:
        if query.args.get("distinct"):
            raise refuse(query, "UNION is not supported", "write UNION ALL")
        for clause in ("order", "limit", "offset"):
            if query.args.get(clause):
                raise refuse(query, *_UNSUPPORTED[clause])
        branches = _branches(query)
        rows = [self.relation(branch, f"{owner}-{n}", names) for n, branch in enumerate(branches, start=1)]
        times = {row.time for row in rows}
        return self.steps.union(owner, rows, query, times.pop() if len(times) == 1 else None)

    def _select(self, query: exp.Select, owner: str, names: Mapping[str, Relation]) -> Relation:
        for clause, (what, hint) in _UNSUPPORTED.items():
            if query.args.get(clause):
                raise refuse(query, what, hint)
        ranked = ranking(query)
        for over in () if ranked else query.find_all(exp.Window):
            raise refuse(over, "OVER is not supported", "use a windowing function in FROM, or ROW_NUMBER (docs/sql.md)")
        if ranked is not None:
            rows, window, condition = self._first_rows(ranked, owner, names), None, ranked.where
        else:
            rows, window = self._from(query, owner, names)
            condition = query.args["where"].this if query.args.get("where") else None
        for join in query.args.get("joins") or ():
            rows = self._join(query, join, owner, rows)
        if condition is not None:
            rows = self.steps.add(owner, "filter", text(condition), rows, condition, rows.time)
        having = query.args.get("having")
        called = [call for item in [*query.expressions, *([having] if having else [])] for call in aggregates(item)]
        if window is not None or query.args.get("group") or called:
            return self._aggregate(query, owner, rows, window)
        return self._project(query, owner, rows)

    def _first_rows(self, ranked: Ranking, owner: str, names: Mapping[str, Relation]) -> Relation:
        rows = self.relation(ranked.rows, owner, names)
        (column, descending), *more = ranked.order
        if ranked.count == 1 and column == rows.time and not more and not ranked.number:
            spec = {"by": list(ranked.by), "keep": "last" if descending else "first"}
            return self.steps.add(owner, "dedup", spec, rows, ranked.over, rows.time)
        if rows.time != BOUNDS[0] or BOUNDS[0] not in ranked.by:
            raise refuse(
                ranked.over,
                "a ranking keeps the first or last row of each key by event time, or ranks the rows of a window",
                "ORDER BY the event time and keep 1, or rank results of TUMBLE with window_start in PARTITION BY",
            )
        order = [f"{name} {'desc' if down else 'asc'}" for name, down in ranked.order]
        top: dict[str, Any] = {"n": ranked.count, "order_by": order}
        top |= {"by": by} if (by := [name for name in ranked.by if name not in BOUNDS]) else {}
        top |= {"rank": ranked.number} if ranked.number else {}
        return self.steps.add(owner, "top", top, rows, ranked.over, rows.time)

    # ---------------------------------------------------------------------------------------------------------- from

    def _from(self, query: exp.Select, owner: str, names: Mapping[str, Relation]) -> tuple[Relation, WindowCall | None]:
        clause = query.args.get("from_")
        if clause is None:
            raise refuse(query, "a query needs FROM", f"name one of {', '.join(sorted(names))}")
        window = window_call(clause.this)
        if window is None:
            return self._rows(clause.this, owner, names), None
        rows = self._rows(window.rows, owner, names)
        if rows.time != window.time:
            known = f"its event time is {rows.time}" if rows.time else "it has no event time"
            raise refuse(
                window.call,
                f"DESCRIPTOR({window.time}): {known}",
                "set event_time of the source to the column" if not rows.time else f"write DESCRIPTOR({rows.time})",
            )
        return rows, window

    def _rows(self, node: exp.Expr, owner: str, names: Mapping[str, Relation]) -> Relation:
        if isinstance(node, exp.Subquery):
            return self.relation(node.this, f"{owner}-{node.alias}" if node.alias else owner, names)
        if not isinstance(node, exp.Table) or not isinstance(node.this, exp.Identifier):
            raise refuse(
                node, f"{text(node)} cannot be read from", "name a source, a view, or TUMBLE, HOP and the like"
            )
        _check_plain(node)
        if node.name in self.tables and node.name not in names:
            raise refuse(node, f"{node.name!r} is a static table", "join it: FROM rows LEFT JOIN ... ON ...")
        if node.db or node.name not in names:
            full = ".".join(part.name for part in node.parts)
            raise refuse(node, f"there is no source or view named {full!r}", f"known: {', '.join(sorted(names))}")
        return names[node.name]

    def _join(self, query: exp.Select, join: exp.Join, owner: str, rows: Relation) -> Relation:
        table = join.this
        how = _JOINS.get((join.side or join.kind or "").upper())
        if how is None or join.args.get("using") or join.method:
            raise refuse(join, "a join of this kind is not supported", "LEFT or INNER JOIN table ON rows.k = table.k")
        if not isinstance(table, exp.Table) or table.name not in self.tables:
            raise refuse(join, "only static tables can be joined", "declare the table under tables")
        _check_plain(table)
        alias, keys = table.alias_or_name, self._keys(join, table.alias_or_name)
        renamed = {there: quoted(here) for here, there in keys if here != there}
        if renamed:
            rows = self.steps.add(owner, "with_columns", renamed, rows, join, rows.time)
        body: dict[str, Any] = {"table": table.name, "on": [there for _, there in keys], "how": how}
        named = _columns_of(query, alias)
        if named is not None and how in {"left", "inner"}:
            wanted = [name for name in named if name not in body["on"]]
            if wanted:
                body["columns"] = wanted
        return self.steps.add(owner, "lookup", body, rows, join, rows.time)

    def _keys(self, join: exp.Join, alias: str) -> list[tuple[str, str]]:
        """Pairs of (column of the rows, column of the table) that are equal."""
        on = join.args.get("on")
        pairs = []
        for part in on.flatten() if isinstance(on, exp.And) else [on] if on else []:
            equal = [part.left, part.right] if isinstance(part, exp.EQ) else []
            sides = [side for side in equal if isinstance(side, exp.Column)]
            if len(sides) != len(_SIDES):
                break
            there = [side for side in sides if side.table == alias]
            here = [side for side in sides if side.table != alias]
            if len(there) != 1:
                break
            pairs.append((here[0].name, there[0].name))
        else:
            if pairs:
                return pairs
        raise refuse(join, "a join needs ON with equal columns", f"write ON rows.k = {alias}.k AND ...")

    # ----------------------------------------------------------------------------------------------------- aggregates

    def _aggregate(self, query: exp.Select, owner: str, rows: Relation, window: WindowCall | None) -> Relation:
        group = query.args.get("group")
        keys, computed = _group_keys(query, group, window)
        if computed:
            rows = self.steps.add(owner, "with_columns", computed, rows, group or query, rows.time)
        calls = _calls(query)
        if not calls:
            raise refuse(query, "GROUP BY without an aggregate is not supported", "add one, e.g. count(*) AS n")
        spec: dict[str, Any] = {"aggregate": {name: aggregate_text(call) for name, call in calls.values()}}
        by = [key for key in keys.values() if key not in BOUNDS]
        if by:
            spec["by"] = by
        if window is not None:
            found = self.steps.add(owner, "window", {**window.spec, **spec}, rows, window.call, BOUNDS[0])
        else:
            found = self.steps.add(owner, "aggregate", spec, rows, group or query, None)
        names = {**keys, **{key: name for key, (name, _) in calls.items()}}
        having = query.args.get("having")
        if having is not None:
            condition = text(_replaced(having.this, names))
            found = self.steps.add(owner, "filter", condition, found, having, found.time)
        items = {name_of(item): text(_replaced(body(item), names)) for item in query.expressions}
        return self.steps.add(owner, "select", items, found, query, found.time if found.time in items else None)

    # ---------------------------------------------------------------------------------------------------- select list

    def _project(self, query: exp.Select, owner: str, rows: Relation) -> Relation:
        stars = [item for item in query.expressions if item.is_star]
        others = [item for item in query.expressions if not item.is_star]
        if not stars:
            items = {name_of(item): text(body(item)) for item in others}
            _check_names(query, items, others)
            return self.steps.add(owner, "select", items, rows, query, rows.time if rows.time in items else None)
        if len(stars) > 1:
            raise refuse(query, "* stands more than once in a select list")
        if not others:
            return rows
        added = {name_of(item): text(body(item)) for item in others}
        _check_names(query, added, others)
        return self.steps.add(owner, "with_columns", added, rows, query, rows.time)


def _branches(query: exp.Expr) -> list[exp.Expr]:
    """The queries of a UNION ALL, their columns named as the first one's, by position."""
    if isinstance(query, exp.Subquery):
        return _branches(query.this)
    if not isinstance(query, exp.Union) or query.args.get("distinct"):
        return [query]
    branches = [*_branches(query.left), *_branches(query.right)]
    selects = [branch for branch in branches if isinstance(branch, exp.Select) and not branch.is_star]
    if len(selects) < len(branches):
        return branches
    names = [name_of(item) for item in selects[0].selects]
    for branch in selects[1:]:
        if len(branch.selects) != len(names):
            raise refuse(branch, f"UNION ALL of {len(names)} and {len(branch.selects)} columns", "give them as many")
    return [selects[0], *(_renamed(branch, names) for branch in selects[1:])]


def _renamed(query: exp.Select, names: Sequence[str]) -> exp.Expr:
    made = query.copy()
    made.set("expressions", [exp.alias_(body(item), name) for item, name in zip(made.selects, names, strict=True)])
    return made


def _check_plain(table: exp.Table) -> None:
    """Refuse what a name in FROM may carry elsewhere: versions, samples, hints, new names for columns."""
    more = [key for key, value in table.args.items() if value and key not in {"this", "alias", "db", "catalog"}]
    alias = table.args.get("alias")
    if more or (alias is not None and alias.columns):
        what = "FOR SYSTEM_TIME AS OF" if "version" in more else "what stands behind the name"
        raise refuse(
            table, f"{table.name}: {what} is not supported", "for versions by time use a lookup step with as_of"
        )


def _check_names(query: exp.Select, items: Mapping[str, str], written: Sequence[exp.Expr]) -> None:
    if len(items) != len(written):
        names = [name_of(item) for item in written]
        twice = sorted({name for name in names if names.count(name) > 1})
        raise refuse(query, f"the select list gives {', '.join(map(repr, twice))} twice", "write ... AS another name")


def _columns_of(query: exp.Select, alias: str) -> list[str] | None:
    """The columns of a joined table that a query names; None when it may mean more: by *, or without saying whose."""
    if any(item.is_star for item in query.expressions):
        return None
    columns = list(query.find_all(exp.Column))
    if any(not column.table for column in columns):
        return None
    return list(dict.fromkeys(column.name for column in columns if column.table == alias))


def _group_keys(
    query: exp.Select, group: exp.Expr | None, window: WindowCall | None
) -> tuple[dict[str, str], dict[str, str]]:
    """The key columns by the text that stands for them, and those that must be computed first."""
    keys: dict[str, str] = {}
    computed: dict[str, str] = {}
    for node in group.expressions if group else ():
        written = text(node)
        if isinstance(node, exp.Column):
            keys[written] = node.name
        elif isinstance(node, exp.Literal):
            raise refuse(node, "GROUP BY a position is not supported", "name the column")
        else:
            keys[written] = f"_key_{len(computed) + 1}"
            computed[keys[written]] = written
    if group is not None and any(group.args.get(kind) for kind in ("rollup", "cube", "grouping_sets", "all")):
        raise refuse(query, "only plain columns and expressions go into GROUP BY")
    bounds = [name for name in BOUNDS if name in keys.values()]
    if window is not None and not bounds:
        raise refuse(window.call, "the windows of FROM are not grouped by", "add window_start, window_end to GROUP BY")
    return keys, computed


def _calls(query: exp.Select) -> dict[str, tuple[str, exp.Expr]]:
    """Each aggregate call once, by its text: the name of its column, and the call."""
    found: dict[str, tuple[str, exp.Expr]] = {}
    for item in query.expressions:
        if isinstance(item, exp.Alias) and isinstance(item.this, exp.AggFunc | exp.Filter):
            found.setdefault(aggregate_text(item.this), (item.alias, item.this))
    having = query.args.get("having")
    for part in [*query.expressions, *([having] if having else [])]:
        for call in aggregates(part):
            found.setdefault(aggregate_text(call), (f"_value_{len(found) + 1}", call))
    return found


def _replaced(node: exp.Expr, names: Mapping[str, str]) -> exp.Expr:
    """An expression over the result of an aggregation: calls and keys become the columns that hold them."""

    def column(part: exp.Expr) -> exp.Expr:
        if isinstance(part, exp.AggFunc | exp.Filter):
            return exp.column(exp.to_identifier(names[aggregate_text(part)], quoted=True))
        if not isinstance(part, exp.Column | exp.Literal | exp.Identifier) and text(part) in names:
            return exp.column(exp.to_identifier(names[text(part)], quoted=True))
        return part

    return node.copy().transform(column)
