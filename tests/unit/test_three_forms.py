"""The job of the README in its three forms: what is shown is what the files hold, and they give the same rows."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from headrace.jobs.compile import compile_job
from headrace.jobs.config import load_config
from headrace.jobs.loading import load_job
from headrace.jobs.parse import parse_job
from headrace.jobs.run import run_job
from headrace.runtime.job import RunOptions
from headrace.runtime.observer import SilentObserver, StopSignal

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "delays"
FORMS = ["job.yaml", "job.py", "sql.yaml"]
START = datetime(2013, 1, 1, tzinfo=UTC)


def shown(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)


def test_the_readme_shows_the_files() -> None:
    steps, sql = shown("yaml")
    assert steps == (EXAMPLES / "job.yaml").read_text()
    assert shown("python") == [(EXAMPLES / "job.py").read_text()]
    # Of the form in SQL it shows what stands in place of the steps.
    head, tail = re.split(r"^steps:\n(?s:.*?)(?=^sinks:)", steps, flags=re.MULTILINE)
    assert (EXAMPLES / "sql.yaml").read_text() == head + sql + tail


def delays(form: str, folder: Path) -> pl.DataFrame:
    """What the job's first sink gets, with its tables read from Parquet files."""
    here = parse_job(
        {
            "name": "delays",
            "sources": {
                "flights": {
                    "history": {"parquet": f"{folder}/flights.parquet", "split_rows": 100},
                    "event_time": {"column": "time_hour", "out_of_orderness": "2d"},
                }
            },
            "tables": {"airlines": {"parquet": f"{folder}/airlines.parquet"}},
            "sinks": [{"iceberg": {"table": "local.ns.delays", "create": True}}],
        }
    )
    job = load_job(EXAMPLES / form)
    sink = here.sinks[0].model_copy(update={"from_": job.sinks[0].from_})
    job = job.model_copy(update={"sources": here.sources, "tables": here.tables, "sinks": (sink,)})
    config = load_config(state_path=folder / form, cwd=folder)
    run_job(job, config, RunOptions("caught-up"), SilentObserver(), StopSignal())
    found = pl.from_arrow(compile_job(job, config).catalogs.load("local.ns.delays").scan().to_arrow())
    assert isinstance(found, pl.DataFrame)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("delays")
    pl.DataFrame(
        [
            (START + timedelta(hours=n * 7 % 200), "ABX"[n % 3], ["EWR", "JFK"][n % 2], None if n % 5 == 0 else n % 40)
            for n in range(400)
        ],
        schema={
            "time_hour": pl.Datetime("us", "UTC"),
            "carrier": pl.String,
            "origin": pl.String,
            "dep_delay": pl.Int64,
        },
        orient="row",
    ).write_parquet(folder / "flights.parquet", row_group_size=50)
    pl.DataFrame({"carrier": ["A", "B"], "name": ["Alpha", "Beta"]}).write_parquet(folder / "airlines.parquet")
    return folder


@pytest.mark.parametrize("form", FORMS)
def test_the_forms_give_the_same_rows(form: str, folder: Path) -> None:
    wanted = (
        pl.read_parquet(folder / "flights.parquet")
        .filter(pl.col("dep_delay").is_not_null())
        .join(pl.read_parquet(folder / "airlines.parquet"), on="carrier", how="left")
        .group_by("carrier", "name", "origin", window_start="time_hour")
        .agg(flights=pl.len().cast(pl.Int64), total_delay=pl.col("dep_delay").sum())
    )
    found = delays(form, folder)
    assert found.columns == ["carrier", "name", "origin", "window_start", "window_end", "flights", "total_delay"]
    assert (found["window_end"] - found["window_start"]).unique().to_list() == [timedelta(hours=1)]
    assert_frame_equal(found.drop("window_end"), wanted.select(found.drop("window_end").columns), check_row_order=False)
