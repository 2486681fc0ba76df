"""A query as steps, clause by clause: FROM, WHERE, GROUP BY and HAVING, ROW_NUMBER, the select list."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from headrace.jobs.sql.errors import refuse
from headrace.jobs.sql.expressions import conjuncts, is_star
from headrace.jobs.sql.grouping import group, is_grouped, with_bounds_asked
from headrace.jobs.sql.lowering import Deferred, Lowering, Names
from headrace.jobs.sql.members import read_from
from headrace.jobs.sql.over import compute, with_windows_named
from headrace.jobs.sql.projection import items_of, project
from headrace.jobs.sql.ranking import Keep, in_windows, number_text, numbered, qualified, rank, ranked
from headrace.jobs.sql.relations import Relation, Scope, Side
from headrace.jobs.sql.scalars import computed
from headrace.jobs.sql.subqueries import restrict
from headrace.jobs.sql.unions import branches_of, unite, without_distinct

_UNSUPPORTED: Final[Mapping[str, tuple[str, str]]] = {
    "order": (
        "ORDER BY is not supported: a stream has no end to sort by",
        "leave it out, or keep the first rows by ROW_NUMBER",
    ),
    "limit": ("LIMIT is not supported: a stream has no end", "leave it out, or keep the first rows by ROW_NUMBER"),
    "offset": ("OFFSET is not supported", "leave it out"),
    "laterals": ("LATERAL is not supported", ""),
    "pivots": ("PIVOT is not supported", ""),
    "into": ("SELECT INTO is not supported", "write INSERT INTO sink SELECT ..."),
    "sample": ("TABLESAMPLE is not supported: a replay must give the same rows", ""),
    "connect": ("CONNECT BY is not supported", ""),
    "cluster": ("CLUSTER BY is not supported", ""),
    "sort": ("SORT BY is not supported", ""),
    "match": ("MATCH_RECOGNIZE is not supported", "write a custom operator"),
}
_DEEPEST: Final = 30


@dataclass(frozen=True, slots=True)
class Queries:
    """Translates queries into steps.

    Attributes:
        to: Where they go.
    """

    to: Lowering

    def relation(
        self, query: exp.Expr, owner: str, names: Names, *, inner: bool = False, keep: Keep | None = None
    ) -> Relation:
        """The rows of a query.

        Args:
            query: SELECT, maybe in parentheses.
            owner: The name that its steps get.
            names: What FROM may name.
            inner: Another query reads it, which may need its event time.
            keep: What its reader keeps of its ``ROW_NUMBER``.

        Raises:
            SqlError: Something in it is not supported.
        """
        if isinstance(query, exp.Subquery):
            return self.relation(query.this, owner, names, inner=inner, keep=keep)
        if isinstance(query, exp.Union) and query.args.get("distinct"):
            return self.relation(without_distinct(query), owner, names, inner=inner)
        known = self._common(query, names)
        if isinstance(query, exp.Union):
            for clause in ("order", "limit", "offset"):
                if query.args.get(clause):
                    raise refuse(query.args[clause], *_UNSUPPORTED[clause])
            rows = [
                self.relation(branch, f"{owner}-{n}", known, inner=inner)
                for n, branch in enumerate(branches_of(query), start=1)
            ]
            return unite(self.to, query, owner, rows)
        if not isinstance(query, exp.Select):
            raise refuse(query, f"{query.key.upper()} is not supported", "write a SELECT")
        return self._select(query, owner, known, inner=inner, keep=keep)

    def named(self, query: exp.Expr, owner: str, names: Names) -> Relation | Deferred:
        """What a view or a common table is: rows, or a query whose reader says what is kept of its ROW_NUMBER."""
        plain = query
        while isinstance(plain, exp.Subquery):
            plain = plain.this
        if numbered(plain) is not None and not plain.args.get("qualify"):
            return Deferred(plain, names, owner)
        return self.relation(query, owner, names, inner=True)

    def deferred(self, found: Deferred) -> Relation:
        """The rows of a numbered query whose reader keeps all of them."""
        return self.relation(found.query, found.owner, found.names, inner=True)

    def _common(self, query: exp.Expr, names: Names) -> Names:
        common = query.args.get("with_")
        if common is None:
            return names
        if common.recursive:
            raise refuse(query, "WITH RECURSIVE is not supported")
        known = dict(names)
        for part in common.expressions:
            if part.args["alias"].columns:
                raise refuse(part, f"{part.alias} has a list of columns", "name them in its SELECT")
            known[part.alias] = self.named(part.this, part.alias, known)
        return known

    def _select(self, query: exp.Select, owner: str, names: Names, *, inner: bool, keep: Keep | None) -> Relation:
        _check(query)
        query = with_windows_named(query)
        qualify = qualified(query)
        if qualify is not None:
            query, keep = qualify
        reads = ranked(query, owner, names)
        if reads is not None:
            rows = self.relation(reads.inner.query, reads.inner.owner, reads.inner.names, inner=True, keep=reads.keep)
            scope, window, where = Scope(rows, {reads.alias: Side(rows.columns)}), None, reads.conditions
        else:
            found = read_from(self, query, owner, names, conjuncts(query.args.get("where")))
            scope, window, where = found.scope, found.window, found.conditions
            first = None if window is None or keep is None else in_windows(self.to, owner, scope, window, query)
            scope, window = (first, None) if first is not None else (scope, window)
            if window is not None:
                query, where = with_bounds_asked(query, where)
        scope = restrict(self, owner, scope, where, names)
        if is_grouped(query, window):
            query, scope = group(self.to, query, owner, scope, window)
            scope = restrict(self, owner, scope, conjuncts(query.args.get("having")), names)
        scope, values = computed(self, owner, scope, query, names)
        return self._given(query, owner, scope, values, inner=inner, keep=keep)

    def _given(
        self,
        query: exp.Select,
        owner: str,
        scope: Scope,
        values: Mapping[str, str],
        *,
        inner: bool,
        keep: Keep | None,
    ) -> Relation:
        item = numbered(query) if keep is not None else None
        found = compute(self.to, query, owner, scope, item)
        texts = {**values, **found.texts}
        near = query.args.get("qualify") or query
        scope = found.scope.on(self.to.filter(owner, found.conditions, found.scope.rows, near))
        if item is not None and keep is not None:
            scope = rank(self.to, owner, scope, item, keep)
            texts[item.alias] = number_text(item, keep)
            if not keep.asked:
                query = query.copy()
                query.set("expressions", [one for one in query.expressions if one.alias != item.alias or is_star(one)])
        return project(self.to, query, owner, scope, items_of(query, scope, texts), inner=inner)


def _check(query: exp.Select) -> None:
    for clause, (what, hint) in _UNSUPPORTED.items():
        found = query.args.get(clause)
        if found:
            raise refuse(found[0] if isinstance(found, list) else found, what, hint)
    distinct = query.args.get("distinct")
    if distinct is not None and distinct.args.get("on"):
        raise refuse(distinct, "DISTINCT ON is not supported", "keep the first row of each key by ROW_NUMBER")
    depth, node = 0, query.parent
    while node is not None:
        depth, node = depth + isinstance(node, exp.Select), node.parent
    if depth > _DEEPEST:
        raise refuse(query, f"queries are nested deeper than {_DEEPEST}", "make views of them")
