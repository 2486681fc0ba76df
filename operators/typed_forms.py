"""Expressions in forms that depend on the types of the columns they read.

* Texts are not cast to dates and times, which Polars 2 refuses once rows come, but read (:mod:`operators.text_times`).
* Decimals divided by zero are null, as whole numbers are with ``%``; floats are infinite or NaN. Polars raises an
  error, and a divisor may be zero for a moment only, in a changelog, where batches decide whether anybody sees it.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from operators.expression_trees import Tree, columns_in, expr_of, rebuilt, tree_of
from operators.text_times import TIMES, read

_DIVISIONS: Final = frozenset({"TrueDivide", "FloorDivide", "Modulus"})
_SQL_DIVISIONS: Final = frozenset({"Div", "IntDiv", "Rem"})


def depends_on_types(expr: pl.Expr) -> bool:
    """Whether :func:`typed_form` may change an expression."""
    return _depends(tree_of(expr))


def typed_form(expr: pl.Expr, schema: pl.Schema) -> pl.Expr:
    """The form of an expression over rows of a schema."""
    rows = pl.LazyFrame(schema=schema)
    return expr_of(rebuilt(tree_of(expr), lambda node: _typed(node, rows)))


def _depends(tree: Tree) -> bool:
    if isinstance(tree, list):
        return any(map(_depends, tree))
    if not isinstance(tree, dict) or "Literal" in tree:
        return False
    return _is_cast(tree) or _division(tree) is not None or any(map(_depends, tree.values()))


def _typed(tree: Tree, rows: pl.LazyFrame) -> Tree:
    """One node, whose parts have their forms already."""
    if _is_cast(tree) and isinstance(_type(tree["Cast"]["expr"], rows), pl.String):
        body = tree["Cast"]
        return tree_of(read(expr_of(body["expr"]), _type(tree, rows), strict=body["options"] == "Strict"))
    divisor = _division(tree)
    if divisor is not None and isinstance(_type(tree, rows), pl.Decimal):
        return _replaced(tree, tree_of(pl.when(expr_of(divisor) != 0).then(expr_of(divisor))))
    return tree


def _type(tree: Tree, rows: pl.LazyFrame) -> pl.DataType:
    return rows.select(expr_of(tree).alias("x")).collect_schema()["x"]


def _is_cast(tree: Tree) -> bool:
    """Whether something that is read of rows is cast to a date or time."""
    match tree:
        case {"Cast": {"expr": inner, "dtype": {"Literal": kind}}}:
            return (kind if isinstance(kind, str) else next(iter(kind), "")) in TIMES and any(columns_in(inner))
    return False


def _division(tree: Tree) -> Tree | None:
    """The divisor of a division, where it is read of rows."""
    match tree:
        case {"BinaryExpr": {"op": op, "right": right}} if op in _DIVISIONS:
            return right if any(columns_in(right)) else None
        case {"Function": {"input": [_, right], "function": {"Sql": {"Binary": op}}}} if op in _SQL_DIVISIONS:
            return right if any(columns_in(right)) else None
    return None


def _replaced(tree: Tree, divisor: Tree) -> Tree:
    """A division by another divisor."""
    if "BinaryExpr" in tree:
        return {"BinaryExpr": {**tree["BinaryExpr"], "right": divisor}}
    body = tree["Function"]
    return {"Function": {**body, "input": [body["input"][0], divisor]}}
