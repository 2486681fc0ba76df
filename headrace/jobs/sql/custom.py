"""Custom operators in FROM: ``my_op(TABLE rows PARTITION BY k ORDER BY ts, argument => 5)`` (a step ``custom``).

An operator is named as it is registered; a module's class cannot be named in SQL.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from sqlglot import exp

from headrace.jobs.names import is_node_name
from headrace.jobs.sql.dialect import ORDER, PARTITION
from headrace.jobs.sql.errors import refuse
from headrace.jobs.sql.expressions import text
from headrace.jobs.sql.intervals import duration
from headrace.jobs.sql.lowering import Lowering
from headrace.jobs.sql.relations import Relation, Scope, Side
from headrace.jobs.sql.windows import table_call

_EXAMPLE: Final = "FROM my_op(TABLE rows PARTITION BY k ORDER BY ts, argument => 5)"
_OF_STEP: Final = ("allowed_lateness", "event_time")
"""Named arguments that are the step's, not the operator's."""


@dataclass(frozen=True, slots=True)
class CustomCall:
    """A custom operator in FROM.

    Attributes:
        name: What it is registered as.
        rows: Its first argument: a name, or a query in parentheses.
        arguments: The others, by name.
        call: The call, for messages.
    """

    name: str
    rows: exp.Expr
    arguments: dict[str, exp.Expr]
    call: exp.Expr


def custom_call(node: exp.Expr) -> CustomCall | None:
    """The custom operator that a member of FROM is; None for something else.

    Raises:
        SqlError: It is one, with arguments that are not named.
    """
    call = table_call(node)
    if not isinstance(call, exp.Anonymous) or not call.expressions:
        return None
    rows, *others = call.expressions
    if not isinstance(rows, exp.Table | exp.Subquery) or not is_node_name(call.name):
        return None
    given: dict[str, exp.Expr] = {}
    for one in others:
        if not isinstance(one, exp.Kwarg):
            raise refuse(one, f"{call.name}: an argument is not named", f"write {_EXAMPLE}")
        if one.this.name in given:
            raise refuse(one, f"{call.name}: the argument {one.this.name!r} is given twice")
        given[str(one.this.name)] = one.expression
    return CustomCall(call.name, rows, given, call)


def custom_rows(to: Lowering, owner: str, rows: Relation, call: CustomCall) -> Relation:
    """The step of a custom operator.

    Raises:
        SqlError: An argument is no literal, or a column is not there.
    """
    scope = Scope(rows, {call.rows.alias_or_name: Side(rows.columns)})
    body: dict[str, Any] = {"operator": call.name}
    by = [_column(part, scope) for part in call.rows.meta.get(PARTITION) or ()]
    order = call.rows.meta.get(ORDER) or ()
    if by:
        body["by"] = by
    if order:
        column = _column(order[0].this, scope)
        if len(order) > 1 or order[0].args.get("desc") or rows.clocks.get(column) != 0:
            cure = f"write ORDER BY {rows.time}" if rows.time else "give the source an event_time"
            raise refuse(call.call, f"{call.name} is ordered by event time alone", cure)
        body["order_by"] = rows.time
    for name, value in call.arguments.items():
        if name in _OF_STEP:
            body[name] = _value(value, call)
    arguments = {name: _value(value, call) for name, value in call.arguments.items() if name not in _OF_STEP}
    if arguments:
        body["args"] = arguments
    node = to.steps.add(f"{owner}-{call.name}", {"custom": body, "from": rows.node}, call.call)
    given = body.get("event_time")
    return Relation(node, str(given), clocks={str(given): 0}) if given else Relation(node)


def _column(node: exp.Expr, scope: Scope) -> str:
    bound = scope.bound(node) if isinstance(node, exp.Column) else None
    if not isinstance(bound, exp.Column):
        raise refuse(node, f"{text(node)} is no column", "compute it in a query inside")
    return bound.name


def _value(node: exp.Expr, call: CustomCall) -> Any:
    match node:
        case exp.Literal():
            found: Any = str(node.this) if node.is_string else int(node.this) if node.is_int else float(node.this)
        case exp.Neg():
            found = -_value(node.this, call)
        case exp.Boolean():
            found = bool(node.this)
        case exp.Null():
            found = None
        case exp.Interval():
            found = duration(node)
        case exp.Array():
            found = [_value(part, call) for part in node.expressions]
        case exp.Anonymous() if node.name.upper() == "DESCRIPTOR" and len(node.expressions) == 1:
            found = str(node.expressions[0].name)
        case _:
            raise refuse(
                node,
                f"{call.name}: {node.sql()} is no literal",
                "write a text, a number, TRUE, an INTERVAL, ARRAY[...]",
            )
    return found
