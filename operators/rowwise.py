"""Does an expression look at one row only? Decided on the serialised tree of a Polars expression.

What is read of the tree is held by the contract test tests/contract/test_rowwise_contract.py. What is not listed is not
row-wise: the list is an allow-list.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Any, Final

import polars as pl

from operators.expression_trees import tree_of

_FAMILIES: Final[dict[str, frozenset[str]]] = {
    "StringExpr": frozenset({"ConcatVertical"}),
    "TemporalExpr": frozenset(),
    "ListExpr": frozenset({"Sample", "Unique"}),
    "ArrayExpr": frozenset({"Unique"}),
    "StructExpr": frozenset(),
    "BinaryExpr": frozenset(),
    "Boolean": frozenset({"Any", "All", "IsUnique", "IsDuplicated", "IsFirstDistinct", "IsLastDistinct"}),
    "Bitwise": frozenset({"And", "Or", "Xor"}),
    "Pow": frozenset(),
    "Trigonometry": frozenset(),
    "Sql": frozenset(),
}
"""Families of functions that work row by row, with those members that do not (or not always alike)."""

_FUNCTIONS: Final = frozenset(
    {
        "Abs",
        "AsStruct",
        "Atan2",
        "Ceil",
        "Clip",
        "Coalesce",
        "ConcatList",
        "Cot",
        "Degrees",
        "Exp",
        "FillNull",
        "Floor",
        "Log",
        "Log1p",
        "MaxHorizontal",
        "MeanHorizontal",
        "MinHorizontal",
        "Negate",
        "Radians",
        "Reinterpret",
        "Replace",
        "ReplaceStrict",
        "Round",
        "RoundSF",
        "Sign",
        "SumHorizontal",
        "ToPhysical",
        "Truncate",
    }
)

_NODES: Final[dict[str, tuple[str, ...]]] = {
    "Column": (),
    "Literal": (),
    "Selector": (),
    "Cast": ("expr",),
    "BinaryExpr": ("left", "right"),
    "Ternary": ("predicate", "truthy", "falsy"),
    "KeepName": ("",),
    "Eval": ("expr",),
}
"""Row-wise nodes and where their inputs stand; ``""``: the value itself."""

_MEANINGS: Final = {
    "Agg": "an aggregate",
    "Len": "an aggregate",
    "Over": "a window function",
    "Rolling": "a window function",
    "SubPlan": "a subquery",
    "Explode": "a function that makes several rows of one",
    "Sort": "a sort",
    "SortBy": "a sort",
    "Filter": "a filter inside an expression",
    "Gather": "an access to other rows",
    "Slice": "an access to other rows",
    "Random": "a random function",
}


class Opaque(Enum):
    """Why an expression cannot be looked into."""

    PYTHON = auto()


def not_rowwise(expr: pl.Expr) -> str | Opaque | None:
    """What in an expression needs more than one row.

    Returns:
        None when it is row-wise; a few words that name the offending part; or ``Opaque.PYTHON`` when it calls Python
        functions, which nobody can look into.
    """
    try:
        tree = tree_of(expr)
    except (pl.exceptions.ComputeError, TypeError):
        return Opaque.PYTHON
    return _visit(tree)


def _visit(node: Any) -> str | Opaque | None:
    kind, body = _kind(node)
    if kind == "Function":
        return _function(body["function"]) or _first(body["input"])
    if kind in {"Alias", "RenameAlias"}:
        return _visit(body[0] if isinstance(body, list) else body["expr"])
    if kind in {"AnonymousFunction", "PythonUdf"}:
        return Opaque.PYTHON
    if kind not in _NODES:
        return _MEANINGS.get(kind, f"{kind}")
    return _first([body[name] if name else body for name in _NODES[kind]])


def _first(nodes: list[Any]) -> str | Opaque | None:
    return next((found for found in map(_visit, nodes) if found is not None), None)


def _function(function: Any) -> str | None:
    family, member = _kind(function)
    if family in _FAMILIES:
        name = _kind(member)[0]
        return f"{family}.{name}" if name in _FAMILIES[family] else None
    if family in _FUNCTIONS:
        return None
    return _MEANINGS.get(family, f"the function {family}")


def _kind(node: Any) -> tuple[str, Any]:
    if isinstance(node, dict) and node:
        return next(iter(node.items()))
    return str(node), None
