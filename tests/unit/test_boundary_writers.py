"""Boundaries of tables as other writers lay them out: documented schemas and snapshot properties, SQLite catalog."""

from __future__ import annotations

import inspect
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import (
    BinaryType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from headrace.kernel.errors import BoundaryError, UnavailableError
from headrace.kernel.protocols import ReadRequest
from hybrid_source.boundary import BoundaryContext, auto_rules, layouts, try_rules
from hybrid_source.history import History
from hybrid_source.history_stage import LakeHistory
from hybrid_source.iceberg_history import open_iceberg
from hybrid_source.parquet_history import ParquetHistory, open_parquet
from hybrid_source.resolution import OffsetNames, Resolution
from tests.history_tables import append_with_bounds, arrow, open_catalog
from tests.lake import compact

NAME = "local.ns.t"
TOPIC = "orders"


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[SqlCatalog]:
    opened = open_catalog(tmp_path)
    yield opened
    opened.close()


def struct(root: str, *fields: tuple[str, IcebergType]) -> Schema:
    """A payload column ``v`` and a struct column."""
    inner = [NestedField(10 + n, name, kind, required=False) for n, (name, kind) in enumerate(fields)]
    return Schema(
        NestedField(1, "v", LongType(), required=False), NestedField(2, root, StructType(*inner), required=False)
    )


def flat(**columns: IcebergType) -> Schema:
    kinds = {"v": LongType(), **columns}
    return Schema(*(NestedField(n + 1, name, kind, required=False) for n, (name, kind) in enumerate(kinds.items())))


def put(table: Table, *files: list[dict[str, Any]], **summary: str) -> int:
    """Each list of rows becomes a data file, all of them one snapshot (as far as pyiceberg lets); gives its id."""
    schema = table.schema().as_arrow()
    for number, rows in enumerate(files):
        said = {key.replace("__", "."): value for key, value in summary.items()} if number == len(files) - 1 else {}
        frame = pl.DataFrame(rows, schema=pl.Schema(schema), strict=False)
        table.append(arrow(frame).cast(schema), snapshot_properties=said)
    return table.current_snapshot().snapshot_id


def resolve(history: Table | History, topic: str = TOPIC, snapshot: int | None = None) -> Resolution:
    opened = open_iceberg(history, NAME, snapshot_id=snapshot) if isinstance(history, Table) else history
    trial = try_rules(auto_rules(None), BoundaryContext(opened, topic))
    if trial.resolution is None:
        raise trial.error or AssertionError("no error")
    return trial.resolution


def nexts(found: Resolution, topic: str = TOPIC) -> dict[int, int]:
    return {number: covered.next for number, covered in found.boundary.topics[topic].partitions.items()}


def verdicts(error: BoundaryError) -> Mapping[str, tuple[str, str]]:
    return {rule: (outcome, detail) for rule, outcome, detail in error.context["tried"]}


def read(table: Table, found: Resolution) -> list[int]:
    """Values of the history's rows that a job reads, by the resolution as a checkpoint keeps it."""
    kept = Resolution.from_json(json.loads(json.dumps(found.to_json())))
    stage = LakeHistory(lambda pin: open_iceberg(table, NAME, pin=pin), TOPIC)
    opened = stage.open(ReadRequest(["v"]), stage.pin(), kept)
    return sorted(value for batch in opened.read(None) for value in batch.rows.collect()["v"].to_list())


# ------------------------------------------------------------------------------------------- columns of other writers

REDPANDA_OLD = struct(
    "redpanda",
    ("partition", IntegerType()),
    ("offset", LongType()),
    ("timestamp", TimestampType()),
    (
        "headers",
        ListType(
            20,
            StructType(NestedField(21, "key", BinaryType(), False), NestedField(22, "value", BinaryType(), False)),
            False,
        ),
    ),
    ("key", BinaryType()),
)
REDPANDA = struct(
    "redpanda",
    ("partition", IntegerType()),
    ("offset", LongType()),
    ("timestamp", TimestamptzType()),
    (
        "headers",
        ListType(
            20,
            StructType(NestedField(21, "key", StringType(), False), NestedField(22, "value", BinaryType(), False)),
            False,
        ),
    ),
    ("key", BinaryType()),
    ("timestamp_type", IntegerType()),
)
AUTOMQ = struct("_kafka_metadata", ("partition", IntegerType()), ("offset", LongType()), ("timestamp", LongType()))
AIVEN = struct(
    "kafka",
    ("partition", IntegerType()),
    ("offset", LongType()),
    ("timestamp", LongType()),
    ("batch_byte_offset", IntegerType()),
    ("batch_base_offset", LongType()),
    ("batch_partition_leader_epoch", IntegerType()),
)
CONNECT_NESTED = struct(
    "_kafka_metadata",
    ("topic", StringType()),
    ("partition", IntegerType()),
    ("offset", LongType()),
    ("timestamp", LongType()),
)


def four(prefix: str) -> Schema:
    kinds = {"topic": StringType(), "partition": IntegerType(), "offset": LongType(), "timestamp": LongType()}
    return flat(**{prefix + name: kind for name, kind in kinds.items()})


LAYOUTS = {
    "Redpanda before 25.3": (REDPANDA_OLD, "columns of Redpanda", "redpanda.", False),
    "Redpanda": (REDPANDA, "columns of Redpanda", "redpanda.", False),
    "AutoMQ": (AUTOMQ, "columns of AutoMQ", "_kafka_metadata.", False),
    "Aiven": (AIVEN, "columns of Aiven", "kafka.", False),
    "Connect, flat": (four("_kafka_metadata_"), "columns of Kafka Connect", "_kafka_metadata_", True),
    "Connect, another prefix": (four("src_"), "columns of Kafka Connect", "src_", True),
    "Connect, nested": (CONNECT_NESTED, "columns of Kafka Connect", "_kafka_metadata.", True),
    "Tableflow": (four("$$"), "columns of Confluent Tableflow", "$$", True),
    "Tableflow, portable": (four("cflt_metadata_"), "columns of Confluent Tableflow", "cflt_metadata_", True),
    "OLake without its state": (
        flat(_kafka_partition=IntegerType(), _kafka_offset=LongType(), _kafka_key=StringType()),
        "columns of Headrace",
        "_kafka_",
        False,
    ),
    "Fluss without its offsets": (
        flat(__bucket=IntegerType(), __offset=LongType(), __timestamp=TimestamptzType()),
        "columns of Apache Fluss",
        "__",
        False,
    ),
}


def row(prefix: str, partition: int, offset: int, value: int, topic: str | None = TOPIC) -> dict[str, Any]:
    part = "bucket" if prefix == "__" else "partition"
    facts = {part: partition, "offset": offset} | ({"topic": topic} if topic else {})
    if prefix.endswith("."):
        return {"v": value, prefix[:-1]: facts}
    return {"v": value, **{prefix + name: fact for name, fact in facts.items()}}


@pytest.mark.parametrize("writer", LAYOUTS)
def test_a_writers_columns_give_the_boundary_and_the_trim(catalog: SqlCatalog, writer: str) -> None:
    schema, rule, prefix, has_topic = LAYOUTS[writer]
    topic = TOPIC if has_topic else None
    table = catalog.create_table("ns.t", schema)
    put(
        table,
        [row(prefix, 0, offset, offset, topic) for offset in range(10)],
        [row(prefix, 1, offset, 100 + offset, topic) for offset in range(5, 8)],
    )
    found = resolve(table)
    assert (found.rule, nexts(found)) == (rule, {0: 10, 1: 8})
    assert found.evidence.startswith("a scan" if prefix.endswith(".") else "file statistics")
    assert "exactly-once if the history holds every record" in found.guarantee
    assert found.columns is not None
    assert found.columns.within(open_iceberg(table, NAME).stored)

    # A file that mixes partitions has no bounds that say enough: the columns are scanned, other topics' rows left out.
    mixed = [row(prefix, 0, 11, 11, topic), row(prefix, 1, 8, 108, topic)]
    put(table, [*mixed, *([row(prefix, 0, 99, 999, "other")] if has_topic else [])])
    scanned = resolve(table)
    assert (scanned.evidence[:6], nexts(scanned)) == ("a scan", {0: 12, 1: 9})

    # An earlier boundary over a table with more rows: those at or above it are left to the tail, by these columns.
    # Rows of other topics are none of the source's.
    assert read(table, found) == [*range(10), *range(105, 108)]


def test_redpandas_files_of_one_partition_with_bounds_are_not_read(catalog: SqlCatalog) -> None:
    table = catalog.create_table("ns.t", REDPANDA)
    schema = table.schema().as_arrow()
    for partition, offsets in ((0, range(10)), (1, range(5, 8)), (0, range(10, 12))):
        rows = pl.DataFrame([row("redpanda.", partition, n, n, None) for n in offsets], schema=pl.Schema(schema))
        bounds = {"redpanda.partition": (partition, partition), "redpanda.offset": (offsets[0], offsets[-1])}
        append_with_bounds(table, arrow(rows).cast(schema), bounds)
    for task in table.scan().plan_files():
        Path(task.file.file_path.removeprefix("file://")).unlink()
    found = resolve(table)
    assert nexts(found) == {0: 12, 1: 8}
    assert found.evidence.startswith("file statistics")


def test_aivens_segments_that_were_uploaded_twice_are_read_once(catalog: SqlCatalog) -> None:
    table = catalog.create_table("ns.t", AIVEN)
    put(
        table,
        [row("kafka.", 0, offset, offset, None) for offset in range(6)],
        [row("kafka.", 0, offset, offset, None) for offset in range(3, 9)],
        [row("kafka.", 1, 0, 100, None), row("kafka.", 1, 0, 100, None)],
    )
    found = resolve(table)
    assert nexts(found) == {0: 9, 1: 1}
    assert found.distinct
    assert "with 3 rows more than offsets" in found.evidence
    assert read(table, found) == [*range(9), 100]


def test_two_sets_of_columns_are_not_guessed_between(catalog: SqlCatalog) -> None:
    kinds = {"topic": StringType(), "partition": IntegerType(), "offset": LongType(), "timestamp": LongType()}
    table = catalog.create_table("ns.t", flat(**{p + name: kind for p in ("a_", "b_") for name, kind in kinds.items()}))
    put(table, [{"v": 1, "a_topic": TOPIC, "a_partition": 0, "a_offset": 1, "b_partition": 0, "b_offset": 7}])
    with pytest.raises(BoundaryError) as caught:
        resolve(table)
    outcome, why = verdicts(caught.value)["columns of Kafka Connect"]
    assert outcome == "not usable"
    assert "a_topic, a_partition, a_offset; b_topic" in why


def test_a_payload_with_partition_and_offset_of_its_own_is_not_taken_for_metadata(catalog: SqlCatalog) -> None:
    table = catalog.create_table("ns.t", four(""))
    put(table, [{"v": 1, "topic": TOPIC, "partition": 0, "offset": 5}])
    with pytest.raises(BoundaryError):
        resolve(table)


def test_columns_that_hold_nothing_give_no_boundary(catalog: SqlCatalog) -> None:
    table = catalog.create_table("ns.t", flat(_kafka_partition=IntegerType(), _kafka_offset=LongType()))
    put(table, [{"v": 1}])
    with pytest.raises(BoundaryError) as caught:
        resolve(table)
    assert "none of them has a value" in verdicts(caught.value)["columns of Headrace"][1]


# --------------------------------------------------------------------------------------------------------- Apache Fluss

FLUSS = flat(__bucket=IntegerType(), __offset=LongType(), __timestamp=TimestamptzType())


def test_fluss_names_a_file_of_offsets(catalog: SqlCatalog, tmp_path: Path) -> None:
    path = tmp_path / "0b6c.offsets"
    path.write_text(json.dumps({"version": 1, "table_id": 4, "bucket_offsets": [100, -1, 300]}))
    table = catalog.create_table("ns.t", FLUSS)
    put(
        table,
        [{"v": 1, "__bucket": 0, "__offset": 98}, {"v": 2, "__bucket": 2, "__offset": 299}],
        **{"fluss-offsets": f"file://{path}", "commit-user": "__fluss_lake_tiering"},
    )
    found = resolve(table)
    assert (found.rule, nexts(found), found.guarantee) == ("offsets of Apache Fluss", {0: 100, 2: 300}, "exactly-once")
    assert found.columns == OffsetNames("__bucket", "__offset")
    path.unlink()
    with pytest.raises(BoundaryError, match="cannot be read") as caught:
        resolve(table)
    assert caught.value.code == "BOUNDARY_UNREADABLE"


def test_fluss_0_8_has_the_offsets_inline_and_other_snapshots_may_follow(catalog: SqlCatalog) -> None:
    table = catalog.create_table("ns.t", FLUSS)
    inline = json.dumps([{"bucket": 0, "offset": 12}, {"bucket": 1, "offset": -1}])
    tiered = put(table, [{"v": 1, "__bucket": 0, "__offset": 3}], **{"fluss-offsets": inline})
    compact(table)
    table.refresh()
    found = resolve(table)
    assert (nexts(found), found.guarantee) == ({0: 12}, "exactly-once")
    assert str(tiered) in found.evidence
    put(table, [{"v": 2}])
    found = resolve(table)
    assert nexts(found) == {0: 12}
    assert "if rows that others added" in found.guarantee


def test_fluss_of_another_line_is_not_found(catalog: SqlCatalog) -> None:
    table = catalog.create_table("ns.t", FLUSS)
    first = put(table, [{"v": 1, "__bucket": 0, "__offset": 3}], **{"fluss-offsets": '[{"bucket": 0, "offset": 4}]'})
    put(table, [{"v": 2, "__bucket": 0, "__offset": 8}], **{"fluss-offsets": '[{"bucket": 0, "offset": 9}]'})
    table.manage_snapshots().set_current_snapshot(snapshot_id=first).commit()
    table.refresh()
    assert nexts(resolve(table)) == {0: 4}


@pytest.mark.parametrize(
    "text",
    [
        '{"version": 1, "table_id": 4, "partition_offsets": [{"partition_id": 1, "bucket_offsets": [7]}]}',
        '[{"partition_name": "date=2025", "partition_id": 0, "bucket": 0, "offset": 3}]',
    ],
)
def test_fluss_buckets_of_partitioned_tables_are_no_partitions(catalog: SqlCatalog, text: str) -> None:
    table = catalog.create_table("ns.t", flat())
    put(table, [{"v": 1}], **{"fluss-offsets": text})
    with pytest.raises(BoundaryError) as caught:
        resolve(table)
    assert "partitioned Fluss table" in verdicts(caught.value)["offsets of Apache Fluss"][1]


@pytest.mark.parametrize(
    "text", ['{"version": 2, "bucket_offsets": [1]}', "[1]", '{"version": 1, "bucket_offsets": 5}']
)
def test_fluss_offsets_that_cannot_be_read_stop(catalog: SqlCatalog, text: str) -> None:
    table = catalog.create_table("ns.t", FLUSS)
    put(table, [{"v": 1, "__bucket": 0, "__offset": 3}], **{"fluss-offsets": text})
    with pytest.raises(BoundaryError, match="fluss-offsets cannot be read"):
        resolve(table)


# ---------------------------------------------------------------------------------------------------------------- OLake


def olake(catalog: SqlCatalog, state: Any) -> Table:
    kinds = {"_kafka_partition": IntegerType(), "_kafka_offset": LongType(), "_olake_id": StringType()}
    table = catalog.create_table("ns.t", flat(**kinds))
    put(table, [{"v": 1, "_kafka_partition": 0, "_kafka_offset": 5}])
    with table.transaction() as transaction:
        transaction.set_properties(olake_2pc=json.dumps({"id": "thread", "state": state}))
    return table


@pytest.mark.parametrize("as_text", [True, False])
def test_olake_keeps_next_offsets_in_a_table_property(catalog: SqlCatalog, as_text: bool) -> None:
    state = {"consumer_group_id": "olake-consumer-group-1", "partition_0": 8, "partition_3": 1}
    table = olake(catalog, json.dumps(state) if as_text else state)
    found = resolve(table)
    assert (found.rule, nexts(found)) == ("state of OLake", {0: 8, 3: 1})
    assert found.columns == OffsetNames()
    assert found.trim


def test_olakes_state_is_of_the_newest_snapshot_only(catalog: SqlCatalog) -> None:
    table = olake(catalog, json.dumps({"partition_0": 8}))
    pinned = table.current_snapshot().snapshot_id
    put(table, [{"v": 2, "_kafka_partition": 0, "_kafka_offset": 7}])
    found = resolve(table, snapshot=pinned)
    assert (found.rule, nexts(found)) == ("columns of Headrace", {0: 6})
    why = {verdict.rule: verdict.detail for verdict in found.tried}["state of OLake"]
    assert str(pinned) in why
    assert "not kept by snapshot" in why


# -------------------------------------------------------------------------------- snapshots that hold no source offsets

MARKS = {
    "Flink": ({"flink.job-id": "a", "flink.operator-id": "b", "flink.max-committed-checkpoint-id": "7"}, "no offsets"),
    "Spark": ({"spark.sql.streaming.queryId": "q", "spark.sql.streaming.epochId": "3"}, "checkpoint folder"),
    "Redpanda": ({"redpanda.commit-metadata": '{"offset": 41, "cluster": "c"}'}, "coordinator log"),
    "AutoMQ": ({"automq.commit.id": "u", "automq.watermark": "1700000000000"}, "bounds time only"),
    "Connect": ({"kafka.connect.commit-id": "u", "kafka.connect.valid-through-ts": "2026-01-01T00:00Z"}, "time only"),
}


@pytest.mark.parametrize("writer", MARKS)
def test_marks_of_writers_that_record_no_source_offsets_are_named_in_the_refusal(
    catalog: SqlCatalog, writer: str
) -> None:
    facts, said = MARKS[writer]
    table = catalog.create_table("ns.t", flat())
    put(table, [{"v": 1}], **facts)
    put(table, [{"v": 2}])
    with pytest.raises(BoundaryError) as caught:
        resolve(table)
    outcome, why = verdicts(caught.value)["marks of other writers"]
    assert outcome == "not usable"
    assert said in why
    assert writer in why or writer.lower() in why
    assert why in caught.value.detail
    assert NAME in caught.value.message
    assert TOPIC in caught.value.message


def test_every_rule_has_a_verdict(catalog: SqlCatalog) -> None:
    table = catalog.create_table("ns.t", REDPANDA)
    put(table, [row("redpanda.", 0, 1, 1, None)], **{"redpanda.commit-metadata": "{}"})
    tried = [(verdict.rule, verdict.outcome) for verdict in resolve(table).tried]
    assert len(tried) == len(auto_rules(None))
    assert ("recorded boundary", "not there") in tried
    assert ("columns of Redpanda", "applied") in tried
    assert ("columns of Aiven", "not tried") in tried


# ------------------------------------------------------------------------------------------------------ Parquet folders

RECORD = {"version": 1, "cluster": "c", "topics": {TOPIC: {"topic_id": "i", "partitions": {"0": {"next": 20}}}}}


def folder(tmp_path: Path, record: Any = RECORD, **columns: list[int]) -> ParquetHistory:
    pl.DataFrame({"v": [1, 2], **columns}).write_parquet(tmp_path / "a.parquet")
    beside = tmp_path / "_headrace_boundary.json"
    beside.write_text(json.dumps(record))
    os.utime(beside, ns=((tmp_path / "a.parquet").stat().st_mtime_ns + 10**9,) * 2)
    return open_parquet(str(tmp_path))


@pytest.mark.parametrize("pattern", ["", "/*.parquet", "/a.parquet"])
def test_a_folder_has_its_record_beside_it(tmp_path: Path, pattern: str) -> None:
    folder(tmp_path)
    found = resolve(open_parquet(f"{tmp_path}{pattern}"))
    assert (found.rule, nexts(found), found.guarantee) == ("boundary file of the folder", {0: 20}, "exactly-once")
    assert found.boundary.cluster == "c"
    assert not found.trim


def test_a_folder_with_younger_files_needs_columns(tmp_path: Path) -> None:
    folder(tmp_path)
    late = tmp_path / "b.parquet"
    pl.DataFrame({"v": [3]}).write_parquet(late)
    os.utime(late, ns=((tmp_path / "_headrace_boundary.json").stat().st_mtime_ns + 10**9,) * 2)
    with pytest.raises(BoundaryError) as caught:
        resolve(open_parquet(str(tmp_path)))
    assert "b.parquet is younger" in verdicts(caught.value)["boundary file of the folder"][1]
    pl.DataFrame({"v": [1, 2], "_kafka_partition": [0, 0], "_kafka_offset": [18, 20]}).write_parquet(
        tmp_path / "a.parquet"
    )
    found = resolve(open_parquet(str(tmp_path)))
    assert nexts(found) == {0: 20}
    assert found.trim
    assert found.columns == OffsetNames()


def test_a_folder_that_changes_while_it_is_planned_is_planned_again(tmp_path: Path) -> None:
    pinned = folder(tmp_path)
    pl.DataFrame({"v": [3]}).write_parquet(tmp_path / "b.parquet")
    with pytest.raises(UnavailableError, match="changed while"):
        resolve(pinned)


@pytest.mark.parametrize("record", [[], {"version": 7}, {"version": 1, "topics": {TOPIC: {}}}])
def test_a_folders_record_that_cannot_be_read_stops(tmp_path: Path, record: Any) -> None:
    with pytest.raises(BoundaryError, match=r"_headrace_boundary\.json cannot be read"):
        resolve(folder(tmp_path, record, _kafka_partition=[0, 0], _kafka_offset=[1, 2]))


def test_a_folders_record_of_another_topic_is_passed_over(tmp_path: Path) -> None:
    found = resolve(folder(tmp_path, _kafka_partition=[0, 0], _kafka_offset=[1, 2]), "payments")
    assert found.rule == "columns of Headrace"
    assert nexts(found, "payments") == {0: 3}


def test_every_layout_of_a_rule_is_known_to_the_others() -> None:
    """Under rules without columns of their own, rows are trimmed by those of any known writer."""
    folder = Path(layouts.__file__).parent
    used = {name for file in folder.glob("*.py") for name in re.findall(r"\blayouts\.(\w+)\(", file.read_text())}
    known = inspect.getsource(layouts.any_known)
    assert {name for name in used - {"any_known", "flat", "nested"} if not re.search(rf"\b{name}\b", known)} == set()
