"""Rows have the values that they have alone, also over columns that hold one value throughout."""

from __future__ import annotations

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from operators.expressions import Expression, row_expression
from operators.row_forms import mean, row_form
from operators.stateless import Select

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
