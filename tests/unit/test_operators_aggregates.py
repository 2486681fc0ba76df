"""Aggregates: exactness, order, types, nulls, NaN. Each result is compared with exact rational arithmetic."""

from __future__ import annotations

import itertools
import math
from decimal import Decimal
from fractions import Fraction

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.testing import operator_context
from operators.aggregate_text import aggregate
from operators.aggregates import count, maximum, mean, minimum, total
from operators.window import TumblingWindow


def compute(written, values: pl.Series, cuts=()):
    """The aggregate of all values, fed in pieces that end at ``cuts``."""
    operator = TumblingWindow("w", "t", 10, {"out": written})
    frame = pl.DataFrame({"t": pl.Series([0] * len(values)).cast(pl.Datetime("us")), "x": values})
    instance = operator.open(operator.partial(frame.clear().lazy()).collect_schema(), operator_context())
    edges = [0, *sorted(cuts), len(values)]
    for start, end in itertools.pairwise(edges):
        instance.process(operator.partial(frame[start:end].lazy()).collect())
    out = instance.drain()["main"]
    return out["out"].item()


def shuffled_cuts(values):
    return st.tuples(st.permutations(values), st.lists(st.integers(0, len(values)), max_size=3))


FLOATS = st.floats(-1e20, 1e20) | st.floats(-1, 1) | st.sampled_from([0.1, 1e-19, -0.0, 1e16, -1e16, 3.0])


@settings(max_examples=60, deadline=None)
@given(st.lists(FLOATS, min_size=1, max_size=30).flatmap(lambda v: st.tuples(st.just(v), shuffled_cuts(v))))
def test_float_sums_are_right_and_depend_on_nothing(case) -> None:
    values, (order, cuts) = case
    found = compute("sum(x)", pl.Series(order, dtype=pl.Float64), cuts)
    assert found.hex() == compute("sum(x)", pl.Series(values, dtype=pl.Float64)).hex()
    exact = sum(map(Fraction, values))
    assert abs(Fraction(found) - exact) <= abs(exact) * Fraction(1, 2**52) + len(values) * Fraction(1, 2**115)


SPECIAL = st.sampled_from([math.inf, -math.inf, math.nan, 1e300, 2.0**77, 1.0, -0.0])


@settings(max_examples=60, deadline=None)
@given(st.lists(SPECIAL, min_size=1, max_size=6).filter(lambda v: sum(1 for x in v if 1e20 < abs(x) < math.inf) < 2))
def test_infinities_nan_and_one_huge_value_behave_as_in_ieee(values) -> None:
    found = compute("sum(x)", pl.Series(values, dtype=pl.Float64), [1])
    special = [x for x in values if not math.isfinite(x)]
    expected = sum(special) if special else math.fsum(values)
    assert found == expected or (math.isnan(found) and math.isnan(expected))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-(2**61), 2**61), min_size=1, max_size=3))
def test_integer_sums_and_means_are_exact(values) -> None:
    series = pl.Series(values, dtype=pl.Int64)
    assert compute("sum(x)", series, [1]) == sum(values)
    assert compute("avg(x)", series, [1]) == pytest.approx(float(Fraction(sum(values), len(values))), rel=1e-15)


@pytest.mark.parametrize("dtype", [pl.Int8, pl.UInt8, pl.Int32, pl.UInt32, pl.UInt64])
def test_small_integers_do_not_wrap(dtype) -> None:
    top = 127 if dtype in (pl.Int8, pl.UInt8) else 2**31 - 1
    assert compute("sum(x)", pl.Series([top] * 3, dtype=dtype)) == 3 * top


def test_booleans_are_counted() -> None:
    assert compute("sum(x)", pl.Series([True, None, False, True])) == 2


def test_decimals_stay_decimals() -> None:
    values = pl.Series([Decimal("0.10"), Decimal("99999999.99"), None], dtype=pl.Decimal(10, 2))
    assert compute("sum(x)", values, [1]) == Decimal("100000000.09")
    assert compute("avg(x)", values, [1]) == 50000000.045
    assert compute("max(x)", values) == Decimal("99999999.99")


def test_float32_sums_in_float64() -> None:
    values = pl.Series([2**24, 1, 1], dtype=pl.Float32)
    assert compute("sum(x)", values) == 2**24 + 2


def test_nan_is_left_out_of_extremes_unless_there_is_nothing_else() -> None:
    assert compute("min(x)", pl.Series([math.nan, 2.0, 1.0]), [1]) == 1.0
    assert compute("max(x)", pl.Series([math.nan, 2.0, 1.0]), [1]) == 2.0
    assert math.isnan(compute("max(x)", pl.Series([math.nan, math.nan]), [1]))


@pytest.mark.parametrize("order", [[0.0, -0.0], [-0.0, 0.0]])
def test_there_is_one_zero(order) -> None:
    for text in ("min(x)", "max(x)", "sum(x)"):
        assert math.copysign(1, compute(text, pl.Series(order), [1])) == 1


@pytest.mark.parametrize("kind", ["min", "max"])
def test_extremes_of_every_scalar_type(kind: str) -> None:
    pick = min if kind == "min" else max
    for values in (["b", "a", "ä"], [b"b", b"a"], [True, False], [3, 1]):
        assert compute(f"{kind}(x)", pl.Series([*values, None]), [1]) == pick(values)


@pytest.mark.parametrize("text", ["sum(x)", "avg(x)", "min(x)", "max(x)"])
@pytest.mark.parametrize("dtype", [pl.Int64, pl.Float64, pl.Decimal(10, 2), pl.Null])
def test_nothing_but_nulls_gives_null(text: str, dtype) -> None:
    assert compute(text, pl.Series([None, None], dtype=dtype), [1]) is None


def test_the_argument_is_any_row_expression() -> None:
    values = pl.Series([1, 2, None, 5])
    assert compute("sum(case when x > 1 then x * 10 end)", values, [2]) == 70
    assert compute("count(x > 1)", values) == 3
    assert compute("sum(coalesce(x, 100))", values) == 108
    assert compute("sum(1)", values, [1]) == 4
    assert compute("count(1)", values, [1]) == 4
    assert compute("COUNT()", values) == 4


def test_python_forms_equal_sql_forms() -> None:
    values = pl.Series([1, 2, None, 5])
    x = pl.col("x")
    forms = {"sum(x)": total(x), "avg(x)": mean(x), "min(x)": minimum(x), "max(x)": maximum(x), "count(x)": count(x)}
    for text, form in {**forms, "count(*)": count()}.items():
        assert compute(form, values, [1]) == compute(text, values)


def test_polars_arguments_do_not_share_state_with_text_of_the_same_name() -> None:
    operator = TumblingWindow("w", "t", 10, {"y": total(pl.col("x") + 1), "z": "sum(y)"})
    frame = pl.DataFrame({"t": pl.Series([0]).cast(pl.Datetime("us")), "x": [1], "y": [5]})
    partials = operator.partial(frame.lazy()).collect()
    instance = operator.open(partials.schema, operator_context())
    instance.process(partials)
    assert instance.drain()["main"].select("y", "z").row(0) == (2, 5)


def test_text_is_read_loosely_but_wholly() -> None:
    assert aggregate("  Mean ( x ) ", "here").text == "avg(x)"
    assert aggregate("count( * )", "here").text == "count(*)"
    assert aggregate("sum((a) + (b))", "here").text == "sum((a) + (b))"
    assert aggregate("sum(greatest(a, b))", "here").text == "sum(greatest(a, b))"
