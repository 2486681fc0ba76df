"""What operators.rowwise relies on in Polars: the JSON form of expressions. Red here means: Polars has changed it."""

from __future__ import annotations

import polars as pl
import pytest

from operators.rowwise import Opaque, not_rowwise

X, Y = pl.col("x"), pl.col("y")

ROWWISE = [
    X,
    pl.lit(1),
    pl.all(),
    pl.col("^a.*$"),
    X + Y * 2 > 3,
    X.alias("z"),
    X.name.suffix("_z"),
    X.cast(pl.Int32),
    pl.when(X > 1).then(Y).otherwise(None),
    pl.coalesce(X, Y),
    X.is_in([1, 2]),
    X.is_null() & ~Y.is_not_null(),
    X.str.to_uppercase().str.contains("a"),
    X.dt.truncate("1h"),
    X.dt.convert_time_zone("Europe/Paris"),
    X.list.sum(),
    X.list.eval(pl.element().sum()),
    X.struct.field("f"),
    pl.struct("x", "y"),
    pl.sum_horizontal("x", "y"),
    X.replace_strict({1: 2}),
    X.fill_null(0),
    X.round(2),
    X.abs().sqrt().log(),
    X.clip(0, 1),
    X.bin.size(),
]

NOT_ROWWISE = [
    (X.sum(), "an aggregate"),
    (X - X.mean(), "an aggregate"),
    (pl.len(), "an aggregate"),
    (X.first(), "an aggregate"),
    (X.implode(), "an aggregate"),
    (X.over("y"), "a window function"),
    (X.sum().over("y"), "a window function"),
    (X.cum_sum(), "CumSum"),
    (X.shift(), "Shift"),
    (X.diff(), "Diff"),
    (X.rank(), "Rank"),
    (X.rolling_mean(3), "RollingExpr"),
    (X.sort(), "a sort"),
    (X.sort_by("y"), "a sort"),
    (X.unique(), "Unique"),
    (X.is_duplicated(), "Boolean.IsDuplicated"),
    (X.any(), "Boolean.Any"),
    (X.drop_nulls(), "DropNulls"),
    (X.explode(), "several rows"),
    (X.filter(Y > 1), "filter"),
    (X.gather(0), "other rows"),
    (X.head(2), "other rows"),
    (X.shuffle(seed=1), "a random function"),
    (X.sample(1), "a random function"),
    (X.forward_fill(), "FillNullWithStrategy"),
    (pl.int_range(pl.len()), "Range"),
    (X.list.sample(1), "ListExpr.Sample"),
    (X.hash(), "Hash"),
    (pl.coalesce(X, Y.max()), "an aggregate"),
]


@pytest.mark.parametrize("expr", ROWWISE, ids=str)
def test_row_expressions_pass(expr: pl.Expr) -> None:
    assert not_rowwise(expr) is None


@pytest.mark.parametrize(("expr", "reason"), NOT_ROWWISE, ids=lambda value: str(value)[:40])
def test_what_needs_other_rows_is_named(expr: pl.Expr, reason: str) -> None:
    found = not_rowwise(expr)
    assert isinstance(found, str)
    assert reason in found


def test_python_functions_are_opaque() -> None:
    assert not_rowwise(X.map_elements(lambda value: value, return_dtype=pl.Int64)) is Opaque.PYTHON
    assert not_rowwise(1 + X.map_batches(lambda series: series)) is Opaque.PYTHON
