"""A plan says what would be read and written, and writes nothing but the job's (empty) store."""

import json
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from headrace.jobs import planning
from headrace.jobs.compile import CompiledJob, compile_job
from headrace.jobs.config import load_config
from headrace.jobs.loading import load_job_text
from headrace.jobs.planning import plan_job
from headrace.jobs.planning_table import text
from headrace.jobs.run import run_job
from headrace.kernel.errors import NotFoundError, SchemaError, SpecError, UnavailableError
from headrace.kernel.protocols import Determinism, ReadRequest
from headrace.runtime.job import RunOptions
from headrace.runtime.observer import SilentObserver, StopSignal
from hybrid_source.pushdown import probe

ROWS = pl.DataFrame({"k": ["a", "b"] * 50, "v": range(100)})


@pytest.fixture
def job(tmp_path: Path) -> CompiledJob:
    ROWS.write_parquet(tmp_path / "in.parquet", row_group_size=10)
    text = f"""
name: planned
sources:
  s:
    history: {{parquet: "{tmp_path}/in.parquet", where: "k = 'a'", split_rows: 20}}
steps:
  - filter: v > 9
  - select: [v]
sinks:
  - iceberg: {{table: local.ns.out, create: true}}
"""
    return compile_job(load_job_text(text, "job.yaml"), load_config(state_path=tmp_path / "state", cwd=tmp_path))


def test_plan_shows_the_jobs_own_restriction_and_the_pushed_predicate(job: CompiledJob) -> None:
    history = plan_job(job).sources[0].history
    assert history is not None
    assert '"k"' in (history.rows_predicate or "")
    assert '"v"' in (history.rows_predicate or "")
    assert list(history.columns) == ["v"]
    assert plan_job(job).determinism is Determinism.EXACT


def test_plan_tells_whether_targets_exist(job: CompiledJob) -> None:
    assert plan_job(job).sinks[0].exists is False
    run_job(job.spec, job.config, RunOptions("caught-up"), SilentObserver(), StopSignal())
    assert plan_job(job).sinks[0].exists is True


def changed(job: CompiledJob, sink: dict[str, object], **keys: object) -> CompiledJob:
    written = job.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return compile_job(load_job_text(json.dumps({**written, "sinks": [sink], **keys}), "job.json"), job.config)


def test_a_missing_target_that_is_not_to_be_created_is_refused_by_the_plan(job: CompiledJob) -> None:
    with pytest.raises(NotFoundError, match="namespace 'ns' does not exist") as caught:
        plan_job(changed(job, {"iceberg": {"table": "local.ns.out"}}))
    assert "create: true" in (caught.value.hint or "")


def test_partition_fields_of_a_table_to_be_created_are_checked_by_the_plan(job: CompiledJob) -> None:
    with pytest.raises(SpecError, match="names the unknown column 'w'") as caught:
        plan_job(changed(job, {"iceberg": {"table": "local.ns.out", "create": True, "partition_by": ["bucket(4, w)"]}}))
    assert caught.value.code == "PARTITION_INVALID"


def test_rows_that_do_not_fit_a_target_are_refused_by_the_plan(job: CompiledJob) -> None:
    run_job(job.spec, job.config, RunOptions("caught-up"), SilentObserver(), StopSignal())
    other = changed(job, {"iceberg": {"table": "local.ns.out"}}, uid="other", steps=[{"select": ["k"]}])
    with pytest.raises(SchemaError, match=r"table local\.ns\.out has no column 'k'"):
        plan_job(other)


def test_split_rows_decide_how_large_splits_are(job: CompiledJob) -> None:
    source = job.sources["s"]
    at = source.plan()
    assert source.history is not None
    splits = list(source.history.open(ReadRequest(["v"]), at.pin, None).read(None))
    assert [split.records for split in splits] == [20] * 5


def test_key_column_that_does_not_reach_its_sink_is_refused_at_creation(job: CompiledJob, tmp_path: Path) -> None:
    text = f"""
name: keyed
sources:
  s:
    history: {{parquet: "{tmp_path}/in.parquet"}}
steps:
  - select: [v]
sinks:
  - kafka: {{topic: out, key: [k]}}
"""
    spec = load_job_text(text, "job.yaml")
    config = replace(job.config, kafka={"default": {"bootstrap.servers": "127.0.0.1:1"}})
    with pytest.raises(SpecError, match=r"job.yaml:9:\d+: sinks\[0\].kafka.key: key column 'k' does not reach"):
        compile_job(spec, config)


@pytest.mark.parametrize("used", ["source", "sink"])
def test_a_cluster_that_cannot_be_reached_is_named_by_the_plan(
    job: CompiledJob, monkeypatch: pytest.MonkeyPatch, used: str
) -> None:
    monkeypatch.setattr(planning, "PATIENCE_S", 0.0)
    config = replace(job.config, kafka={"far": {"bootstrap.servers": "127.0.0.1:1"}})
    tail = {"s": {"tail": {"topic": "t", "cluster": "far", "schema": {"v": "long"}}}}
    sink: dict[str, object] = {"iceberg": {"table": "local.ns.out", "create": True}}
    sources: dict[str, object] = {"sources": tail} if used == "source" else {}
    if used == "sink":
        sink = {"kafka": {"topic": "t", "cluster": "far"}}
    with pytest.raises(UnavailableError, match=r"cluster 'far' \(127\.0\.0\.1:1\) cannot be reached") as caught:
        plan_job(changed(replace(job, config=config), sink, **sources))
    assert "Connection refused" in caught.value.detail


A, B = pl.col("a"), pl.col("b")
TEXTS: list[tuple[pl.Expr, str]] = [
    (A > 1, 'col("a") > (dyn int: 1)'),
    (A != "x", 'col("a") != "x"'),
    ((A > 1) & (B != "x"), 'col("a") > (dyn int: 1) and col("b") != "x"'),
    ((A > 1) | (B != "x") | A.is_null(), 'col("a") > (dyn int: 1) or col("b") != "x" or col("a").is_null()'),
    ((A == "x") & ((B == "y") | (B == "z")), 'col("a") == "x" and [col("b") == "y" or col("b") == "z"]'),
    (A + B > A * B, '[([(col("a")) + (col("b"))]) > ([(col("a")) * (col("b"))])]'),
    (~(A == "x") & (B == "y"), '[([(col("a")) == ("x")].not()) & (col("b") == "y")]'),
    (A == "[(b) == (c)]", '[(col("a")) == ("[(b) == (c)]")]'),
]


@pytest.mark.parametrize(("predicate", "wanted"), TEXTS, ids=str)
def test_predicates_are_written_without_brackets_where_they_say_nothing(predicate: pl.Expr, wanted: str) -> None:
    assert (text(predicate) or "").replace("(dyn int: 1)", "dyn int: 1") == wanted.replace("(dyn int: 1)", "dyn int: 1")


def test_rows_that_go_two_ways_behind_one_filter_are_asked_for_once() -> None:
    def two_ways(rows: pl.LazyFrame) -> list[pl.LazyFrame]:
        kept = rows.filter(A > 1)
        return [kept.select("a"), kept.select("b"), rows.filter(B < 3).select("b")]

    pushed = probe(two_ways, pl.Schema({"a": pl.Int64, "b": pl.Int64}))
    assert pushed.predicate is not None
    assert text(pushed.predicate) == 'col("a") > 1 or col("b") < 3'
    assert len(pushed.uses) == 3
