"""Explode and unnest."""

from __future__ import annotations

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from headrace.kernel import columns
from headrace.kernel.errors import SchemaError, SpecError
from headrace.kernel.protocols import Determinism
from operators.errors import computing
from operators.nested import Explode, Unnest

FRAME = pl.DataFrame(
    {
        "id": [1, 2, 3, 4],
        "tags": [["a", "b"], [], None, [None]],
        "at": pl.Series([{"x": 1, "y": 2}, {"x": None, "y": 3}, None, {"x": 4, "y": 5}]),
        columns.ROW_WATERMARK: [None, 1, None, 2],
    }
)


def test_explode_gives_a_row_for_each_element_and_drops_rows_without() -> None:
    found = Explode("e", ["tags"]).apply(FRAME.lazy()).collect()
    assert found.select("id", "tags").rows() == [(1, "a"), (1, "b"), (4, None)]
    assert found[columns.ROW_WATERMARK].to_list() == [None, None, 2]


def test_explode_may_keep_rows_without_elements() -> None:
    found = Explode("e", ["tags"], keep_empty=True).apply(FRAME.lazy()).collect()
    assert found.select("id", "tags").rows() == [(1, "a"), (1, "b"), (2, None), (3, None), (4, None)]


def test_explode_takes_several_lists_apart_together() -> None:
    frame = pl.DataFrame({"a": [[1, 2], [3]], "b": [["x", "y"], ["z"]]})
    assert Explode("e", ["a", "b"]).apply(frame.lazy()).collect().rows() == [(1, "x"), (2, "y"), (3, "z")]
    uneven = frame.with_columns(b=pl.Series([["x"], ["z"]]))
    with pytest.raises(SchemaError), computing("step 'e'"):
        Explode("e", ["a", "b"]).apply(uneven.lazy()).collect()


@pytest.mark.parametrize("cut", range(5))
def test_explode_and_unnest_do_not_depend_on_batches(cut: int) -> None:
    for step in (Explode("e", ["tags"]), Explode("e", ["tags"], keep_empty=True), Unnest("u", ["at"])):
        parts = [step.apply(frame.lazy()).collect() for frame in (FRAME[:cut], FRAME[cut:])]
        assert_frame_equal(pl.concat(parts), step.apply(FRAME.lazy()).collect())
        assert step.determinism is Determinism.EXACT


def test_unnest_puts_fields_where_the_struct_stood() -> None:
    found = Unnest("u", ["at"]).apply(FRAME.lazy()).collect()
    assert found.columns == ["id", "tags", "x", "y", columns.ROW_WATERMARK]
    assert found["y"].to_list() == [2, 3, None, 5]
    assert Unnest("u", ["at"], prefix="at_").apply(FRAME.lazy()).collect().columns[2:4] == ["at_x", "at_y"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Explode("e", []), "names no column"),
        (lambda: Explode("e", ["tag"]).apply(FRAME.lazy()), "names column 'tag'(.|\n)*mean 'tags'"),
        (lambda: Explode("e", ["id"]).apply(FRAME.lazy()), "type Int64, which is no list"),
        (lambda: Unnest("u", ["tags"]).apply(FRAME.lazy()), "no struct"),
        (lambda: Unnest("u", ["at"]).apply(FRAME.with_columns(x=1).lazy()), "would give 'x' twice"),
    ],
)
def test_what_cannot_be_is_refused(make, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        make()
