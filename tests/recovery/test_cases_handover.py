"""Cases of the handover, on whole jobs through the command line."""

from __future__ import annotations

import json
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import polars as pl
import pytest
from confluent_kafka.admin import NewPartitions

from headrace.kernel.errors import SnapshotGoneError
from tests.jobs import START, Run, Site, assert_same, encoded, inline, once_at, readings, source
from tests.kafka import SECONDS

pytestmark = pytest.mark.services


def copy_job(site: Site, name: str, read: dict[str, Any], **checkpoint: Any) -> Path:
    """A job that appends every row as it is to the table ``out``."""
    sink = {"iceberg": {"table": site.name("out"), "create": True}}
    return site.job({"name": name, "sources": {"readings": read}, "sinks": [sink], "checkpoint": checkpoint})


def steady(count: int, first_id: int = 0) -> pl.DataFrame:
    """Readings in the order of their time, so that files are read in the order in which they were made."""
    rows = readings(count, first_id=first_id)
    return rows.with_columns(at=START + pl.duration(seconds=4 * pl.col("id")).cast(pl.Duration("us")))


def read_in(run: Run) -> int:
    """Input records of all epochs that a run has committed."""
    return sum(epoch["records"] for epoch in run.epochs())


# ------------------------------------------------------------------------------------------ HYB-01, transaction markers


def test_hyb_01_a_bounded_job_ends_behind_transaction_markers(site: Site) -> None:
    rows, topic = readings(3), site.kafka.topic()
    with site.kafka.transaction() as transaction:
        assert transaction.produce(topic, encoded(rows[:2])) == [0, 1]
        transaction.commit()
    job = copy_job(site, "markers", source(topic))
    assert read_in(site.finish(job)) == 2
    assert_same(site.read("out"), rows[:2], "committed rows")
    with site.kafka.transaction() as transaction:
        transaction.produce(topic, encoded(rows[2:]) * 3)
        transaction.abort()
    assert read_in(site.finish(job)) == 0
    assert_same(site.read("out"), rows[:2], "committed rows")


def test_hyb_01_the_recorded_boundary_lies_behind_the_markers(site: Site) -> None:
    topic = site.kafka.topic()
    with site.kafka.transaction() as transaction:
        transaction.produce(topic, encoded(readings(2)))
        transaction.commit()
    site.archive(topic, "archive")
    shown = json.loads(site.cli("boundary", "show", site.name("archive"), "--json"))
    assert shown["boundary"]["topics"][topic]["partitions"]["0"]["next"] == 3


# ------------------------------------------------------------------------------------------- HYB-02, open transactions


def test_hyb_02_a_bounded_job_never_ends_well_without_rows_above_an_open_transaction(site: Site) -> None:
    rows, topic = readings(3), site.kafka.topic()
    waiting = site.kafka.begin()
    waiting.produce(topic, encoded(rows[:1]))
    with site.kafka.transaction() as transaction:
        transaction.produce(topic, encoded(rows[1:]))
        transaction.commit()
    job = copy_job(site, "waits", source(topic, tail={"transaction_wait": "1s"}), tolerated_failures=0)
    error = site.fails(job, 3)
    assert "transaction" in error["message"] + error["detail"], error
    assert topic in error["message"]
    waiting.abort()
    site.finish(job)
    assert_same(site.read("out"), rows[1:], "committed rows")


def test_hyb_02_a_run_until_a_time_reads_the_history_whole_and_the_tail_below_that_time(site: Site) -> None:
    rows, topic = readings(40), site.kafka.topic(config={"retention.ms": "-1"})
    until = START + timedelta(days=30)
    ms = int(until.timestamp() * 1000)
    site.kafka.produce(topic, encoded(rows[:30]), timestamp_ms=ms - 1)
    site.kafka.produce(topic, encoded(rows[30:]), timestamp_ms=ms)
    read = source(topic, site.table("history", rows[:10]), boundary={"offsets": {0: 10}})
    job = copy_job(site, "until", read)
    assert site.start("run", job, "--until", until.isoformat()).end() == 0
    assert_same(site.read("out"), rows[:30], "rows below the time")
    assert read_in(site.finish(job)) == 10
    assert_same(site.read("out"), rows, "all rows")
    late = site.start("run", job, "--until", "2999-01-01T00:00:00Z")
    assert late.end() == 2
    assert "lies in the future" in late.text()


# --------------------------------------------------------------------------------------------------------- HYB-04, gaps


def gap_of(error: dict[str, Any], topic: str, wanted: int, available: tuple[int, int]) -> None:
    assert error["code"] == "OFFSET_GAP", error
    for word in (topic, "partition 0", f"{wanted}", f"{available[0]}", f"{available[1]}"):
        assert word in error["message"], (word, error)


def test_hyb_04_a_boundary_below_the_log_start_stops_the_job_before_it_touches_anything(site: Site) -> None:
    rows, topic = readings(200), site.kafka.topic()
    site.produce(topic, rows, 1)
    site.kafka.delete_records(topic, {0: 150})
    read = source(topic, site.table("history", rows[:100]), boundary={"offsets": {0: 100}})
    gap_of(site.fails(copy_job(site, "gap", read), 4), topic, 100, (150, 200))
    assert not site.catalog.client.table_exists(site.catalog.identifier("out"))


def test_hyb_04_a_checkpoint_below_the_log_start_stops_the_job(site: Site) -> None:
    rows, topic = readings(200), site.kafka.topic()
    site.produce(topic, rows[:100], 1)
    job = copy_job(site, "gap-later", source(topic))
    site.finish(job)
    site.produce(topic, rows[100:], 1)
    site.kafka.delete_records(topic, {0: 150})
    for _ in range(2):
        gap_of(site.fails(job, 4), topic, 100, (150, 200))
        assert_same(site.read("out"), rows[:100], "rows before the gap")


def test_hyb_04_a_gap_that_opens_while_the_job_is_live_but_paused(site: Site) -> None:
    rows, topic = readings(300), site.kafka.topic()
    site.produce(topic, rows[:100], 1)
    run = site.run(copy_job(site, "paused", source(topic)))
    run.until(lambda run: read_in(run) == 100, "the first rows are committed")
    run.send(signal.SIGSTOP)
    site.produce(topic, rows[100:101], 1)  # the answer to the fetch that is under way
    site.produce(topic, rows[101:], 1)
    site.kafka.delete_records(topic, {0: 250})
    run.send(signal.SIGCONT)
    assert run.end() == 4, run.text()[-3000:]
    error = run.error()
    wanted = error["context"]["wanted"]
    assert 100 <= wanted < 250
    gap_of(error, topic, wanted, (250, 300))
    found = site.read("out")
    assert_same(found, rows[: found.height], "a prefix of the rows")
    assert 100 <= found.height <= wanted


def test_hyb_04_by_policy_the_job_goes_on_and_records_the_loss(site: Site) -> None:
    rows, topic = readings(200), site.kafka.topic()
    site.produce(topic, rows, 1)
    site.kafka.delete_records(topic, {0: 150})
    history = site.table("history", rows[:100])
    read = source(topic, history, boundary={"offsets": {0: 100}}, tail={"on_gap": "record"})
    job = copy_job(site, "lossy", read)
    plan = json.loads(site.cli("plan", job, "--json"))
    assert plan["sources"][0]["tail"]["partitions"][0]["lost"] == [[100, 150]]
    run = site.finish(job)
    assert_same(site.read("out"), pl.concat([rows[:100], rows[150:]]), "what is left")
    told = [event["lost"] for event in run.events() if event.get("event") == "progress"]
    assert told[-1] == [{"topic": topic, "partition": 0, "first": 100, "next": 150}]
    warned = [event for event in run.events() if event.get("code") == "gap"]
    assert [(event["level"], event["message"]) for event in warned] == [
        ("warning", f"{topic}[0]: offsets 100 to 149 were gone, and are lost")
    ]
    seam = json.loads(site.cli("seam", job, "--json"))
    assert seam["exact"] is False
    assert seam["sources"][0]["partitions"][0]["lost"] == [[100, 150]]
    shown = json.loads(site.cli("boundary", "show", site.name("out"), "--json"))
    assert shown["boundary"]["topics"][topic]["partitions"]["0"] == {"start": 150, "next": 200}


# --------------------------------------------------------------------------------------------------- HYB-06, restoring


@pytest.fixture
def four_files(site: Site) -> tuple[str, str, pl.DataFrame]:
    """A topic whose first 40 rows are a table of four files, and whose last 10 are the tail."""
    rows, topic = steady(50), site.kafka.topic(config={"retention.ms": "-1"})
    site.kafka.produce(topic, encoded(rows), timestamp_ms=1_000)
    for begin in range(0, 40, 10):
        history = site.table("history", rows[begin : begin + 10])
    return topic, history, rows


def hybrid(topic: str, history: str) -> dict[str, Any]:
    read = source(topic, history, boundary={"offsets": {0: 40}})
    read["history"]["split_rows"] = 10
    return read


def delete_files(site: Site, table: str, first: int = 0) -> list[str]:
    """Remove the data files of a table from the ``first`` one on, in the order in which they were made."""
    loaded = site.catalogs.load(table)
    files = {
        task.file.file_path: task.file.lower_bounds[loaded.schema().find_field("id").field_id]
        for task in loaded.scan().plan_files()
    }
    ordered = sorted(files, key=lambda path: int.from_bytes(files[path], "little"))[first:]
    for path in ordered:
        Path(urlsplit(path).path).unlink()
    return ordered


def test_hyb_06_a_killed_within_the_history(site: Site, four_files: tuple[str, str, pl.DataFrame]) -> None:
    topic, history, rows = four_files
    job = copy_job(site, "restore-a", hybrid(topic, history), rows=20, interval="1h")
    assert site.run(job, "--until", "caught-up", crash="after-commit:1").end() == -signal.SIGKILL
    assert_same(site.read("out"), rows[:20], "two files")
    site.table("history", rows[:10])  # a newer snapshot, which the job must not see
    again = site.finish(job)
    assert again.has_said("recovered")
    assert read_in(again) == 30
    assert_same(site.read("out"), rows, "all rows")


def test_hyb_06_b_killed_behind_the_switch_opens_no_history_file(
    site: Site, four_files: tuple[str, str, pl.DataFrame]
) -> None:
    topic, history, rows = four_files
    job = copy_job(site, "restore-b", hybrid(topic, history))
    run = site.run(job)
    run.until(lambda run: read_in(run) == 50, "all rows are committed")
    run.kill()
    delete_files(site, history)
    more = steady(5, first_id=50)
    site.produce(topic, more, 1)
    assert read_in(site.finish(job)) == 5
    assert_same(site.read("out"), pl.concat([rows, more]), "all rows")


def test_hyb_06_c_a_job_created_without_history_stays_without(
    site: Site, four_files: tuple[str, str, pl.DataFrame]
) -> None:
    topic, history, _ = four_files
    since = START + timedelta(days=30)
    late = steady(10, first_id=50)
    site.kafka.produce(topic, encoded(late), timestamp_ms=int(since.timestamp() * 1000))
    read = source(topic, tail={"start": {"timestamp": since.isoformat()}})
    job = copy_job(site, "restore-c", read, interval="1h")
    assert site.run(job, "--until", "caught-up", crash="after-record:2").end() == -signal.SIGKILL
    # What was decided stays decided, whatever the spec says now: another start, even a history.
    job = copy_job(site, "restore-c", hybrid(topic, history), interval="1h")
    site.finish(job)
    assert_same(site.read("out"), late, "rows since the timestamp")


# ---------------------------------------------------------------------------------------------- HYB-09, new partitions


def test_hyb_09_partitions_that_appear_are_read_from_their_beginning_and_go_on_after_a_restart(site: Site) -> None:
    rows, topic = readings(40), site.kafka.topic(2)
    site.produce(topic, rows[:20], 2)
    history = site.table("history", rows[:20])
    read = source(topic, history, boundary={"offsets": {0: 10, 1: 10}}, tail={"discovery_interval": "200ms"})
    job = copy_job(site, "grows", read)
    run = site.run(job)
    run.until(lambda run: read_in(run) == 20, "the history is committed")
    admin = site.kafka.admin()
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(SECONDS)
    site.kafka.produce(topic, encoded(rows[20:23]), partition=2)
    run.until(lambda run: read_in(run) == 23, "the new partition is committed")
    run.kill()
    site.kafka.produce(topic, encoded(rows[23:28]), partition=2)
    assert read_in(site.finish(job)) == 5
    assert_same(site.read("out"), rows[:28], "all rows")


def test_hyb_09_a_partition_that_the_boundary_leaves_out(site: Site) -> None:
    rows, topic = readings(30), site.kafka.topic(3)
    site.produce(topic, rows, 3)
    covered = rows.filter(pl.col("id") % 3 < 2)
    read = source(topic, site.table("history", covered), boundary={"offsets": {0: 10, 1: 10}})
    site.finish(copy_job(site, "left-out", read))
    assert_same(site.read("out"), rows, "all rows")


# --------------------------------------------------------------------------------- SNP-01, a snapshot that is lost


def many_files(site: Site, count: int) -> tuple[str, str, pl.DataFrame]:
    rows, topic = steady(10 * count + 10), site.kafka.topic()
    site.produce(topic, rows, 1)
    for begin in range(0, 10 * count, 10):
        history = site.table("history", rows[begin : begin + 10])
    return topic, history, rows


def test_snp_01_files_that_vanish_while_the_job_reads(site: Site) -> None:
    files = 8
    topic, history, rows = many_files(site, files)
    read = source(topic, history, boundary={"offsets": {0: 10 * files}})
    read["history"]["split_rows"] = 10
    job = copy_job(site, "vanish", read, rows=10, interval="1h")
    gone: list[str] = []
    # The job reads four splits ahead at most.
    with (
        once_at("after-commit", lambda: gone.extend(delete_files(site, history, first=6))),
        pytest.raises(SnapshotGoneError) as caught,
    ):
        inline(site, job)
    assert caught.value.exit_code == 4
    assert history in caught.value.message
    assert any(Path(path).name in caught.value.detail for path in gone), caught.value.detail
    found = site.read("out")
    assert_same(found, rows[: found.height], "a prefix of the history, nothing of the tail")
    assert 10 <= found.height <= 60
    assert site.fails(job, 4)["code"] == "SNAPSHOT_GONE"
    assert site.read("out").height <= 60


def test_snp_01_a_snapshot_that_was_expired_before_a_restart(site: Site) -> None:
    topic, history, rows = many_files(site, 3)
    read = source(topic, history, boundary={"offsets": {0: 30}})
    read["history"]["split_rows"] = 10
    job = copy_job(site, "expired", read, rows=10)
    assert site.run(job, "--until", "caught-up", crash="after-commit:1").end() == -signal.SIGKILL
    pinned = site.catalogs.load(history).current_snapshot().snapshot_id
    site.table("history", readings(1, first_id=900))
    table = site.catalogs.load(history)
    for name, ref in list(table.refs().items()):
        if ref.snapshot_id == pinned:  # somebody with the right to does away with what protects it
            table.manage_snapshots().remove_tag(name).commit()
    table.maintenance.expire_snapshots().by_id(pinned).commit()
    for _ in range(2):
        error = site.fails(job, 4)
        assert error["code"] == "SNAPSHOT_GONE", error
        assert str(pinned) in error["message"], error
        assert history in error["message"], error
        assert_same(site.read("out"), rows[:10], "what was committed before")


# -------------------------------------------------------------------------------------------------- SNP-04, no rows


def test_snp_04_an_empty_table_begins_the_tail_at_the_earliest_offsets(site: Site) -> None:
    topic = site.kafka.topic()
    site.kafka.produce(topic, [b'{"x": %d, "d": "%d.50"}' % (n, n) for n in range(5)])
    schema = pl.Schema({"x": pl.Int32(), "d": pl.Decimal(10, 2)})
    history = site.table("history", pl.DataFrame(schema=schema))
    site.finish(copy_job(site, "empty", {"history": {"table": history}, "tail": {"topic": topic}}))
    found = site.read("out")
    assert found.schema == schema
    assert_same(found, pl.DataFrame({"x": range(5), "d": [f"{n}.50" for n in range(5)]}).cast(dict(schema)), "the tail")


def test_snp_04_when_every_record_is_filtered_out_nothing_is_written(site: Site) -> None:
    rows, topic, target = readings(20), site.kafka.topic(), site.kafka.topic()
    site.produce(topic, rows, 1)
    read = source(topic, site.table("history", rows[:10]), boundary={"offsets": {0: 10}})
    window = {"tumbling": "1m", "aggregate": {"n": "count(*)", "total": "sum(v)"}}
    spec = {
        "name": "nothing",
        "sources": {"readings": read},
        "steps": [{"filter": "v > 1000"}, {"window": window}],
        "sinks": [{"iceberg": {"table": site.name("out"), "create": True}}, {"kafka": {"topic": target}}],
    }
    run = site.finish(site.job(spec))
    assert read_in(run) >= 10  # the tail's; the history may be pruned
    assert site.snapshots("out") == 0
    assert site.kafka.values(target) == []
    names = [field.name for field in site.catalogs.load(site.name("out")).schema().fields]
    assert names[-2:] == ["n", "total"]
    assert "window_start" in names
