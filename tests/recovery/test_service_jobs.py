"""The service with real workers and jobs that need no broker: Parquet in, Iceberg in SQLite out."""

from __future__ import annotations

import datetime as dt
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import polars as pl
import pytest
from polars.testing import assert_frame_equal
from pyiceberg.catalog import load_catalog

from catalog.catalogs import Catalogs
from catalog.tables import load_or_create
from headrace.jobs.config import load_config
from headrace.jobs.processes import find, is_alive

SCRIPT = Path(__file__).parents[1] / "real_service.py"
OVER = {"STOPPED", "FINISHED", "FAILED", "FENCED"}
FILES = 12
HOURS = 24 * FILES
ORIGINS = ["O'Brien", "x' OR '1'='1", "EWR", "JFK"]


def rows() -> pl.DataFrame:
    hours = pl.datetime_range(
        dt.datetime(2013, 1, 1, tzinfo=dt.UTC), interval="15m", eager=True, closed="left",
        end=dt.datetime(2013, 1, 1, tzinfo=dt.UTC) + dt.timedelta(hours=HOURS),
    )  # fmt: skip
    return pl.DataFrame(
        {"ts": hours, "origin": ORIGINS * HOURS, "n": range(len(hours))}, schema_overrides={"n": pl.Int64}
    )


@dataclass
class Bench:
    folder: Path
    port: int
    client: httpx.Client
    process: subprocess.Popen[bytes] | None = None
    seen: set[Any] = field(default_factory=set)

    def start(self, **environ: str) -> None:
        with (self.folder / "service.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(SCRIPT), str(self.port), str(self.folder / "headrace.toml")],
                stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **environ},
            )  # fmt: skip
        deadline = time.monotonic() + 120
        while True:
            try:
                assert self.client.get("/readyz").status_code == 200
            except httpx.TransportError:
                assert self.process.poll() is None, self.log()
                assert time.monotonic() < deadline
                time.sleep(0.05)
            else:
                return

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(60)
            self.process = None

    def log(self) -> str:
        return (self.folder / "service.log").read_text()[-3000:]

    def spec(self, name: str = "daily", **more: Any) -> dict[str, Any]:
        history = {"parquet": f"{self.folder}/in/*.parquet", **more.pop("history", {})}
        return {
            "name": name,
            "sources": {"trips": {"history": history, "event_time": {"column": "ts"}}},
            "steps": [
                {"window": {"tumbling": "1d", "by": ["origin"], "aggregate": {"trips": "count(*)", "total": "sum(n)"}}}
            ],
            "sinks": [{"iceberg": {"table": "local.demo.daily", "create": True}}],
            "checkpoint": {"interval": "100ms", "rows": 96},
            **more,
        }

    def get(self, job_id: str) -> dict[str, Any]:
        job: dict[str, Any] = self.client.get(f"/v1/jobs/{job_id}").json()
        there = find(job["worker"]["pid"]) if job.get("worker") else None
        self.seen |= {there} if there else set()
        return job

    def wait(self, job_id: str, what: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        deadline = time.monotonic() + 120
        while True:
            job = self.get(job_id)
            if what(job):
                return job
            assert time.monotonic() < deadline, (job, self.log())
            time.sleep(0.05)

    def over(self, job_id: str) -> dict[str, Any]:
        return self.wait(job_id, lambda job: job["state"] in OVER)

    def table(self, name: str) -> pl.DataFrame:
        catalog = load_catalog("local", **load_config(self.folder / "headrace.toml").catalog("local"))
        try:
            found = pl.from_arrow(catalog.load_table(name).scan().to_arrow())
        finally:
            catalog.close()
        assert isinstance(found, pl.DataFrame)
        return found.select("origin", day="window_start", trips="trips", total="total").sort("origin", "day")


def daily(frame: pl.DataFrame) -> pl.DataFrame:
    """The plain batch computation."""
    counted = frame.group_by("origin", day=pl.col("ts").dt.truncate("1d")).agg(trips=pl.len(), total=pl.col("n").sum())
    return counted.with_columns(pl.col("trips").cast(pl.Int64)).sort("origin", "day")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    (tmp_path / "in").mkdir()
    for number, part in enumerate(rows().iter_slices(4 * HOURS // FILES)):
        part.write_parquet(tmp_path / "in" / f"{number:03}.parquet")
    (tmp_path / "headrace.toml").write_text(f'[state]\npath = "{tmp_path}/state"\n')
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as client:
        made = Bench(tmp_path, port, client)
        yield made
        made.kill()
    for worker in made.seen:
        if is_alive(worker):
            os.kill(worker.pid, signal.SIGKILL)


def test_a_job_and_its_backfill(bench: Bench) -> None:
    bench.start()
    made = bench.client.post("/v1/jobs", json={"spec": bench.spec()})
    assert made.status_code == 201, made.text
    done = bench.over(made.json()["id"])
    assert done["state"] == "FINISHED", done
    assert_frame_equal(bench.table("demo.daily"), daily(rows()))
    assert done["progress"]["phase"] == "finished"

    lower, upper = dt.datetime(2013, 1, 3, tzinfo=dt.UTC), dt.datetime(2013, 1, 6, tzinfo=dt.UTC)
    for number, origin in enumerate(ORIGINS[:2]):
        wanted = {
            "job": made.json()["id"], "from": lower.isoformat(), "to": upper.isoformat(), "create": True,
            "target": f"local.demo.part{number}", "filter": [{"column": "origin", "value": origin}],
        }  # fmt: skip
        answer = bench.client.post("/v1/backfills", json=wanted)
        assert answer.status_code == 201, answer.text
        assert answer.json()["plan"]["files_total"] == str(FILES)
        assert int(answer.json()["plan"]["bytes"]) > 0
        assert bench.over(answer.json()["id"])["state"] == "FINISHED"
        wanted_rows = rows().filter(pl.col("ts").is_between(lower, upper, closed="left"), pl.col("origin") == origin)
        assert_frame_equal(bench.table(f"demo.part{number}"), daily(wanted_rows))


@pytest.mark.parametrize("point", ["after-record:2", "iceberg-after-commit:1"])
def test_workers_that_are_killed_lose_and_double_nothing(bench: Bench, point: str) -> None:
    bench.start(HEADRACE_CRASH=point)
    made = bench.client.post("/v1/jobs", json={"spec": bench.spec()})
    assert made.status_code == 201, made.text
    lost = bench.wait(made.json()["id"], lambda job: "RETRYING" in {step["state"] for step in job["transitions"]})
    assert lost["error"]["code"] == "WORKER_LOST"
    bench.kill()
    bench.start()
    done = bench.over(made.json()["id"])
    assert done["state"] == "FINISHED", done
    assert_frame_equal(bench.table("demo.daily"), daily(rows()))


def test_a_table_is_followed_until_it_is_stopped(bench: Bench) -> None:
    catalogs = Catalogs(load_config(bench.folder / "headrace.toml").catalogs)
    table = load_or_create(catalogs, "local.demo.trips", rows().schema)
    parts = list(rows().iter_slices(rows().height // 4))
    table.append(parts[0].to_arrow(compat_level=pl.CompatLevel.oldest()))
    bench.start(HEADRACE_CRASH="after-record:2")
    trips = {
        "history": {"table": "local.demo.trips"},
        "tail": {"table": "local.demo.trips", "interval": "100ms"},
        "event_time": {"column": "ts"},
    }
    made = bench.client.post("/v1/jobs", json={"spec": bench.spec(sources={"trips": trips})})
    assert made.status_code == 201, made.text
    for part in parts[1:]:
        table.refresh().append(part.to_arrow(compat_level=pl.CompatLevel.oldest()))
    bench.wait(made.json()["id"], lambda job: "RETRYING" in {step["state"] for step in job["transitions"]})
    bench.kill()
    bench.start()
    reached = str(int(rows().select(pl.col("ts").dt.epoch("us").max()).item()))
    bench.wait(made.json()["id"], lambda job: (job.get("progress") or {}).get("watermark") == reached)
    bench.client.post(f"/v1/jobs/{made.json()['id']}/stop", json={"mode": "drain"})
    assert bench.over(made.json()["id"])["state"] in {"STOPPED", "FINISHED"}
    assert_frame_equal(bench.table("demo.daily"), daily(rows()))
    catalogs.close()


def test_api_04_what_is_not_there_is_refused_at_creation(bench: Bench) -> None:
    bench.start()
    pointers = []
    for change, code in (
        ({"steps": [{"filter": "nope > 0"}]}, "COLUMN_NOT_FOUND"),
        ({"steps": [{"filter": "read_csv('/etc/passwd')"}]}, "EXPRESSION_NOT_ALLOWED"),
        ({"history": {"parquet": f"{bench.folder}/none/*.parquet"}}, "FILES_NOT_FOUND"),
        ({"sinks": [{"iceberg": {"table": "nowhere.a.b", "create": True}}]}, "CATALOG_NOT_FOUND"),
        ({"sinks": [{"iceberg": {"table": "local.nowhere.b"}}]}, "NAMESPACE_NOT_FOUND"),
    ):
        answer = bench.client.post("/v1/jobs", json={"spec": bench.spec(**change)})
        assert (answer.status_code, answer.json()["code"]) == (422, code), answer.text
        pointers.append((answer.json().get("errors") or [{}])[0].get("pointer"))
    assert all(pointer.startswith("#/spec/steps/0") for pointer in pointers[:2])
    answer = bench.client.post(
        "/v1/backfills",
        json={
            "job": bench.spec(), "from": "2013-01-03T00:00:00Z", "target": "local.demo.x", "create": True,
            "filter": [{"column": 'a" OR 1=1', "value": 1}],
        },
    )  # fmt: skip
    assert (answer.status_code, answer.json()["code"]) == (422, "COLUMN_NOT_FOUND"), answer.text
    assert bench.client.get("/v1/jobs").json()["items"] == []
