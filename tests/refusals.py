"""Ways to spoil a job over a history and a topic, and what the refusal must name: the cases of ``test_refusals.py``."""

from __future__ import annotations

import time
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import polars as pl

from headrace.kernel import columns as system
from tests.jobs import START, encoded, readings

if TYPE_CHECKING:
    from collections.abc import Iterator

from tests.refusal_bench import Bench, Expect, placed

RECORDED, STATED, ALONE = "recorded boundary", "offsets stated by the job", "tail.start"
STAGES = "order of the history stages"
DAY_MS = 86_400_000


# ----------------------------------------------------------------------------------------------- when a job is planned


def no_boundary(bench: Bench) -> Expect:
    del bench.read["boundary"]
    return Expect("BOUNDARY_MISSING", bench.topic, says=(bench.history, "looked in vain for"))


def columns_without_a_value(bench: Bench) -> Expect:
    empty = bench.rows.with_columns(pl.lit(None, pl.Int64).alias("p"), pl.lit(None, pl.Int64).alias("o"))
    bench.read["history"] = {"table": bench.site.table("empty", empty)}
    bench.read["boundary"] = {"columns": {"partition": "p", "offset": "o"}}
    return Expect("BOUNDARY_MISSING", bench.topic, rule="columns named by the job", says=("p, o",))


def a_record_that_cannot_be_read(bench: Bench) -> Expect:
    table = bench.site.catalogs.load(bench.history)
    table.append(table.scan().to_arrow(), snapshot_properties={"headrace.boundary": "{"})
    del bench.read["boundary"]
    return Expect("BOUNDARY_UNREADABLE", bench.topic, rule=RECORDED, says=(bench.history,))


def a_topic_that_no_row_names(bench: Bench) -> Expect:
    bench.read["history"] = {"table": bench.site.table("other", placed(bench.rows[:20], "other"))}
    wanted, rule = {0: 10, 1: 10}, STATED
    return Expect(
        "TOPIC_NOT_IN_HISTORY", bench.topic, wanted=wanted, available=["other"], rule=rule, says=("below 10",)
    )


def a_boundary_below_the_log(bench: Bench) -> Expect:
    bench.site.kafka.delete_records(bench.topic, {1: 15})
    return Expect("OFFSET_GAP", bench.topic, 1, 10, [15, 20], STATED)


def a_time_below_the_log(bench: Bench) -> Expect:
    bench.site.kafka.delete_records(bench.topic, {1: 20})
    since = (START - timedelta(days=1)).isoformat()
    bench.read["boundary"] = {"timestamp": since, "overlap": "0s"}
    wanted = datetime.fromisoformat(since).astimezone(UTC).isoformat().replace("+00:00", "Z")
    return Expect("OFFSET_GAP", bench.topic, 1, wanted, [20, 20], "time stated by the job")


def a_boundary_beyond_the_log(bench: Bench) -> Expect:
    bench.read["boundary"] = {"offsets": {0: 10, 1: 1000}}
    return Expect("TOPIC_RECREATED", bench.topic, 1, 1000, [0, 20], STATED)


def a_boundary_of_a_partition_that_is_not_there(bench: Bench) -> Expect:
    bench.read["boundary"] = {"offsets": {0: 10, 1: 10, 7: 0}}
    return Expect("TOPIC_RECREATED", bench.topic, 7, [0, 1, 7], [0, 1], STATED)


def a_topic_that_is_not_there(bench: Bench) -> Expect:
    bench.read["tail"]["topic"] = "no-such-topic"
    return Expect("TOPIC_NOT_FOUND", "no-such-topic")


def a_record_of_another_topic_of_that_name(bench: Bench) -> Expect:
    del bench.read["boundary"]
    bench.records({bench.topic: 10}, "AAAAAAAAAAAAAAAAAAAAAA")
    found = bench.site.kafka.topic_id(bench.topic)
    return Expect("TOPIC_RECREATED", bench.topic, None, "AAAAAAAAAAAAAAAAAAAAAA", found, RECORDED)


def a_snapshot_that_is_not_there(bench: Bench) -> Expect:
    newest = bench.site.catalogs.load(bench.history).current_snapshot()
    assert newest is not None
    bench.read["history"]["snapshot"] = 12345
    known = str(newest.snapshot_id)
    return Expect("SNAPSHOT_NOT_FOUND", "", None, "12345", known, says=(bench.history,))


def a_compacted_topic(bench: Bench) -> Expect:
    topic = bench.site.kafka.topic(config={"cleanup.policy": "compact"})
    bench.reads(topic)
    return Expect("TOPIC_COMPACTED", topic, says=("changelog",))


def deletions_that_may_be_gone(bench: Bench) -> Expect:
    settings = {"cleanup.policy": "compact", "delete.retention.ms": str(DAY_MS), "segment.ms": str(1000 * DAY_MS)}
    topic, old = bench.site.kafka.topic(config=settings), int(time.time() * 1000) - 10 * DAY_MS
    bench.site.kafka.produce(topic, encoded(bench.rows[:3]), key=b"0", timestamp_ms=old)
    bench.reads(topic, {"table": bench.history}, boundary={"offsets": {0: 1}}, changelog={"key": ["id"]})
    bench.spec["sinks"][0]["iceberg"]["changes"] = "append"
    del bench.read["event_time"]
    return Expect("TOMBSTONES_GONE", topic, 0, 1, [3, 3], STATED)


def stages_out_of_order(bench: Bench) -> Expect:
    folder = bench.site.folder / "old"
    folder.mkdir()
    placed(bench.rows[:20], bench.topic, first=10).write_parquet(folder / "0.parquet")
    table = bench.site.table("placed", placed(bench.rows[:20], bench.topic))
    bench.read["history"] = [{"parquet": str(folder)}, {"table": table}]
    return Expect("STAGES_NOT_IN_ORDER", bench.topic, 0, [10, 30], [0, 20], STAGES)


def an_archive_without_topics(bench: Bench) -> Expect:
    folder, other = bench.site.folder / "old", bench.site.kafka.topic()
    folder.mkdir()
    placed(bench.rows[:20], None).drop(system.TOPIC).write_parquet(folder / "0.parquet")
    rows = [placed(bench.rows[:20], topic, first=10) for topic in (bench.topic, other)]
    first = min(bench.topic, other)
    history = [{"parquet": str(folder)}, {"table": bench.site.table("placed", pl.concat(rows))}]
    bench.reads([bench.topic, other], history)
    return Expect("STAGE_WITHOUT_TOPIC", first, 0, "a column with the topic", [10, 20], STAGES)


def as_live_over_rows_without_offsets(bench: Bench) -> Expect:
    rows = placed(bench.rows[:20], bench.topic).with_columns(
        pl.when(pl.col("id") != 3).then(pl.col(system.OFFSET)).alias(system.OFFSET)
    )
    bench.read["history"] = {"table": bench.site.table("placed", rows)}
    bench.read["late"] = {"history": "as_live"}
    return Expect("ROWS_WITHOUT_OFFSET", bench.topic, None, [system.PARTITION, system.OFFSET], 1, STATED)


# ------------------------------------------------------------------------------------------------- when it is restarted


def a_gap_since_the_checkpoint(bench: Bench) -> Expect:
    bench.ran()
    bench.site.produce(bench.topic, readings(20, first_id=40), 2)
    bench.site.kafka.delete_records(bench.topic, {1: 25})
    return Expect("OFFSET_GAP", bench.topic, 1, 20, [25, 30], STATED, ("looked for in the lake: the table cannot",))


def a_gap_since_the_checkpoint_of_a_tail_alone(bench: Bench) -> Expect:
    bench.reads()
    bench.ran()
    bench.site.produce(bench.topic, readings(20, first_id=40), 2)
    bench.site.kafka.delete_records(bench.topic, {1: 25})
    return Expect("OFFSET_GAP", bench.topic, 1, 20, [25, 30], ALONE)


def a_topic_that_was_created_again(bench: Bench) -> Expect:
    before = bench.site.kafka.topic_id(bench.topic)
    bench.ran()
    bench.site.kafka.delete_topic(bench.topic)
    bench.site.kafka.topic_named(bench.topic, 2)
    bench.site.produce(bench.topic, readings(50), 2)
    now = bench.site.kafka.topic_id(bench.topic)
    return Expect("TOPIC_RECREATED", bench.topic, None, before, now, STATED, ("headrace boundary reset",))


def a_topic_that_is_gone(bench: Bench) -> Expect:
    bench.ran()
    bench.site.kafka.delete_topic(bench.topic)
    return Expect("TOPIC_NOT_FOUND", bench.topic, rule=STATED)


def another_topic(bench: Bench) -> Expect:
    bench.ran()
    recorded, bench.read["tail"]["topic"] = bench.topic, bench.site.kafka.topic(2)
    del bench.read["boundary"]
    now = bench.read["tail"]["topic"]
    return Expect("TOPIC_CHANGED", recorded, None, recorded, [now], STATED)


def a_table_that_was_created_again(bench: Bench) -> Expect:
    bench.killed_in_history()
    before = str(bench.site.catalogs.load(bench.history).metadata.table_uuid)
    bench.site.catalog.client.drop_table(bench.site.catalog.identifier("history"))
    bench.site.table("history", bench.rows[:20])
    now = str(bench.site.catalogs.load(bench.history).metadata.table_uuid)
    return Expect("IDENTITY_CHANGED", "", None, before, now, STATED, (bench.history,))


def a_snapshot_that_was_expired(bench: Bench) -> Expect:
    bench.killed_in_history()
    table = bench.site.catalogs.load(bench.history)
    pinned = table.current_snapshot()
    assert pinned is not None
    bench.site.table("history", readings(1, first_id=900))
    table = bench.site.catalogs.load(bench.history)
    for name, ref in list(table.refs().items()):
        if ref.snapshot_id == pinned.snapshot_id:  # somebody with the right to does away with what protects it
            table.manage_snapshots().remove_tag(name).commit()
    table.maintenance.expire_snapshots().by_id(pinned.snapshot_id).commit()
    left = ", ".join(str(one.snapshot_id) for one in bench.site.catalogs.load(bench.history).snapshots())
    return Expect("SNAPSHOT_GONE", "", None, str(pinned.snapshot_id), left, STATED, (bench.history,))


def files_that_are_gone(bench: Bench) -> Expect:
    bench.killed_in_history()
    for task in bench.site.catalogs.load(bench.history).scan().plan_files():
        Path(urlsplit(task.file.file_path).path).unlink()
    return Expect("SNAPSHOT_GONE", "", rule=STATED, says=(bench.history, ".parquet"))


def a_job_without_the_history_that_it_is_in(bench: Bench) -> Expect:
    bench.killed_in_history()
    bench.reads()
    return Expect("SPEC_INVALID", says=("'readings'", "history", "uid"))


def a_table_that_was_changed(bench: Bench) -> Expect:
    _follows_a_table(bench)
    bench.site.catalogs.load(bench.history).delete("id = 3")
    return Expect("TABLE_CHANGED", "", None, "append", None, says=(bench.history, "on_change"))


def a_table_that_was_rolled_back(bench: Bench) -> Expect:
    table = bench.site.catalogs.load(bench.history)
    first = table.current_snapshot()
    assert first is not None
    bench.site.table("history", bench.rows[20:30])
    _follows_a_table(bench)
    bench.site.catalogs.load(bench.history).manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    bench.site.table("history", bench.rows[30:])
    now = bench.site.catalogs.load(bench.history).current_snapshot()
    assert now is not None
    return Expect("SNAPSHOT_NOT_ANCESTOR", "", None, None, str(now.snapshot_id), says=(bench.history, "rolled back"))


def _follows_a_table(bench: Bench) -> None:
    bench.spec["sources"]["readings"] = {"history": {"table": bench.history}, "tail": {"table": bench.history}}
    bench.ran()


# -------------------------------------------------------------------------------------------------- while it is running


def a_gap_while_the_history_is_read(bench: Bench) -> Expect:
    bench.site.produce(bench.topic, readings(160, first_id=40), 2)
    bench.long(readings(180))
    bench.read["boundary"] = {"offsets": {0: 90, 1: 90}}
    bench.once_committed(lambda: bench.site.kafka.delete_records(bench.topic, {1: 95}))
    return Expect("OFFSET_GAP", bench.topic, 1, 90, [95, 100], STATED, ("looked for in the lake: the table cannot",))


def a_version_of_the_table_that_does_not_close_a_gap(bench: Bench) -> Expect:
    topic = _in_one_partition(bench)

    def spoil() -> None:
        bench.site.table("long", placed(readings(4, first_id=180), topic, first=180))
        bench.site.kafka.delete_records(topic, {0: 190})

    bench.once_committed(spoil)
    says = (f"looked for in the lake: the newest snapshot covers {topic}[0] up to 184 by rule 'columns of Headrace'",)
    return Expect("OFFSET_GAP", topic, 0, 180, [190, 200], "columns of Headrace", says)


def rows_without_topic_in_the_place_of_several(bench: Bench) -> Expect:
    topic, other = _in_one_partition(bench), bench.site.kafka.topic()
    bench.read["tail"]["topic"] = [topic, other]
    bench.records({topic: 180, other: 0})

    def spoil() -> None:
        bench.site.table("long", placed(readings(10, first_id=180), topic, first=180))
        bench.site.table("long", placed(readings(1, first_id=190), None, first=190))
        bench.records({topic: 191, other: 0})
        bench.site.kafka.delete_records(topic, {0: 185})

    bench.once_committed(spoil)
    return Expect("ROWS_WITHOUT_TOPIC", topic, 0, 190, "a null in _kafka_topic", RECORDED, (bench.history, other))


def _in_one_partition(bench: Bench) -> str:
    """200 readings in one partition of a topic, and 180 of them in the table, with their offsets."""
    topic = bench.site.kafka.topic(config={"retention.ms": "-1"})
    bench.site.produce(topic, readings(200), 1)
    bench.reads(topic)
    bench.long(placed(readings(180), topic))
    return topic


def a_transaction_that_stays_open(bench: Bench) -> Expect:
    waiting = bench.site.kafka.begin()
    waiting.produce(bench.topic, encoded(readings(1, first_id=90)), partition=1)
    bench.read["tail"]["transaction_wait"] = "1s"
    bench.spec["checkpoint"] |= {"tolerated_failures": 0}
    bench.during = _aborted(waiting)
    return Expect("TRANSACTION_OPEN", bench.topic, 1, 21, 20, STATED)


@contextmanager
def _aborted(transaction: Any) -> Iterator[None]:
    try:
        yield
    finally:
        transaction.abort()


def a_topic_that_is_deleted_while_it_is_read(bench: Bench) -> Expect:
    bench.until = None
    bench.read["tail"]["discovery_interval"] = "200ms"
    bench.spec["checkpoint"] = {"interval": "200ms", "rows": 10}
    bench.once_committed(lambda: bench.site.kafka.delete_topic(bench.topic))
    return Expect("TOPIC_DELETED", bench.topic, None, [0, 1], [], STATED)


PLANNED = [
    no_boundary,
    columns_without_a_value,
    a_record_that_cannot_be_read,
    a_topic_that_no_row_names,
    a_boundary_below_the_log,
    a_time_below_the_log,
    a_boundary_beyond_the_log,
    a_boundary_of_a_partition_that_is_not_there,
    a_topic_that_is_not_there,
    a_record_of_another_topic_of_that_name,
    a_snapshot_that_is_not_there,
    a_compacted_topic,
    deletions_that_may_be_gone,
    stages_out_of_order,
    an_archive_without_topics,
    as_live_over_rows_without_offsets,
]
RESTARTED = [
    a_gap_since_the_checkpoint,
    a_gap_since_the_checkpoint_of_a_tail_alone,
    a_topic_that_was_created_again,
    a_topic_that_is_gone,
    another_topic,
    a_table_that_was_created_again,
    a_snapshot_that_was_expired,
    files_that_are_gone,
    a_job_without_the_history_that_it_is_in,
    a_table_that_was_changed,
    a_table_that_was_rolled_back,
]
RUNNING = [
    a_gap_while_the_history_is_read,
    a_version_of_the_table_that_does_not_close_a_gap,
    rows_without_topic_in_the_place_of_several,
    a_transaction_that_stays_open,
    a_topic_that_is_deleted_while_it_is_read,
]
