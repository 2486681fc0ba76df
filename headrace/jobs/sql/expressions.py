"""Expressions of SQL as texts of row expressions and aggregates, which check them against their allow-lists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from sqlglot import exp

from headrace.jobs.sql.dialect import Streaming
from headrace.jobs.sql.errors import SqlError, place_of, refuse
from headrace.jobs.sql.functions import lowered
from headrace.jobs.sql.relations import Scope
from headrace.kernel.errors import SpecError
from operators.aggregate_text import aggregate
from operators.expressions import row_expression

_HERE: Final = "here"
_AGGREGATES: Final = {"MEAN": "AVG", "EVERY": "BOOL_AND", "LISTAGG": "STRING_AGG", "QUANTILE_CONT": "QUANTILE"}
"""Aggregates that the parser does not know, and what they are called here."""
_NAMES: Final[Mapping[type[exp.Expr], str]] = {
    exp.ApproxDistinct: "APPROX_COUNT_DISTINCT",
    exp.ArrayAgg: "LIST",
    exp.FirstValue: "FIRST",
    exp.GroupConcat: "STRING_AGG",
    exp.LastValue: "LAST",
    exp.LogicalAnd: "BOOL_AND",
    exp.LogicalOr: "BOOL_OR",
    exp.VariancePop: "VAR_POP",
}
_MORE: Final = ("expression", "quantile", "separator")
"""Where the parser puts second arguments."""


def text(node: exp.Expr, scope: Scope | None = None) -> str:
    """The text of an expression; its columns are those of the rows.

    Args:
        node: The expression.
        scope: Which columns there are; None: names are columns of the rows already.

    Raises:
        SqlError: It holds a query, a name that nothing has, or a function that is not supported.
    """
    found = node.find(exp.Query, exp.Subquery)
    if found is not None:
        raise refuse(
            found,
            "a query stands inside an expression",
            "one that gives one value stands in WHERE, HAVING and the select list; IN and EXISTS in WHERE and HAVING, "
            "joined by AND; else join, or compare in a query around it",
        )
    return _bound(node, scope).sql(dialect=Streaming)


def row_text(node: exp.Expr, scope: Scope | None = None) -> str:
    """As :func:`text`, and a row expression for sure.

    Raises:
        SqlError: Also when a part of it is no row expression; points at the smallest part that is none.
    """
    written = text(node, scope)
    error = _fault(written)
    if error is None:
        return written
    for part in reversed(list(node.walk())):
        if isinstance(part, exp.Func | exp.Window) and _fault(text(part, scope)) is not None:
            error = _fault(text(part, scope)) or error
            raise SqlError(_message(error), place_of(part), error.hint, error.code) from error
    raise SqlError(_message(error), place_of(node), error.hint, error.code) from error


def aggregates(node: exp.Expr) -> Iterator[exp.Expr]:
    """The aggregate calls in an expression, outermost first, each with its FILTER; those of OVER are none."""
    if isinstance(node, exp.Query):
        return
    if is_aggregate(node) and not of_window(node):
        yield node
        return
    for child in node.iter_expressions():
        yield from aggregates(child)


def of_window(node: exp.Expr) -> bool:
    """Whether a call is what a window computes, with FILTER or IGNORE NULLS around it or not."""
    above = node.parent
    while isinstance(above, exp.Filter | exp.IgnoreNulls | exp.RespectNulls) and above.this is node:
        node, above = above, above.parent
    return isinstance(above, exp.Window) and above.this is node


def is_aggregate(node: exp.Expr) -> bool:
    """Whether a node is an aggregate call, with its FILTER."""
    if isinstance(node, exp.Anonymous):
        return node.name.upper() in _AGGREGATES
    return isinstance(node, exp.Filter | exp.AggFunc | exp.List)


def aggregate_text(node: exp.Expr, scope: Scope) -> str:
    """An aggregate call as headrace writes it; FILTER becomes a CASE inside it.

    Raises:
        SqlError: It is not supported.
    """
    call, condition = (node.this, row_text(node.expression.this, scope)) if isinstance(node, exp.Filter) else (node, "")
    if isinstance(call, exp.CountIf):
        call, condition = exp.Count(this=exp.Star()), row_text(call.this, scope)
    nested = next((inner for child in call.iter_expressions() for inner in aggregates(child)), None)
    if nested is not None:
        raise refuse(nested, "an aggregate stands inside an aggregate", "aggregate in a query inside, then again")
    given = _given(call, scope, condition)
    written = f"{_NAMES.get(type(call)) or _name(call)}({given})"
    try:
        aggregate(written, _HERE)
    except SpecError as error:
        raise SqlError(_message(error), place_of(node), error.hint or error.detail, error.code) from error
    return written


def _given(call: exp.Expr, scope: Scope, condition: str) -> str:
    first = call.this if call.args.get("this") is not None and not isinstance(call, exp.Anonymous) else None
    if isinstance(first, exp.Star) or (first is None and not call.expressions):
        return f"CASE WHEN {condition} THEN 1 END" if condition else "*"
    distinct = isinstance(first, exp.Distinct)
    more: list[exp.Expr] = []
    if first is not None and isinstance(first, exp.Distinct):
        written = list(first.expressions)
    elif first is None:
        written = list(call.expressions)
    else:
        written, more = (
            [first],
            [call.args[key] for key in _MORE if call.args.get(key) is not None],
        )
    values = [row_text(part, scope) for part in written]
    if first is None:
        values, others = values[:1], values[1:]
    else:
        others = [row_text(part, scope) for part in more]
    if condition:
        values = [f"CASE WHEN {condition} THEN {value} END" for value in values]
    return ("DISTINCT " if distinct else "") + ", ".join([*values, *others])


def _name(call: exp.Expr) -> str:
    if isinstance(call, exp.Anonymous):
        return _AGGREGATES.get(call.name.upper(), call.name.upper())
    return call.sql_name() if isinstance(call, exp.Func) else str(call.key)


def name_of(node: exp.Expr) -> str:
    """The name that a SELECT item gives its column.

    Raises:
        SqlError: It has none.
    """
    if isinstance(node, exp.Alias | exp.Column):
        return node.alias_or_name
    if isinstance(node, exp.Dot):
        return node.name
    raise refuse(node, f"the expression {node.sql(dialect=Streaming)} has no name", "write ... AS name")


def body(node: exp.Expr) -> exp.Expr:
    """A SELECT item without its alias."""
    return node.this if isinstance(node, exp.Alias) else node


def quoted(name: str) -> str:
    """A column's name inside an expression, whatever it is."""
    return exp.column(exp.to_identifier(name, quoted=True)).sql(dialect=Streaming)


def conjuncts(condition: exp.Expr | None) -> list[exp.Expr]:
    """The conditions that AND joins."""
    if condition is None:
        return []
    if isinstance(condition, exp.Paren):
        return conjuncts(condition.this)
    if isinstance(condition, exp.And):
        return [*conjuncts(condition.left), *conjuncts(condition.right)]
    if isinstance(condition, exp.Where | exp.Having | exp.Qualify):
        return conjuncts(condition.this)
    return [condition]


def joined(conditions: list[str]) -> str:
    """Conditions as one, joined by AND."""
    if len(conditions) == 1:
        return conditions[0]
    return " AND ".join(f"({one})" if " OR " in one else one for one in conditions)


def is_star(item: exp.Expr) -> bool:
    """Whether a SELECT item is ``*`` or ``alias.*``."""
    return isinstance(item, exp.Star) or (isinstance(item, exp.Column) and isinstance(item.this, exp.Star))


def _bound(node: exp.Expr, scope: Scope | None) -> exp.Expr:
    def change(part: exp.Expr) -> exp.Expr:
        if isinstance(part, exp.Column):
            return scope.bound(part) if scope is not None and not is_star(part) else part
        return part

    bound = node.copy().transform(change)
    for part in reversed(list(bound.walk())):
        made = lowered(part)
        if made is not part:
            if part is bound:
                bound = made
            else:
                part.replace(made)
    return bound


def _fault(written: str) -> SpecError | None:
    try:
        row_expression(written, _HERE)
    except SpecError as error:
        return error
    return None


def _message(error: SpecError) -> str:
    return error.message.removeprefix(f"{_HERE}: ")
