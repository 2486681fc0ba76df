"""Every kind of stateful step in one job, from its spec to tables: over the history, against plain Polars."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import headrace
from catalog.catalogs import Catalogs
from headrace.jobs.compile import CompiledJob, compile_job
from headrace.jobs.config import load_config
from headrace.jobs.run import run_job
from headrace.kernel.errors import HeadraceError, SpecError
from headrace.kernel.protocols import Determinism
from headrace.runtime.job import RunOptions
from headrace.runtime.observer import SilentObserver, StopSignal

EPOCH = datetime(2024, 3, 30, tzinfo=UTC)
ROWS = pl.DataFrame(
    {
        "at": [EPOCH + timedelta(minutes=37 * n % 4000) for n in range(400)],
        "k": ["abc"[n % 3] for n in range(400)],
        "v": [n * 7 % 11 for n in range(400)],
        "tags": [["x", "y"][: n % 3] for n in range(400)],
        "place": [{"city": "p" if n % 2 else "q"} for n in range(400)],
    },
    schema_overrides={"at": pl.Datetime("us", "UTC")},
)
RATES = pl.DataFrame(
    {"k": ["b", "a", "a"], "since": [EPOCH + timedelta(hours=h) for h in (1, 30, 2)], "rate": [1, 2, 3]},
    schema_overrides={"since": pl.Datetime("us", "UTC")},
)
COUNT = {"n": "count(*)", "s": "sum(v)"}


def job_of(folder: Path) -> headrace.Job:
    return (
        headrace.Job("steps")
        .source("rows", history={"parquet": f"{folder}/in.parquet", "split_rows": 90}, event_time={"column": "at"})
        .table("rates", parquet=f"{folder}/rates.parquet")
        .unnest("place", id="flat")
        .window(hopping="1h", every="20m", by="k", aggregate=COUNT, id="hop")
        .window(cumulating="1d", every="6h", aggregate=COUNT, id="grow", from_="flat")
        .window(session="10m", by="k", aggregate=COUNT, id="visits", from_="flat")
        .window("1d", time_zone="Europe/Paris", aggregate=COUNT | {"f": "first(city)"}, id="days", from_="flat")
        .select(["at", "k", "v", "city"], id="slim", from_="flat")
        .dedup(["k", "city"], id="once")
        .top(2, order_by=["v desc", "at"], by="k", tumbling="1d", rank="place", id="best", from_="slim")
        .top(1, order_by="n desc", id="peak", from_="hop")
        .sink_iceberg("local.ns.best", create=True, from_="best")
        .sink_iceberg("local.ns.peak", create=True, from_="peak")
        .lookup("rates", on="k", as_of="since", id="rated", from_="slim")
        .sink_iceberg("local.ns.rated", create=True, from_="rated")
        .explode("tags", id="tag", from_="flat")
        .window("30d", by="tags", aggregate={"n": "count(*)"}, id="tags", from_="tag")
        .filter("k = 'a'", id="as", from_="flat")
        .filter("k <> 'a'", id="others", from_="flat")
        .union("as", "others", id="both")
        .window(session="10m", by="k", aggregate=COUNT, id="again")
        .sink_iceberg("local.ns.again", create=True, from_="again")
        .sink_iceberg("local.ns.hop", create=True, from_="hop")
        .sink_iceberg("local.ns.grow", create=True, from_="grow")
        .sink_iceberg("local.ns.visits", create=True, from_="visits")
        .sink_iceberg("local.ns.days", create=True, from_="days")
        .sink_iceberg("local.ns.once", create=True, from_="once")
        .sink_iceberg("local.ns.tags", create=True, from_="tags")
    )


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> CompiledJob:
    folder = tmp_path_factory.mktemp("steps")
    ROWS.write_parquet(folder / "in.parquet", row_group_size=50)
    RATES.write_parquet(folder / "rates.parquet")
    job = compile_job(job_of(folder).spec(), load_config(state_path=folder / "state", cwd=folder))
    run_job(job.spec, job.config, RunOptions("caught-up"), SilentObserver(), StopSignal())
    return job


def table(job: CompiledJob, name: str) -> pl.DataFrame:
    frame = pl.from_arrow(job.catalogs.load(f"local.ns.{name}").scan().to_arrow())
    assert isinstance(frame, pl.DataFrame)
    return frame


def same(found: pl.DataFrame, expected: pl.DataFrame) -> None:
    order = expected.columns
    assert_frame_equal(found.select(order).sort(order), expected.sort(order), check_dtypes=False)


def test_hopping(done: CompiledJob) -> None:
    every, size = timedelta(minutes=20), timedelta(hours=1)
    starts = pl.col("at").dt.truncate("20m")
    expected = (
        pl.concat([ROWS.with_columns((starts - every * back).alias("window_start")) for back in range(3)])
        .group_by("k", "window_start")
        .agg(n=pl.len(), s=pl.col("v").sum())
        .with_columns(window_end=pl.col("window_start") + size)
    )
    same(table(done, "hop"), expected)


def test_cumulating(done: CompiledJob) -> None:
    found = table(done, "grow").sort("window_start", "window_end")
    for row in found.iter_rows(named=True):
        held = ROWS.filter(pl.col("at").is_between(row["window_start"], row["window_end"], closed="left"))
        assert (row["n"], row["s"]) == (held.height, held["v"].sum())
    assert found.height == found.select("window_start", "window_end").unique().height > 10


def test_sessions(done: CompiledJob) -> None:
    found = table(done, "visits")
    ordered = ROWS.sort("k", "at").with_columns(
        run=(pl.col("at").diff() >= timedelta(minutes=10)).fill_null(value=True).cum_sum().over("k")
    )
    expected = ordered.group_by("k", "run").agg(
        window_start=pl.col("at").min(), window_end=pl.col("at").max() + timedelta(minutes=10), n=pl.len()
    )
    same(found, expected.drop("run"))
    same(table(done, "again"), found)


def test_days_of_a_zone(done: CompiledJob) -> None:
    local = ROWS.with_columns(day=pl.col("at").dt.convert_time_zone("Europe/Paris").dt.date())
    found = table(done, "days").sort("window_start")
    assert found["n"].to_list() == local.sort("day").group_by("day", maintain_order=True).len()["len"].to_list()
    assert timedelta(hours=23) in (found["window_end"] - found["window_start"]).to_list()
    assert set(found["f"]) <= {"p", "q"}


def test_dedup_keeps_the_first_row_of_each_key(done: CompiledJob) -> None:
    expected = (
        ROWS.unnest("place")
        .sort("at")
        .unique(["k", "city"], keep="first", maintain_order=True)
        .select("at", "k", "city")
    )
    same(table(done, "once"), expected)


def test_top_of_days_and_behind_a_window(done: CompiledJob) -> None:
    days = ROWS.with_columns(day=pl.col("at").dt.truncate("1d")).sort(
        ["day", "k", "v", "at"], descending=[False, False, True, False]
    )
    place = (pl.int_range(pl.len(), dtype=pl.Int64) + 1).over("day", "k")
    expected = days.with_columns(place=place).filter(pl.col("place") <= 2)
    same(table(done, "best"), expected.select("at", "k", "v", "place"))
    peaks = table(done, "peak")
    most = table(done, "hop").group_by("window_start").agg(pl.col("n").max())
    same(peaks, most)


def test_as_of_lookup_takes_the_version_that_held(done: CompiledJob) -> None:
    expected = ROWS.sort("at").join_asof(
        RATES.sort("since"), left_on="at", right_on="since", by="k", check_sortedness=False
    )
    same(table(done, "rated"), expected.select("at", "k", "v", "rate"))


def test_exploded_lists_are_counted(done: CompiledJob) -> None:
    expected = ROWS.explode("tags").drop_nulls("tags").group_by("tags").agg(n=pl.len())
    same(table(done, "tags").group_by("tags").agg(pl.col("n").sum()), expected)


def test_all_of_it_is_exact(done: CompiledJob) -> None:
    graph = done.sketch()
    assert {node.operator.determinism for node in graph.stateful()} == {Determinism.EXACT}


def test_what_an_operator_says_of_its_definition_names_the_step(tmp_path: Path) -> None:
    ROWS.write_parquet(tmp_path / "in.parquet")
    job = headrace.Job("j").source("s", history={"parquet": f"{tmp_path}/in.parquet"}, event_time={"column": "at"})
    config = load_config(state_path=tmp_path / "state", cwd=tmp_path)
    other = job.select({"at": "at", "k": "v"}, id="x", from_="s").union("s", "x")
    bad = {
        "its streams have different columns(.|\n)*'k' is String and Int64": other,
        "whole number of days": job.window("1h", time_zone="Europe/Paris", aggregate=COUNT),
        "no multiple of its step": job.window(cumulating="1h", every="7m", aggregate=COUNT),
        "without a ttl": job.dedup("k", keep="last"),
        "key 'tags' has type List": job.dedup("tags"),
    }
    for message, made in bad.items():
        with pytest.raises(SpecError, match=f"steps..*(.|\n)*{message}"):
            compile_job(made.sink_iceberg("local.ns.out", create=True).spec(), config)


def test_a_run_leaves_no_catalog_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One process may run many jobs, and a database has few connections."""
    made, closed = [], []
    begin, close = Catalogs.__init__, Catalogs.close
    monkeypatch.setattr(Catalogs, "__init__", lambda self, options: (made.append(self), begin(self, options))[1])
    monkeypatch.setattr(Catalogs, "close", lambda self: (closed.append(self), close(self))[1])
    config = load_config(state_path=tmp_path / "state", cwd=tmp_path)
    pl.DataFrame({"v": [1]}).write_parquet(tmp_path / "v.parquet")
    good = headrace.Job("j").source("s", history={"parquet": str(tmp_path / "v.parquet")})
    run_job(
        good.sink_iceberg("local.ns.v", create=True).spec(),
        config,
        RunOptions("caught-up"),
        SilentObserver(),
        StopSignal(),
    )
    bad = headrace.Job("j").source("s", history={"parquet": str(tmp_path / "nowhere.parquet")})
    with pytest.raises(HeadraceError):
        compile_job(bad.sink_iceberg("local.ns.v", create=True).spec(), config)
    assert len(made) == 2
    assert {id(one) for one in made} <= {id(one) for one in closed}


NAN = float("nan")
SOME: list[list[float | None]] = [[NAN, 1.0, 2.0], [1.0, NAN, 2.0], [2.0, 1.0, NAN], [NAN, NAN], [NAN, None], [None]]
LEAST_AND_MOST = {"least": "min(v)", "most": "max(v)"}


@pytest.mark.parametrize("split_rows", [1, 100])
def test_min_and_max_pass_nan_over_in_every_step_and_however_rows_are_cut(tmp_path: Path, split_rows: int) -> None:
    rows = [(n, value) for n, values in enumerate(SOME) for value in values]
    frame = pl.DataFrame(rows, schema={"k": pl.Int64, "v": pl.Float64}, orient="row").with_row_index("at")
    frame = frame.with_columns(pl.col("at").cast(pl.Datetime("us", "UTC")))
    frame.write_parquet(tmp_path / "in.parquet", row_group_size=1)
    history = {"parquet": f"{tmp_path}/in.parquet", "split_rows": split_rows}
    job = (
        headrace.Job("nans")
        .source("rows", history=history, event_time={"column": "at"})
        .window("1h", by="k", aggregate=LEAST_AND_MOST, id="windows")
        .sink_iceberg("local.ns.windows", create=True, from_="windows")
        .window(session="1h", by="k", aggregate=LEAST_AND_MOST, id="visits", from_="rows")
        .sink_iceberg("local.ns.visits", create=True, from_="visits")
        .aggregate(by=["k", "v"], aggregate={"n": "count(*)"}, id="each", from_="rows")
        .aggregate(by="k", aggregate=LEAST_AND_MOST, id="running")
        .sink_iceberg("local.ns.running", create=True, changes="append")
    )
    config = load_config(state_path=tmp_path / "state", cwd=tmp_path)
    run_job(job.spec(), config, RunOptions("caught-up"), SilentObserver(), StopSignal())
    wanted = [(1.0, 2.0)] * 3 + [(NAN, NAN)] * 2 + [(None, None)]
    for table in ("windows", "visits", "running"):
        found = pl.DataFrame(Catalogs(config.catalogs).load(f"local.ns.{table}").scan().to_arrow())
        if table == "running":
            found = found.group_by("k", "least", "most").agg(pl.col("_weight").sum()).filter(pl.col("_weight") != 0)
        assert_frame_equal(
            found.sort("k").select("least", "most"),
            pl.DataFrame(wanted, schema={"least": pl.Float64, "most": pl.Float64}, orient="row"),
        )
