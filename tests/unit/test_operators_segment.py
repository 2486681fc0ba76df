"""Segments: fusion, schemas, determinism, what reaches the source."""

from __future__ import annotations

import polars as pl
import pytest
from polars.io.plugins import register_io_source
from polars.testing import assert_frame_equal

from headrace.kernel import columns
from headrace.kernel.errors import SpecError
from headrace.kernel.protocols import Determinism
from operators.determinism import weakest
from operators.segment import Segment, output_schema, window_schema
from operators.stateless import Apply, Filter, Select, WithColumns
from operators.window import TumblingWindow

SCHEMA = pl.Schema(
    {
        "t": pl.Datetime("us", "UTC"),
        "k": pl.String(),
        "x": pl.Int32(),
        "unused": pl.String(),
        columns.ROW_WATERMARK: pl.Int64(),
    }
)
WINDOW = TumblingWindow("w", "t", 1_000_000, {"s": "sum(y)"}, by=["k"])
CHAIN = Segment([Filter("f", "x > 1"), WithColumns("c", {"y": "x * 2"}), Select("s", ["t", "k", "y"])], WINDOW)


def frame() -> pl.DataFrame:
    rows = {"t": [0, 1, 2_000_000], "k": ["a", "a", None], "x": [1, 2, 3], "unused": ["u"] * 3}
    return pl.DataFrame({**rows, columns.ROW_WATERMARK: [None, None, 3_000_000]}, schema=dict(SCHEMA))


def test_a_chain_is_one_plan_with_the_partial_aggregate() -> None:
    partials = CHAIN.partial(frame().lazy()).collect()
    assert partials["k"].to_list() == ["a"]
    late = CHAIN.late(frame().lazy())
    assert late is not None
    assert late.collect().select("k", "y").rows() == [(None, 6)]


def test_without_a_stateful_operator_it_gives_rows() -> None:
    chain = Segment(CHAIN.transforms)
    assert_frame_equal(chain.partial(frame().lazy()).collect(), chain.rows(frame().lazy()).collect())
    assert chain.late(frame().lazy()) is None
    assert_frame_equal(Segment().rows(frame().lazy()).collect(), frame())


def test_only_what_is_needed_is_asked_of_the_source() -> None:
    seen = []

    def source(with_columns, predicate, n_rows, batch_size):
        seen.append((with_columns, predicate))
        rows = frame() if predicate is None else frame().filter(predicate)
        yield rows if with_columns is None else rows.select(with_columns)

    CHAIN.partial(register_io_source(source, schema=SCHEMA)).collect()
    wanted, predicate = seen[0]
    assert sorted(wanted) == sorted(["t", "k", "x", columns.ROW_WATERMARK])
    assert "x" in str(predicate)
    assert columns.ROW_WATERMARK in str(predicate)


def test_schemas_are_found_without_rows() -> None:
    expected = pl.Schema({"k": pl.String(), "window_start": SCHEMA["t"], "window_end": SCHEMA["t"], "s": pl.Int64()})
    assert CHAIN.output_schema(SCHEMA) == expected
    before = Segment(CHAIN.transforms).output_schema(SCHEMA)
    assert window_schema(WINDOW, before) == expected


def test_the_step_at_fault_is_named() -> None:
    chain = Segment([Select("narrow", ["t", "k"]), Filter("broken", "x > 1")])
    with pytest.raises(SpecError, match="step 'broken' names column 'x'") as caught:
        chain.output_schema(SCHEMA)
    assert caught.value.detail == "columns: t, k"


def test_the_weakest_promise_counts() -> None:
    assert CHAIN.determinism is Determinism.EXACT
    assert Segment([*CHAIN.transforms, Apply("a", lambda rows: rows)], WINDOW).determinism is Determinism.NOT_INVARIANT
    assert weakest([]) is Determinism.EXACT
    assert weakest([Determinism.WITHIN_TOLERANCE, Determinism.EXACT_TABLE]) is Determinism.WITHIN_TOLERANCE


def test_a_python_function_that_breaks_the_schema_is_told_as_its_step() -> None:
    with pytest.raises(SpecError, match="step 'a' names column 'nope'"):
        output_schema(Apply("a", lambda rows: rows.filter(pl.col("nope") > 1)), SCHEMA)


def test_scans_of_parquet_fuse_on_the_streaming_engine(tmp_path) -> None:
    path = tmp_path / "x.parquet"
    frame().drop(columns.ROW_WATERMARK).write_parquet(path)
    rows = pl.scan_parquet(path)
    plan = CHAIN.partial(rows).explain(engine="streaming")
    assert "PROJECT 3/4 COLUMNS" in plan
    assert "SELECTION" in plan
    expected = CHAIN.partial(frame().drop(columns.ROW_WATERMARK).lazy()).collect().sort("k")
    assert_frame_equal(CHAIN.partial(rows).collect(engine="streaming").sort("k"), expected)
