"""HYB-05: a topic that was created again, another cluster, and the explicit way on; whole jobs on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from catalog.catalogs import TableName
from catalog.commit import set_boundary
from headrace.kernel.boundary import Boundary, PartitionRange, TopicBoundary
from tests.jobs import COLUMNS, Site, assert_same, readings, source

pytestmark = pytest.mark.services


def archive(site: Site, topic: str, *more: str) -> dict[str, Any]:
    """``headrace archive`` up to the end of the topic; gives the error, or nothing."""
    run = site.start(
        "archive", topic, site.name("archive"), "--schema", COLUMNS, "--until", "caught-up", "--json-logs", *more
    )
    return run.error() if run.end() else {}


def files(site: Site) -> set[str]:
    """All data files that lie in the table's folder, listed or not."""
    location = Path(site.catalogs.load(site.name("archive")).location().removeprefix("file://"))
    return {str(path) for path in (location / "data").rglob("*.parquet")}


@pytest.fixture
def recreated(site: Site) -> tuple[str, pl.DataFrame]:
    """A topic that was archived up to 20, deleted, created again and filled with ten records."""
    topic = site.kafka.topic(config={"retention.ms": "-1"})
    site.produce(topic, readings(20), 1)
    assert not archive(site, topic)
    site.kafka.delete_topic(topic)
    site.kafka.topic_named(topic)
    new = readings(10, first_id=100)
    site.produce(topic, new, 1)
    return topic, new


def test_hyb_05_a_recreated_topic_is_refused_until_it_is_reset(site: Site, recreated: tuple[str, pl.DataFrame]) -> None:
    topic, new = recreated
    before, snapshots = files(site), site.snapshots("archive")
    for _ in range(2):
        error = archive(site, topic)
        assert error["code"] == "TOPIC_RECREATED", error
        assert topic in error["message"]
        assert "boundary reset" in error["hint"]
    more = readings(15, first_id=200)
    site.produce(topic, more, 1)  # now it ends at 25, beyond what was recorded: only the id tells
    assert archive(site, topic)["code"] == "TOPIC_RECREATED"
    read = source(topic, site.name("archive"))
    sink = {"iceberg": {"table": site.name("out"), "create": True}}
    job = site.job({"name": "over", "sources": {"readings": read}, "sinks": [sink]})
    assert site.fails(job, 4)["code"] == "TOPIC_RECREATED"
    assert not site.catalog.client.table_exists(site.catalog.identifier("out"))
    assert (files(site), site.snapshots("archive")) == (before, snapshots), "nothing is written after a refusal"

    asked = site.start("boundary", "reset", site.name("archive"))
    assert asked.end() == 2
    assert "CONFIRMATION_MISSING" in asked.text()
    assert "0: 0 up to 20" in asked.text()
    assert site.snapshots("archive") == snapshots
    site.cli("boundary", "reset", site.name("archive"), "--yes")
    shown = json.loads(site.cli("boundary", "show", site.name("archive"), "--json"))["boundary"]["topics"][topic]
    assert shown["partitions"] == {}
    assert shown["topic_id"] == site.kafka.topic_id(topic)
    assert len(shown["earlier"]) == 1

    # A job over the old rows and the new topic, then the archiver goes on under another uid.
    site.finish(site.job({"name": "over", "uid": "over-2", "sources": {"readings": read}, "sinks": [sink]}))
    everything = pl.concat([readings(20), new, more])
    assert_same(site.read("out"), everything, "old rows and the new topic")
    assert not archive(site, topic, "--uid", "again")
    assert_same(site.read("archive"), everything, "each record once")
    found = json.loads(site.cli("boundary", "show", site.name("archive"), "--topic", topic, "--json"))
    assert found["resolution"]["record"]["topics"][topic]["partitions"]["0"] == {"start": 0, "next": 25}
    assert "columns" not in found["resolution"]


def test_hyb_05_offsets_of_another_cluster_are_refused(site: Site) -> None:
    topic = site.kafka.topic()
    site.produce(topic, readings(10), 1)
    history = site.table("history", readings(5))
    covered = Boundary({topic: TopicBoundary({0: PartitionRange(0, 5)})}, "another-cluster")
    set_boundary(site.catalogs, TableName.parse(history), covered)
    sink = {"iceberg": {"table": site.name("out"), "create": True}}
    job = site.job({"name": "moved", "sources": {"readings": source(topic, history)}, "sinks": [sink]})
    error = site.fails(job, 4)
    assert error["code"] == "TOPIC_RECREATED"
    assert "cluster id" in error["message"]
    assert "another-cluster" in error["detail"]
    site.cli("boundary", "reset", history, "--yes")
    site.finish(job)
    assert_same(site.read("out"), pl.concat([readings(5), readings(10)]), "all rows of the table, all of the topic")


def test_a_boundary_beyond_the_log_start_names_the_rule(site: Site) -> None:
    rows, topic = readings(30), site.kafka.topic()
    site.produce(topic, rows, 1)
    site.archive(topic, "archive")
    site.produce(topic, readings(30, first_id=30), 1)
    site.kafka.delete_records(topic, {0: 40})
    sink = {"iceberg": {"table": site.name("out"), "create": True}}
    read = source(topic, site.name("archive"))
    error = site.fails(site.job({"name": "gap", "sources": {"readings": read}, "sinks": [sink]}), 4)
    assert error["code"] == "OFFSET_GAP"
    assert (error["context"]["wanted"], error["context"]["available"][0]) == (30, 40)
    assert "recorded boundary" in error["detail"]
    assert error["context"]["rule"] == "recorded boundary"
    plan = site.start("plan", site.folder / "gap.yaml", "--json")
    assert plan.end() == 4
