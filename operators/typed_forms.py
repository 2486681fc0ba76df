"""Expressions in forms that depend on the types of the columns they read.

* Texts are not cast to dates and times, which Polars 2 refuses once rows come, but read (:mod:`operators.text_times`).
* Decimals divided by zero are null, as whole numbers are with ``%``; floats are infinite or NaN. Polars raises an
  error, and a divisor may be zero for a moment only, in a changelog, where batches decide whether anybody sees it.
* Floats divided by what holds one value throughout a batch (a column that was set to a constant, a CASE all of whose
  rows go one way) are divided by IEEE 754, as by a constant (:mod:`operators.row_forms`), and not multiplied by the
  reciprocal: the divisor is multiplied by a one that every row of the dividend gives, and is no scalar then.
* Floats to a power that is read of rows: for exponents of one value, in a frame of one row, too, Polars multiplies
  (``x * x * x``) or takes the root where otherwise it calls ``pow``, which may differ in the last digit. Here every
  row with such an exponent is multiplied.
"""

from __future__ import annotations

import json
from typing import Any, Final

import polars as pl

from operators.expression_trees import DIVISIONS, Tree, columns_in, expr_of, rebuilt, tree_of
from operators.text_times import TIMES, read

_ROOT: Final = 0.5
_MULTIPLIED: Final = range(2, 10)
"""The exponents for which Polars multiplies; tests/unit/test_operators_row_forms.py holds that there are no others."""

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
    return _is_cast(tree) or bool(_division(tree) or _power(tree)) or any(map(_depends, tree.values()))


def _typed(tree: Tree, rows: pl.LazyFrame) -> Tree:
    """One node, whose parts have their forms already."""
    if _is_cast(tree) and isinstance(_type(tree["Cast"]["expr"], rows), pl.String):
        body = tree["Cast"]
        return tree_of(read(expr_of(body["expr"]), _type(tree, rows), strict=body["options"] == "Strict"))
    if (sides := _division(tree)) is not None:
        return _replaced(tree, _divisor(*sides, _type(tree, rows)))
    if (power := _power(tree)) is not None and (dtype := _type(tree, rows)).is_float():
        return tree_of(_raised(*(expr_of(part).cast(dtype) for part in power)))
    return tree


def _divisor(left: Tree, right: Tree, dtype: pl.DataType) -> Tree:
    """What a quotient of this type is divided by."""
    divisor = expr_of(right)
    if isinstance(dtype, pl.Decimal):
        return tree_of(pl.when(divisor != 0).then(divisor))
    columns = [*map(expr_of, {json.dumps(column): column for column in columns_in(left)}.values())]
    if not dtype.is_float() or not columns:
        return right
    one = pl.any_horizontal(column.is_null() for column in columns).cast(dtype) * 0 + 1
    return tree_of(divisor.cast(dtype) * one)


def _raised(base: pl.Expr, exponent: pl.Expr) -> pl.Expr:
    power = base
    chain: Any = pl.when(exponent == _ROOT).then(base.sqrt())
    for number in _MULTIPLIED:
        power = power * base
        chain = chain.when(exponent == number).then(power)
    found: pl.Expr = chain.otherwise(base.pow(exponent))
    return found


def _type(tree: Tree, rows: pl.LazyFrame) -> pl.DataType:
    return rows.select(expr_of(tree).alias("x")).collect_schema()["x"]


def _is_cast(tree: Tree) -> bool:
    """Whether something that is read of rows is cast to a date or time."""
    match tree:
        case {"Cast": {"expr": inner, "dtype": {"Literal": kind}}}:
            return (kind if isinstance(kind, str) else next(iter(kind), "")) in TIMES and any(columns_in(inner))
    return False


def _division(tree: Tree) -> tuple[Tree, Tree] | None:
    """The sides of a division whose divisor is read of rows, or is zero."""
    match tree:
        case {"BinaryExpr": {"op": op, "left": left, "right": right}} if op in DIVISIONS:
            pass
        case {"Function": {"input": [left, right], "function": {"Sql": {"Binary": op}}}} if op in _SQL_DIVISIONS:
            pass
        case _:
            return None
    return (left, right) if any(columns_in(right)) or _is_zero(right) else None


def _is_zero(constant: Tree) -> bool:
    try:
        return bool(pl.select(expr_of(constant) == 0).item())
    except pl.exceptions.PolarsError:  # it is no number
        return False


def _power(tree: Tree) -> tuple[Tree, Tree] | None:
    """Base and exponent, where the exponent is read of rows."""
    match tree:
        case {"Function": {"input": [base, exponent], "function": {"Pow": "Generic"}}} if any(columns_in(exponent)):
            return base, exponent
    return None


def _replaced(tree: Tree, divisor: Tree) -> Tree:
    """A division by another divisor."""
    if "BinaryExpr" in tree:
        return {"BinaryExpr": {**tree["BinaryExpr"], "right": divisor}}
    body = tree["Function"]
    return {"Function": {**body, "input": [body["input"][0], divisor]}}
