"""Queries that give one value, inside expressions: an aggregate without GROUP BY, joined to the rows that ask for it.

``x > (SELECT AVG(y) FROM t)`` is a join with the one row of a running aggregate. Where the query names columns from
outside (``b.k = a.k``), it is grouped by what they are equal to, and joined by them: rows without a group get what an
aggregate of no rows is, 0 for counts and else null (decorrelation; Neumann and Kemper, "Unnesting arbitrary queries",
2015, for this simple kind). Values change while rows come, so what is asked of them is a changelog.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from sqlglot import exp

from headrace.jobs.sql.errors import refuse
from headrace.jobs.sql.expressions import aggregates, body, conjuncts, is_star, name_of, row_text
from headrace.jobs.sql.joins import Join, join_rows
from headrace.jobs.sql.lowering import Names
from headrace.jobs.sql.relations import Relation, Scope, Side
from headrace.jobs.sql.uses import Uses

if TYPE_CHECKING:
    from headrace.jobs.sql.queries import Queries

_VALUE: Final = "_value_{}"
_KEY: Final = "_key_{}"
_ALIAS: Final = "_query_{}"
_STRICT: Final = (
    *(exp.Paren, exp.Not, exp.Neg, exp.Cast, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod),
    *(exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE),
)
"""What is null as soon as an operand is: a condition that is null leaves the row out."""
_NOT_TRUE: Final = (*_STRICT, exp.Between)
"""What is not true as soon as an operand is null: 6 BETWEEN NULL AND 5 is false, and its NOT is true."""
_COUNTS: Final = (exp.Count, exp.CountIf, exp.ApproxDistinct)


@dataclass(frozen=True, slots=True)
class _Value:
    """A query that gives one value, taken apart.

    Attributes:
        query: Aggregates, and the keys by which it is grouped, under names of their own.
        keys: Expressions over the outer rows that are equal to the keys.
        result: The value, over columns of the alias.
        strict: It is null where there is no row.
    """

    query: exp.Select
    keys: Sequence[exp.Expr]
    result: exp.Expr
    strict: bool


def scalars_of(node: exp.Expr) -> list[exp.Subquery]:
    """The queries in an expression that give one value."""
    quantified = (exp.All, exp.Any, exp.Exists)
    return [
        found
        for found in node.find_all(exp.Subquery)
        if isinstance(found.this, exp.Query)
        and not isinstance(found.parent, quantified)
        and found.arg_key != "query"
        and found.find_ancestor(exp.Query) in (None, node.find_ancestor(exp.Query), node)
    ]


def is_one_row(query: exp.Expr) -> bool:
    """Whether a query aggregates all of its rows, and so gives one row of none, too."""
    if not isinstance(query, exp.Select) or query.args.get("group") or query.args.get("qualify"):
        return False
    return query.args.get("having") is not None or any(True for item in query.expressions for _ in aggregates(item))


def of_one_row(query: exp.Select, values: Sequence[exp.Expr], *, negated: bool) -> exp.Expr:
    """The condition that IN or EXISTS is over a query that gives one row, by queries that give one value.

    Args:
        query: The query.
        values: What IN looks for; none: EXISTS.
        negated: It is NOT IN, or NOT EXISTS.

    Raises:
        SqlError: EXISTS is asked of a row that is always there, or IN of another number of values.
    """
    having = query.args.get("having")
    if not values and having is None:
        raise refuse(
            query,
            "an aggregate without GROUP BY gives a row of no rows, too: EXISTS is always true of it",
            "write EXISTS (SELECT 1 FROM …), or HAVING",
        )
    if values and len(values) != len(query.expressions):
        raise refuse(query, f"IN compares {len(values)} values with {len(query.expressions)} columns", "give as many")

    def only(item: exp.Expr) -> exp.Subquery:
        made = query.copy()
        made.set("having", None)
        made.set("expressions", [item.copy()])
        return exp.Subquery(this=made)

    there = [] if having is None else [exp.Is(this=only(having.this), expression=exp.true())]
    pairs = zip(values, query.expressions if values else (), strict=True)
    equal = [exp.EQ(this=value.copy(), expression=only(item)) for value, item in pairs]
    condition = exp.and_(*there, *equal, copy=False)
    return exp.Not(this=exp.Paren(this=condition)) if negated else condition


def asked(queries: Queries, owner: str, scope: Scope, condition: exp.Expr, names: Names) -> Scope:
    """The rows for which a condition of WHERE with such queries holds.

    Raises:
        SqlError: A query is not supported.
    """
    strict = all(_is_strict(query, condition, _NOT_TRUE) for query in scalars_of(condition))
    seeing, made = _joined(queries, owner, scope, condition, names, strict=strict)
    rows = queries.to.filter(owner, [row_text(made, seeing)], seeing.rows, condition)
    return replace(seeing, rows=rows, sides=scope.sides)


def computed(
    queries: Queries, owner: str, scope: Scope, query: exp.Select, names: Names
) -> tuple[Scope, Mapping[str, str]]:
    """The rows with what queries in a select list give, and the texts of its items by name.

    Raises:
        SqlError: A query is not supported.
    """
    texts: dict[str, str] = {}
    for item in query.expressions:
        if is_star(item) or not scalars_of(item):
            continue
        seeing, made = _joined(queries, owner, scope, body(item), names, strict=False)
        texts[name_of(item)] = row_text(made, seeing)
        scope = replace(seeing, sides=scope.sides)
    return scope, texts


def _joined(
    queries: Queries, owner: str, scope: Scope, node: exp.Expr, names: Names, *, strict: bool
) -> tuple[Scope, exp.Expr]:
    """The rows with what each query gives, and the expression with that in the place of the queries."""
    found = scalars_of(node)
    results: dict[int, exp.Expr] = {}
    seeing = scope
    for query in found:
        number = len(seeing.sides) - len(scope.sides) + len(scope.extra) + 1
        alias = _ALIAS.format(number)
        value = _value(query, scope, alias)
        rows = queries.relation(value.query, f"{owner}-value", names, inner=True)
        how = "inner" if strict and value.strict else "left"
        on = [
            exp.EQ(this=key.copy(), expression=exp.column(_KEY.format(n), table=alias))
            for n, key in enumerate(value.keys, start=1)
        ]
        join = Join(query if on else exp.Join(this=query.copy(), kind="CROSS"), alias, exp.Table(this=alias), how, on)
        seeing = join_rows(queries.to, owner, seeing, join, rows, (None, None), _uses(seeing, rows, alias))
        results[id(query)] = value.result
    return seeing, _replaced(node, results)


def _value(query: exp.Subquery, scope: Scope, alias: str) -> _Value:
    select = query.this
    while isinstance(select, exp.Subquery):
        select = select.this
    if not isinstance(select, exp.Select) or len(select.expressions) != 1 or is_star(select.expressions[0]):
        raise refuse(query, "a query inside an expression gives one value", "write SELECT with one aggregate")
    item = body(select.expressions[0])
    calls = list(aggregates(item))
    grouped = any(select.args.get(key) for key in ("group", "having", "distinct", "qualify"))
    if not calls or grouped:
        raise refuse(
            query,
            "a query inside an expression gives one value for sure only as an aggregate without GROUP BY",
            "aggregate, e.g. SELECT max(x); or join the query",
        )
    made, keys = _correlated(select, scope)
    items = [exp.alias_(call.copy(), _VALUE.format(n)) for n, call in enumerate(calls, start=1)]
    inside = [exp.alias_(inner.copy(), _KEY.format(n)) for n, (inner, _) in enumerate(keys, start=1)]
    made.set("expressions", [*items, *inside])
    if keys:
        made.set("group", exp.Group(expressions=[inner.copy() for inner, _ in keys]))
    columns = {id(call): _result(call, exp.column(_VALUE.format(n), table=alias)) for n, call in enumerate(calls, 1)}
    result = exp.Paren(this=_replaced(item, columns))
    strict = not any(_is_count(call) for call in calls) and all(_is_strict(call, item) for call in calls)
    return _Value(made, [outer for _, outer in keys], result, strict)


def _correlated(select: exp.Select, scope: Scope) -> tuple[exp.Select, list[tuple[exp.Expr, exp.Expr]]]:
    """The query without the conditions that name columns of the outer one; these as pairs, the inner part first."""
    made = select.copy()
    clause = made.args.get("from_")
    members = [clause.this] if clause else []
    members += [join.this for join in made.args.get("joins") or ()]
    outside = set(scope.sides) - {member.alias_or_name for member in members}

    def is_outer(node: exp.Expr) -> bool:
        return any(len(one.parts) > 1 and one.parts[0].name in outside for one in node.find_all(exp.Column))

    refuse_outside(made, outside)
    rest, keys = [], []
    for condition in conjuncts(made.args.get("where")):
        if not is_outer(condition):
            rest.append(condition)
            continue
        pair = (condition.this, condition.expression) if isinstance(condition, exp.EQ) else ()
        inner = [part for part in pair if not is_outer(part)]
        outer = [part for part in pair if is_outer(part) and not _is_mixed(part, outside)]
        if len(inner) != 1 or len(outer) != 1 or condition.find(exp.Query) or not inner[0].find(exp.Column):
            raise refuse(
                condition,
                "a query that gives one value names columns from outside in equalities alone",
                "write WHERE inner.k = outer.k AND …",
            )
        keys.append((inner[0], outer[0]))
    made.set("where", exp.Where(this=exp.and_(*rest, copy=False)) if rest else None)
    return made, keys


def refuse_outside(query: exp.Select, outside: Collection[str]) -> None:
    """Refuse columns from outside where nothing but WHERE may name them.

    Args:
        query: A query inside a condition.
        outside: What the outer query calls the members of its FROM.

    Raises:
        SqlError: It names one elsewhere.
    """
    parts = [*query.expressions, *(query.args.get("joins") or ()), query.args.get("group"), query.args.get("having")]
    for part in parts:
        for column in part.find_all(exp.Column) if part is not None else ():
            if len(column.parts) > 1 and column.parts[0].name in outside:
                raise refuse(
                    column,
                    f"{column.sql()} is a column from outside, which a query inside names in WHERE alone",
                    "write WHERE inner.k = outer.k AND …, and compute with it outside of the query",
                )


def _is_mixed(node: exp.Expr, outside: set[str]) -> bool:
    return not all(one.table and one.parts[0].name in outside for one in node.find_all(exp.Column))


def _is_count(call: exp.Expr) -> bool:
    return isinstance(call.this if isinstance(call, exp.Filter) else call, _COUNTS)


def _result(call: exp.Expr, column: exp.Expr) -> exp.Expr:
    """What an aggregate gives of a group, or of no rows."""
    return exp.Coalesce(this=column, expressions=[exp.Literal.number(0)]) if _is_count(call) else column


def _is_strict(node: exp.Expr, root: exp.Expr, outermost: tuple[type[exp.Expr], ...] = _STRICT) -> bool:
    """Whether an expression is null when a part of it is; ``outermost`` is what the whole of it may be."""
    while node is not root:
        above = node.parent
        if above is None or not isinstance(above, outermost if above is root else _STRICT):
            return False
        node = above
    return True


def _replaced(node: exp.Expr, results: Mapping[int, exp.Expr]) -> exp.Expr:
    """A copy of an expression with others in the place of some of its parts."""
    if id(node) in results:
        return results[id(node)].copy()
    made = node.copy()
    for key, value in node.args.items():
        if isinstance(value, exp.Expr):
            made.set(key, _replaced(value, results))
        elif isinstance(value, list):
            made.set(key, [_replaced(one, results) if isinstance(one, exp.Expr) else one for one in value])
    return made


def _uses(scope: Scope, rows: Relation, alias: str) -> Uses:
    columns = rows.columns or ()
    names = Scope(scope.rows, {**scope.sides, alias: Side(rows.columns)}, tables=scope.tables)
    return Uses(names, {alias: list(columns)}, frozenset(), frozenset(scope.sides))
