"""Queries inside WHERE: ``IN``, ``NOT IN``, ``EXISTS`` and ``NOT EXISTS`` as semi and anti joins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from sqlglot import exp

from headrace.jobs.sql.errors import refuse
from headrace.jobs.sql.expressions import aggregates, body, conjuncts, row_text
from headrace.jobs.sql.joins import Join, join_rows
from headrace.jobs.sql.lookups import join_table
from headrace.jobs.sql.lowering import Names
from headrace.jobs.sql.relations import Scope, Side
from headrace.jobs.sql.scalars import asked, is_one_row, of_one_row, refuse_outside, scalars_of
from headrace.jobs.sql.uses import Uses

if TYPE_CHECKING:
    from headrace.jobs.sql.queries import Queries

_VALUE = "_in_{}"
_ALIAS = "_inner"
_NULL = "_in"
_QUANTIFIED: Final[Mapping[type[exp.Expr], type[exp.Expr]]] = {exp.EQ: exp.Any, exp.NEQ: exp.All}
"""``= ANY`` is IN, and ``<> ALL`` is NOT IN."""


def restrict(queries: Queries, owner: str, scope: Scope, conditions: Sequence[exp.Expr], names: Names) -> Scope:
    """The rows for which all conditions of a WHERE hold.

    Raises:
        SqlError: One is not supported.
    """
    called = next((call for one in conditions for call in aggregates(one)), None)
    if called is not None:
        raise refuse(called, "an aggregate stands in WHERE", "conditions on groups stand in HAVING")
    plain = [one for one in conditions if one.find(exp.Query) is None]
    texts = [row_text(one, scope) for one in plain]
    scope = scope.on(queries.to.filter(owner, texts, scope.rows, plain[0] if plain else exp.Null()))
    for condition in conditions:
        if condition.find(exp.Query) is not None:
            one_value = condition.find(exp.Exists) is None and scalars_of(condition) and not _asks_rows(condition)
            if one_value:
                scope = asked(queries, owner, scope, condition, names)
            else:
                scope = _joined(queries, owner, scope, condition, plain, names)
    return scope


def _asks_rows(condition: exp.Expr) -> bool:
    """Whether a query in a condition is asked for all of its rows."""
    return any(found.args.get("query") is not None for found in condition.find_all(exp.In))


def _joined(
    queries: Queries, owner: str, scope: Scope, condition: exp.Expr, others: Sequence[exp.Expr], names: Names
) -> Scope:
    """The rows for which a condition with a query that is asked for all of its rows holds, besides ``others``."""
    negated, values, query = _parts(condition)
    if is_one_row(query):
        return asked(queries, owner, scope, of_one_row(query, values, negated=negated), names)
    how = "anti" if negated else "semi"
    inner, keys = _inner(scope, query, values)
    table = _table(queries, inner, names)
    if negated and values and table is None:
        if not _are_known(values, query, others, scope):
            scope = _without_nulls(queries, owner, scope, (values, query), names)
    elif negated and values:
        present = [f"{row_text(value, scope)} IS NOT NULL" for value in values]
        scope = scope.on(queries.to.filter(owner, present, scope.rows, condition))
    if table is not None:
        on = [*_plain_keys(inner, values, condition), *keys]
        return _semi(queries, owner, scope, condition, how, on, table=table)
    inner = inner.copy()
    for number, item in enumerate(inner.expressions if values else ()):
        item.replace(exp.alias_(body(item).copy(), _VALUE.format(number)))
    taken = _taken(keys, scope)
    aliases = [exp.alias_(column.copy(), name) for name, column in taken.items()]
    inner.set(
        "expressions",
        [*inner.expressions, *aliases] if values else aliases or [exp.alias_(exp.Literal.number(1), "_one")],
    )
    on = [_equal(value, _VALUE.format(number)) for number, value in enumerate(values)]
    on += [_outside(key, taken) for key in keys]
    rows = queries.relation(inner, f"{owner}-in", names, inner=True)
    uses = _uses(scope, rows.columns)
    join = Join(condition, _ALIAS, exp.Table(this=exp.to_identifier(_ALIAS)), how, on)
    return join_rows(queries.to, owner, scope, join, rows, (None, None), uses)


def _parts(condition: exp.Expr) -> tuple[bool, list[exp.Expr], exp.Select]:
    """Whether a condition is negated, what IN looks for (of EXISTS nothing), and the query."""
    negated, plain = False, condition
    while isinstance(plain, exp.Not | exp.Paren):
        negated ^= isinstance(plain, exp.Not)
        plain = plain.this
    if isinstance(plain, exp.EQ | exp.NEQ) and isinstance(plain.expression, _QUANTIFIED[type(plain)]):
        negated ^= isinstance(plain, exp.NEQ)
        plain = exp.In(this=plain.this, query=plain.expression.this)
    values: list[exp.Expr] = []
    if isinstance(plain, exp.In) and plain.args.get("query") is not None:
        query = plain.args["query"]
        values = list(plain.this.expressions) if isinstance(plain.this, exp.Tuple) else [plain.this]
    elif isinstance(plain, exp.Exists):
        query = plain.this
    else:
        raise refuse(
            condition,
            "a query inside a condition is not supported here",
            "x IN (SELECT ...) and EXISTS (SELECT ...) stand alone or are joined by AND; for ALL write max or min",
        )
    while isinstance(query, exp.Subquery):
        query = query.this
    if not isinstance(query, exp.Select):
        raise refuse(query, f"{query.key.upper()} is not supported inside a condition", "make a view of it")
    return negated, values, query


def _are_known(values: Sequence[exp.Expr], query: exp.Select, others: Sequence[exp.Expr], scope: Scope) -> bool:
    """Whether the conditions say that no value is null, and none in the query is."""
    outside = {row_text(one, scope) for one in _present(others)}
    inside = _present(conjuncts(query.args.get("where")))
    return all(isinstance(value, exp.Literal) or row_text(value, scope) in outside for value in values) and all(
        isinstance(body(item), exp.Literal) or body(item) in inside for item in query.expressions
    )


def _present(conditions: Sequence[exp.Expr]) -> list[exp.Expr]:
    """What conditions say is not null."""
    tests = [one.this for one in conditions if isinstance(one, exp.Not)]
    return [one.this for one in tests if isinstance(one, exp.Is) and isinstance(one.expression, exp.Null)]


def _without_nulls(
    queries: Queries, owner: str, scope: Scope, compared: tuple[Sequence[exp.Expr], exp.Select], names: Names
) -> Scope:
    """The rows of which NOT IN is not null: there is nothing in the query, or neither the value nor one in it is null.

    Args:
        queries: For the query.
        owner: What ids of steps begin with.
        scope: The rows.
        compared: The value, and the query.
        names: What FROM may name.

    Raises:
        SqlError: There are several values: a pair with a null may differ from another one for all that.
    """
    values, query = compared
    if len(values) > 1:
        raise refuse(
            values[0],
            "NOT IN compares pairs, of which one may hold a null",
            "add x IS NOT NULL for each value to WHERE, and for each column to that of the query; or write NOT EXISTS",
        )
    value, item, made = values[0], body(query.expressions[0]), query.copy()
    grouped = any(query.args.get(key) for key in ("group", "having", "distinct", "qualify"))
    if grouped:
        made.expressions[0].replace(exp.alias_(item.copy(), _NULL))
        item = exp.column(_NULL)
        made = exp.Select(expressions=[], from_=exp.From(this=exp.alias_(exp.Subquery(this=made), _ALIAS, table=True)))
    # 0: there is nothing, 1: no nulls, 2: nulls, too. So it hardly ever changes, as numbers of rows do.
    most = exp.Max(this=_either(item, 2, 1))
    made.set("expressions", [exp.Coalesce(this=most, expressions=[exp.Literal.number(0)])])
    return asked(queries, owner, scope, exp.LTE(this=exp.Subquery(this=made), expression=_either(value, 0, 1)), names)


def _either(value: exp.Expr, null: int, known: int) -> exp.Expr:
    is_null = exp.Is(this=value.copy(), expression=exp.Null())
    return exp.Case(ifs=[exp.If(this=is_null, true=exp.Literal.number(null))], default=exp.Literal.number(known))


def _inner(scope: Scope, query: exp.Select, values: Sequence[exp.Expr]) -> tuple[exp.Select, list[exp.Expr]]:
    """The query without the conditions that name columns of the outer one; and these."""
    if values and len(query.expressions) != len(values):
        raise refuse(query, f"IN compares {len(values)} values with {len(query.expressions)} columns", "give as many")
    made = query.copy()
    clause = made.args.get("from_")
    members = [clause.this] if clause else []
    members += [join.this for join in made.args.get("joins") or ()]
    own = {member.alias_or_name for member in members}
    conditions = conjuncts(made.args.get("where"))
    outer = [one for one in conditions if _is_outer(one, own, scope)]
    if outer and (made.args.get("group") or made.args.get("having") or made.args.get("distinct")):
        raise refuse(query, "a grouped query inside a condition cannot name columns from outside", "join it")
    refuse_outside(made, scope.sides.keys() - own)
    rest = [one for one in conditions if not any(one is other for other in outer)]
    made.set("where", exp.Where(this=exp.and_(*rest, copy=False)) if rest else None)
    return made, outer


def _is_outer(condition: exp.Expr, own: set[str], scope: Scope) -> bool:
    parts = [column.parts for column in condition.find_all(exp.Column)]
    return any(len(names) > 1 and names[0].name not in own and names[0].name in scope.sides for names in parts)


def _taken(keys: Sequence[exp.Expr], scope: Scope) -> dict[str, exp.Column]:
    """Columns of the inner query that correlated conditions name."""
    found: dict[str, exp.Column] = {}
    for key in keys:
        for column in key.find_all(exp.Column):
            if not (column.table and column.table in scope.sides):
                found.setdefault(f"_key_{'_'.join(part.name for part in column.parts)}", column)
    return found


def _outside(key: exp.Expr, taken: dict[str, exp.Column]) -> exp.Expr:
    names = {column.sql(): name for name, column in taken.items()}

    def change(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Column) and node.sql() in names:
            return exp.column(exp.to_identifier(names[node.sql()], quoted=True), table=_ALIAS)
        return node

    return key.copy().transform(change)


def _equal(value: exp.Expr, name: str) -> exp.Expr:
    return exp.EQ(this=value.copy(), expression=exp.column(name, table=_ALIAS))


def _table(queries: Queries, inner: exp.Select, names: Names) -> exp.Table | None:
    """The static table that a query reads, if it reads one."""
    clause = inner.args.get("from_")
    member = clause.this if clause else None
    if isinstance(member, exp.Table) and member.name in queries.to.tables and member.name not in names:
        return member
    return None


def _plain_keys(inner: exp.Select, values: Sequence[exp.Expr], condition: exp.Expr) -> list[exp.Expr]:
    if any(inner.args.get(key) for key in ("where", "group", "having", "joins", "distinct")):
        raise refuse(condition, "of a static table only columns can be looked for", "filter in a query around the join")
    return [
        exp.EQ(this=value.copy(), expression=body(item).copy())
        for value, item in zip(values, inner.expressions, strict=False)
    ]


def _semi(
    queries: Queries,
    owner: str,
    scope: Scope,
    condition: exp.Expr,
    how: str,
    on: Sequence[exp.Expr],
    table: exp.Table,
) -> Scope:
    alias = table.alias_or_name

    def mine(node: exp.Expr) -> exp.Expr:
        plain = isinstance(node, exp.Column) and not node.table
        return exp.column(node.this.copy(), table=alias) if isinstance(node, exp.Column) and plain else node

    bound = [
        exp.EQ(this=one.this, expression=one.expression.transform(mine)) if isinstance(one, exp.EQ) else one
        for one in on
    ]
    join = Join(condition, alias, table, how, bound)
    return join_table(queries.to, owner, scope, join, table.name, _uses(scope, None, alias))


def _uses(scope: Scope, columns: tuple[str, ...] | None, alias: str = _ALIAS) -> Uses:
    names = Scope(scope.rows, {**scope.sides, alias: Side(columns)}, tables=scope.tables | {alias})
    # All of the rows so far is kept: what the rest of the query names is not looked for here.
    return Uses(names, {alias: list(columns or ())}, frozenset(), frozenset(scope.sides))
