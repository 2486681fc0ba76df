"""Turn a Polars predicate into an Iceberg filter that is good enough to plan with.

The filter only decides which manifests and files are opened. It may keep too much, never too little: rows are always
filtered again by the Polars predicate, in Polars' semantics (NaN is greater than every number, null is not true).
pyiceberg's own semantics differ (NaN compares false), and so do partition values that writers wrapped around
(``truncate`` of the smallest integers), so what could lose a row is left out of the filter.

This is the only module that uses Polars' private converter; tests/contract/test_polars_predicates.py holds what is
relied upon.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any

import polars as pl
from polars.io.iceberg._utils import (
    filter_for_required_is_null,
    filter_for_truncate_overflow,
    filter_with_nan_ordering,
    try_convert_pyarrow_predicate,
)
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression
from pyiceberg.expressions.visitors import bind
from pyiceberg.table import Table


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
        tree = json.loads(predicate.meta.serialize(format="json"))
        return [pl.Expr.deserialize(json.dumps(part).encode(), format="json") for part in _conjuncts(tree)]
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


def _convert(conjunct: pl.Expr, schema: pl.Schema, table: Table) -> BooleanExpression | None:
    text = conjunct._pyexpr.to_pyarrow_predicate(schema)  # noqa: SLF001  (no public form; contract-tested)
    if text is None:
        return None
    found: Any = try_convert_pyarrow_predicate(text, table.schema())
    if found is not None:
        found = filter_for_truncate_overflow(found, table)
    if found is not None:
        found = filter_for_required_is_null(found, table.schema())
    if found is None:
        return None
    found = filter_with_nan_ordering(found, table.schema())
    return found if _binds(found, table) else None


def _binds(expression: BooleanExpression, table: Table) -> bool:
    try:
        bind(table.schema(), expression, case_sensitive=True)
    except (ValueError, TypeError, OverflowError, struct.error):
        return False
    return True
