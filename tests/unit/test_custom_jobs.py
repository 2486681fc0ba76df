"""Custom operators and processing time in whole jobs: from specs to tables; what is refused, and where."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import headrace
from headrace.jobs import custom_operators
from headrace.jobs.compile import compile_job
from headrace.jobs.config import Config, load_config
from headrace.jobs.loading import load_job, load_job_text
from headrace.jobs.planning import plan_job
from headrace.jobs.run import run_job
from headrace.kernel.errors import ConfigError, SpecError
from headrace.kernel.protocols import Determinism
from headrace.runtime.job import RunOptions
from headrace.runtime.observer import SilentObserver, StopSignal
from tests.custom_operators import Sessionize

ROOT = Path(__file__).parents[2]
EPOCH = datetime(2024, 1, 1, tzinfo=UTC)
ROWS = pl.DataFrame(
    {
        "t": [EPOCH + timedelta(minutes=37 * n % 900) for n in range(300)],
        "k": ["abc"[n % 3] for n in range(300)],
        "x": [n % 7 for n in range(300)],
    },
    schema_overrides={"t": pl.Datetime("us", "UTC"), "x": pl.Int32},
)
HOUR = 3_600_000_000
GAP = {"gap_us": HOUR // 12}


def config_in(folder: Path, **operators: str) -> Config:
    ROWS.write_parquet(folder / "in.parquet", row_group_size=50)
    return replace(load_config(state_path=folder / "state", cwd=folder), operators=operators)


def job_of(folder: Path) -> headrace.Job:
    return headrace.Job("j").source(
        "rows", history={"parquet": f"{folder}/in.parquet", "split_rows": 90}, event_time={"column": "t"}
    )


def run(job: headrace.Job, config: Config, table: str, parallelism: int | None = None) -> pl.DataFrame:
    spec = job.spec()
    run_job(spec, config, RunOptions("caught-up", parallelism=parallelism), SilentObserver(), StopSignal())
    return pl.from_arrow(compile_job(spec, config).catalogs.load(table).scan().to_arrow())


def sessions() -> pl.DataFrame:
    gap = timedelta(microseconds=GAP["gap_us"])
    runs = ROWS.sort("k", "t").with_columns(run=(pl.col("t").diff().over("k") >= gap).fill_null(True).cum_sum())
    out = runs.group_by("k", "run").agg(first=pl.col("t").min(), end=pl.col("t").max() + gap, n=pl.len().cast(pl.Int64))
    return out.drop("run").sort("k", "first")


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_job_with_the_class_itself(tmp_path: Path, parallelism: int) -> None:
    job = (
        job_of(tmp_path)
        .custom(Sessionize, by="k", order_by="t", args=GAP, event_time="end", id="own")
        .window("2h", by="k", aggregate={"n": "sum(n)"}, id="hours")
        .sink_iceberg("local.ns.hours", create=True)
        .sink_iceberg("local.ns.own", create=True, from_="own")
    )
    config = config_in(tmp_path)
    assert run(job, config, "local.ns.own", parallelism).sort("k", "first").equals(sessions())
    hours = compile_job(job.spec(), config).catalogs.load("local.ns.hours").scan().to_arrow()
    assert pl.from_arrow(hours)["n"].sum() == ROWS.height
    kinds = {operator.id: operator for operator in plan_job(compile_job(job.spec(), config)).operators}
    assert (kinds["own"].kind, kinds["own"].determinism) == ("custom", Determinism.EXACT)
    assert "tests.custom_operators:Sessionize" in str(kinds["own"])


def test_a_registered_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    info = site / "my_pkg-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-pkg\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[headrace.operators]\nmine = tests.custom_operators:Sessionize\n")
    monkeypatch.syspath_prepend(str(site))
    config = config_in(tmp_path)
    assert custom_operators.registered(config.operators)["mine"] == "tests.custom_operators:Sessionize"
    job = job_of(tmp_path).custom("mine", by="k", order_by="t", args=GAP).sink_iceberg("local.ns.own", create=True)
    assert run(job, config, "local.ns.own").height == sessions().height
    with pytest.raises(SpecError, match=r"no subclass of headrace\.operators\.CustomOperator"):
        compile_job(job.spec(), replace(config, operators={"mine": "tests.custom_operators:Gap"}))


HEAD = """
name: j
sources:
  rows: {history: {parquet: in.parquet}, event_time: {column: t}}
sinks:
- iceberg: {table: local.ns.out, create: true}
steps:
- custom: %s
"""

REFUSED: Mapping[str, tuple[str, str, str]] = {
    "{operator: sessionise, by: k}": ("there is no operator named 'sessionise'", "OPERATOR_NOT_FOUND", "'sessionize'"),
    "{operator: 'no_such_pkg.mod:X'}": ("there is no module 'no_such_pkg'", "OPERATOR_NOT_FOUND", "PYTHONPATH"),
    "{operator: 'tests.custom_operators:Nope'}": ("has no 'Nope'", "OPERATOR_NOT_FOUND", ""),
    "{operator: 'tests.custom_operators:not_an_operator'}": ("is no subclass of", "OPERATOR_INVALID", "is 3"),
    "{operator: 'breaks_at_import:X'}": ("cannot be imported", "OPERATOR_INVALID", "ZeroDivisionError"),
    "{operator: sessionize, by: k, args: {gap: 3}}": ("has no argument 'gap'", "ARGUMENTS_INVALID", "'gap_us'"),
    "{operator: sessionize, by: k, args: {gap_us: soon}}": ("has wrong arguments", "ARGUMENTS_INVALID", "gap_us: Inp"),
    "{operator: 'tests.custom_operators:Difference', args: {a: 1}}": ("takes no arguments", "ARGUMENTS_INVALID", "a"),
    "{operator: sessionize, by: q, order_by: t}": ("names column 'q'", "COLUMN_NOT_FOUND", ""),
    "{operator: sessionize, by: k, order_by: t, event_time: q}": ("column 'q'", "COLUMN_NOT_FOUND", "end"),
    "{operator: sessionize, by: k, order_by: x}": ("orders by 'x'", "SPEC_INVALID", "order_by: t"),
    "{operator: sessionize, by: k, event_time: end}": ("no order of time", "SPEC_INVALID", "add order_by"),
    "{operator: 'a b:c'}": ("is no operator", "SPEC_INVALID", "MODULE:CLASS"),
    "{operator: 3}": ("is no operator", "SPEC_INVALID", "MODULE:CLASS"),
    "{operator: sessionize, key: k}": ("unknown key 'key'", "SPEC_INVALID", ""),
}


@pytest.mark.parametrize("custom", REFUSED)
def test_what_is_refused_points_at_its_line(custom: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "breaks_at_import.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    config = config_in(tmp_path, sessionize="tests.custom_operators:Sessionize")
    message, code, more = REFUSED[custom]
    with pytest.raises(SpecError) as caught:
        compile_job(load_job_text(HEAD % custom, "job.yaml", environ={}), config)
    assert message in caught.value.message
    assert caught.value.code == code
    assert more in str(caught.value)
    assert "job.yaml:8:" in caught.value.message


def test_a_changelog_is_refused(tmp_path: Path) -> None:
    job = job_of(tmp_path).aggregate({"n": "count(*)"}, by="k").custom(Sessionize, by="k")
    with pytest.raises(SpecError, match="reads a changelog"):
        job.sink_iceberg("local.ns.own", create=True).spec()


def test_an_operator_that_fails_stops_the_job(tmp_path: Path) -> None:
    job = job_of(tmp_path).custom("tests.custom_operators:Silence", by="k", args={"table": "nope"})
    with pytest.raises(headrace.HeadraceError, match="has no table 'nope'") as caught:
        run(job.sink_iceberg("local.ns.own", create=True), config_in(tmp_path), "local.ns.own")
    assert not caught.value.retryable


def test_the_example_finds_the_carts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "actions").mkdir(parents=True)
    actions = [
        ("ann", 0, "add", 100),
        ("ann", 29, "add", 50),
        ("ann", 59, "add", 7),
        ("bob", 1, "add", 10),
        ("bob", 30, "buy", 0),
        ("bob", 31, "add", 20),
        ("cat", 5, "add", 1),
        ("cat", 6, "buy", 0),
    ]
    schema = {"shopper": pl.String, "at": pl.Int64, "action": pl.String, "cents": pl.Int64}
    frame = pl.DataFrame(actions, schema, orient="row")
    minutes = pl.lit(EPOCH).dt.cast_time_unit("us") + pl.duration(minutes="at")
    for part in (0, 1):
        frame.with_columns(minutes.alias("at"))[part::2].write_parquet(f"data/actions/{part}.parquet")
    spec = load_job(ROOT / "examples" / "abandoned_carts.py")
    config = load_config(state_path=tmp_path / "state", cwd=tmp_path)
    run_job(spec, config, RunOptions("caught-up"), SilentObserver(), StopSignal())
    out = pl.from_arrow(compile_job(spec, config).catalogs.load("local.shop.abandoned_carts").scan().to_arrow())
    shown = [(row[0], *row[1:3], (row[3] - EPOCH) / timedelta(minutes=1)) for row in out.sort("given_up").rows()]
    assert shown == [("ann", 2, 150, 59), ("bob", 1, 20, 61), ("ann", 1, 7, 89)]


def test_the_operator_in_the_docs_runs(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "custom-operators.md").read_text()
    names: dict[str, Any] = {"__name__": "docs"}
    exec(text.split("```python\n")[1].split("```")[0], names)
    job = headrace.Job("j").source("s", history={"parquet": f"{tmp_path}/s.parquet"}, event_time={"column": "at"})
    job = job.custom(names["Silence"], by="sensor", order_by="at").sink_iceberg("local.ns.silent", create=True)
    ROWS.select(sensor="k", at=EPOCH + pl.duration(minutes="x")).write_parquet(tmp_path / "s.parquet")
    out = run(job, load_config(state_path=tmp_path / "state", cwd=tmp_path), "local.ns.silent")
    assert out.sort("sensor").rows() == [(k, EPOCH + timedelta(minutes=16)) for k in "abc"]


# ------------------------------------------------------------------------------------------------------ the faces


def test_the_command_line_takes_module_and_class(tmp_path: Path) -> None:
    config_in(tmp_path)
    custom = "{operator: 'tests.custom_operators:Sessionize', by: k, order_by: t, args: {gap_us: 300000000}}"
    (tmp_path / "job.yaml").write_text(HEAD % custom)
    done = subprocess.run(
        [sys.executable, "-m", "headrace.cli", "run", "job.yaml", "--until", "caught-up"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert f"{sessions().height} to iceberg-local.ns.out" in done.stderr.replace(",", "")


def test_the_configuration_registers_operators(tmp_path: Path) -> None:
    file = tmp_path / "headrace.toml"
    file.write_text('[operators]\nmine = "tests.custom_operators:Sessionize"\n')
    assert load_config(file).operators == {"mine": "tests.custom_operators:Sessionize"}
    for wrong in ('"tests.custom_operators"', '"a:"', "3", '"a b:c"'):
        file.write_text(f"[operators]\nmine = {wrong}\n")
        with pytest.raises(ConfigError, match=r"headrace.toml:2: operators.mine must be MODULE:CLASS"):
            load_config(file)


# ------------------------------------------------------------------------------------------ processing-time windows


def windowed(folder: Path, window: Mapping[str, Any]) -> headrace.Job:
    return (
        headrace.Job("j")
        .source("rows", history={"parquet": f"{folder}/in.parquet"})
        .window(**window, time="processing", by="k", aggregate={"n": "count(*)"}, id="w")
    )


@pytest.mark.parametrize(
    "window",
    [
        {"tumbling": "1h"},
        {"hopping": "1h", "every": "1h"},
        {"cumulating": "1h", "every": "1h"},
        {"session": "1h"},
    ],
)
def test_windows_by_the_clock_need_no_event_time(tmp_path: Path, window: Mapping[str, Any]) -> None:
    job = windowed(tmp_path, window).sink_iceberg("local.ns.w", create=True)
    config = config_in(tmp_path)
    out = run(job, config, "local.ns.w", 2)
    assert out.group_by("k").agg(pl.col("n").sum()).sort("k").rows() == [("a", 100), ("b", 100), ("c", 100)]
    assert out.schema["window_start"] == pl.Datetime("us", "UTC")
    (plan,) = plan_job(compile_job(job.spec(), config)).operators
    assert plan.determinism is Determinism.NOT_INVARIANT
    assert "processing time" in str(plan)


def test_what_windows_by_the_clock_do_not_have(tmp_path: Path) -> None:
    job = windowed(tmp_path, {"tumbling": "1h"})
    with pytest.raises(SpecError, match="has no port 'late'"):
        job.sink_iceberg("local.ns.w").sink_iceberg("local.ns.l", from_="w.late").spec()
    with pytest.raises(SpecError, match="no row is late then"):
        windowed(tmp_path, {"tumbling": "1h", "allowed_lateness": "1h"}).sink_iceberg("local.ns.w").spec()
    with pytest.raises(SpecError, match="needs an event time"):
        job.window("1d", aggregate={"n": "sum(n)"}).sink_iceberg("local.ns.w").spec()
    config = config_in(tmp_path)
    source = headrace.Job("j").source("rows", history={"parquet": f"{tmp_path}/in.parquet"})
    bad = source.window("1h", time="processing", by="q", aggregate={"n": "count(*)"})
    with pytest.raises(SpecError, match="names column 'q'"):
        compile_job(bad.sink_iceberg("local.ns.w", create=True).spec(), config)
