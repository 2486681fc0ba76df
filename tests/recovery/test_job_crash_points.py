"""The main job, killed at each named crash point of an epoch, with sinks of both kinds; one restart each."""

from __future__ import annotations

import signal

import polars as pl
import pytest

from headrace.testing import CRASH_POINTS
from tests.jobs import PLACES, Site, assert_same, readings, source, window_batch, windows_job

PARTITIONS = 2
HISTORY = 200
TAIL = 300
EPOCH_ROWS = 100

pytestmark = pytest.mark.services


@pytest.mark.parametrize("point", CRASH_POINTS)
def test_killed_at(site: Site, point: str) -> None:
    """The third time that the point is passed: in the history for some, in the tail for others."""
    killed_at(site, f"{point}:3")


@pytest.mark.parametrize("point", ["after-record", "after-head", "between-commits", "iceberg-after-commit"])
def test_killed_on_the_lake_at(lake_site: Site, point: str) -> None:
    killed_at(lake_site, f"{point}:2")


def killed_at(site: Site, crash: str) -> None:
    rows = readings(HISTORY + TAIL)
    topic, target = site.kafka.topic(PARTITIONS), site.kafka.topic()
    site.produce(topic, rows, PARTITIONS)
    for begin in range(0, HISTORY, EPOCH_ROWS):
        history = site.table("history", rows[begin : begin + EPOCH_ROWS])
    read = source(topic, history, boundary={"offsets": dict.fromkeys(range(PARTITIONS), HISTORY // PARTITIONS)})
    read["history"]["split_rows"] = EPOCH_ROWS
    written = {"table": site.name("minutes"), "topic": target, "rows": site.name("present")}
    spec = windows_job("crash", read, site.table("places", PLACES), **written)
    job = site.job({**spec, "checkpoint": {"rows": EPOCH_ROWS}})

    # Two epochs in the history, one or more in the tail, one for the windows that are still open at the end.
    run = site.run(job, "--until", "caught-up", crash=crash)
    assert run.end() == -signal.SIGKILL, run.text()[-3000:]
    site.finish(job)

    expected = window_batch(rows)
    assert_same(site.records(target), expected, "windows in Kafka")
    assert_same(site.read("minutes"), expected, "windows in Iceberg")
    assert_same(site.read("present"), rows.filter(pl.col("v").is_not_null()), "rows in Iceberg")
