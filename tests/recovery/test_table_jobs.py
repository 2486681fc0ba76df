"""Jobs that follow a table snapshot by snapshot, as users run them: killed, refused, planned."""

from __future__ import annotations

import json
import signal
from datetime import datetime, timedelta

import polars as pl
import pytest

from catalog.boundary_record import BOUNDARY
from headrace.kernel.boundary import Boundary
from headrace.kernel.errors import ExitCode
from hybrid_source.iceberg_increments import CHANGED
from tests.jobs import DISORDER_S, PLACES, SENSORS, Site, assert_same, readings, source, window_batch, windows_job

ROWS = 500
PER_SNAPSHOT = 100

pytestmark = pytest.mark.services


def following(site: Site, name: str, *, history: bool = True, **tail: object) -> dict[str, object]:
    """A job that reads the table ``archive`` and goes on with what is appended."""
    table = site.name("archive")
    read = {
        "tail": {"table": table, "interval": "200ms", **tail},
        "event_time": {"column": "at", "out_of_orderness": f"{DISORDER_S}s"},
        **({"history": {"table": table, "split_rows": PER_SNAPSHOT}} if history else {}),
    }
    written = {"table": site.name("minutes"), "topic": site.kafka.topic(), "rows": site.name("present")}
    job = windows_job(name, read, site.table("places", PLACES), **written)
    return {**job, "checkpoint": {"rows": PER_SNAPSHOT}}


def append(site: Site, rows: pl.DataFrame) -> None:
    for begin in range(0, rows.height, PER_SNAPSHOT):
        site.table("archive", rows[begin : begin + PER_SNAPSHOT])


def check_outputs(site: Site, job: dict[str, object], rows: pl.DataFrame) -> None:
    expected = window_batch(rows)
    topic = job["sinks"][1]["kafka"]["topic"]  # type: ignore[index]
    assert_same(site.records(topic), expected, "windows in Kafka")
    assert_same(site.read("minutes"), expected, "windows in Iceberg")
    assert_same(site.read("present"), rows.filter(pl.col("v").is_not_null()), "rows in Iceberg")


def killed_while_following(site: Site) -> None:
    rows = readings(ROWS)
    append(site, rows[:200])
    spec = following(site, "followed")
    job = site.job(spec)
    run = site.run(job, crash="after-prepare:2")  # in the history
    assert run.end() == -signal.SIGKILL, run.text()[-3000:]
    append(site, rows[200:400])
    run = site.run(job, crash="after-head:3")  # in the increments
    assert run.end() == -signal.SIGKILL, run.text()[-3000:]
    run = site.run(job)
    run.until(lambda run: run.has_said("recovered"), "recovered")
    append(site, rows[400:])
    run.kill()
    site.finish(job)
    check_outputs(site, spec, rows)
    assert site.finish(job).has_said("already-finished")


def test_killed_on_local_files(site: Site) -> None:
    killed_while_following(site)


def test_killed_on_the_lake(lake_site: Site) -> None:
    killed_while_following(lake_site)


def test_increments_alone_are_read_from_the_first_start_on(site: Site) -> None:
    rows = readings(300)
    append(site, rows[:100])
    spec = following(site, "increments", history=False)
    job = site.job(spec)
    site.finish(job, "--on-end", "suspend")
    assert site.read("present").height == 0
    append(site, rows[100:])
    site.finish(job)
    check_outputs(site, spec, rows[100:])


def test_markers_of_an_idle_topic_move_event_time_downstream(site: Site) -> None:
    """Partition 1 stays behind and goes idle; no row comes after that, and yet downstream windows close."""
    rows = readings(300)
    topic, table = site.kafka.topic(2), site.name("archive")
    site.produce(topic, rows.filter(pl.col("id") % 2 == 0), 2)
    site.produce(topic, rows.filter(pl.col("id") == 1), 2)
    read = source(topic, metadata=True)
    read["event_time"]["idle"] = "1s"
    sink = {"iceberg": {"table": table, "create": True, "marker": "100ms"}}
    archive = site.job({"name": "archive", "sources": {"readings": read}, "sinks": [sink]})
    run = site.run(archive)
    newest = rows.filter(pl.col("id") % 2 == 0)["at"].max()
    reached = newest - timedelta(seconds=DISORDER_S)

    def recorded(_: object) -> bool:
        if not site.catalogs.catalog("local").table_exists(site.catalog.identifier("archive")):
            return False
        head = site.catalogs.load(table).current_snapshot()
        record = head.summary.additional_properties.get(BOUNDARY) if head is not None else None
        watermark = Boundary.from_json(json.loads(record)).watermark if record is not None else None
        return watermark is not None and datetime.fromisoformat(watermark) == reached

    run.until(recorded, "a marker with the watermark")
    run.send(signal.SIGTERM)
    assert run.end() == 0
    head = site.catalogs.load(table).current_snapshot()
    assert head.summary.additional_properties.get("added-records", "0") == "0"
    spec = following(site, "downstream")
    site.finish(site.job(spec), "--on-end", "suspend")
    arrived = rows.filter((pl.col("id") % 2 == 0) | (pl.col("id") == 1))
    closed = window_batch(arrived).filter(pl.col("window_start") + timedelta(minutes=1) <= reached)
    assert closed.height > 0
    assert_same(site.read("minutes"), closed, "windows that event time has passed")


def test_a_change_is_refused_with_snapshot_and_operation(site: Site) -> None:
    append(site, readings(200))
    job = site.job(following(site, "changed"))
    site.finish(job, "--on-end", "suspend")
    table = site.catalogs.load(site.name("archive"))
    table.delete("id < 10")
    changed = next(s for s in table.refresh().snapshots() if s.summary.operation.value != "append")
    append(site, readings(100, first_id=200))
    plan = json.loads(site.cli("plan", job, "--json"))["sources"][0]["table_tail"]
    assert [(at["operation"], at["refused"]) for at in plan["waiting"]] == [("overwrite", True), ("append", False)]
    assert "refused" in site.cli("plan", job)
    before = site.read("present").height
    error = site.fails(job, ExitCode.DATA)
    assert error["code"] == CHANGED
    assert str(changed.snapshot_id) in error["message"]
    assert site.read("present").height == before
    site.finish(site.job(following(site, "changed", on_change="skip")))
    assert site.read("present").height > before


def net(changes: pl.DataFrame) -> pl.DataFrame:
    """The rows that changes leave."""
    names = [name for name in changes.columns if name != "_weight"]
    left = changes.group_by(names).agg(pl.col("_weight").sum()).filter(pl.col("_weight") != 0)
    assert left["_weight"].min() == left["_weight"].max() == 1
    return left.drop("_weight")


def test_a_table_that_is_overwritten_runs_as_changes_through_an_aggregate(any_site: Site) -> None:
    site, rows = any_site, readings(200)
    append(site, rows)
    table, topic = site.name("archive"), site.kafka.topic()
    spec = {
        "name": "mirror",
        "sources": {
            "readings": {
                "history": {"table": table, "split_rows": 50},
                "tail": {"table": table, "interval": "200ms", "on_change": "changelog"},
            }
        },
        "steps": [{"id": "totals", "aggregate": {"by": ["sensor"], "aggregate": {"n": "count(*)", "total": "sum(v)"}}}],
        "sinks": [
            {"from": "readings", "iceberg": {"table": site.name("changes"), "create": True, "changes": "append"}},
            {"from": "totals", "kafka": {"topic": topic, "key": ["sensor"]}},
        ],
        "checkpoint": {"rows": 50},
    }
    job = site.job(spec)
    run = site.run(job, crash="after-prepare:2")
    assert run.end() == -signal.SIGKILL, run.text()[-3000:]
    loaded = site.catalogs.load(table)
    loaded.delete(f"id < 20 or sensor = '{SENSORS[0]}'")  # rewrites files, and drops some
    site.table("archive", readings(60, first_id=200))
    run = site.run(job, "--until", "caught-up", "--on-end", "suspend", crash="after-head:2")
    assert run.end() == -signal.SIGKILL, run.text()[-3000:]
    loaded.refresh().overwrite(rows[:20].to_arrow(compat_level=pl.CompatLevel.oldest()), "id >= 200 and id < 230")
    plan = json.loads(site.cli("plan", job, "--json"))["sources"][0]["table_tail"]
    assert not any(at["refused"] for at in plan["waiting"])
    site.finish(job, "--on-end", "suspend")  # where the killed run was to end
    site.finish(job, "--on-end", "suspend")
    expected = pl.DataFrame(loaded.refresh().scan().to_arrow())
    assert_same(net(site.read("changes")), expected, "the table, from its changes")
    latest = {message.key(): json.loads(message.value() or b"null") for message in site.kafka.drain(topic)}
    totals = expected.group_by("sensor").agg(n=pl.len(), total=pl.col("v").sum())
    held = [(value["sensor"], value["n"], value["total"]) for value in latest.values() if value is not None]
    assert sorted(held) == sorted(totals.iter_rows())
