"""Filter, select, with_columns, apply."""

from __future__ import annotations

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from headrace.kernel import columns
from headrace.kernel.errors import SpecError
from headrace.kernel.protocols import Determinism
from operators.segment import output_schema
from operators.stateless import Apply, Drop, Filter, Select, WithColumns

FRAME = pl.DataFrame({"a": [1, None, 3], "b": ["x", "y", "z"]})


@pytest.mark.parametrize("name", ["*", "^a$", "^.*$"])
def test_names_that_stand_for_other_columns_are_refused(name: str) -> None:
    for make in (lambda: Select("s", {name: "a"}), lambda: WithColumns("w", {name: "a"})):
        with pytest.raises(SpecError, match="stands for other columns"):
            make()


@pytest.mark.parametrize("text", ["a is true", "s is not false", "a is false"])
def test_a_truth_value_is_asked_of_booleans_only(text: str) -> None:
    rows = pl.LazyFrame({"a": [1], "s": ["x"]})
    with pytest.raises((pl.exceptions.ComputeError, pl.exceptions.InvalidOperationError)):
        Filter("f", text).apply(rows).collect()


def test_filter_keeps_true_and_drops_false_and_null() -> None:
    assert Filter("f", "a > 1").apply(FRAME.lazy()).collect()["b"].to_list() == ["z"]
    assert Filter("f", pl.col("a") > 0).apply(FRAME.lazy()).collect()["b"].to_list() == ["x", "z"]


def test_filter_wants_a_boolean() -> None:
    with pytest.raises(SpecError, match="step 'f'") as caught:
        output_schema(Filter("f", "a + 1"), FRAME.schema)
    assert "Boolean" in caught.value.detail


def test_select_by_list_and_by_mapping() -> None:
    expected = pl.DataFrame({"b": ["x", "y", "z"], "twice": [2, None, 6]})
    assert_frame_equal(Select("s", ["b", "a * 2 as twice"]).apply(FRAME.lazy()).collect(), expected)
    assert_frame_equal(Select("s", {"b": "b", "twice": pl.col("a") * 2}).apply(FRAME.lazy()).collect(), expected)


def test_select_of_literals_keeps_the_number_of_rows() -> None:
    assert Select("s", {"one": "1", "b": "b"}).apply(FRAME.lazy()).collect()["one"].to_list() == [1, 1, 1]


def test_select_of_nothing_but_constants_gives_a_row_for_each() -> None:
    found = Select("s", {"one": "1", "text": "'a' || 'b'"}).apply(FRAME.lazy()).collect()
    assert found.rows() == [(1, "ab")] * 3


def test_select_carries_the_row_watermark_and_nothing_else() -> None:
    frame = FRAME.with_columns(pl.lit(5).alias(columns.ROW_WATERMARK), pl.lit(0).alias(columns.OFFSET))
    assert Select("s", ["a"]).apply(frame.lazy()).collect_schema().names() == ["a", columns.ROW_WATERMARK]


def test_with_columns_sees_the_input_only() -> None:
    found = WithColumns("w", {"a": "a + 1", "old": "a"}).apply(FRAME.lazy()).collect()
    assert found["a"].to_list() == [2, None, 4]
    assert found["old"].to_list() == [1, None, 3]


def test_apply_takes_a_function_of_lazy_frames() -> None:
    step = Apply("p", lambda rows: rows.with_columns(pl.col("a").fill_null(0)))
    assert step.apply(FRAME.lazy()).collect()["a"].to_list() == [1, 0, 3]
    assert step.determinism is Determinism.NOT_INVARIANT
    assert Apply("p", lambda rows: rows, exact=True).determinism is Determinism.EXACT


def test_apply_that_collects_is_refused() -> None:
    with pytest.raises(SpecError, match="DataFrame, not a LazyFrame"):
        Apply("p", lambda rows: rows.collect()).apply(FRAME.lazy())  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize(
    ("step", "determinism"),
    [
        (Filter("x", pl.col("a").map_elements(bool, return_dtype=pl.Boolean)), Determinism.NOT_INVARIANT),
        (Select("x", {"a": pl.col("a").map_batches(abs)}), Determinism.NOT_INVARIANT),
        (WithColumns("x", {"c": "a", "d": pl.col("a").map_batches(abs)}), Determinism.NOT_INVARIANT),
        (WithColumns("x", {"c": "a"}), Determinism.EXACT),
    ],
)
def test_determinism_is_that_of_the_expressions(step, determinism: Determinism) -> None:
    assert step.determinism is determinism


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Select("s", []), "selects no column"),
        (lambda: WithColumns("s", {}), "adds no column"),
        (lambda: Filter("s", "sum(a) > 1"), "aggregate"),
        (lambda: WithColumns("s", {"c": "now()"}), "column 'c'.*time of day"),
        (lambda: output_schema(Select("s", ["aa"]), FRAME.schema), "'aa'(.|\n)*did you mean 'a'"),
        (lambda: output_schema(Select("s", ["a", "a"]), FRAME.schema), "does not fit(.|\n)*duplicate"),
    ],
)
def test_steps_that_cannot_be_are_refused(make, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        make()


def test_snp_04_no_rows_stay_no_rows_with_their_types() -> None:
    empty = FRAME.clear().lazy()
    for step in (Filter("f", "a > 1"), Select("s", ["a"]), WithColumns("w", {"c": "a + 1"})):
        found = step.apply(empty).collect()
        assert found.height == 0
        assert found.schema == output_schema(step, FRAME.schema)


def test_drop_leaves_columns_out() -> None:
    rows = pl.LazyFrame({"a": [1], "b": [2], "c": [3]})
    assert Drop("d", ["a", "c"]).apply(rows).collect().columns == ["b"]
    assert Drop("d", ["a"]).determinism is Determinism.EXACT
    with pytest.raises(SpecError, match="leaves no column out"):
        Drop("d", [])
