"""Constants on the left of comparisons, over columns that hold one value throughout."""

from __future__ import annotations

import polars as pl
import pytest

from operators.comparisons import columns_first
from operators.expressions import row_expression
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
        assert columns_first(written) is written
    assert str(row_expression(pl.lit(1) < pl.col("a"), "x").expr) == str(pl.col("a") > 1)
