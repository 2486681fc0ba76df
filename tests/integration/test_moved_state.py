"""Checkpoints that somebody moves, or brings back from a backup (docs/operations.md)."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import polars as pl
import pytest
from pyiceberg.catalog import Catalog, load_catalog

from headrace.jobs.config import Config, load_config
from headrace.jobs.parse import parse_job
from headrace.jobs.run import run_job
from headrace.kernel.errors import HeadraceError
from headrace.kernel.protocols import Json
from headrace.runtime.job import RunOptions
from headrace.runtime.observer import SilentObserver, StopSignal

START = datetime(2026, 1, 1, tzinfo=UTC)


def rows(first: int) -> pl.DataFrame:
    """A hundred rows, one a minute: the windows of an hour are open in the middle."""
    return pl.DataFrame({"at": [START + timedelta(minutes=first + n) for n in range(100)], "k": ["a", "b"] * 50})


def run(config: Config, store: str, end: str) -> None:
    spec: dict[str, Json] = {
        "name": "hourly",
        "sources": {
            "rows": {
                "history": {"table": "local.ns.rows"},
                "tail": {"table": "local.ns.rows"},
                "event_time": {"column": "at"},
            }
        },
        "steps": [{"window": {"tumbling": "1h", "by": "k", "aggregate": {"n": "count(*)"}}}],
        "sinks": [{"iceberg": {"table": "local.ns.out", "create": True}}],
        "checkpoint": {"store": store},
    }
    run_job(parse_job(spec), config, RunOptions("caught-up", on_end=end), SilentObserver(), StopSignal())


def moved(folder: Path, target: str, options: dict[str, Any]) -> None:
    """Copy ``blobs`` and ``head.json``, the head last; then take the old ones away."""
    if target.startswith("s3://"):
        bucket, _, prefix = target.removeprefix("s3://").partition("/")
        client = boto3.client("s3", **options)
        for file in sorted((folder / "blobs").rglob("*")):
            if file.is_file():
                client.upload_file(str(file), bucket, f"{prefix}/{file.relative_to(folder).as_posix()}")
        client.upload_file(str(folder / "head.json"), bucket, f"{prefix}/head.json")
    else:
        shutil.copytree(folder / "blobs", Path(target) / "blobs")
        shutil.copy(folder / "head.json", target)
    shutil.rmtree(folder)


@dataclass(frozen=True)
class Bench:
    """A table that is read, and the windows that a job makes of it."""

    config: Config
    catalog: Catalog

    def append(self, first: int) -> None:
        self.catalog.load_table("ns.rows").append(rows(first).to_arrow())

    def found(self) -> list[tuple[Any, ...]]:
        out = pl.from_arrow(self.catalog.load_table("ns.out").scan().to_arrow())
        assert isinstance(out, pl.DataFrame)
        return out.sort("window_start", "k").select("window_start", "k", "n").rows()


def wanted(minutes: int) -> list[tuple[Any, ...]]:
    """The windows of the rows of that many minutes."""
    hours = range(-(-minutes // 60))
    return [(START + timedelta(hours=hour), k, min(60, minutes - 60 * hour) // 2) for hour in hours for k in "ab"]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    config = load_config(state_path=tmp_path / "state", cwd=tmp_path)
    config.state_path.mkdir()
    catalog = load_catalog("local", **config.catalog("local"))
    catalog.create_namespace("ns")
    catalog.create_table("ns.rows", rows(0).to_arrow().schema)
    yield Bench(config, catalog)
    catalog.close()


@pytest.mark.parametrize("kind", ["folder", pytest.param("s3", marks=pytest.mark.services)])
def test_a_job_goes_on_where_its_checkpoints_were_moved(
    kind: str, bench: Bench, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    options: dict[str, Any] = {}
    target = str(tmp_path / "moved")
    if kind == "s3":
        s3 = request.getfixturevalue("stack").endpoints.s3
        options = {
            "endpoint_url": s3.endpoint,
            "aws_access_key_id": s3.access_key,
            "aws_secret_access_key": s3.secret_key,
            "region_name": s3.region,
        }
        target = f"s3://{s3.bucket}/moved-{uuid.uuid4().hex}"
    config = replace(bench.config, object_stores={"s3": options})
    bench.append(0)
    run(config, str(tmp_path / "first"), "suspend")

    moved(tmp_path / "first", target, options)
    bench.append(100)
    run(config, target, "drain")
    assert bench.found() == wanted(200)

    # The folder that it left would begin anew, and is refused.
    with pytest.raises(HeadraceError) as refused:
        run(config, str(tmp_path / "first"), "drain")
    assert refused.value.code == "SINK_HAS_COMMITS"


def test_checkpoints_older_than_what_was_committed_are_refused(bench: Bench, tmp_path: Path) -> None:
    store, backup = tmp_path / "store", tmp_path / "backup"
    bench.append(0)
    run(bench.config, str(store), "suspend")
    shutil.copytree(store, backup)
    bench.append(100)
    run(bench.config, str(store), "suspend")
    before = bench.found()

    shutil.move(store, tmp_path / "newest")
    shutil.copytree(backup, store)
    bench.append(200)
    with pytest.raises(HeadraceError) as refused:
        run(bench.config, str(store), "suspend")
    assert refused.value.code == "CHECKPOINT_SET_BACK"
    assert bench.found() == before

    shutil.rmtree(store)
    shutil.move(tmp_path / "newest", store)
    run(bench.config, str(store), "drain")
    assert bench.found() == wanted(300)


def test_a_backup_of_all_that_was_committed_goes_on(bench: Bench, tmp_path: Path) -> None:
    store = tmp_path / "store"
    bench.append(0)
    run(bench.config, str(store), "suspend")
    shutil.copytree(store, tmp_path / "backup")
    shutil.rmtree(store)
    shutil.copytree(tmp_path / "backup", store)
    bench.append(100)
    run(bench.config, str(store), "drain")
    assert bench.found() == wanted(200)
