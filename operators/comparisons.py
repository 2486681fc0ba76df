"""Comparisons with their columns on the left.

Polars 2.1 gives one value, and not one for each row, where a constant on the left is compared with a column that holds
one value throughout (in memory that is a scalar): ``select`` then loses rows, or fails. Turned around, it gives all. As
:mod:`operators.rowwise`, this reads the serialised tree of Polars expressions; tests/unit/test_operators_comparisons.py
holds it.
"""

from __future__ import annotations

import io
import json
from typing import Any, Final

import polars as pl

_TURNED: Final = {
    "Eq": "Eq",
    "NotEq": "NotEq",
    "EqValidity": "EqValidity",
    "NotEqValidity": "NotEqValidity",
    "Lt": "Gt",
    "LtEq": "GtEq",
    "Gt": "Lt",
    "GtEq": "LtEq",
}
_COLUMNS: Final = frozenset({"Column", "Selector"})


def columns_first(expr: pl.Expr) -> pl.Expr:
    """The same expression, in which no constant is compared with columns to its right.

    Args:
        expr: An expression that can be serialised: without Python functions.
    """
    tree = json.loads(expr.meta.serialize(format="json"))
    turned = _turned(tree)
    return expr if turned == tree else pl.Expr.deserialize(io.StringIO(json.dumps(turned)), format="json")


def _turned(tree: Any) -> Any:
    if isinstance(tree, list):
        return [_turned(part) for part in tree]
    if not isinstance(tree, dict) or "Literal" in tree:
        return tree
    made = {key: _turned(value) for key, value in tree.items()}
    body = made.get("BinaryExpr")
    if body and body["op"] in _TURNED and not _has_columns(body["left"]) and _has_columns(body["right"]):
        return {"BinaryExpr": {"left": body["right"], "op": _TURNED[body["op"]], "right": body["left"]}}
    return made


def _has_columns(tree: Any) -> bool:
    if isinstance(tree, list):
        return any(map(_has_columns, tree))
    if not isinstance(tree, dict) or "Literal" in tree:
        return False
    return any(key in _COLUMNS or _has_columns(value) for key, value in tree.items())
