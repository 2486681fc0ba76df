"""The command line on real services: archive, plan, run, stop, kill, go on, prove the seam."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyiceberg.catalog import load_catalog

from headrace.cli import app
from headrace.jobs.config import load_config
from headrace.kernel.errors import ExitCode
from tests.kafka import KafkaHelper

pytestmark = pytest.mark.services

ROOT = Path(__file__).parents[2]
PARTITIONS = 2
SCHEMA = "page: string, user_id: int64, clicked_at: timestamptz"
JOB = """
name: {name}
sources:
  clicks:
    history: {{table: local.web.clicks}}
    tail: {{topic: {topic}}}
    event_time: {{column: clicked_at, out_of_orderness: 10s}}
steps:
  - filter: page <> '/p0'
  - window: {{tumbling: 1m, by: page, aggregate: {{n: count(*), top: max(user_id)}}}}
sinks:
  - iceberg: {{table: local.web.minutes, create: true}}
checkpoint: {{interval: 300ms}}
"""


class Site:
    """A topic of clicks, a folder with its configuration, and the command line in it."""

    def __init__(self, kafka: KafkaHelper, settings: Path) -> None:
        self.kafka = kafka
        self.folder = settings.parent
        self.topic = kafka.topic(PARTITIONS, prefix="clicks")
        self.made = 0

    def produce(self, count: int) -> None:
        for partition in range(PARTITIONS):
            wanted = range(self.made + partition, self.made + count, PARTITIONS)
            self.kafka.produce(self.topic, [click(number) for number in wanted], partition=partition)
        self.made += count

    def job(self, text: str = JOB, name: str = "clicks") -> str:
        (self.folder / f"{name}.yaml").write_text(text.format(name=name, topic=self.topic))
        return f"{name}.yaml"

    def command(self, *arguments: str) -> dict[str, Any]:
        clean = {key: value for key, value in os.environ.items() if not key.startswith("HEADRACE")}
        return {
            "args": [sys.executable, "-m", "headrace.cli", *arguments],
            "cwd": self.folder,
            "env": clean | {"PYTHONPATH": str(ROOT)},
            "text": True,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
        }

    def run(self, *arguments: str, code: int = 0) -> str:
        """One command in this process: what it printed, on standard error if it is to fail."""
        out, err = io.StringIO(), io.StringIO()
        with chdir(self.folder), redirect_stdout(out), redirect_stderr(err):
            ended = app.run(arguments)
        assert ended == code, err.getvalue()
        return err.getvalue() if code else out.getvalue()

    @contextmanager
    def running(self, *arguments: str) -> Iterator[Running]:
        process = Running(self.command("run", *arguments, "--json-logs"))
        try:
            yield process
        finally:
            process.end()

    def rows(self) -> pl.DataFrame:
        options = load_config(self.folder / "headrace.toml", environ={}).catalog("local")
        client = load_catalog("local", **options)
        rows = pl.DataFrame(client.load_table("web.minutes").scan().to_arrow())
        client.close()
        return rows

    def expected(self) -> pl.DataFrame:
        clicks = pl.DataFrame([json.loads(click(number)) for number in range(self.made)])
        return (
            clicks.with_columns(pl.col("clicked_at").str.to_datetime(time_zone="UTC", time_unit="us"))
            .filter(pl.col("page") != "/p0")
            .group_by("page", window_start=pl.col("clicked_at").dt.truncate("1m"))
            .agg(n=pl.len().cast(pl.Int64), top=pl.col("user_id").max())
        )

    def assert_equal(self) -> None:
        keys = ["page", "window_start", "n", "top"]
        assert self.rows().select(keys).sort(keys).rows() == self.expected().select(keys).sort(keys).rows()


class Running:
    """A job in a process of its own, whose log lines can be waited for."""

    def __init__(self, command: dict[str, Any]) -> None:
        self.process: subprocess.Popen[str] = subprocess.Popen(**command)
        self.records: list[dict[str, Any]] = []
        self._more = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._more:
                if line.startswith("{"):
                    self.records.append(json.loads(line))
                self._more.notify_all()
        with self._more:
            self._ended = True
            self._more.notify_all()

    def wait_for(self, wanted: Callable[[dict[str, Any]], bool]) -> None:
        with self._more:
            found = self._more.wait_for(lambda: self._ended or any(map(wanted, self.records)), 60)
        assert found and any(map(wanted, self.records)), self.records  # noqa: PT018

    def stop(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()
        self._reader.join()


def click(number: int) -> bytes:
    at = f"2026-01-01T{number // 3600 % 24:02}:{number // 60 % 60:02}:{number % 60:02}Z"
    return json.dumps({"page": f"/p{number % 3}", "user_id": number, "clicked_at": at}).encode()


def committed(epoch: dict[str, Any]) -> bool:
    return epoch.get("event") == "epoch" and epoch["records"] > 0


@pytest.fixture
def site(kafka: KafkaHelper, settings_file: Path) -> Site:
    site = Site(kafka, settings_file)
    site.produce(1000)
    site.run("archive", site.topic, "local.web.clicks", "--schema", SCHEMA, "--until", "caught-up")
    return site


def test_archive_plan_run_and_seam(site: Site) -> None:
    shown = json.loads(site.run("boundary", "show", "local.web.clicks", "--json"))
    partitions = shown["boundary"]["topics"][site.topic]["partitions"]
    assert {number: at["next"] for number, at in partitions.items()} == {"0": 500, "1": 500}
    site.produce(600)
    job = site.job()

    plan = json.loads(site.run("plan", job, "--json"))["sources"][0]
    assert plan["history"]["records"] == 1000
    assert plan["boundary"]["guarantee"] == "exactly-once"
    assert [(at["start"], at["lag"]) for at in plan["tail"]["partitions"]] == [(500, 300), (500, 300)]
    assert "local.web.clicks" in site.run("plan", job)

    site.run("run", job, "--until", "caught-up")
    site.assert_equal()
    seam = json.loads(site.run("seam", job, "--json"))
    assert seam["exact"]
    assert [(at["lake"]["rows"], at["tail_start"], at["tail_next"]) for at in seam["sources"][0]["partitions"]] == [
        (500, 500, 800),
        (500, 500, 800),
    ]
    assert seam["sources"][0]["switches"][-1]["kind"] == "handover"
    lake = list(site.folder.rglob("clicks/data/**/*.parquet"))
    assert lake
    for path in lake:
        path.unlink()
    assert json.loads(site.run("seam", job, "--json")) == seam, "the proof is stored with the job"
    shown = site.run("seam", job)
    assert "the seam is exact" in shown
    assert "handover by" in shown


def test_stop_kill_and_go_on(site: Site) -> None:
    job = site.job()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL):
        with site.running(job) as running:
            running.wait_for(lambda record: record.get("event") == "progress" and record["phase"] == "tail")
            site.produce(300)
            running.wait_for(committed)
            expected = -signal.SIGKILL if number == signal.SIGKILL else ExitCode.OK
            assert running.stop(number) == expected
    site.run("run", job, "--until", "caught-up")
    site.assert_equal()


def test_archive_goes_on_where_it_stopped(site: Site) -> None:
    site.produce(200)
    site.run("archive", site.topic, "local.web.clicks", "--until", "caught-up")
    shown = json.loads(site.run("boundary", "show", "local.web.clicks", "--json"))
    assert shown["boundary"]["topics"][site.topic]["partitions"]["1"]["next"] == 600
    assert shown["foreign_changes"] == []


def test_boundary_set(site: Site) -> None:
    arguments = ("boundary", "set", "local.web.clicks", "--topic", site.topic)
    shown = site.run(*arguments, "--offset", "0:400", "--offset", "1:5-450")
    assert "partition 1: offsets 5 up to 450, exclusive" in shown
    for offset, message in (
        ("0:501", "ends at 500, before 501"),
        ("7:1", "has no partition 7"),
        ("0", "is no offset of a partition"),
    ):
        assert message in site.run(*arguments, "--offset", offset, code=ExitCode.USER)


def test_wrong_names_end_with_2(site: Site) -> None:
    for old, new, message in (
        ("web.clicks}}", "web.clikcs}}", "error[TABLE_NOT_FOUND]"),
        ("local.web.clicks}}", "nowhere.web.clicks}}", "error[CATALOG_NOT_FOUND]"),
        ("topic: {topic}", "topic: no-{topic}", "error[TOPIC_NOT_FOUND]"),
        ("page <> ", "pge <> ", "error[COLUMN_NOT_FOUND]: job.yaml:9:5: steps[0]"),
        ("clicked_at, out", "cliked_at, out", "error[COLUMN_NOT_FOUND]: job.yaml:7:18"),
    ):
        assert old in JOB
        shown = site.run("run", site.job(JOB.replace(old, new), "job"), "--until", "caught-up", code=ExitCode.USER)
        assert message in shown
        assert "Traceback" not in shown


def test_gap_ends_with_4_and_unreachable_broker_with_3(site: Site) -> None:
    site.produce(400)
    site.kafka.delete_records(site.topic, {0: 650, 1: 0})
    shown = site.run("run", site.job(), "--until", "caught-up", code=ExitCode.DATA)
    assert "error[OFFSET_GAP]" in shown
    (site.folder / "gone.toml").write_text(
        (site.folder / "headrace.toml").read_text().replace(site.kafka.bootstrap, "127.0.0.1:1")
    )
    shown = site.run("plan", site.job(), "--config", "gone.toml", code=ExitCode.EXTERNAL)
    assert "Traceback" not in shown
