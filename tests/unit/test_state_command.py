"""``headrace state``: the state of a checkpoint as tables, and where running jobs keep it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from headrace.cli.app import run
from headrace.jobs.compile import compile_job
from headrace.jobs.config import load_config
from headrace.jobs.loading import load_job
from headrace.jobs.parse import parse_job
from headrace.jobs.run import run_job
from headrace.jobs.state_tables import CheckpointState
from headrace.kernel.errors import AccessDeniedError, ConfigError, NotFoundError, SpecError
from headrace.runtime.job import RunOptions
from headrace.runtime.observer import SilentObserver, StopSignal

START = datetime(2026, 1, 1, tzinfo=UTC)
ROWS = pl.DataFrame(
    {
        "at": [START + timedelta(minutes=n) for n in range(300)],
        "k": [None if n % 7 == 0 else f"k{n % 7}" for n in range(300)],
        "v": [n / 4 for n in range(300)],
    },
    schema_overrides={"at": pl.Datetime("us", "UTC")},
)


def job_of(folder: Path, **state: str) -> dict[str, Any]:
    aggregate = {"n": "count(*)", "mean": "avg(v)", "total": "sum(v)"}
    return {
        "name": "held",
        "sources": {
            "rows": {
                "history": {"parquet": f"{folder}/in.parquet", "split_rows": 60},
                "event_time": {"column": "at"},
            }
        },
        "steps": [{"aggregate": {"by": "k", "aggregate": aggregate}, "id": "totals", "from": "rows"}],
        "sinks": [{"iceberg": {"table": "local.ns.totals", "create": True, "changes": "append"}, "from": "totals"}],
        "checkpoint": {"rows": 60, "retain": 3},
        "state": state,
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("state")
    ROWS.write_parquet(folder / "in.parquet", row_group_size=50)
    job = job_of(folder, dir=f"{folder}/local", memory="1MiB")
    job["steps"] += [
        {"window": {"tumbling": "1d", "by": "k", "aggregate": {"n": "count(*)", "top": "max(v)"}}, "id": "days"},
        {"dedup": {"by": "k"}, "id": "once"},
    ]
    for step, name in zip(job["steps"][1:], ("days", "once"), strict=True):
        step["from"] = "rows"
        job["sinks"].append({"iceberg": {"table": f"local.ns.{name}", "create": True}, "from": name})
    (folder / "job.json").write_text(json.dumps(job))
    spec = load_job(folder / "job.json")
    config = load_config(state_path=folder / "state", cwd=folder)
    run_job(spec, config, RunOptions("caught-up", "suspend"), SilentObserver(), StopSignal())
    return folder


def ask(folder: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    code = run(["state", f"{folder}/job.json", *arguments, "--state", f"{folder}/state", "--json"])
    out = capsys.readouterr()
    assert code == 0, out.err
    return json.loads(out.out)


def state_of(folder: Path, epoch: int | None = None) -> CheckpointState:
    config = load_config(state_path=folder / "state", cwd=folder)
    return CheckpointState(compile_job(load_job(folder / "job.json"), config), epoch)


def test_what_there_is(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed = ask(folder, capsys)
    tables = {(table["operator"], table["table"]): table for table in listed["tables"]}
    assert listed["job"] == "held"
    assert set(tables) == {("totals", "groups"), ("days", "windows"), ("once", "open"), ("once", "known")}
    totals = tables["totals", "groups"]
    assert (totals["rows"], totals["key"]) == (7, ["k"])
    assert totals["nbytes"] > 0
    assert totals["definition"].startswith("running aggregate by k")


def test_results_and_not_partials(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    held = ask(folder, capsys, "totals")
    expected = ROWS.group_by("k").agg(n=pl.len(), mean=pl.col("v").mean(), total=pl.col("v").sum())
    assert sorted(held, key=str) == sorted(expected.to_dicts(), key=str)
    days = ask(folder, capsys, "days")
    assert sum(row["n"] for row in days) == ROWS.height
    assert {name for row in days for name in row} == {"k", "window_start", "n", "top"}


def test_a_part_of_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert [row["k"] for row in ask(folder, capsys, "totals", "--where", "k = 'k3' and n > 5")] == ["k3"]
    assert len(ask(folder, capsys, "totals", "--limit", "2")) == 2
    assert {row["k"] for row in ask(folder, capsys, "once.open")} == {row["k"] for row in ask(folder, capsys, "totals")}


def test_earlier_checkpoints_that_are_kept(folder: Path) -> None:
    last = state_of(folder).record.epoch
    counts = [state_of(folder, epoch).read("totals")["n"].sum() for epoch in (last - 2, last - 1, last)]
    assert counts[0] < counts[1] <= counts[2] == ROWS.height
    with pytest.raises(NotFoundError, match="no checkpoint of epoch 0") as caught:
        state_of(folder, 0)
    assert f"{last - 2}, {last - 1}, {last}" in caught.value.hint


def test_for_people(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["state", f"{folder}/job.json", "totals", "--state", f"{folder}/state"]) == 0
    assert "7 rows" in capsys.readouterr().out
    assert run(["state", f"{folder}/job.json", "--state", f"{folder}/state"]) == 0
    assert "running aggregate by k" in capsys.readouterr().out


def test_what_is_not_there_is_named(folder: Path) -> None:
    state = state_of(folder)
    with pytest.raises(NotFoundError, match="no operator 'tootals' with state") as caught:
        state.read("tootals")
    assert "totals" in caught.value.hint
    with pytest.raises(NotFoundError, match="several tables") as caught:
        state.read("once")
    assert caught.value.hint == "name one: once.open, once.known"
    for wrong in ("nope > 1", "read_csv('x')", "k ="):
        with pytest.raises(SpecError):
            state.read("totals", wrong)


def test_reading_and_running_leave_nothing_on_the_local_disk(folder: Path) -> None:
    state_of(folder).read("totals")
    assert list((folder / "local").iterdir()) == []


def test_a_folder_that_cannot_be_used_is_named_before_anything_runs(tmp_path: Path) -> None:
    ROWS.write_parquet(tmp_path / "in.parquet")
    (tmp_path / "file").touch()
    spec = parse_job(job_of(tmp_path, dir=f"{tmp_path}/file"))
    config = load_config(state_path=tmp_path / "state", cwd=tmp_path)
    with pytest.raises(AccessDeniedError, match=r"state cannot be kept in the folder .*/file") as caught:
        run_job(spec, config, RunOptions("caught-up"), SilentObserver(), StopSignal())
    assert "state.dir" in caught.value.hint


def test_where_state_is_kept(tmp_path: Path) -> None:
    (tmp_path / "headrace.toml").write_text('[state]\npath = "s"\nmemory = "64MiB"\ndir = "fast"\n')
    config = load_config(environ={}, cwd=tmp_path)
    assert (config.spill_path, config.state_memory) == (tmp_path / "fast", 64 << 20)
    assert load_config(tmp_path / "headrace.toml", environ={}, state_path=tmp_path / "x").spill_path.name == "fast"
    (tmp_path / "headrace.toml").write_text('[state]\npath = "s"\n')
    assert load_config(environ={}, cwd=tmp_path).spill_path == tmp_path / "s" / "spill"
    (tmp_path / "headrace.toml").write_text('[state]\nmemory = "much"\n')
    with pytest.raises(ConfigError, match=r"headrace.toml:2: state.memory: 'much' is no size"):
        load_config(environ={}, cwd=tmp_path)
