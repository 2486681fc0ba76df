"""Turn a Polars predicate into an Iceberg filter that is good enough to plan with.

The filter only decides which manifests and files are opened. It may keep too much, never too little: rows are always
filtered again by the Polars predicate, in Polars' semantics (NaN is greater than every number, null is not true).
pyiceberg's own semantics differ (NaN compares false), and so do partition values that writers wrapped around
(``truncate`` of the smallest integers), so what could lose a row is left out of the filter.

This is the only module that uses Polars' private converter; tests/contract/test_polars_predicates.py holds what is
relied upon.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any, Final

import polars as pl
from polars.io.iceberg._utils import (
    filter_for_required_is_null,
    filter_for_truncate_overflow,
    filter_with_nan_ordering,
    try_convert_pyarrow_predicate,
)
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, LiteralPredicate, Not, Or
from pyiceberg.expressions.visitors import bind, inclusive_projection
from pyiceberg.table import Table

from operators.expression_trees import Tree, expr_of, tree_of

_FLOATS: Final = (pl.Float32, pl.Float64)
_LISTED_TEXTS: Final = 200
"""Longer lists of strings are left to Polars' converter; Iceberg compares a list of this length with no bounds."""


@dataclass(frozen=True, slots=True)
class PlanFilter:
    """A predicate as planning sees it.

    Attributes:
        iceberg: Prunes manifests and files; every row of the predicate is in what it keeps.
        residual: The conjuncts that did not convert; shown in the plan, they prune nothing.
    """

    iceberg: BooleanExpression
    residual: tuple[pl.Expr, ...]


def split_conjuncts(predicate: pl.Expr) -> list[pl.Expr]:
    """The parts of a predicate that must all hold. One part when it cannot be taken apart."""
    try:
        return [expr_of(part) for part in _conjuncts(tree_of(predicate))]
    except (pl.exceptions.ComputeError, ValueError):  # a Python function has no JSON form
        return [predicate]


def _conjuncts(node: Any) -> Iterator[Any]:
    both = node.get("BinaryExpr") if isinstance(node, dict) else None
    if both and both["op"] in {"And", "LogicalAnd"}:
        yield from _conjuncts(both["left"])
        yield from _conjuncts(both["right"])
    else:
        yield node


def plan_filter(predicate: pl.Expr | None, schema: pl.Schema, table: Table) -> PlanFilter:
    """The Iceberg filter of a predicate, over the table's current schema.

    Args:
        predicate: Polars predicate over ``schema``.
        schema: The rows' schema; columns that the table lacks may be in it, their conjuncts do not convert.
        table: The table that is planned (its partition specs and schemas decide what is safe).
    """
    if predicate is None:
        return PlanFilter(AlwaysTrue(), ())
    converted: list[BooleanExpression] = []
    residual: list[pl.Expr] = []
    for conjunct in split_conjuncts(predicate):
        expression = _convert(conjunct, schema, table)
        if expression is None:
            residual.append(conjunct)
        else:
            converted.append(expression)
    return PlanFilter(reduce(And, converted) if converted else AlwaysTrue(), tuple(residual))


def all_of(*predicates: pl.Expr | None) -> pl.Expr | None:
    """The conjunction of the predicates that are given."""
    given = [predicate for predicate in predicates if predicate is not None]
    return reduce(and_, given) if given else None


def holds_for_bounds(predicate: pl.Expr, schema: pl.Schema) -> bool:
    """Whether row groups may be left out by what a predicate says of their bounds.

    Not where it computes with integers or times: Polars 2.1 does the same with a row group's smallest and largest
    value, and takes the results for bounds of what the rows give. A sum that wraps around at the largest integer (which
    often stands for "no end") then lies below all of them, and rows that meet the predicate are left out.

    Args:
        predicate: What is asked of the rows.
        schema: Their columns.
    """
    try:
        tree = tree_of(predicate)
    except pl.exceptions.ComputeError:  # a Python function has no JSON form
        return False
    return not _wraps(tree, schema)


def _wraps(tree: Tree, schema: pl.Schema) -> bool:
    if isinstance(tree, list):
        return any(_wraps(part, schema) for part in tree)
    if not isinstance(tree, dict) or "Literal" in tree:
        return False
    parts = _computed(tree)
    if parts is not None and not all(_is_float(part, schema) for part in parts):
        return True
    return any(_wraps(part, schema) for part in tree.values())


def _computed(tree: Tree) -> Sequence[Tree] | None:
    """The operands of a sum, difference, product or negation."""
    match tree:
        case {"BinaryExpr": {"left": left, "op": "Plus" | "Minus" | "Multiply", "right": right}}:
            return (left, right)
        case {"Function": {"input": [operand], "function": "Negate"}}:
            return (operand,)
    return None


def _is_float(tree: Tree, schema: pl.Schema) -> bool:
    parts = _computed(tree)
    if parts is not None:
        return all(_is_float(part, schema) for part in parts)
    return "Literal" in tree or ("Column" in tree and schema.get(tree["Column"]) in _FLOATS)


def _convert(conjunct: pl.Expr, schema: pl.Schema, table: Table) -> BooleanExpression | None:
    masked, texts = _mask_texts(conjunct)
    code = masked._pyexpr.to_pyarrow_predicate(schema)  # noqa: SLF001  (no public form; contract-tested)
    if code is None:
        return None
    found: Any = try_convert_pyarrow_predicate(code, table.schema())
    if found is not None:
        found = filter_for_truncate_overflow(_unmask(found, texts), table)
    if found is not None:
        found = filter_for_required_is_null(found, table.schema())
    if found is None:
        return None
    found = filter_with_nan_ordering(found, table.schema())
    return found if _usable(found, table) else None


def _mask_texts(conjunct: pl.Expr) -> tuple[pl.Expr, dict[str, str]]:
    """Plain words in place of string literals: Polars does not convert one with a dot, slash, quote or colon in it."""
    texts: dict[str, str] = {}

    def mask(node: Any) -> Any:
        if isinstance(node, list):
            return [mask(part) for part in node]
        if not isinstance(node, dict):
            return node
        if (values := _listed_texts(node)) is not None:
            column = node["Function"]["input"][0]
            return reduce(
                lambda left, right: _binary("Or", left, right),
                [_binary("Eq", column, mask(_text_literal(value))) for value in values],
            )
        if isinstance(text := _scalar(node).get("String"), str):
            word = f"text{len(texts)}"
            texts[word] = text
            return _text_literal(word)
        return {key: mask(value) for key, value in node.items()}

    try:
        return expr_of(mask(tree_of(conjunct))), texts
    except (pl.exceptions.ComputeError, ValueError):
        return conjunct, {}


def _scalar(node: Any) -> dict[str, Any]:
    literal = node.get("Literal") if isinstance(node, dict) else None
    scalar = literal.get("Scalar") if isinstance(literal, dict) else None
    return scalar if isinstance(scalar, dict) else {}


def _listed_texts(node: dict[str, Any]) -> list[str] | None:
    """The strings of ``column.is_in([...])``, without nulls (they match nothing); None for any other node."""
    call = node.get("Function")
    if not isinstance(call, dict) or call.get("function") != {"Boolean": {"IsIn": {"nulls_equal": False}}}:
        return None
    haystack = call["input"][1]
    if "List" not in _scalar(haystack):
        return None
    values = pl.select(expr_of(haystack).explode()).to_series()
    texts = values.drop_nulls()
    return texts.to_list() if values.dtype == pl.String and 0 < len(texts) <= _LISTED_TEXTS else None


def _text_literal(text: str) -> dict[str, Any]:
    return {"Literal": {"Scalar": {"String": text}}}


def _binary(operator: str, left: Any, right: Any) -> dict[str, Any]:
    return {"BinaryExpr": {"left": left, "op": operator, "right": right}}


def _unmask(expression: BooleanExpression, texts: dict[str, str]) -> BooleanExpression:
    if isinstance(expression, (And, Or)):
        return type(expression)(_unmask(expression.left, texts), _unmask(expression.right, texts))
    if isinstance(expression, Not):
        return Not(_unmask(expression.child, texts))
    if isinstance(expression, LiteralPredicate) and expression.literal.value in texts:
        return type(expression)(expression.term, texts[expression.literal.value])
    return expression


def _usable(expression: BooleanExpression, table: Table) -> bool:
    """Pyiceberg can bind it and project it on every partition spec (it overflows on the days around year 1)."""
    try:
        bind(table.schema(), expression, case_sensitive=True)
        for spec in table.specs().values():
            inclusive_projection(table.schema(), spec, case_sensitive=True)(expression)
    except (ValueError, TypeError, OverflowError, struct.error):
        return False
    return True
