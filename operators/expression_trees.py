"""The serialised tree of a Polars expression. It is no public format of Polars: what reads it is held by tests."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

import polars as pl

Tree: TypeAlias = Any

DIVISIONS: Final = frozenset({"TrueDivide", "FloorDivide", "Modulus"})
"""Operators of binary nodes that divide."""


def tree_of(expr: pl.Expr) -> Tree:
    """The tree of an expression.

    Raises:
        ComputeError: It calls Python functions.
    """
    return json.loads(expr.meta.serialize(format="json"))


def expr_of(tree: Tree) -> pl.Expr:
    """The expression of a tree."""
    return pl.Expr.deserialize(io.StringIO(json.dumps(tree)), format="json")


def rebuilt(tree: Tree, change: Callable[[Tree], Tree]) -> Tree:
    """A tree whose nodes have been changed one by one, each after its parts; literals stay as they are."""
    if isinstance(tree, list):
        return [rebuilt(part, change) for part in tree]
    if not isinstance(tree, dict) or "Literal" in tree:
        return tree
    return change({key: rebuilt(value, change) for key, value in tree.items()})


def columns_in(tree: Tree) -> Iterator[Tree]:
    """The columns and selectors in a tree."""
    if isinstance(tree, list):
        for part in tree:
            yield from columns_in(part)
    elif isinstance(tree, dict) and "Literal" not in tree:
        if "Column" in tree or "Selector" in tree:
            yield tree
        else:
            for part in tree.values():
                yield from columns_in(part)
