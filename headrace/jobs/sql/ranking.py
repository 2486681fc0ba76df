"""``ROW_NUMBER() OVER (PARTITION BY … ORDER BY …)`` in a query whose reader keeps the first rows: what it asks for.

Written as elsewhere for streams (Flink: "Deduplication", "Top-N")::

    SELECT a, b FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY at DESC) AS n FROM rows) WHERE n = 1
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from headrace.jobs.sql.errors import refuse

_EXAMPLE: Final = "SELECT … FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY at) AS n FROM rows) WHERE n = 1"


@dataclass(frozen=True, slots=True)
class Ranking:
    """A numbered query and what is kept of it.

    Attributes:
        rows: The query without the number.
        by: The columns of PARTITION BY.
        order: The columns of ORDER BY, and whether the largest comes first.
        number: The name of the number where the reader asks for it, else empty.
        count: How many rows of each key are kept.
        where: What else the reader's WHERE asks for, or None.
        over: The OVER, for messages.
    """

    rows: exp.Select
    by: tuple[str, ...]
    order: tuple[tuple[str, bool], ...]
    number: str
    count: int
    where: exp.Expr | None
    over: exp.Expr


def ranking(query: exp.Select) -> Ranking | None:
    """The ranking that a query reads from, None when it reads something else.

    Raises:
        SqlError: It reads one that cannot be understood, or does not say how many rows it keeps.
    """
    clause = query.args.get("from_")
    inner = clause.this.this if clause is not None and isinstance(clause.this, exp.Subquery) else None
    if not isinstance(inner, exp.Select):
        return None
    numbered = [item for item in inner.expressions if _is_row_number(item)]
    if not numbered:
        return None
    over = numbered[0].this
    ordered = over.args["order"].expressions if over.args.get("order") else []
    by = over.args.get("partition_by") or []
    if len(numbered) > 1 or not ordered or not by or over.args.get("spec"):
        raise refuse(over, "ROW_NUMBER needs PARTITION BY and ORDER BY, once in a query", _EXAMPLE)
    if not all(isinstance(column, exp.Column) for column in [*by, *(item.this for item in ordered)]):
        raise refuse(over, "ROW_NUMBER takes plain columns", "compute them in a query inside")
    rows = inner.copy()
    rows.set("expressions", [item for item in rows.expressions if not _is_row_number(item)])
    name = numbered[0].alias
    count, where = _kept(query, name)
    asked = any(item.is_star or any(column.name == name for column in _columns(item)) for item in query.expressions)
    order = tuple((item.this.name, bool(item.args.get("desc"))) for item in ordered)
    return Ranking(rows, tuple(column.name for column in by), order, name if asked else "", count, where, over)


def _columns(item: exp.Expr) -> list[exp.Column]:
    return list(item.find_all(exp.Column))


def _is_row_number(item: exp.Expr) -> bool:
    return (
        isinstance(item, exp.Alias) and isinstance(item.this, exp.Window) and isinstance(item.this.this, exp.RowNumber)
    )


def _kept(query: exp.Select, number: str) -> tuple[int, exp.Expr | None]:
    """How many rows of each key the WHERE keeps, and the rest of it."""
    where = query.args.get("where")
    parts = list(where.this.flatten()) if where and isinstance(where.this, exp.And) else [where.this] if where else []
    limits = [part for part in parts if isinstance(part, exp.EQ | exp.LTE) and part.this.name == number]
    rest = [part for part in parts if part not in limits]
    if len(limits) != 1 or not limits[0].expression.is_int:
        raise refuse(query, f"the query around ROW_NUMBER must say which rows it keeps: WHERE {number} = 1", _EXAMPLE)
    count = int(limits[0].expression.name)
    if count < 1 or (isinstance(limits[0], exp.EQ) and count != 1):
        raise refuse(query, f"only the first rows of each key can be kept: WHERE {number} <= n", _EXAMPLE)
    return count, exp.and_(*rest) if rest else None
