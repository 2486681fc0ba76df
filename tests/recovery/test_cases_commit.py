"""Cases of commits, fencing and dead letters, on whole jobs with sinks of both kinds."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from headrace.kernel.errors import RejectedRecordError, UnavailableError
from tests.jobs import Run, Site, assert_same, encoded, from_records, inline, once_at, readings, source

pytestmark = pytest.mark.services


def both_job(site: Site, name: str, topic: str, target: str, **checkpoint: Any) -> Path:
    """A job that appends every row to the table ``out`` and the topic ``target``."""
    read = {key: value for key, value in source(topic).items() if key != "event_time"}
    sinks: list[dict[str, Any]] = [
        {"iceberg": {"table": site.name("out"), "create": True}},
        {"kafka": {"topic": target, "options": checkpoint.pop("options", {})}},
    ]
    return site.job({"name": name, "sources": {"readings": read}, "sinks": sinks, "checkpoint": checkpoint})


def committed(run: Run) -> int:
    """Input records of all epochs that a run has committed."""
    return sum(epoch["records"] for epoch in run.epochs())


def assert_both(site: Site, target: str, rows: pl.DataFrame) -> None:
    assert_same(site.read("out"), rows, "table")
    assert_same(site.records(target), rows, "topic")


# -------------------------------------------------------------------------------------------------------------- KAF-04


def test_kaf_04_a_record_that_the_target_refuses_fails_the_job_at_once(site: Site) -> None:
    rows = readings(3).with_columns(
        sensor=pl.when(pl.col("id") == 1).then(pl.lit("x" * 5_000_000)).otherwise(pl.col("sensor"))
    )
    topic, target = site.kafka.topic(config={"max.message.bytes": "8000000"}), site.kafka.topic()
    site.kafka.produce(topic, encoded(rows), message_max_bytes=8_000_000)
    job = both_job(site, "too-large", topic, target)
    with pytest.raises(RejectedRecordError, match=r"the record without a key, .*id.*:1,.*bytes") as caught:
        inline(site, job)
    context = caught.value.context
    assert context["size"] > 5_000_000 > context["limit"]
    assert site.kafka.values(target) == []
    stable, end = (site.kafka.watermarks(target, isolation=f"read_{level}committed")[1] for level in ("", "un"))
    assert stable == end, "no transaction is left open"
    assert site.read("out").height == 0


# -------------------------------------------------------------------------------------------------------------- KAF-05


@pytest.mark.parametrize("point", ["after-prepare", "kafka-before-commit"])
def test_kaf_05_a_transaction_that_outlives_its_timeout_is_replayed(site: Site, point: str) -> None:
    """Held before the decision the epoch is read again; held behind it the staged records are produced again."""
    rows, topic, target = readings(30), site.kafka.topic(), site.kafka.topic()
    site.produce(topic, rows, 1)
    job = both_job(site, "outlived", topic, target, options={"transaction.timeout.ms": 5000})
    seen: list[int] = []

    def hold() -> None:
        time.sleep(8)  # the case: the epoch is held for longer than the transaction may last
        seen.append(len(site.kafka.values(target)))

    with once_at(point, hold):
        result = inline(site, job)
    assert seen == [0]
    assert result.restarts == 1
    assert_both(site, target, rows)


def test_kaf_05_a_copy_that_was_replaced_while_it_was_paused_stops_and_commits_nothing(site: Site) -> None:
    rows, topic, target = readings(90), site.kafka.topic(), site.kafka.topic()
    job = both_job(site, "twice", topic, target)
    site.produce(topic, rows[:30], 1)
    first = site.run(job)
    first.until(lambda run: committed(run) == 30, "the first rows are committed")
    first.send(signal.SIGSTOP)
    site.produce(topic, rows[30:60], 1)
    second = site.finish(job)
    assert committed(second) == 30
    site.produce(topic, rows[60:], 1)
    first.send(signal.SIGCONT)
    assert first.end() == 5, first.text()[-3000:]
    assert first.error()["code"] == "FENCED"
    assert not first.has_said("restart")
    assert_both(site, target, rows[:60])
    site.finish(job)
    assert_both(site, target, rows)


# -------------------------------------------------------------------------------------------------------------- SNK-03


def test_snk_03_of_two_instances_on_one_state_folder_one_goes_on_and_each_row_is_there_once(site: Site) -> None:
    rows, topic, target = readings(400), site.kafka.topic(), site.kafka.topic()
    job = both_job(site, "rivals", topic, target)
    site.produce(topic, rows[:40], 1)
    first = site.run(job)
    first.until(lambda run: committed(run) > 0, "the first instance commits")
    second = site.run(job)
    second.until(lambda run: run.has_said("recovered"), "the second instance has taken over")
    for begin in range(40, 400, 40):
        site.produce(topic, rows[begin : begin + 40], 1)
    assert first.end() == 5, first.text()[-3000:]
    assert first.error()["code"] == "FENCED"
    second.until(lambda run: committed(first) + committed(run) >= 400, "all rows are committed")
    second.send(signal.SIGTERM)
    assert second.end() == 0, second.text()[-3000:]
    assert_both(site, target, rows)


# -------------------------------------------------------------------------------------------------------------- SNK-04


def test_snk_04_a_the_table_is_dropped_between_two_checkpoints(site: Site) -> None:
    rows, topic, target = readings(60), site.kafka.topic(), site.kafka.topic()
    job = both_job(site, "dropped", topic, target)
    site.produce(topic, rows[:30], 1)
    run = site.run(job)
    run.until(lambda run: committed(run) == 30, "the first rows are committed")
    site.catalog.client.drop_table(site.catalog.identifier("out"))
    site.produce(topic, rows[30:], 1)
    assert run.end() in {2, 4}, run.text()[-3000:]
    assert site.name("out") in run.error()["message"]
    assert committed(run) == 30
    # The next run refuses, too, and does not make the table anew without its first rows.
    error = site.fails(job, run.code or 0)
    assert site.name("out") in error["message"], error
    assert not site.catalog.client.table_exists(site.catalog.identifier("out"))
    found = from_records(site.kafka.values(target))
    assert_same(found, rows[: found.height], "topic")


def test_snk_04_b_one_sink_fails_behind_the_commit_of_the_other(site: Site) -> None:
    rows, topic, target = readings(30), site.kafka.topic(), site.kafka.topic()
    site.produce(topic, rows, 1)
    job = both_job(site, "half", topic, target)
    seen: list[tuple[int, bool]] = []

    def fail() -> None:
        seen.append((len(site.kafka.values(target)), bool(site.snapshots("out"))))
        raise UnavailableError("the catalog is away")

    with once_at("between-commits", fail):
        result = inline(site, job)
    assert seen == [(30, False)]
    assert result.restarts == 1
    assert_both(site, target, rows)


def test_snk_04_c_killed_between_the_two_commits(site: Site) -> None:
    rows, topic, target = readings(30), site.kafka.topic(), site.kafka.topic()
    site.produce(topic, rows, 1)
    job = both_job(site, "between", topic, target)
    assert site.run(job, "--until", "caught-up", crash="between-commits").end() == -signal.SIGKILL
    assert_same(site.records(target), rows, "topic")
    assert site.snapshots("out") == 0
    assert committed(site.finish(job)) == 0
    assert_both(site, target, rows)


# -------------------------------------------------------------------------------------------------------------- SNK-05


def test_snk_05_twenty_checkpoints_with_rows_in_two_make_two_snapshots(site: Site) -> None:
    topic = site.kafka.topic()
    read = {key: value for key, value in source(topic).items() if key != "event_time"}
    spec = {
        "name": "quiet",
        "sources": {"readings": read},
        "steps": [{"filter": "v > 0"}],
        "sinks": [{"iceberg": {"table": site.name("out"), "create": True}}],
    }
    rows = readings(20).with_columns(v=pl.when(pl.col("id").is_in([2, 16])).then(5).otherwise(-5).cast(pl.Int64))
    run = site.run(site.job({**spec, "checkpoint": {"interval": "20ms"}}))
    for number in range(20):
        site.produce(topic, rows[number : number + 1], 1)
        run.until(lambda run, number=number: committed(run) == number + 1, f"checkpoint {number + 1}")
    run.send(signal.SIGTERM)
    assert run.end() == 0
    assert sum(epoch["records"] > 0 for epoch in run.epochs()) == 20
    assert_same(site.read("out"), rows.filter(pl.col("v") > 0), "table")
    assert site.snapshots("out") == 2
    # The progress is in the checkpoint all the same.
    assert committed(site.finish(site.folder / "quiet.yaml")) == 0


# -------------------------------------------------------------------------------------------------------------- DEC-02

BAD = (b"{bad", b"", b'{"id": 1e999}', b'{"id": ' + b"7" * 400 + b"}", b'{"id": "x"}', b"[1]", b"null")


@pytest.mark.parametrize("place", ["first", "between", "last"])
def test_dec_02_bad_records_become_dead_letters_once(site: Site, place: str) -> None:
    rows, topic, letters_topic = readings(20), site.kafka.topic(), site.kafka.topic()
    at = {"first": 0, "between": 7, "last": 20}[place]
    values = [*encoded(rows[:at]), *BAD, *encoded(rows[at:])]
    site.kafka.produce(topic, values)
    read = {key: value for key, value in source(topic).items() if key != "event_time"}
    spec = {
        "name": "letters",
        "sources": {"readings": read},
        "sinks": [
            {"iceberg": {"table": site.name("out"), "create": True}},
            {"iceberg": {"table": site.name("letters"), "create": True}, "from": "readings.errors"},
            {"kafka": {"topic": letters_topic}, "from": "readings.errors"},
        ],
    }
    job = site.job(spec)
    assert site.run(job, "--until", "caught-up", crash="between-commits").end() == -signal.SIGKILL
    site.finish(job)
    site.finish(job)
    assert_same(site.read("out"), rows, "rows")
    letters = site.read("letters").sort("offset")
    assert letters["topic"].unique().to_list() == [topic]
    assert letters["partition"].unique().to_list() == [0]
    assert letters["offset"].to_list() == list(range(at, at + len(BAD)))
    assert letters["value"].to_list() == list(BAD)
    assert all(letters["reason"].to_list())
    told = [json.loads(value or b"") for value in site.kafka.values(letters_topic)]
    assert sorted(letter["offset"] for letter in told) == letters["offset"].to_list()


@pytest.mark.parametrize("bad", BAD[:4], ids=["text", "empty", "infinite", "long"])
def test_dec_02_by_the_policy_fail_the_job_stops_and_names_the_offset(site: Site, bad: bytes) -> None:
    rows, topic = readings(20), site.kafka.topic()
    site.kafka.produce(topic, [*encoded(rows[:7]), bad, *encoded(rows[7:])])
    job = both_job(site, "stops", topic, site.kafka.topic(prefix="stops"))
    for _ in range(2):
        error = site.fails(job, 4)
        assert error["code"] == "DECODE_FAILED"
        assert f"{topic}[0]@7" in error["message"]
        assert "on_error: skip" in error["hint"]


# ------------------------------------------------------------------------------------------------- WIN-07 and WIN-08


def times_job(site: Site, name: str, read: dict[str, Any]) -> Path:
    window = {"tumbling": "10s", "by": ["k"], "aggregate": {"n": "count(*)", "ids": "sum(id)"}}
    return site.job(
        {
            "name": name,
            "sources": {"events": read},
            "steps": [{"id": "w", "window": window}],
            "sinks": [
                {"iceberg": {"table": site.name("windows"), "create": True}},
                {"iceberg": {"table": site.name("late"), "create": True}, "from": "w.late"},
            ],
        }
    )


EVENTS = pl.Schema({"id": pl.Int64(), "k": pl.String(), "at": pl.Datetime("us", "UTC")})


def events(times: list[int], first_id: int) -> pl.DataFrame:
    """One event at each of these seconds."""
    ids = list(range(first_id, first_id + len(times)))
    frame = pl.DataFrame({"id": ids, "k": ["k"] * len(ids), "at": [second * 1_000_000 for second in times]})
    return frame.cast(dict(EVENTS))


def ten_seconds(rows: pl.DataFrame) -> pl.DataFrame:
    window = pl.col("at").dt.truncate("10s").alias("window_start")
    return rows.group_by(window, "k").agg(n=pl.len().cast(pl.Int64), ids=pl.col("id").sum())


@pytest.mark.parametrize(("delay", "late"), [(0, [150]), (30, [150]), (45, [])])
def test_win_07_files_out_of_order_and_a_late_row_behind_the_switch(site: Site, delay: int, late: list[int]) -> None:
    """150 comes after 195, in the window that ends at 160: late unless the declared delay is more than 35 seconds."""
    files = [list(range(100, 201, 5)), list(range(0, 51, 5)), [100] * 50]
    done, frames = 0, []
    for times in files:
        frames.append(events(times, done))
        history = site.table("history", frames[-1])
        done += len(times)
    topic = site.kafka.topic()
    tail = events([190, 195, 150], done)
    site.kafka.produce(topic, encoded(tail))
    read = {
        "history": {"table": history, "split_rows": 10},
        "tail": {"topic": topic},
        "boundary": {"offsets": {0: 0}},
        "event_time": {"column": "at", "out_of_orderness": f"{delay}s"},
    }
    site.finish(times_job(site, f"order-{delay}", read))
    rows = pl.concat([*frames, tail])
    dropped = tail.filter(pl.col("at").dt.epoch("s").is_in(late))
    assert_same(site.read("windows"), ten_seconds(rows.join(dropped, on="id", how="anti")), "windows")
    assert site.read("late").select("id").to_series().to_list() == dropped["id"].to_list()


def test_win_08_a_restart_changes_no_window_and_reopens_none(site: Site) -> None:
    topic = site.kafka.topic()
    read = {
        "tail": {"topic": topic, "schema": {"id": "int64", "k": "string", "at": "timestamptz"}},
        "event_time": {"column": "at"},
    }
    job = times_job(site, "restored", read)
    before = events([12, 12, 15], 0)
    site.kafka.produce(topic, encoded(before))
    run = site.run(job)
    run.until(lambda run: committed(run) == 3, "a checkpoint with the watermark at 15")
    # The watermark goes to 25, and [10, 20) fires, in an epoch that dies before it is decided.
    run.kill()
    after = events([16, 25], 3)
    site.kafka.produce(topic, encoded(after))
    assert site.run(job, "--until", "caught-up", "--on-end", "suspend", crash="after-prepare").end() == -signal.SIGKILL
    site.finish(job, "--on-end", "suspend")
    assert_same(site.read("windows"), ten_seconds(events([12, 12, 15, 16], 0)), "the first window, once and whole")
    late = events([17], 5)
    site.kafka.produce(topic, encoded(pl.concat([late, events([31], 6)])))
    site.finish(job, "--on-end", "suspend")
    whole = ten_seconds(events([12, 12, 15, 16, 25], 0).with_columns(pl.Series("id", [0, 1, 2, 3, 4])))
    assert_same(site.read("windows"), whole, "windows")
    assert site.read("late")["id"].to_list() == [5]
