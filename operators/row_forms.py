"""Expressions in forms that have a value for every row, and the same one however rows are cut into batches.

Polars 2.1 computes with columns that hold one value throughout (in memory these are scalars) by ways of their own:

* A constant on the left compared with such a column gives one value, and not one for each row: ``select`` then loses
  rows, or fails. Turned around, the comparison gives all.
* Floats divided by a constant are multiplied by its reciprocal, which may be another number in the last digit
  (``49 / 49`` is below 1), but not in a frame of one row. Such divisors are spread over the rows, and the division is
  that of IEEE 754. (A condition does not spread: where all rows have one answer, the result is a scalar again.)

As :mod:`operators.rowwise`, this reads the serialised tree of Polars expressions, and is held by
tests/unit/test_operators_row_forms.py.
"""

from __future__ import annotations

import json
from typing import Final

import polars as pl

from operators.expression_trees import DIVISIONS, Tree, columns_in, expr_of, rebuilt, tree_of

_TURNED: Final = {
    "Eq": "Eq",
    "NotEq": "NotEq",
    "EqMissing": "EqMissing",
    "EqValidity": "EqValidity",
    "NotEqValidity": "NotEqValidity",
    "Lt": "Gt",
    "LtEq": "GtEq",
    "Gt": "Lt",
    "GtEq": "LtEq",
}
_UNSIGNED: Final = {8: pl.UInt8, 16: pl.UInt16, 32: pl.UInt32, 64: pl.UInt64}
_SIGNED: Final = {8: pl.Int8, 16: pl.Int16, 32: pl.Int32, 64: pl.Int64}


def row_form(expr: pl.Expr) -> pl.Expr:
    """The same row expression in such a form.

    Args:
        expr: An expression that can be serialised: without Python functions.
    """
    tree = tree_of(expr)
    made = rebuilt(tree, _reformed)
    return expr if made == tree else expr_of(made)


def mean(total: pl.Expr, count: pl.Expr) -> pl.Expr:
    """The quotient of a sum of floats and a number of rows, of columns that may hold one value throughout."""
    return total / (count + total.is_null().cast(pl.Int64))


def _reformed(tree: Tree) -> Tree:
    """One node, whose parts have their forms already."""
    match tree:
        case {"BinaryExpr": {"left": left, "op": op, "right": right}}:
            if op in _TURNED and _turns(left, right):
                return {"BinaryExpr": {"left": right, "op": _TURNED[op], "right": left}}
            if op in DIVISIONS:
                return {"BinaryExpr": {"left": left, "op": op, "right": _spread(right, left)}}
        case {"Function": {"input": [left, right], "function": {"Sql": {"Binary": op}}}}:  # of decimals, most of them
            if op in _TURNED and _turns(left, right):
                return {"Function": {"input": [right, left], "function": {"Sql": {"Binary": _TURNED[op]}}}}
            if op == "Div":
                return {"Function": {"input": [left, _spread(right, left)], "function": {"Sql": {"Binary": op}}}}
    return tree


def _turns(left: Tree, right: Tree) -> bool:
    return not any(columns_in(left)) and any(columns_in(right))


def _spread(divisor: Tree, dividend: Tree) -> Tree:
    """A constant as a column that is no scalar where the dividend is none, of its own type."""
    columns = [*map(expr_of, {json.dumps(column): column for column in columns_in(dividend)}.values())]
    if not columns or any(columns_in(divisor)):
        return divisor
    constant = _typed(divisor)
    is_null = columns[0].is_null() if len(columns) == 1 else pl.any_horizontal(column.is_null() for column in columns)
    return tree_of(pl.concat_list(constant, constant).list.get(is_null.cast(pl.Int64)))


def _typed(constant: Tree) -> pl.Expr:
    """A constant of which quotients have the type that they have of a number without one, in all but small columns."""
    match constant:
        case {"Literal": {"Dyn": {"Int": int(number)}}}:
            kinds = _UNSIGNED if number >= 0 else _SIGNED
            bits = number.bit_length() + (number < 0)
            return pl.lit(number, next(dtype for most, dtype in kinds.items() if bits <= most))
    return expr_of(constant)
