"""Filters that compute with columns keep the rows that meet them, whatever wraps around beside these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

import headrace
from headrace.jobs.compile import CompiledJob, compile_job
from headrace.jobs.config import Config, load_config
from headrace.jobs.run import run_job
from headrace.runtime.job import RunOptions
from headrace.runtime.observer import SilentObserver, StopSignal
from hybrid_source.predicates import holds_for_bounds

NO_END = 2**63 - 1
ROWS = pl.DataFrame(
    {
        "small": [7, 9999, 2**31 - 1],
        "ends": [5, 1_700_000_000, NO_END],
        "low": [-12, -20, -(2**63)],
        "price": [1.5, 2.5, 3.5],
    },
    schema={"small": pl.Int32, "ends": pl.Int64, "low": pl.Int64, "price": pl.Float64},
)
"""One row group, with what stands for "no end" in it."""
FILTERS = {
    "sum": ("small + 1 > 6", pl.col("small") + 1 > 6),
    "product": ("ends * 1000 > 6", pl.col("ends") * 1000 > 6),
    "difference": ("low - 1 < 0", pl.col("low") - 1 < 0),
    "negated": ("-low > 11", -pl.col("low") > 11),
    "reversed": ("6 < 1 + ends", 1 + pl.col("ends") > 6),
}


@pytest.mark.parametrize("stored", ["parquet", "iceberg"])
@pytest.mark.parametrize("name", FILTERS)
def test_pru_02_rows_are_kept_beside_one_whose_sum_wraps_around(tmp_path: Path, stored: str, name: str) -> None:
    config = load_config(state_path=tmp_path / "state", cwd=tmp_path)
    ROWS.write_parquet(tmp_path / "in.parquet")
    history: dict[str, Any] = {"parquet": f"{tmp_path}/in.parquet"}
    if stored == "iceberg":
        run(headrace.Job("seed").source("rows", history=history).sink_iceberg("local.ns.rows", create=True), config)
        history = {"table": "local.ns.rows"}
    filtered, expected = FILTERS[name]
    job = headrace.Job("filters").source("rows", history=history).filter(filtered)
    done = run(job.sink_iceberg("local.ns.out", create=True), config)
    found = done.catalogs.load("local.ns.out").scan().to_arrow()["ends"].to_pylist()
    assert sorted(found) == sorted(ROWS.filter(expected)["ends"])


def run(job: headrace.Job, config: Config) -> CompiledJob:
    compiled = compile_job(job.spec(), config)
    run_job(compiled.spec, compiled.config, RunOptions("caught-up"), SilentObserver(), StopSignal())
    return compiled


@pytest.mark.parametrize(
    ("predicate", "expected"),
    [
        (pl.col("ends") > 5, True),
        (pl.col("price") * 2 + 1 > -pl.col("price"), True),
        (pl.col("ends") > pl.lit(5) * 3, True),
        (pl.col("ends").is_in([1, 2]) & pl.col("ends").is_not_null(), True),
        (pl.col("ends") + 0.5 > 1, False),
        ((pl.col("price") > 1) | (pl.col("small") * 2 == 14), False),
        (pl.col("price").cast(pl.Int64) * 2 > 1, False),
        (pl.from_epoch("ends", "s") > pl.datetime(2026, 1, 1), False),
        (pl.col("ends").map_elements(abs, return_dtype=pl.Int64) > 1, False),
    ],
)
def test_only_what_cannot_wrap_around_leaves_out_row_groups(predicate: pl.Expr, expected: bool) -> None:
    assert holds_for_bounds(predicate, ROWS.schema) is expected
