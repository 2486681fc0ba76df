"""Whole jobs over tables as other writers lay them out, on every catalog and a real broker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from headrace.jobs.compile import compile_job
from headrace.jobs.loading import load_job
from headrace.jobs.planning import plan_job
from infra import dev
from tests.jobs import PLACES, READINGS, Site, assert_same, encoded, inline, readings, source, windows_job
from tests.kafka import KafkaHelper
from tests.services import CatalogCase, Stack

pytestmark = pytest.mark.services

META = pl.Struct({"partition": pl.Int32(), "offset": pl.Int64(), "timestamp": pl.Int64()})
AIVEN = {**READINGS, "kafka": META}
REDPANDA = {**READINGS, "redpanda": META}
CONNECT = {
    **READINGS,
    "src_topic": pl.String(),
    "src_partition": pl.Int32(),
    "src_offset": pl.Int64(),
    "src_timestamp": pl.Int64(),
}


@pytest.fixture(params=["local", "lake", "postgres"])
def anywhere(
    request: pytest.FixtureRequest,
    stack: Stack,
    kafka: KafkaHelper,
    open_catalog: Callable[[str], CatalogCase],
    tmp_path: Path,
) -> Iterator[Site]:
    """A site on each kind of catalog in turn."""
    case = open_catalog(request.param)
    (tmp_path / "headrace.toml").write_text(dev.render_settings(stack.endpoints, tmp_path), encoding="utf-8")
    opened = Site(tmp_path, kafka, case)
    yield opened
    opened.close()


def topic_of(site: Site, rows: pl.DataFrame) -> str:
    """A topic of two partitions that holds the rows, by ``id``."""
    topic = site.kafka.topic(2, config={"retention.ms": "-1"})
    site.produce(topic, rows, 2)
    return topic


def stored(rows: pl.DataFrame, root: str) -> pl.DataFrame:
    """Rows with a struct that says where they came from."""
    where = pl.struct(
        (pl.col("id") % 2).cast(pl.Int32).alias("partition"),
        (pl.col("id") // 2).alias("offset"),
        pl.lit(0, pl.Int64).alias("timestamp"),
    )
    return rows.with_columns(where.alias(root))


def copy_job(site: Site, name: str, read: dict[str, Any]) -> Path:
    step = {"select": list(READINGS)}
    sink = {"iceberg": {"table": site.name("out"), "create": True}}
    return site.job({"name": name, "sources": {"readings": read}, "steps": [step], "sinks": [sink]})


def test_a_table_of_redpanda_hands_over_by_its_own_columns(anywhere: Site) -> None:
    rows = readings(40)
    topic = topic_of(anywhere, rows)
    anywhere.table("history", stored(rows[:10], "redpanda"))
    history = anywhere.table("history", stored(rows[10:24], "redpanda"))
    job = copy_job(anywhere, "redpanda", source(topic, history))
    (planned,) = json.loads(anywhere.cli("plan", job, "--json"))["sources"]
    assert planned["boundary"]["rule"] == "columns of Redpanda"
    assert planned["boundary"]["columns"] == "redpanda.partition, redpanda.offset"
    tried = [(verdict["rule"], verdict["outcome"]) for verdict in planned["boundary"]["tried"]]
    assert tried[0] == ("recorded boundary", "not there")
    assert ("columns of Redpanda", "applied") in tried
    assert {at["partition"]: at["start"] for at in planned["tail"]["partitions"]} == {0: 12, 1: 12}
    text = anywhere.cli("plan", job)
    assert "columns of Redpanda" in text
    assert "redpanda.partition, redpanda.offset" in text
    inline(anywhere, job)
    assert_same(anywhere.read("out"), rows, "each row once")


def test_rows_above_a_stated_boundary_are_left_to_the_tail(site: Site) -> None:
    rows = readings(40)
    topic = topic_of(site, rows)
    history = site.table("history", stored(rows[:30], "redpanda"))
    inline(site, copy_job(site, "stated", source(topic, history, boundary={"offsets": {0: 5, 1: 9}})))
    assert_same(site.read("out"), rows, "each row once")


def test_the_plan_says_that_windows_wait_for_a_topic_that_the_table_covers_whole(site: Site) -> None:
    rows, topic = readings(40), site.kafka.topic(2)
    site.produce(topic, rows, 2)
    table, places = site.table("readings", rows), site.table("places", PLACES)

    def warned(idle: str | None, steps: slice, **ends: int) -> list[str]:
        read = source(topic, table, boundary={"offsets": {0: ends.get("p0", 20), 1: 20}})
        read["event_time"] |= {"idle": idle} if idle else {}
        spec = windows_job("silent", read, places, table=site.name("out"), topic=site.kafka.topic())
        spec["steps"] = spec["steps"][steps]
        sink = spec["sinks"][0]
        spec["sinks"] = [{**sink, "from": spec["steps"][-1].get("id", "present")}]
        return list(plan_job(compile_job(load_job(site.job(spec)), site.config)).warnings)

    (said,) = warned(None, slice(3))
    assert f"the watermark of source readings will wait for the next record of {topic}[0], {topic}[1]" in said
    assert "set event_time.idle" in said
    (said,) = warned(None, slice(3), p0=19)
    assert f"next record of {topic}[1]," in said
    assert warned("1m", slice(3)) == []
    assert warned(None, slice(1)) == []  # nothing waits for event time


def test_aivens_doubled_segments_are_read_once(site: Site) -> None:
    rows = readings(40)
    topic = topic_of(site, rows)
    site.table("history", stored(rows[:20], "kafka"))
    history = site.table("history", stored(rows[8:26], "kafka"))
    read = source(topic, history)
    read["history"]["split_rows"] = 7
    job = copy_job(site, "aiven", read)
    inline(site, job)
    assert_same(site.read("out"), rows, "each row once")
    (seam,) = json.loads(site.cli("seam", job, "--json"))["sources"]
    assert seam["exact"], seam


def test_rows_of_a_connector_under_a_prefix_of_its_own_tell_topics_apart(site: Site) -> None:
    rows = readings(40)
    topic = topic_of(site, rows)
    meta = (
        stored(rows[:24], "m")
        .unnest("m")
        .rename({"partition": "src_partition", "offset": "src_offset", "timestamp": "src_timestamp"})
    )
    mine = meta.with_columns(src_topic=pl.lit(topic)).select(list(CONNECT))
    others = mine.head(4).with_columns(
        pl.col("id") + 1000, src_topic=pl.lit("other"), src_offset=pl.lit(9999, pl.Int64)
    )
    history = site.table("history", pl.concat([mine, others]))
    read = source(topic, history)
    read["history"]["where"] = f"src_topic = '{topic}'"
    inline(site, copy_job(site, "connect", read))
    assert_same(site.read("out"), rows, "each row once")


def test_a_time_with_an_overlap_reads_rows_twice_and_none_too_few(site: Site) -> None:
    rows = readings(20)
    topic = site.kafka.topic(config={"retention.ms": "-1"})
    for row in rows.iter_slices(1):
        site.kafka.produce(topic, encoded(row), timestamp_ms=int(row["at"][0].timestamp() * 1000))
    history = site.table("history", rows[:10])
    time = rows["at"][9].isoformat()
    job = copy_job(site, "time", source(topic, history, boundary={"timestamp": time, "overlap": "4m"}))
    (planned,) = json.loads(site.cli("plan", job, "--json"))["sources"]
    assert planned["boundary"]["guarantee"].startswith("at-least-once")
    inline(site, job)
    found = site.read("out")
    assert found.height > rows.height
    assert_same(found.unique(), rows, "every row at least once")
