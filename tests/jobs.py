"""Jobs as users run them: spec files, the command line in processes of its own, and independent checks of the output.

The readings are the data of the acceptance tests: ``id``, ``sensor``, ``at`` and ``v``, spread over the partitions of a
topic, out of order by less than ``DISORDER_S`` within a partition. What a job must have written is one plain batch
computation over all of them; tables are read back by DuckDB, from the data files of the current snapshot.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from multiprocessing.context import ForkServerProcess as Forked
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import duckdb
import polars as pl
import pyarrow.parquet as pq
import pytest
import yaml

from catalog.catalogs import Catalogs
from catalog.tables import load_or_create
from headrace.jobs.config import Config, Options, load_config
from headrace.jobs.loading import load_job
from headrace.jobs.run import run_job
from headrace.kernel import crash
from headrace.runtime.job import RunOptions, RunResult
from headrace.runtime.observer import SilentObserver, StopSignal
from infra import dev
from tests.services import CatalogCase, Stack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tests.kafka import KafkaHelper

ROOT = Path(__file__).parents[1]
SECONDS = 120.0
DISORDER_S = 120
START = datetime(2026, 3, 1, tzinfo=UTC)
SENSORS = ("a", "b", "c", "d", "ü")
READINGS = pl.Schema({"id": pl.Int64(), "sensor": pl.String(), "at": pl.Datetime("us", "UTC"), "v": pl.Int64()})
COLUMNS = "id: int64, sensor: string, at: timestamptz, v: int64"
PLACES = pl.DataFrame({"sensor": ["a", "b", "c", "ü"], "place": ["attic", "barn", "cellar", "über"]})
"""The lookup table; sensor ``d`` is not in it."""

WINDOWS = ("window_start", "sensor", "place", "n", "total", "lowest", "mean")


# ------------------------------------------------------------------------------------------------------------- data


def readings(count: int, *, seed: int = 0, first_id: int = 0, first: datetime = START) -> pl.DataFrame:
    """Readings about four seconds apart."""
    dice = random.Random(f"{seed}:{first_id}")
    rows = [
        (
            first_id + n,
            dice.choice(SENSORS),
            first + timedelta(seconds=4 * n + dice.uniform(-DISORDER_S / 2, 0)),
            dice.choice([None, *range(-9, 10)]),
        )
        for n in range(count)
    ]
    return pl.DataFrame(rows, schema=READINGS, orient="row").with_columns(pl.col("at").dt.truncate("1ms"))


def encoded(rows: pl.DataFrame) -> list[bytes]:
    """Rows as JSON records."""
    shaped = rows.with_columns(pl.col(pl.Datetime).dt.strftime("%Y-%m-%dT%H:%M:%S%.fZ"))
    return [json.dumps(row).encode() for row in shaped.iter_rows(named=True)]


def window_batch(rows: pl.DataFrame, size: str = "1m") -> pl.DataFrame:
    """What :func:`windows_job` must write, by one plain query."""
    kept = rows.filter(pl.col("v").is_not_null()).join(PLACES, on="sensor", how="left")
    return (
        kept.group_by(pl.col("at").dt.truncate(size).alias("window_start"), "sensor", "place")
        .agg(
            n=pl.len().cast(pl.Int64),
            total=pl.col("v").sum(),
            lowest=pl.col("v").min(),
            mean=pl.col("v").mean(),
        )
        .pipe(in_order, WINDOWS)
    )


def in_order(frame: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    return frame.select(columns).sort(columns)


# ---------------------------------------------------------------------------------------------------- what jobs wrote


def differences(found: pl.DataFrame, expected: pl.DataFrame) -> list[str]:
    """Rows that are missing or too many, in words; empty when both hold the same rows, each as often."""
    columns = expected.columns
    counted = [frame.select(columns).group_by(columns).len(name) for frame, name in ((found, "f"), (expected, "e"))]
    both = counted[0].join(counted[1], on=columns, how="full", nulls_equal=True, coalesce=True)
    wrong = both.with_columns(pl.col("f", "e").fill_null(0)).filter(pl.col("f") != pl.col("e")).sort(columns)
    return [f"{row} (found {found}, expected {want})" for *row, found, want in wrong.select(*columns, "f", "e").rows()]


def assert_same(found: pl.DataFrame, expected: pl.DataFrame, what: str) -> None:
    wrong = differences(found, expected)
    assert not wrong, f"{what}: {found.height} rows, expected {expected.height}; {len(wrong)} differ: {wrong[:5]}"


@dataclass
class Run:
    """One ``headrace`` process, with what it says in files."""

    process: Forked | subprocess.Popen[bytes]
    out: Path
    log: Path

    @property
    def code(self) -> int | None:
        """The exit code, minus the signal's number for a killed process; None while it runs."""
        return self.process.exitcode if isinstance(self.process, Forked) else self.process.poll()

    def text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def events(self) -> list[dict[str, Any]]:
        """The complete lines of its JSON log."""
        *lines, _ = self.text().split("\n")
        return [json.loads(line) for line in lines if line.startswith("{")]

    def epochs(self) -> list[dict[str, Any]]:
        return [event for event in self.events() if event.get("event") == "epoch"]

    def has_said(self, code: str) -> bool:
        return any(event.get("code") == code for event in self.events())

    def until(self, condition: Callable[[Run], bool], what: str, seconds: float = SECONDS) -> None:
        """Wait until the log shows something; a process that has ended before is a failure."""
        deadline = time.monotonic() + seconds
        while not condition(self):
            ended = self.code
            if ended is not None and not condition(self):
                pytest.fail(f"the process ended with {ended} before: {what}\n{self.text()[-3000:]}")
            if time.monotonic() > deadline:
                pytest.fail(f"did not happen in {seconds:.0f} s: {what}\n{self.text()[-3000:]}")
            time.sleep(0.01)

    def send(self, number: signal.Signals) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        """``kill -9``."""
        self.process.kill()
        self.wait(SECONDS)

    def wait(self, seconds: float) -> int | None:
        """Wait for the end at most so long; gives the exit code."""
        if isinstance(self.process, Forked):
            self.process.join(seconds)
        else:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(seconds)
        return self.code

    def end(self, seconds: float = SECONDS) -> int:
        """Wait for the end; gives the exit code."""
        code = self.wait(seconds)
        if code is None:
            self.kill()
            pytest.fail(f"the process did not end in {seconds:.0f} s\n{self.text()[-3000:]}")
        return code

    def error(self) -> dict[str, Any]:
        """The error that ended it, as its last line says under ``--json-logs``."""
        lines = [line for line in self.text().splitlines() if line.startswith('{"error"')]
        assert lines, f"no error in the log:\n{self.text()[-3000:]}"
        found: dict[str, Any] = json.loads(lines[-1])["error"]
        assert "Traceback" not in self.text(), self.text()[-3000:]
        return found


@dataclass
class Site:
    """One test's folder, settings, catalog and broker, and the processes it has started there.

    Attributes:
        folder: Settings, state and logs; the test's alone.
        kafka: The broker.
        catalog: Where its tables are.
        store: Checkpoint store of the jobs; None: the state folder.
        environment: More variables for the processes.
    """

    folder: Path
    kafka: KafkaHelper
    catalog: CatalogCase
    store: str | None = None
    environment: dict[str, str] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    opened: list[tuple[Mapping[str, Options], Catalogs]] = field(default_factory=list)

    @property
    def config(self) -> Config:
        return load_config(self.folder / "headrace.toml", environ={})

    @property
    def catalogs(self) -> Catalogs:
        """The catalogs of the settings as they are now, open until the site is closed."""
        wanted = self.config.catalogs
        for known, catalogs in self.opened:
            if known == wanted:
                return catalogs
        self.opened.append((wanted, Catalogs(wanted)))
        return self.opened[-1][1]

    def name(self, table: str) -> str:
        """A table's full name, as jobs write it."""
        return f"{self.catalog.name}.{self.catalog.identifier(table)}"

    # ------------------------------------------------------------------------------------------------------ processes

    def job(self, spec: Mapping[str, Any]) -> Path:
        """Write a spec to a file."""
        checkpoint = {"interval": "200ms", **({"store": self.store} if self.store else {})}
        full = {**spec, "checkpoint": {**checkpoint, **spec.get("checkpoint", {})}}
        path = self.folder / f"{spec['name']}.yaml"
        path.write_text(yaml.safe_dump(full, sort_keys=False, allow_unicode=True), encoding="utf-8")
        return path

    def start(self, *arguments: str | Path, crash: str = "", fresh: bool = False) -> Run:
        """Start ``headrace`` with these arguments; ``fresh`` from a new interpreter, else forked."""
        number = len(self.runs)
        out, log = self.folder / f"out-{number}.txt", self.folder / f"log-{number}.txt"
        for file in (out, log):
            file.touch()
        environment = {key: value for key, value in os.environ.items() if not key.startswith("HEADRACE")}
        environment |= {
            "HEADRACE_CONFIG": str(self.folder / "headrace.toml"),
            "HEADRACE_CRASH": crash,
            "PYTHONPATH": str(ROOT),
            **self.environment,
        }
        words = list(map(str, arguments))
        process: Forked | subprocess.Popen[bytes]
        if fresh:
            with out.open("wb") as stdout, log.open("wb") as stderr:
                program = [sys.executable, "-m", "headrace.cli", *words]
                process = subprocess.Popen(program, cwd=self.folder, env=environment, stdout=stdout, stderr=stderr)
        else:
            from tests import headrace_process  # takes seconds, which other tests need not pay

            process = headrace_process.start(words, self.folder, environment, out, log)
        self.runs.append(Run(process, out, log))
        return self.runs[-1]

    def run(self, job: Path, *arguments: str, crash: str = "", fresh: bool = False) -> Run:
        """Start ``headrace run JOB --json-logs``."""
        return self.start("run", job, "--json-logs", *arguments, crash=crash, fresh=fresh)

    def finish(self, job: Path, *arguments: str) -> Run:
        """``headrace run JOB --until caught-up``, to its end, which must be a good one."""
        run = self.run(job, "--until", "caught-up", *arguments)
        code = run.end()
        assert code == 0, f"exit code {code}\n{run.text()[-3000:]}"
        return run

    def fails(self, job: Path, code: int, *arguments: str) -> dict[str, Any]:
        """``headrace run JOB --until caught-up``, which must end with this exit code; gives the error."""
        run = self.run(job, "--until", "caught-up", *arguments)
        found = run.end()
        assert found == code, f"exit code {found}, expected {code}\n{run.text()[-3000:]}"
        return run.error()

    def cli(self, *arguments: str | Path) -> str:
        """Any command, which must end well; gives its standard output."""
        run = self.start(*arguments)
        code = run.end()
        assert code == 0, f"exit code {code}\n{run.text()[-3000:]}"
        return run.out.read_text(encoding="utf-8")

    def close(self) -> None:
        """End what is still running."""
        for run in self.runs:
            if run.code is None:
                run.kill()
        for _, catalogs in self.opened:
            catalogs.close()

    # ----------------------------------------------------------------------------------------------------------- data

    def produce(self, topic: str, rows: pl.DataFrame, partitions: int) -> None:
        """Spread rows over the partitions by ``id``, in their order."""
        for partition in range(partitions):
            mine = rows.filter(pl.col("id") % partitions == partition)
            self.kafka.produce(topic, encoded(mine), partition=partition)

    def table(self, name: str, rows: pl.DataFrame) -> str:
        """Make a table of rows; gives its full name."""
        full = self.name(name)
        made = load_or_create(self.catalogs, full, rows.schema)
        if rows.height:
            made.append(rows.to_arrow(compat_level=pl.CompatLevel.oldest()))
        return full

    def archive(self, topic: str, table: str, columns: str = COLUMNS) -> None:
        """``headrace archive TOPIC TABLE``, up to the topic's end."""
        self.cli("archive", topic, self.name(table), "--schema", columns, "--until", "caught-up")

    def read(self, table: str) -> pl.DataFrame:
        """A table's rows, by DuckDB from the data files that the current snapshot lists."""
        loaded = self.catalogs.load(self.name(table))
        tasks = list(loaded.scan().plan_files())
        assert not any(task.delete_files for task in tasks), "not an append-only table"
        if not tasks:
            return pl.DataFrame(loaded.schema().as_arrow().empty_table())
        here = self.folder / "read-back"
        here.mkdir(exist_ok=True)
        names = [_fetched(loaded, task.file.file_path, here) for task in tasks]
        assert len(names) == len(set(names)), "a data file is listed twice"
        with duckdb.connect() as connection:
            connection.execute("set timezone = 'UTC'")
            found = connection.sql("select * from read_parquet($1, union_by_name = true)", params=[names])
            return pl.DataFrame(found.to_arrow_table())

    def snapshots(self, table: str) -> int:
        """How many snapshots a table has."""
        return len(self.catalogs.load(self.name(table)).snapshots())

    def records(self, topic: str) -> pl.DataFrame:
        """A topic's rows as a read_committed consumer sees them."""
        return from_records(self.kafka.values(topic))


def from_records(values: Sequence[bytes | None]) -> pl.DataFrame:
    """JSON values as rows; ``at`` and ``window_*`` are times."""
    rows = pl.DataFrame([json.loads(value or b"null") for value in values], infer_schema_length=None)
    times = [name for name in rows.columns if name == "at" or name.startswith("window_")]
    return rows.with_columns(pl.col(times).str.to_datetime(time_zone="UTC", time_unit="us"))


def _fetched(table: Any, location: str, folder: Path) -> str:
    """A local path of a data file."""
    parts = urlsplit(location)
    if parts.scheme in {"", "file"}:
        return parts.path
    local = folder / location.replace("/", "_")
    if not local.exists():
        with table.io.new_input(location).open() as stream:
            pq.write_table(pq.read_table(stream), local)
    return str(local)


# -------------------------------------------------------------------------------------------------- in this process


@contextmanager
def once_at(point: str, action: Callable[[], None]) -> Iterator[None]:
    """Run ``action`` the first time that this process passes a crash point."""
    done: list[str] = []

    def hook(name: str) -> None:
        if name == point and not done:
            done.append(name)
            action()

    uninstall = crash.install(hook)
    try:
        yield
    finally:
        uninstall()
    assert done, f"{point} was not passed"


def inline(site: Site, job: Path) -> RunResult:
    """Run a job to the end of its topic in this process."""
    return run_job(load_job(job), site.config, RunOptions("caught-up"), SilentObserver(), StopSignal())


# ------------------------------------------------------------------------------------------------------------- specs


def source(topic: str, history: str | None = None, **more: Any) -> dict[str, Any]:
    """A source of readings; ``tail`` in ``more`` is merged into the tail."""
    tail: dict[str, Any] = {"topic": topic, **more.pop("tail", {})}
    if history is None:
        tail.setdefault("schema", dict(part.split(": ") for part in COLUMNS.split(", ")))
    spec: dict[str, Any] = {"tail": tail, "event_time": {"column": "at", "out_of_orderness": f"{DISORDER_S}s"}}
    if history is not None:
        spec["history"] = {"table": history}
    return {**spec, **more}


def windows_job(
    name: str, source_: Mapping[str, Any], places: str, *, table: str, topic: str, rows: str | None = None
) -> dict[str, Any]:
    """The main job in small: filter, lookup and window, into a table and a topic; the filtered rows into another."""
    sinks: list[dict[str, Any]] = [
        {"iceberg": {"table": table, "create": True}, "from": "minutes"},
        {"kafka": {"topic": topic, "key": ["sensor"]}, "from": "minutes"},
    ]
    if rows is not None:
        sinks.append({"iceberg": {"table": rows, "create": True}, "from": "present"})
    return {
        "name": name,
        "sources": {"readings": dict(source_)},
        "tables": {"places": {"table": places}},
        "steps": [
            {"id": "present", "filter": "v is not null"},
            {"lookup": {"table": "places", "on": "sensor", "columns": ["place"]}},
            {
                "id": "minutes",
                "window": {
                    "tumbling": "1m",
                    "by": ["sensor", "place"],
                    "aggregate": {"n": "count(*)", "total": "sum(v)", "lowest": "min(v)", "mean": "avg(v)"},
                },
            },
        ],
        "sinks": sinks,
    }


# ---------------------------------------------------------------------------------------------------------- fixtures


@pytest.fixture
def site(
    stack: Stack, kafka: KafkaHelper, open_catalog: Callable[[str], CatalogCase], tmp_path: Path
) -> Iterator[Site]:
    """A site on the local catalog (SQLite and files), checkpoints in the state folder."""
    yield from _site(stack, kafka, open_catalog("local"), tmp_path)


@pytest.fixture
def lake_site(
    stack: Stack, kafka: KafkaHelper, open_catalog: Callable[[str], CatalogCase], tmp_path: Path
) -> Iterator[Site]:
    """A site on the REST catalog with S3, checkpoints on S3."""
    case = open_catalog("lake")
    assert stack.endpoints.s3 is not None
    store = f"s3://{stack.endpoints.s3.bucket}/checkpoints/{case.namespace}"
    yield from _site(stack, kafka, case, tmp_path, store)


@pytest.fixture(params=["local", "lake", "postgres"])
def any_site(
    request: pytest.FixtureRequest,
    stack: Stack,
    kafka: KafkaHelper,
    open_catalog: Callable[[str], CatalogCase],
    tmp_path: Path,
) -> Iterator[Site]:
    """A site on each catalog in turn, checkpoints in the state folder."""
    yield from _site(stack, kafka, open_catalog(request.param), tmp_path)


def _site(
    stack: Stack, kafka: KafkaHelper, case: CatalogCase, folder: Path, store: str | None = None
) -> Iterator[Site]:
    (folder / "headrace.toml").write_text(dev.render_settings(stack.endpoints, folder), encoding="utf-8")
    site = Site(folder, kafka, case, store)
    try:
        yield site
    finally:
        site.close()
