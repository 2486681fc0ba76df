"""Expressions of SQL as texts of row expressions and aggregates, which check them against their allow-lists."""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from headrace.jobs.sql.dialect import Streaming
from headrace.jobs.sql.errors import refuse


def text(node: exp.Expr) -> str:
    """The text of an expression, names without the table they belong to.

    Raises:
        SqlError: It holds a query.
    """
    if isinstance(node, exp.Query | exp.Subquery) or node.find(exp.Query, exp.Subquery) is not None:
        raise refuse(node, "a query inside an expression is not supported", "join, or make it a view")
    bare = node.copy()
    for column in bare.find_all(exp.Column):
        for part in ("table", "db", "catalog"):
            column.set(part, None)
    return bare.sql(dialect=Streaming)


def aggregates(node: exp.Expr) -> Iterator[exp.Expr]:
    """The aggregate calls in an expression, outermost first, each with its FILTER."""
    if isinstance(node, exp.Filter | exp.AggFunc):
        yield node
        return
    for child in node.iter_expressions():
        yield from aggregates(child)


def aggregate_text(node: exp.Expr) -> str:
    """An aggregate call as headrace writes it; FILTER becomes a CASE inside it."""
    if not isinstance(node, exp.Filter):
        return text(node)
    call, condition = node.this, text(node.expression.this)
    arguments = call.this
    if isinstance(call, exp.Count) and isinstance(arguments, exp.Star):
        return f"COUNT(CASE WHEN {condition} THEN 1 END)"
    if isinstance(arguments, exp.Distinct) or call.expressions:
        raise refuse(node, "FILTER goes with aggregates of one argument", "write a CASE inside the aggregate")
    name = call.sql_name() if isinstance(call, exp.Func) else str(call.key)
    return f"{name}(CASE WHEN {condition} THEN {text(arguments)} END)"


def name_of(node: exp.Expr) -> str:
    """The name that a SELECT item gives its column.

    Raises:
        SqlError: It has none.
    """
    if isinstance(node, exp.Alias | exp.Column):
        return node.alias_or_name
    raise refuse(node, f"the expression {text(node)} has no name", "write ... AS name")


def body(node: exp.Expr) -> exp.Expr:
    """A SELECT item without its alias."""
    return node.this if isinstance(node, exp.Alias) else node


def quoted(name: str) -> str:
    """A column's name inside an expression, whatever it is."""
    return exp.column(exp.to_identifier(name, quoted=True)).sql(dialect=Streaming)
