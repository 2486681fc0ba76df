"""``kill -9`` at any moment of ``headrace run``, ten times in a row; the outputs equal the batch computation."""

from __future__ import annotations

import logging
import random
import signal
import time

import polars as pl
import pytest

from tests.jobs import PLACES, Site, assert_same, readings, source, window_batch, windows_job

logger = logging.getLogger(__name__)

KILLS = 10
PARTITIONS = 3
HISTORY = 3_000
CHUNK = 600
SPLIT = 1_000
EPOCH_ROWS = 100

pytestmark = [pytest.mark.services, pytest.mark.timeout(600)]


def test_killed_ten_times_in_a_row_on_local_files(site: Site) -> None:
    ten_kills(site)


def test_killed_ten_times_in_a_row_on_the_lake(lake_site: Site) -> None:
    ten_kills(lake_site)


def ten_kills(site: Site) -> None:
    seed = random.randrange(1 << 32)
    logger.warning("seed %d", seed)
    dice = random.Random(seed)
    rows = readings(HISTORY + KILLS * CHUNK)
    topic, target = site.kafka.topic(PARTITIONS), site.kafka.topic(2)
    for begin in range(0, HISTORY, SPLIT):  # each archive run makes a file of its own
        site.produce(topic, rows[begin : begin + SPLIT], PARTITIONS)
        site.archive(topic, "archive")
    site.kafka.delete_records(topic, dict.fromkeys(range(PARTITIONS), HISTORY // PARTITIONS - 50))
    read = source(topic, site.name("archive"), tail={"rate_limit": 300})
    read["history"]["split_rows"] = SPLIT
    written = {"table": site.name("minutes"), "topic": target, "rows": site.name("present")}
    spec = windows_job("kill-nine", read, site.table("places", PLACES), **written)
    job = site.job({**spec, "checkpoint": {"rows": EPOCH_ROWS}})

    for kill in range(KILLS):
        begin = HISTORY + kill * CHUNK
        site.produce(topic, rows[begin : begin + CHUNK], PARTITIONS)
        run = site.run(job, fresh=True)
        # Each run has at least a chunk to do, so these lines come. The pause chooses a moment; it waits for none.
        lines = dice.randint(0, 2)
        run.until(lambda run, lines=lines: len(run.events()) >= lines, f"{lines} lines in the log")
        time.sleep(dice.uniform(0, 1.5))
        run.kill()
        assert run.code == -signal.SIGKILL, run.text()[-3000:]
        logger.warning("killed after %s", [event.get("code") or event["event"] for event in run.events()])
    site.finish(job)

    expected = window_batch(rows)
    assert_same(site.read("minutes"), expected, "windows in Iceberg")
    assert_same(site.records(target), expected, "windows in Kafka")
    assert_same(site.read("present"), rows.filter(pl.col("v").is_not_null()), "rows in Iceberg")
