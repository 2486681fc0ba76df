"""Rows have the values that they have alone, also over columns that hold one value throughout."""

from __future__ import annotations

import math
from typing import Literal

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal, assert_series_equal

from operators.expressions import Expression, row_expression
from operators.row_forms import mean, row_form
from operators.stateless import Select, WithColumns

ROWS = pl.DataFrame({"n": [1, 2, 3]}).lazy().with_columns(two=pl.lit(2), none=pl.lit(None, pl.String)).collect()
TEXTS = {
    "1 < two": True,
    "1 <= two": True,
    "1 > two": False,
    "1 >= two": False,
    "1 = two": False,
    "1 <> two": True,
    "1 is distinct from two": True,
    "1.5 < two": True,
    "1.5 <= two": True,
    "1.5 > two": False,
    "1.5 >= two": False,
    "1.5 = two": False,
    "1.5 <> two": True,
    "2.0 = two": True,
    "0.5 < case when two > 1 then 2.0 else 2.0 end": True,
    "1 is not distinct from two": False,
    "'a' = none": None,
    "'B' <> lower(none)": None,
    "1 + 1 = two and not (3 < two)": True,
    "case 2 when 1 then 5 else 2 end in (two, 7)": True,
    "5 between two and 7": True,
    "case when 1 < two then 'more' else 'less' end": "more",
}


@pytest.mark.parametrize("text", TEXTS)
def test_every_row_has_a_value(text: str) -> None:
    for step in (Select("s", {"x": text}), Select("s", {"x": text, "n": "n"})):
        for engine in ("in-memory", "streaming"):
            found = step.apply(ROWS.lazy()).collect(engine=engine)
            assert found["x"].to_list() == [TEXTS[text]] * 3


def test_a_constant_column_of_the_plan_is_no_other() -> None:
    rows = Select("t", {"x": "CASE WHEN 0 < zero THEN 'x' END"}).apply(
        Select("s", {"zero": "0", "n": "n"}).apply(ROWS.lazy())
    )
    assert rows.collect().height == 3


def test_what_has_columns_on_the_left_stays_as_it_is() -> None:
    for written in (pl.col("a") < 1, pl.col("a") < pl.col("b"), pl.lit(1) < 2, pl.lit(1) + pl.col("a")):
        assert row_form(written) is written
    assert str(row_expression(pl.lit(1) < pl.col("a"), "x").expr) == str(pl.col("a") > 1)


NUMBERS = pl.DataFrame({"x": [*map(float, range(-50, 51)), 0.1, 1e300, float("inf"), float("nan"), None]}).with_columns(
    i=pl.col("x").fill_nan(None).cast(pl.Int64, strict=False), f=pl.col("x").cast(pl.Float32)
)
DIVISIONS: dict[str, Expression] = {
    "x / 49": "x / 49",
    "x / 49 * x / 0.1": "x / 49 * x / 0.1",
    "i / 7": "i / 7",
    "floor(x / 49)": "floor(x / 49)",
    "(x / 3) / 7 + (x + i) / 60": "(x / 3) / 7 + (x + i) / 60",
    "f / 7": "f / 7",
    "x.truediv(49)": pl.col("x") / 49,
    "x.floordiv(49.0)": pl.col("x") // 49.0,
    "x.mod(49.0)": pl.col("x") % 49.0,
    "floats": pl.col("f") / 7,
}


@pytest.mark.parametrize("name", DIVISIONS)
def test_quotients_are_those_of_ieee_754_however_rows_are_cut(name: str) -> None:
    step = Select("s", {"q": row_expression(DIVISIONS[name], "x").expr})
    whole = step.apply(NUMBERS.lazy()).collect()
    for size in (1, 2, 5):
        pieces = [step.apply(NUMBERS[at : at + size].lazy()).collect() for at in range(0, NUMBERS.height, size)]
        assert_frame_equal(pl.concat(pieces), whole, check_exact=True)
    assert_frame_equal(step.apply(NUMBERS.lazy()).collect(engine="streaming"), whole, check_exact=True)


def test_a_number_divided_by_itself_is_one() -> None:
    rows = NUMBERS.lazy().filter(pl.col("x") == 49)
    found = rows.select(row_expression("x / 49", "s").expr, rest=row_expression(pl.col("x") % 49.0, "s").expr).collect()
    assert pl.concat([NUMBERS, NUMBERS]).select(row_expression("x / 49", "s").expr.alias("q"))["q"].eq(1.0).sum() == 2
    assert found.rows() == [(1.0, 0.0)]


def test_types_of_quotients_stay_as_they_are() -> None:
    rows = NUMBERS.with_columns(d=pl.lit("1.50").cast(pl.Decimal(9, 2)), u=pl.lit(3, pl.UInt8)).lazy()
    for name in ("x", "i", "f", "d", "u"):
        for text in (f"{name} / 7", f"{name} / 7.5", f"{name} / i"):
            plain, made = pl.sql_expr(text), row_expression(text, "s").expr
            if text != "f / 7.5":  # gives 64 bits
                assert rows.select(x=made).collect_schema() == rows.select(x=plain).collect_schema()
        small = name == "u"
        for divisor in (7, *(() if small else (30_000, -7)), *(() if name == "f" else (7.5,)), pl.col("i")):
            for written in (pl.col(name) / divisor, pl.col(name) % divisor, pl.col(name) // divisor):
                assert rows.select(x=row_form(written)).collect_schema() == rows.select(x=written).collect_schema()


def test_every_column_of_a_selection_is_divided() -> None:
    rows = pl.DataFrame({"a": [49.0, 7.0], "b": [98.0, None]})
    assert rows.select(row_form(pl.all() / 49.0)).rows() == [(1.0, 2.0), (7.0 / 49.0, None)]


def test_means_do_not_depend_on_what_stands_beside_them() -> None:
    rows = pl.DataFrame({"sum": [-5.0, 1.0, 2.0]}).lazy().with_columns(n=pl.lit(6)).collect()
    found = rows.select(q=mean(pl.col("sum"), pl.col("n")))["q"].to_list()
    assert found == [-5 / 6, 1 / 6, 2 / 6]


# ---------------------------------------------------------------------------- columns that hold one value throughout

CONSTANTS = {"d": "49.0", "e": "7", "g": "cast(0.1 as double)", "h": "cast(3 as double)", "z": "0.5 - 0.0"}
"""Set by a step before: in memory these columns are scalars, in the next job they come from files."""

OPERATORS = st.sampled_from(["/", "/", "/", "%", "*", "+", "-"])
LEAVES = st.sampled_from(["x", "f", "i", *CONSTANTS, "49", "0.1", "3.0"])


def texts(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(parts, OPERATORS, parts).map(lambda made: f"({made[0]} {made[1]} {made[2]})"),
        st.tuples(parts, parts).map(lambda made: f"power(abs({made[0]}), cast({made[1]} as double))"),
        st.tuples(parts, parts).map(lambda made: f"(case when x > {made[0]} then 49.0 else {made[1]} end)"),
        parts.map(lambda part: f"coalesce(nullif({part}, 7), 49)"),
        parts.map(lambda part: f"sqrt(abs({part}))"),
    )


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.recursive(LEAVES, texts, max_leaves=6), st.integers(1, 9))
def test_values_do_not_depend_on_which_columns_hold_one_value_throughout(text: str, size: int) -> None:
    steps = [WithColumns("c", dict(CONSTANTS)), Select("s", {"q": text})]

    def read(rows: pl.LazyFrame, engine: Literal["in-memory", "streaming"] = "in-memory", first: int = 0) -> pl.Series:
        for step in steps[first:]:
            rows = step.apply(rows)
        return rows.collect(engine=engine)["q"]

    whole = read(NUMBERS.lazy())
    pieces = pl.concat([read(NUMBERS[at : at + size].lazy()) for at in range(0, NUMBERS.height, size)])
    made = steps[0].apply(NUMBERS.lazy()).collect()
    full = made.select(pl.Series(name, column.to_list(), column.dtype) for name, column in made.to_dict().items())
    for found in (pieces, read(NUMBERS.lazy(), "streaming"), read(made.lazy(), first=1), read(full.lazy(), first=1)):
        assert_series_equal(found, whole, check_exact=True)


@pytest.mark.parametrize("text", ["x / d", "x / case when x > -1000 then 49.0 else 1.0 end", "power(abs(x), h)"])
def test_a_divisor_or_exponent_of_one_value_is_no_other_way_to_compute(text: str) -> None:
    step, rows = Select("s", {"q": text}), NUMBERS.lazy().with_columns(d=49.0, h=3.0)
    whole = step.apply(rows).collect()
    one_by_one = [step.apply(rows.slice(at, 1)).collect() for at in range(NUMBERS.height)]
    assert_frame_equal(pl.concat(one_by_one), whole, check_exact=True)


@pytest.mark.parametrize("dtype", [pl.Float64, pl.Float32])
def test_powers_of_one_exponent_are_others_only_where_they_are_multiplied(dtype: type[pl.DataType]) -> None:
    rows = pl.select(b=pl.int_range(1, 5000).cast(dtype) * 0.037)
    other = set()
    for exponent in [*range(-40, 41), *(number / 4 for number in range(-41, 41, 2)), 0.5, 1.5, 1 / 3, 64.0, 100.0]:
        each = rows.with_columns(e=pl.Series([exponent] * rows.height, dtype=dtype)).select(
            pl.col("b").pow(pl.col("e"))
        )
        if not each.equals(rows.select(pl.col("b").pow(pl.lit(exponent, dtype)))):
            other.add(exponent)
    assert other <= {0.5, *range(2, 10)}


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_the_sign_of_a_zero_that_is_divided_by_stays(zero: float) -> None:
    rows = pl.DataFrame({"x": [1.0, None], "d": [zero, zero]})
    for lazy in (rows.lazy(), rows.lazy().with_columns(d=zero), rows.lazy().with_columns(d=zero).collect().lazy()):
        found = Select("s", {"q": "x / d"}).apply(lazy).collect()["q"].to_list()
        assert found == [math.copysign(math.inf, zero), None]


@pytest.mark.parametrize(
    "text", ["p / 0", "p / 0.0", "p % 0", "div(p, 0)", "p / (1 - 1)", "i / 0.0", "1.5 / 0", "1.5 % 0"]
)
def test_decimals_divided_by_a_zero_that_is_written_are_null(text: str) -> None:
    rows = NUMBERS.with_columns(p=pl.lit("1.50").cast(pl.Decimal(9, 2)))
    found = Select("s", {"q": text, "x": "x"}).apply(rows.lazy()).collect()
    assert found["q"].dtype.is_decimal()
    assert found["q"].null_count() == NUMBERS.height
