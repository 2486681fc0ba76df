"""Pruning never loses a row: tables full of edge values, predicates drawn at random."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator
from decimal import Decimal

import polars as pl
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    Transform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)

from hybrid_source.history import HistoryQuery
from hybrid_source.iceberg_history import open_iceberg
from hybrid_source.splits import SplitTarget
from tests.history_tables import append_by_hand, collect, open_catalog

UTC = dt.UTC
SCHEMA = Schema(
    NestedField(1, "row", LongType(), required=False),
    NestedField(2, "i", IntegerType(), required=False),
    NestedField(3, "l", LongType(), required=False),
    NestedField(4, "f", FloatType(), required=False),
    NestedField(5, "d", DoubleType(), required=False),
    NestedField(6, "s", StringType(), required=False),
    NestedField(7, "b", BooleanType(), required=False),
    NestedField(8, "day", DateType(), required=False),
    NestedField(9, "ts", TimestampType(), required=False),
    NestedField(10, "tz", TimestamptzType(), required=False),
    NestedField(11, "dec", DecimalType(9, 2), required=False),
)
VALUES: dict[str, list[object]] = {
    "i": [-(2**31), -(2**31) + 5, -10001, -10, -1, 0, 5, 9999, 2**31 - 1],
    "l": [-(2**63), -(2**63) + 1, -(2**31) - 7, -12, -1, 0, 7, 2**53 + 1, 2**63 - 1],
    "f": [math.nan, -math.inf, -1.5, -0.0, 0.0, 0.1, 1.5, 16777217.0, math.inf],
    "d": [math.nan, -math.inf, -1.5, -0.0, 0.0, 0.1, 1.5, 1e300, math.inf],
    "s": [
        "",
        "a",
        "ab",
        "abc",
        "abcdefghijklmnopqrstuvwxyz",
        "abcdefghijklmnopz",
        "\U0010ffff" * 20,
        "O'Brien/a.b:c",
        "Z",
    ],
    "b": [True, False],
    "day": [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(2026, 7, 1), dt.date(9999, 12, 31)],
    "ts": [
        dt.datetime.fromisoformat(text)
        for text in (
            "0001-01-01",
            "1969-12-31T23:59:59.999999",
            "1970-01-01",
            "2026-07-01T12:00:00.000001",
            "2100-01-01",
        )
    ],
    "tz": [
        dt.datetime(1, 1, 1, tzinfo=UTC),
        dt.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        dt.datetime(2026, 7, 1, 12, tzinfo=UTC),
        dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC),
    ],
    "dec": [Decimal("-9999900.01"), Decimal("-0.01"), Decimal("0.00"), Decimal("1.10"), Decimal("9999999.99")],
}
DTYPES = {
    "row": pl.Int64,
    "i": pl.Int32,
    "l": pl.Int64,
    "f": pl.Float32,
    "d": pl.Float64,
    "s": pl.String,
    "b": pl.Boolean,
    "day": pl.Date,
    "ts": pl.Datetime("us"),
    "tz": pl.Datetime("us", "UTC"),
    "dec": pl.Decimal(9, 2),
}
SPECS: dict[str, list[tuple[int, Transform]]] = {
    "unpartitioned": [],
    "identity": [(2, IdentityTransform()), (7, IdentityTransform())],
    "identity-string": [(6, IdentityTransform())],
    "truncate": [(2, TruncateTransform(10000)), (6, TruncateTransform(2))],
    "truncate-long": [(3, TruncateTransform(10))],
    "truncate-decimal": [(11, TruncateTransform(50))],
    "bucket": [(3, BucketTransform(3)), (6, BucketTransform(2))],
    "time": [(8, YearTransform()), (10, DayTransform())],
    "hour": [(9, HourTransform())],
}


def rows() -> pl.DataFrame:
    """Every value of every column, and nulls; neighbours in a column fall into one file."""
    longest = max(len(values) for values in VALUES.values()) + 1
    data: dict[str, list[object]] = {"row": list(range(longest))}
    for name, values in VALUES.items():
        data[name] = [*values, *[None] * (longest - len(values))]
    return pl.DataFrame(data, schema=DTYPES)


@pytest.fixture(scope="module", params=SPECS)
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Table]:
    catalog = open_catalog(tmp_path_factory.mktemp("lake"))
    fields = [
        PartitionField(source, 1000 + number, transform, f"p{number}")
        for number, (source, transform) in enumerate(SPECS[request.param])
    ]
    table = catalog.create_table("ns.edges", SCHEMA, partition_spec=PartitionSpec(*fields))
    everything = rows()
    for start, end in ((0, 3), (3, 4), (4, 7), (7, None)):
        append_by_hand(table, everything[start:end])
    yield table
    catalog.close()


def literals(name: str) -> st.SearchStrategy[object]:
    pool: list[object] = list(VALUES[name])
    if name in {"i", "l"}:
        pool += [v + d for v in VALUES[name] for d in (-1, 1) if -(2**63) <= v + d < 2**63] + [1.5, -0.5]  # type: ignore[operator]
    if name in {"f", "d"}:
        pool += [3, -1]
    if name == "s":
        pool += ["abcdefghijklmnop", "b", "\U0010ffff"]
    return st.sampled_from(pool)


def same_as(name: str) -> st.SearchStrategy[object]:
    return st.sampled_from(VALUES[name])


@st.composite
def atoms(draw: st.DrawFn) -> pl.Expr:
    name = draw(st.sampled_from(sorted(VALUES)))
    column = pl.col(name)
    kinds = ["compare", "compare", "compare", "in", "in-null", "null", "not-null", "missing", "between"]
    if name == "s":
        kinds += ["prefix", "contains"]
    if name in {"f", "d"}:
        kinds += ["nan", "not-nan"]
    if name == "b":
        kinds += ["self"]
    if name in {"i", "l", "f", "d"}:
        kinds += ["sum", "difference", "product", "negated"]
    kind = draw(st.sampled_from(kinds))
    same = same_as(name)
    if kind == "compare":
        operator = draw(st.sampled_from(["__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"]))
        return getattr(column, operator)(pl.lit(draw(literals(name))))
    if kind in {"sum", "difference", "product", "negated"}:
        computed = {"sum": column + 1, "difference": column - 7, "product": column * 2, "negated": -column}[kind]
        operator = draw(st.sampled_from(["__eq__", "__lt__", "__le__", "__gt__", "__ge__"]))
        return getattr(computed, operator)(pl.lit(draw(same_as(name))))
    simple = {
        "null": column.is_null,
        "not-null": column.is_not_null,
        "self": lambda: column,
        "nan": column.is_nan,
        "not-nan": column.is_not_nan,
        "prefix": lambda: column.str.starts_with(draw(same)),
        "contains": lambda: column.str.contains("b", literal=True),
        "missing": lambda: column.eq_missing(pl.lit(draw(same))),
        "between": lambda: column.is_between(pl.lit(draw(same)), pl.lit(draw(same))),
    }
    if kind in simple:
        return simple[kind]()
    values = draw(st.lists(same, min_size=0, max_size=4))
    haystack = pl.Series([*values, None] if kind == "in-null" else values, dtype=DTYPES[name])
    # Not nulls_equal=True: Polars 2.1 itself gives two answers for x.is_null() & ~x.is_in(.., nulls_equal=True).
    return column.is_in(haystack.implode())


predicates = st.recursive(
    atoms(),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda pair: pair[0] & pair[1]),
        st.tuples(inner, inner).map(lambda pair: pair[0] | pair[1]),
        inner.map(lambda expression: ~expression),
    ),
    max_leaves=4,
)


def optimised(predicate: pl.Expr) -> pl.Expr:
    """The predicate as the optimiser hands it down (literals cast to the column's type)."""
    from hybrid_source.pushdown import probe

    found = probe(lambda rows: [rows.filter(predicate)], pl.Schema(DTYPES)).predicate
    assert found is not None
    return found


@given(predicate=predicates, direct=st.booleans())
@example(predicate=pl.col("i") < 0, direct=True)
@example(predicate=pl.col("l") == -(2**63), direct=True)
@example(predicate=pl.col("f") == pl.lit(0.1), direct=True)
@example(predicate=pl.col("d") > 1.5, direct=True)
@example(predicate=pl.col("day") < dt.date(1, 1, 1), direct=True)
@example(predicate=pl.col("i") + 1 > 6, direct=False)
@example(predicate=-pl.col("l") > 12, direct=True)
@example(predicate=pl.col("s").is_in(["O'Brien/a.b:c", "a"]), direct=True)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_pruning_keeps_every_row_of_the_predicate(table: Table, predicate: pl.Expr, direct: bool) -> None:
    everything = rows()
    try:
        wanted = everything.filter(predicate)
        pushed = predicate if direct else optimised(predicate)
    except (AssertionError, pl.exceptions.PolarsError):
        return  # folded to a constant, or no predicate in Polars at all
    plan = open_iceberg(table, "ns.edges").plan(
        HistoryQuery(predicate=pushed, event_time="tz", target=SplitTarget(1, 1))
    )
    splits = list(plan.splits_from())
    found = collect(splits).sort("row") if splits else everything.clear()
    assert_frame_equal(found.select(everything.columns), wanted.sort("row"))


def test_a_list_with_null_keeps_null_rows_when_nulls_are_equal(table: Table) -> None:
    haystack = pl.Series([0, None], dtype=pl.Int32).implode()
    for predicate in (pl.col("i").is_in(haystack, nulls_equal=True), ~pl.col("i").is_in(haystack, nulls_equal=True)):
        found = collect(open_iceberg(table, "ns.edges").plan(HistoryQuery(predicate=predicate)))
        assert sorted(found["row"]) == sorted(rows().filter(predicate)["row"])


def test_statistics_prune_files(table: Table) -> None:
    history = open_iceberg(table, "ns.edges")
    everything = history.plan(HistoryQuery()).report
    one = history.plan(HistoryQuery(predicate=pl.col("row") == 0)).report
    assert one.files < everything.files == everything.files_total
    assert one.nbytes < everything.nbytes == everything.nbytes_total
