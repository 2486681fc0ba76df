"""``CROSS JOIN UNNEST(list) AS t(x)``: a row for each element of a list of the rows so far (a step ``explode``)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from sqlglot import exp

from headrace.jobs.sql.errors import refuse
from headrace.jobs.sql.expressions import row_text
from headrace.jobs.sql.lowering import Lowering
from headrace.jobs.sql.relations import Scope, Side

_ELEMENT: Final = "_unnest_{}"
_KEEPS: Final = {"inner": False, "left": True}


def element_name(node: exp.Unnest) -> str:
    """What queries call the elements.

    Raises:
        SqlError: They have no name, or several.
    """
    alias = node.args.get("alias")
    named = list(alias.columns) if alias is not None else []
    if (not node.alias and not named) or len(named) > 1 or node.args.get("offset") or len(node.expressions) != 1:
        raise refuse(
            node,
            "UNNEST takes one list, whose elements have one name",
            "write CROSS JOIN UNNEST(list) AS t(x); fields of structs are x.field",
        )
    return str(named[0].name) if named else node.alias


def unnest(to: Lowering, owner: str, left: Scope, join: exp.Join, how: str) -> Scope:
    """The rows with the elements of a list; a LEFT JOIN keeps rows whose list is empty or null.

    Args:
        to: Where the steps go.
        owner: What their ids begin with.
        left: The rows.
        join: The join with UNNEST.
        how: Its kind.

    Raises:
        SqlError: It is of another kind, or has a condition.
    """
    node, on = join.this, join.args.get("on")
    if how not in _KEEPS or join.args.get("using") or not (on is None or (isinstance(on, exp.Boolean) and on.this)):
        raise refuse(join, "UNNEST is joined by CROSS JOIN, or LEFT JOIN ... ON TRUE", "put conditions into WHERE")
    column = element_name(node)
    name = _ELEMENT.format(len(left.extra) + 1)
    rows = to.with_columns(owner, {name: row_text(node.expressions[0], left)}, left.rows, node)
    rows = to.step(owner, "explode", {"columns": [name], "keep_empty": _KEEPS[how]}, rows, node)
    sides = {**left.sides, node.alias or column: Side((column,), {column: name})}
    return replace(left, rows=replace(rows, columns=None), sides=sides, extra=(*left.extra, name))
