"""Sinks have ids of their own: one may be called as a source or a step is."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from headrace.jobs.compile import check_columns, compile_job
from headrace.jobs.config import Config, load_config
from headrace.jobs.parse import parse_job
from headrace.jobs.planning import plan_job
from headrace.jobs.run import run_job
from headrace.kernel.errors import SpecError
from headrace.runtime.job import RunOptions
from headrace.runtime.observer import SilentObserver, StopSignal

ROWS = {"rows": 4, "kept": 3, "minutes": 2, "some": 2, "once": 2, "all": 3}
"""How many rows each node gives."""
STEPS: list[dict[str, Any]] = [
    {"id": "kept", "filter": "v > 0"},
    {"id": "minutes", "window": {"tumbling": "1m", "by": ["k"], "aggregate": {"n": "count(*)", "w": "max(w)"}}},
    {"id": "some", "select": ["k", "n"]},
    {"id": "once", "from": "kept", "dedup": {"by": ["k"]}},
    {"id": "all", "from": "kept", "over": {"by": ["k"], "compute": {"total": "sum(v)"}}},
]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    rows = pl.DataFrame({"at": [0, 1, 61, 2], "k": ["a", "a", "b", "a"], "v": [1, 2, 3, 0], "w": [1, 1, 1, 1]})
    in_time = rows.with_columns(pl.from_epoch("at", time_unit="s").dt.cast_time_unit("us").dt.replace_time_zone("UTC"))
    in_time.write_parquet(tmp_path / "rows.parquet")
    return load_config(state_path=tmp_path / "state", cwd=tmp_path, environ={})


def job(config: Config) -> dict[str, Any]:
    history = {"parquet": str(config.state_path.parent / "rows.parquet")}
    tables = {name: {"table": f"local.a.{name}", "create": True} for name in ROWS}
    return {
        "name": "ids",
        "sources": {"rows": {"history": history, "event_time": {"column": "at"}}},
        "steps": copy.deepcopy(STEPS),
        "sinks": [{"id": name, "from": name, "iceberg": table} for name, table in tables.items()],
    }


def test_every_sink_gets_its_rows_also_where_it_is_called_as_what_it_reads(config: Config) -> None:
    spec = parse_job(job(config))
    result = run_job(spec, config, RunOptions("caught-up"), SilentObserver(), StopSignal())
    assert result.rows_out == ROWS
    catalogs = compile_job(spec, config).catalogs
    assert {name: catalogs.load(f"local.a.{name}").scan().to_arrow().num_rows for name in ROWS} == ROWS


@pytest.mark.parametrize("step", range(len(STEPS)))
def test_a_step_that_a_sink_is_called_as_is_checked_like_any_other(config: Config, step: int) -> None:
    wrong = job(config)
    kinds = {"filter": "nope > 0", "window": {"tumbling": "1m", "aggregate": {"n": "sum(nope)", "w": "max(w)"}}}
    kinds |= {"select": ["nope"], "dedup": {"by": ["nope"]}, "over": {"compute": {"total": "sum(nope)"}}}
    kind = next(kind for kind in kinds if kind in wrong["steps"][step])
    wrong["steps"][step][kind] = kinds[kind]
    with pytest.raises(SpecError, match="nope"):
        check_columns(compile_job(parse_job(wrong), config))


def test_the_plan_shows_both(config: Config) -> None:
    graph = plan_job(compile_job(parse_job(job(config)), config)).graph
    names = [node.id for node in graph.nodes]
    assert sorted(names) == sorted([*ROWS, *(f"sink {name}" for name in ROWS)])
    assert {(edge.start, edge.end) for edge in graph.edges} >= {(name, f"sink {name}") for name in ROWS}
    kinds = {node.id: node.kind for node in graph.nodes}
    assert (kinds["kept"], kinds["minutes"], kinds["sink minutes"]) == ("filter", "window", "iceberg")
    assert {sink for segment in graph.segments for sink in segment.sinks} == {f"sink {name}" for name in ROWS}
