"""Jobs whose steps hand changelogs on to each other, from their spec to tables: what they come to, against Polars."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import headrace
from headrace.jobs.compile import CompiledJob, compile_job
from headrace.jobs.config import load_config
from headrace.jobs.graph import build_graph
from headrace.jobs.loading import load_job_text
from headrace.jobs.run import run_job
from headrace.kernel import columns
from headrace.kernel.errors import SpecError
from headrace.kernel.protocols import Determinism
from headrace.runtime.job import RunOptions
from headrace.runtime.observer import SilentObserver, StopSignal

EPOCH = datetime(2024, 3, 30, tzinfo=UTC)
ROWS = pl.DataFrame(
    {
        "at": [EPOCH + timedelta(minutes=n * 3 + n % 7) for n in range(300)],
        "k": ["abc"[n % 3] for n in range(300)],
        "v": [n * 7 % 11 for n in range(300)],
    },
    schema_overrides={"at": pl.Datetime("us", "UTC")},
)


def job_of(folder: Path) -> headrace.Job:
    changes = {"create": True, "changes": "append"}
    return (
        headrace.Job("changes")
        .source("rows", history={"parquet": f"{folder}/in.parquet", "split_rows": 70}, event_time={"column": "at"})
        .window("1h", by="k", aggregate={"n": "count(*)", "last": "last(v)"}, early="10m", id="soon")
        .sink_iceberg("local.ns.soon", **changes, from_="soon")
        .aggregate({"most": "max(n)", "least": "min(n)", "hours": "count(*)"}, by="k", id="extremes", from_="soon")
        .aggregate({"sum": "sum(most)", "keys": "count(distinct k)"}, id="whole")
        .sink_iceberg("local.ns.whole", **changes, from_="whole")
        .aggregate({"n": "count(*)", "first": "first(v)"}, by=["at", "k"], id="each", from_="rows")
        .window("1h", aggregate={"rows": "sum(n)", "instants": "count(*)", "low": "min(first)"}, id="hours")
        .sink_iceberg("local.ns.hours", create=True, from_="hours")
        .dedup("k", id="once", from_="each")
        .sink_iceberg("local.ns.once", create=True, from_="once")
        .top(1, order_by=["first desc", "at", "k"], tumbling="1h", id="hourly_best", from_="each")
        .sink_iceberg("local.ns.best", create=True, from_="hourly_best")
        .window(session="8m", aggregate={"m": "sum(n)", "low": "min(first)"}, id="visits", from_="each")
        .sink_iceberg("local.ns.visits", create=True, from_="visits")
        .over({"total": "sum(first)"}, by="k", id="running", from_="each")
        .sink_iceberg("local.ns.soFar", create=True, from_="running")
        .join("each", "rows", on="k", within="5m", right_prefix="r_", id="near")
        .sink_iceberg("local.ns.near", create=True, from_="near")
        .running_top(2, order_by=["v desc", "at"], by="k", id="best", from_="rows")
        .filter("k = 'a'", id="kept", from_="rows")
        .union("kept", "best", id="both")
        .aggregate({"n": "count(*)", "v": "sum(v)"}, by="k", id="counted")
        .sink_iceberg("local.ns.counted", **changes, from_="counted")
    )


@pytest.fixture(scope="module", params=[1, 2])
def done(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CompiledJob:
    folder = tmp_path_factory.mktemp("changes")
    ROWS.write_parquet(folder / "in.parquet", row_group_size=50)
    made = job_of(folder).parallelism(request.param)
    job = compile_job(made.spec(), load_config(state_path=folder / "state", cwd=folder))
    run_job(job.spec, job.config, RunOptions("caught-up"), SilentObserver(), StopSignal())
    return job


def table(job: CompiledJob, name: str) -> pl.DataFrame:
    """What the changes in a table come to: each row once."""
    frame = pl.from_arrow(job.catalogs.load(f"local.ns.{name}").scan().to_arrow())
    assert isinstance(frame, pl.DataFrame)
    if columns.WEIGHT not in frame.columns:
        return frame
    weights = frame.group_by(pl.exclude(columns.WEIGHT)).agg(pl.col(columns.WEIGHT).sum())
    held = weights.filter(pl.col(columns.WEIGHT) != 0)
    assert held[columns.WEIGHT].to_list() == [1] * held.height
    return held.drop(columns.WEIGHT)


def same(found: pl.DataFrame, expected: pl.DataFrame) -> None:
    order = expected.columns
    assert_frame_equal(found.select(order).sort(order), expected.sort(order), check_dtypes=False)


def hourly() -> pl.DataFrame:
    return (
        ROWS.sort("at")
        .group_by("k", window_start=pl.col("at").dt.truncate("1h"))
        .agg(n=pl.len(), last=pl.col("v").last())
    )


def test_early_results_come_to_those_of_the_window(done: CompiledJob) -> None:
    same(table(done, "soon"), hourly())


def test_aggregates_of_aggregates_of_early_results(done: CompiledJob) -> None:
    most = hourly().group_by("k").agg(pl.col("n").max())
    same(table(done, "whole"), pl.DataFrame({"sum": [most["n"].sum()], "keys": [3]}))


def test_a_window_over_a_running_aggregate(done: CompiledJob) -> None:
    each = ROWS.group_by("at", "k").agg(n=pl.len(), first=pl.col("v").min())
    hours = each.group_by(window_start=pl.col("at").dt.truncate("1h")).agg(
        rows=pl.col("n").sum(), instants=pl.len(), low=pl.col("first").min()
    )
    same(table(done, "hours"), hours)


def test_a_union_of_rows_and_a_running_top(done: CompiledJob) -> None:
    best = ROWS.sort("v", "at", descending=[True, False]).group_by("k", maintain_order=True).head(2)
    both = pl.concat([ROWS.filter(pl.col("k") == "a").select("k", "v"), best.select("k", "v")])
    same(table(done, "counted"), both.group_by("k").agg(n=pl.len(), v=pl.col("v").sum()))


def test_what_the_steps_promise(done: CompiledJob) -> None:
    promised = {node.id: node.operator.determinism for node in done.sketch().stateful()}
    for settled in ("hours", "once", "hourly_best", "visits", "running", "near"):
        assert promised.pop(settled) is Determinism.EXACT
    assert set(promised.values()) == {Determinism.EXACT_TABLE}


def test_windows_over_what_is_revised_are_not_invariant(tmp_path: Path) -> None:
    ROWS.write_parquet(tmp_path / "in.parquet")
    job = (
        headrace.Job("j")
        .source("rows", history={"parquet": f"{tmp_path}/in.parquet"}, event_time={"column": "at"})
        .running_top(1, order_by="at desc", by="k")
        .window("1h", aggregate={"n": "count(*)"}, id="w")
        .sink_iceberg("local.ns.out", create=True)
    )
    config = load_config(state_path=tmp_path / "state", cwd=tmp_path)
    promised = {node.id: node.operator.determinism for node in compile_job(job.spec(), config).sketch().stateful()}
    assert promised["w"] is Determinism.NOT_INVARIANT


def test_steps_that_give_rows_out_once_give_what_is_left(done: CompiledJob) -> None:
    each = ROWS.group_by("at", "k").agg(n=pl.len(), first=pl.col("v").min())
    same(table(done, "once"), each.sort("at").unique("k", keep="first"))
    best = each.sort("first", "at", "k", descending=[True, False, False])
    same(table(done, "best"), best.group_by(pl.col("at").dt.truncate("1h").alias("hour")).head(1).select(each.columns))
    gaps = (each.sort("at")["at"].diff() >= timedelta(minutes=8)).fill_null(value=False).cum_sum()
    sessions = (
        each.sort("at").with_columns(gaps.alias("s")).group_by("s").agg(m=pl.col("n").sum(), low=pl.col("first").min())
    )
    same(table(done, "visits"), sessions.drop("s"))
    rows = ROWS.rename({"at": "r_at", "v": "r_v"})
    near = each.join(rows, on="k").filter((pl.col("at") - pl.col("r_at")).abs() <= timedelta(minutes=5))
    same(table(done, "near"), near)
    same(table(done, "soFar"), each.sort("at").with_columns(total=pl.col("first").cum_sum().over("k")))


@pytest.mark.parametrize(
    "window", [{"session": "1h", "early": "10m"}, {"tumbling": "1h", "time": "processing"}], ids=["early", "clock"]
)
def test_windows_that_give_out_what_has_not_settled_refuse_changelogs(tmp_path: Path, window) -> None:
    ROWS.write_parquet(tmp_path / "in.parquet")
    job = headrace.Job("j").source("rows", history={"parquet": f"{tmp_path}/in.parquet"}, event_time={"column": "at"})
    job = job.aggregate({"n": "count(*)"}, by=["at", "k"])
    job = job.window(**window, aggregate={"m": "sum(n)"}).sink_iceberg("local.ns.out", create=True, changes="append")
    with pytest.raises(SpecError) as caught:
        compile_job(job.spec(), load_config(state_path=tmp_path / "state", cwd=tmp_path))
    assert caught.value.code == "CHANGELOG_UNSUPPORTED"
    assert "tumbling or hopping window by event time" in caught.value.hint


def test_hopping_windows_of_joins_refuse_changelogs(tmp_path: Path) -> None:
    job = headrace.Job("j").source("rows", history={"parquet": f"{tmp_path}/in.parquet"}, event_time={"column": "at"})
    job = job.aggregate({"n": "count(*)"}, by=["at", "k"], id="each")
    job = job.join("each", "rows", on="k", window={"hopping": "1h", "every": "30m"}, right_prefix="r_")
    with pytest.raises(SpecError, match="windows side by side alone") as caught:
        build_graph(job.sink_iceberg("local.ns.out", create=True).spec())
    assert caught.value.code == "CHANGELOG_UNSUPPORTED"


def test_an_aggregate_without_the_event_time_in_its_key_has_none(tmp_path: Path) -> None:
    ROWS.write_parquet(tmp_path / "in.parquet")
    job = (
        headrace.Job("j")
        .source("rows", history={"parquet": f"{tmp_path}/in.parquet"}, event_time={"column": "at"})
        .aggregate({"n": "count(*)"}, by="k")
        .window("1h", aggregate={"m": "sum(n)"})
        .sink_iceberg("local.ns.out", create=True)
    )
    with pytest.raises(SpecError, match="needs an event time") as caught:
        compile_job(job.spec(), load_config(state_path=tmp_path / "state", cwd=tmp_path))
    assert "stands in by" in caught.value.hint


def test_early_results_go_by_event_time(tmp_path: Path) -> None:
    ROWS.write_parquet(tmp_path / "in.parquet")
    job = headrace.Job("j").source("rows", history={"parquet": f"{tmp_path}/in.parquet"})
    job = job.window("1h", time="processing", early="10s", aggregate={"n": "count(*)"})
    with pytest.raises(SpecError, match="goes by processing time itself"):
        job.sink_iceberg("local.ns.out", create=True, changes="append").spec()


SPLIT = """
name: orders
sources:
  orders:
    tail: {topic: orders, schema: {id: string, at: timestamptz, price: double}}
    event_time: {column: at}
steps:
  - {id: cheap, from: orders, filter: "price < 100"}
  - {id: dear, from: orders, filter: "price >= 100"}
  - {id: hourly, from: orders, window: {tumbling: 1h, aggregate: {n: count(*)}}}
sinks:
  - {from: cheap, iceberg: {table: lake.shop.cheap, create: true}}
  - {from: dear, kafka: {topic: dear-orders, key: id}}
  - {from: hourly, iceberg: {table: lake.shop.hourly, create: true}}
  - {from: hourly.late, iceberg: {table: lake.shop.late, create: true}}
  - {from: orders.errors, kafka: {topic: dead-letters}}
"""


def test_one_stream_goes_several_ways() -> None:
    graph = build_graph(load_job_text(SPLIT, "job.yaml", environ={}))
    assert [str(sink.input) for sink in graph.sinks] == ["cheap", "dear", "hourly", "hourly.late", "orders.errors"]
    assert {step.id: str(step.input) for step in graph.steps} == dict.fromkeys(["cheap", "dear", "hourly"], "orders")
