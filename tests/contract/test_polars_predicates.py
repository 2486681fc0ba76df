"""What planning relies on in Polars' private converter and in its JSON form of expressions."""

from __future__ import annotations

import datetime as dt
import math
from pathlib import Path

import polars as pl
import pytest
from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNaN,
    IsNull,
    LessThan,
    NotEqualTo,
    NotIn,
    Or,
    StartsWith,
)
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import DateType, DoubleType, LongType, NestedField, StringType, TimestamptzType

from catalog.schemas import to_polars
from hybrid_source.predicates import plan_filter, split_conjuncts
from tests.history_tables import open_catalog

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "k", StringType(), required=False),
    NestedField(3, "v", DoubleType(), required=False),
    NestedField(4, "ts", TimestamptzType(), required=False),
    NestedField(5, "day", DateType(), required=False),
    NestedField(6, "must", LongType(), required=True),
)
ROWS = pl.Schema({**to_polars(SCHEMA), "_row_watermark": pl.Int64})
ID, K, V = pl.col("id"), pl.col("k"), pl.col("v")
NOON = dt.datetime(2026, 1, 1, 12, 0, 0, 7, tzinfo=dt.UTC)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    folder: Path = tmp_path_factory.mktemp("lake")
    catalog = open_catalog(folder)
    created = catalog.create_table("ns.t", SCHEMA)
    catalog.close()
    return created


@pytest.mark.parametrize(
    ("predicate", "expected"),
    [
        (ID > 3, GreaterThan("id", 3)),
        ((ID > 3) & (K == "a"), And(GreaterThan("id", 3), EqualTo("k", "a"))),
        ((ID < -3) | ID.is_null(), Or(LessThan("id", -3), IsNull("id"))),
        (~(ID == 3), NotEqualTo("id", 3)),
        (ID.is_in([1, 2]), In("id", {1, 2})),
        (~ID.is_in([1, 2]), NotIn("id", {1, 2})),
        (K.str.starts_with("x/"), StartsWith("k", "x/")),
        (K == "O'Brien: a.b/c", EqualTo("k", "O'Brien: a.b/c")),
        (K.is_in(["x/y", None, "z"]), Or(EqualTo("k", "x/y"), EqualTo("k", "z"))),
        (pl.col("ts") >= NOON, GreaterThanOrEqual("ts", NOON.isoformat())),
        (pl.col("day") == dt.date(2026, 1, 1), EqualTo("day", "2026-01-01")),
        # NaN is greater than every number in Polars: files with NaN stay.
        (V > 1.5, Or(GreaterThan("v", 1.5), IsNaN("v"))),
        (V < 1.5, LessThan("v", 1.5)),
    ],
    ids=str,
)
def test_what_converts(table: Table, predicate: pl.Expr, expected: BooleanExpression) -> None:
    found = plan_filter(predicate, ROWS, table)
    assert found.residual == ()
    assert normal(found.iceberg) == expected


@pytest.mark.parametrize(
    "predicate",
    [
        ID + 1 > 3,
        pl.col("ts").dt.date() == dt.date(2026, 1, 1),
        K.str.contains("b"),
        ID.is_in(pl.Series([1, None]).implode(), nulls_equal=True),
        pl.col("must").is_null(),  # required, yet null in files from before it was added
        pl.col("_row_watermark").is_null(),  # no column of the table
    ],
    ids=str,
)
def test_what_does_not_convert_prunes_nothing(table: Table, predicate: pl.Expr) -> None:
    found = plan_filter(predicate, ROWS, table)
    assert isinstance(found.iceberg, AlwaysTrue)
    assert len(found.residual) == 1


def test_a_conjunction_keeps_the_part_that_converts(table: Table) -> None:
    found = plan_filter((ID > 0) & K.str.contains("b") & (V < 1), ROWS, table)
    assert found.iceberg == And(GreaterThan("id", 0), LessThan("v", 1.0))
    assert [str(part) for part in found.residual] == [str(K.str.contains("b"))]


def test_conjuncts_mean_what_the_whole_means() -> None:
    whole = pl.all_horizontal(ID > 0, K == "a") & (V.is_null() | (V > 1)) & ~(ID == 7)
    parts = split_conjuncts(whole)
    assert len(parts) >= 3
    frame = pl.DataFrame(
        {"id": [1, 7, None, 0, 2, 3], "k": ["a", "a", "a", "a", "b", None], "v": [None, 2.0, 2.0, 2.0, 2.0, math.nan]}
    )
    assert frame.filter(*parts).equals(frame.filter(whole))


@pytest.mark.filterwarnings("ignore::polars.exceptions.PolarsInefficientMapWarning")
def test_a_python_function_is_one_residual(table: Table) -> None:
    predicate = (ID > 0) & ID.map_elements(lambda value: value > 3, return_dtype=pl.Boolean)
    found = plan_filter(predicate, ROWS, table)
    assert len(found.residual) <= 1


def normal(expression: BooleanExpression) -> BooleanExpression:
    """Without Not, as pyiceberg plans it."""
    from pyiceberg.expressions.visitors import rewrite_not

    return rewrite_not(expression)
