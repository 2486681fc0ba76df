"""History from Iceberg: schema evolution, deletes, snapshots, system columns, trimming."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from polars.testing import assert_frame_equal
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform, TruncateTransform
from pyiceberg.types import (
    DoubleType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from headrace.kernel import columns as system
from headrace.kernel.errors import IdentityError, NotFoundError, SnapshotGoneError, UserError
from hybrid_source.history import HistoryQuery, Trim
from hybrid_source.iceberg_history import open_iceberg
from hybrid_source.iceberg_scan import IcebergScanner
from hybrid_source.resolution import OffsetNames
from hybrid_source.source_values import END_OF_HISTORY
from hybrid_source.splits import DeleteFile, HistoryFile, Split, SplitTarget
from tests.history_tables import (
    add_deletes,
    append,
    append_arrow,
    append_by_hand,
    collect,
    open_catalog,
    position_deletes,
    write_puffin,
)

NEW_YEAR = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
NAME = "local.ns.t"
EVENTS = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "at", TimestamptzType(), required=False),
    NestedField(3, "k", StringType(), required=False),
)
SMALL = SplitTarget(rows=1, nbytes=1)


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[SqlCatalog]:
    opened = open_catalog(tmp_path)
    yield opened
    opened.close()


def events(start: int, count: int = 10) -> pl.DataFrame:
    ids = list(range(start, start + count))
    return pl.DataFrame(
        {"id": ids, "at": [NEW_YEAR + dt.timedelta(minutes=i) for i in ids], "k": ["ab"[i % 2] for i in ids]},
        schema={"id": pl.Int64, "at": pl.Datetime("us", "UTC"), "k": pl.String},
    )


def test_columns_and_rows_that_are_not_wanted_are_not_read(catalog: SqlCatalog) -> None:
    table = catalog.create_table("ns.t", EVENTS)
    append(table, events(20), events(0), events(10))
    query = HistoryQuery(
        columns=["id"], predicate=(pl.col("id") >= 15) & (pl.col("id") % 2 == 0), where=pl.col("k") == "a"
    )
    plan = open_iceberg(table, NAME).plan(query)
    assert plan.report.files == 2
    assert plan.report.files_total == 3
    assert [str(part) for part in plan.residual] == [str(pl.col("id") % 2 == 0)]
    found = collect(plan)
    assert found.columns == ["id"]
    assert sorted(found["id"]) == [16, 18, 20, 22, 24, 26, 28]


def test_splits_come_in_event_time_order_and_resume_where_they_stopped(catalog: SqlCatalog) -> None:
    table = catalog.create_table("ns.t", EVENTS)
    append(table, events(20), events(0), events(10))
    history = open_iceberg(table, NAME)
    query = HistoryQuery(columns=["id"], event_time="at", target=SMALL)
    splits = list(history.plan(query).splits_from())
    assert [list(split.rows.collect()["id"]) for split in splits] == [
        list(range(10)),
        list(range(10, 20)),
        list(range(20, 30)),
    ]
    second = int((NEW_YEAR + dt.timedelta(minutes=10)).timestamp() * 1e6)
    assert splits[0].watermark == second - 1
    assert splits[-1].watermark == END_OF_HISTORY
    cursor = json.loads(json.dumps(splits[0].cursor))
    append(table, events(100))  # does not belong to the pinned snapshot
    again = open_iceberg(catalog.load_table("ns.t"), NAME, pin=json.loads(json.dumps(history.pin)))
    rest = list(again.plan(query).splits_from(cursor))
    assert list(collect(rest)["id"]) == list(range(10, 30))
    assert again.plan(query).remaining(cursor).records == 20


def test_large_files_are_read_in_parts(catalog: SqlCatalog) -> None:
    table = catalog.create_table("ns.t", EVENTS, properties={"write.parquet.row-group-limit": "16"})
    append(table, events(0, 100))
    query = HistoryQuery(columns=["id"], predicate=pl.col("k") == "a", target=SplitTarget(32, 1 << 30))
    splits = list(open_iceberg(table, NAME).plan(query).splits_from())
    assert [split.records for split in splits] == [32, 32, 32, 4]
    assert list(collect(splits)["id"]) == list(range(0, 100, 2))


def test_hyb_06_a_history_past_its_end_opens_no_file(catalog: SqlCatalog) -> None:
    table = catalog.create_table("ns.t", EVENTS)
    append(table, events(0))
    plan = open_iceberg(table, NAME).plan(HistoryQuery())
    end = list(plan.splits_from())[-1].cursor
    for file in table.inspect.files()["file_path"].to_pylist():
        Path(file.removeprefix("file://")).unlink()
    assert list(plan.splits_from(end)) == []


# ---------------------------------------------------------------------------------------------------- pruning, values


def test_pru_01_truncated_partitions_of_the_smallest_integers_are_not_pruned(catalog: SqlCatalog) -> None:
    schema = Schema(NestedField(1, "x", IntegerType(), required=False), NestedField(2, "y", LongType(), required=False))
    by_x = PartitionSpec(PartitionField(1, 1000, TruncateTransform(10000), "p"))
    table = catalog.create_table("ns.t", schema, partition_spec=by_x)
    frame = pl.DataFrame({"x": [-(2**31), -1, 5], "y": [1, 2, 3]}, schema={"x": pl.Int32, "y": pl.Int64})
    append_by_hand(table, frame)
    found = collect(open_iceberg(table, NAME).plan(HistoryQuery(predicate=pl.col("x") < 0)))
    assert sorted(found["x"]) == [-(2**31), -1]

    by_y = PartitionSpec(PartitionField(2, 1000, TruncateTransform(10), "p"))
    longs = catalog.create_table("ns.longs", schema, partition_spec=by_y)
    append_by_hand(longs, pl.DataFrame({"x": [0, 0], "y": [-(2**63), -1]}, schema={"x": pl.Int32, "y": pl.Int64}))
    found = collect(open_iceberg(longs, NAME).plan(HistoryQuery(predicate=pl.col("y") == -(2**63))))
    assert list(found["y"]) == [-(2**63)]


def test_pru_03_nan_has_one_meaning_whatever_is_pruned(catalog: SqlCatalog) -> None:
    table = catalog.create_table("ns.t", Schema(NestedField(1, "v", DoubleType(), required=False)))
    nan = float("nan")
    frames = [
        pl.DataFrame({"v": values}, schema={"v": pl.Float64})
        for values in ([nan, 1.0, 2.0], [nan, nan, nan], [None, None])
    ]
    append(table, *frames)
    whole = pl.concat(frames)
    for predicate in (pl.col("v") > 1.5, pl.col("v") < 1.5, pl.col("v").is_not_null(), pl.col("v").is_nan()):
        found = collect(open_iceberg(table, NAME).plan(HistoryQuery(predicate=predicate)))
        assert_frame_equal(found.sort("v"), whole.filter(predicate).sort("v"))  # what the tail gives, too
    assert collect(open_iceberg(table, NAME).plan(HistoryQuery(predicate=pl.col("v") > 1.5))).height == 5


def test_partition_values_that_urls_would_change(catalog: SqlCatalog) -> None:
    spec = PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "k"))
    table = catalog.create_table("ns.t", EVENTS, partition_spec=spec)
    odd = ["a b", "ß", "x/y", "50%", "a+b=c", "#?*[]"]
    append(table, pl.DataFrame({"id": range(6), "at": [NEW_YEAR] * 6, "k": odd}, schema=events(0).schema))
    assert sorted(collect(open_iceberg(table, NAME).plan(HistoryQuery()))["k"]) == sorted(odd)


def test_typ_01_nested_values_come_as_they_are(catalog: SqlCatalog) -> None:
    inner = StructType(NestedField(10, "x", IntegerType(), required=False))
    schema = Schema(
        NestedField(1, "id", IntegerType(), required=False),
        NestedField(2, "c", ListType(20, inner, element_required=False), required=False),
        NestedField(3, "p", ListType(21, IntegerType(), element_required=False), required=False),
        NestedField(4, "s", StructType(NestedField(11, "y", IntegerType(), required=False)), required=False),
        NestedField(5, "m", MapType(22, StringType(), 23, IntegerType(), value_required=False), required=False),
    )
    table = catalog.create_table("ns.t", schema)
    rows = {
        "id": [1, 2, 3],
        "c": [None, [], [None, {"x": 1}]],
        "p": [None, [], [None]],
        "s": [None, {"y": None}, {"y": 1}],
        "m": [None, [], [("a", None)]],
    }
    append_arrow(table, pa.table(rows, schema=table.schema().as_arrow()))
    found = collect(open_iceberg(table, NAME).plan(HistoryQuery()))
    assert found["c"].to_list() == rows["c"]
    assert found["p"].to_list() == rows["p"]
    assert found["s"].to_list() == rows["s"]
    assert found["m"].to_list() == [None, [], [{"key": "a", "value": None}]]
    assert found.schema == open_iceberg(table, NAME).stored


# --------------------------------------------------------------------------------------------------- schema evolution


def test_sch_01_columns_are_found_by_id_not_by_name(catalog: SqlCatalog) -> None:
    table = catalog.create_table(
        "ns.t",
        Schema(
            NestedField(1, "id", IntegerType(), required=False),
            NestedField(2, "old", StringType(), required=False),
            NestedField(3, "v", StringType(), required=False),
        ),
    )
    append(table, pl.DataFrame({"id": [1], "old": ["before"], "v": ["ghost"]}, schema_overrides={"id": pl.Int32}))
    with table.update_schema() as update:
        update.rename_column("old", "new")
        update.delete_column("v")
    with table.update_schema() as update:
        update.add_column("v", StringType())
        update.update_column("id", LongType())
    append(table, pl.DataFrame({"id": [3000000000], "new": ["after"], "v": ["x"]}))

    def read(predicate: pl.Expr | None = None) -> list[tuple[object, ...]]:
        return sorted(collect(open_iceberg(table, NAME).plan(HistoryQuery(predicate=predicate))).rows())

    first, second = (1, "before", None), (3000000000, "after", "x")
    assert read() == [first, second]
    assert read(pl.col("new") == "before") == [first]
    assert read(pl.col("v").is_null()) == [first]
    assert read(pl.col("id") < 3000000000) == [first]


def test_sch_02_a_snapshot_from_before_a_schema_change_has_the_current_columns(catalog: SqlCatalog) -> None:
    table = catalog.create_table("ns.t", Schema(NestedField(1, "a", LongType(), required=False)))
    append(table, pl.DataFrame({"a": [1, 2]}))
    pinned = table.current_snapshot().snapshot_id
    with table.update_schema() as update:
        update.rename_column("a", "z")
        update.add_column("b", StringType())
    history = open_iceberg(table, NAME, snapshot_id=pinned)
    assert list(history.stored) == ["z", "b"]
    found = collect(history.plan(HistoryQuery(predicate=pl.col("z") == 1)))
    assert found.rows() == [(1, None)]
    assert found.schema == history.stored


def test_a_dropped_partition_column_does_not_stop_planning(catalog: SqlCatalog) -> None:
    spec = PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "k"))
    table = catalog.create_table("ns.t", EVENTS, partition_spec=spec)
    append(table, events(0))
    with table.update_spec() as update:
        update.remove_field("k")
    with table.update_schema() as update:
        update.delete_column("k")
    append(table, events(10).drop("k"))
    found = collect(open_iceberg(table, NAME).plan(HistoryQuery(predicate=pl.col("id") > 4)))
    assert sorted(found["id"]) == list(range(5, 20))


# ------------------------------------------------------------------------------------------------------------ deletes


@pytest.mark.parametrize("scoped", [True, False], ids=["one-file", "whole-partition"])
def test_position_deletes_are_applied(catalog: SqlCatalog, *, scoped: bool) -> None:
    table = catalog.create_table("ns.t", EVENTS, properties={"format-version": "2"})
    append(table, events(0), events(10))
    files = [task.file for task in table.scan().plan_files()]
    rows = [(file.file_path, position) for file in files for position in (0, 3)]
    deletes = (
        [position_deletes(table, rows[:2]), position_deletes(table, rows[2:])]
        if scoped
        else [position_deletes(table, rows)]
    )
    add_deletes(table, *deletes)
    plan = open_iceberg(table, NAME).plan(HistoryQuery(columns=["k", "id"], predicate=pl.col("id") > 1))
    assert plan.report.files_with_deletes == 2
    found = collect(plan)
    assert found.columns == ["k", "id"]
    assert sorted(found["id"]) == [2, 4, 5, 6, 7, 8, 9, 11, 12, 14, 15, 16, 17, 18, 19]


def test_deletes_hold_in_every_part_of_a_large_file(catalog: SqlCatalog) -> None:
    properties = {"format-version": "2", "write.parquet.row-group-limit": "16"}
    table = catalog.create_table("ns.t", EVENTS, properties=properties)
    append(table, events(0, 100))
    path = table.inspect.files()["file_path"][0].as_py()
    add_deletes(table, position_deletes(table, [(path, position) for position in range(10, 90)]))
    query = HistoryQuery(columns=["id"], predicate=pl.col("id") % 2 == 0, target=SplitTarget(32, 1 << 30))
    splits = list(open_iceberg(table, NAME).plan(query).splits_from())
    assert len(splits) == 4
    assert collect(splits)["id"].to_list() == [0, 2, 4, 6, 8, 90, 92, 94, 96, 98]


def test_deletion_vectors_are_applied_to_their_own_file(catalog: SqlCatalog, tmp_path: Path) -> None:
    table = catalog.create_table("ns.t", EVENTS)
    append(table, events(0), events(10))
    first, second = sorted(table.inspect.files()["file_path"].to_pylist())
    puffin = tmp_path / "vectors.puffin"
    write_puffin(puffin, {first: [0, 9], second: [5]})
    scanner = IcebergScanner(table)

    def read(path: str) -> list[int]:
        size = Path(path.removeprefix("file://")).stat().st_size
        file = HistoryFile(path, 10, size, deletes=(DeleteFile(f"file://{puffin}", vector=True),))
        return [n % 10 for n in scanner.scan(Split((file,), None, 10, size, None, None)).collect()["id"]]

    assert read(first) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert read(second) == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    write_puffin(puffin, {first: [0, 9]}, repeat=2)
    with pytest.raises(UserError, match="two deletion vectors"):
        read(first)


# ---------------------------------------------------------------------------------------------------------- snapshots


def test_snp_01_a_file_that_vanishes_while_history_is_read_is_an_error(catalog: SqlCatalog) -> None:
    table = catalog.create_table("ns.t", EVENTS)
    append(table, events(0), events(10), events(20))
    history = open_iceberg(table, NAME)
    splits = history.plan(HistoryQuery(event_time="at", target=SMALL)).splits_from()
    assert next(splits).rows.collect().height == 10
    gone = table.inspect.files()["file_path"].to_pylist()[:2]
    for file in gone:
        Path(file.removeprefix("file://")).unlink()
    with pytest.raises(SnapshotGoneError) as caught:
        _ = [split.rows for split in splits]
    assert str(history.snapshot_id) in caught.value.message
    assert NAME in caught.value.message
    assert any(file.removeprefix("file://") in caught.value.detail for file in gone)


def test_snp_01_an_expired_snapshot_is_named(catalog: SqlCatalog) -> None:
    table = catalog.create_table("ns.t", EVENTS)
    append(table, events(0))
    pin = open_iceberg(table, NAME).pin
    append(table, events(10))
    table.maintenance.expire_snapshots().by_id(pin["snapshot_id"]).commit()
    with pytest.raises(SnapshotGoneError, match=f"snapshot {pin['snapshot_id']} of table {NAME} is no longer"):
        open_iceberg(catalog.load_table("ns.t"), NAME, pin=pin)


def test_snp_01_a_manifest_that_is_gone_is_named(catalog: SqlCatalog) -> None:
    table = catalog.create_table("ns.t", EVENTS)
    append(table, events(0))
    for manifest in table.current_snapshot().manifests(table.io):
        Path(manifest.manifest_path.removeprefix("file://")).unlink()
    with pytest.raises(SnapshotGoneError, match=NAME):
        open_iceberg(catalog.load_table("ns.t"), NAME).plan(HistoryQuery())


def test_snp_04_a_table_without_a_snapshot_is_an_empty_history(catalog: SqlCatalog) -> None:
    history = open_iceberg(catalog.create_table("ns.t", EVENTS), NAME)
    plan = history.plan(HistoryQuery(event_time="at"))
    assert history.is_empty
    assert history.pin["snapshot_id"] is None
    assert list(history.schema) == ["id", "at", "k", *system.SYSTEM]
    assert list(plan.splits_from()) == []
    assert plan.watermark() == END_OF_HISTORY
    again = open_iceberg(catalog.load_table("ns.t"), NAME, pin=history.pin)
    assert again.snapshot_id is None


def test_snp_04_a_pin_without_a_snapshot_stays_empty_when_rows_come(catalog: SqlCatalog) -> None:
    table = catalog.create_table("ns.t", EVENTS)
    pin = open_iceberg(table, NAME).pin
    append(table, events(0))
    assert list(open_iceberg(table, NAME, pin=pin).plan(HistoryQuery()).splits_from()) == []


def test_a_recreated_table_is_not_the_pinned_one(catalog: SqlCatalog) -> None:
    pin = open_iceberg(catalog.create_table("ns.t", EVENTS), NAME).pin
    catalog.drop_table("ns.t")
    with pytest.raises(IdentityError, match=NAME):
        open_iceberg(catalog.create_table("ns.t", EVENTS), NAME, pin=pin)


def test_a_snapshot_that_was_never_there_is_not_found(catalog: SqlCatalog) -> None:
    with pytest.raises(NotFoundError, match="no snapshot 7") as caught:
        open_iceberg(catalog.create_table("ns.t", EVENTS), NAME, snapshot_id=7)
    assert caught.value.code == "SNAPSHOT_NOT_FOUND"


def test_event_times_of_odd_years_and_nulls(catalog: SqlCatalog) -> None:
    table = catalog.create_table("ns.t", EVENTS)
    times = [dt.datetime(2100, 1, 1, tzinfo=dt.UTC), dt.datetime(1, 1, 1, tzinfo=dt.UTC), None]
    append(
        table,
        *(pl.DataFrame({"id": [n], "at": [at], "k": [""]}, schema=events(0).schema) for n, at in enumerate(times)),
    )
    splits = list(open_iceberg(table, NAME).plan(HistoryQuery(event_time="at", target=SMALL)).splits_from())
    assert [split.rows.collect()["id"].item() for split in splits] == [1, 0, 2]
    assert [split.watermark for split in splits] == [
        int(times[0].timestamp() * 1e6) - 1,
        END_OF_HISTORY,
        END_OF_HISTORY,
    ]


# ----------------------------------------------------------------------------------------------------- system columns


ARCHIVE = Schema(
    NestedField(1, "v", LongType(), required=False),
    NestedField(2, "_kafka_topic", StringType(), required=False),
    NestedField(3, "_kafka_partition", LongType(), required=False),
    NestedField(4, "_kafka_offset", LongType(), required=False),
)


def archive(partition: int | None, offsets: range, topic: str = "t") -> pl.DataFrame:
    return pl.DataFrame(
        {
            "v": list(offsets),
            "_kafka_topic": [topic] * len(offsets),
            "_kafka_partition": [partition] * len(offsets),
            "_kafka_offset": list(offsets) if partition is not None else [None] * len(offsets),
        },
        schema={"v": pl.Int64, "_kafka_topic": pl.String, "_kafka_partition": pl.Int64, "_kafka_offset": pl.Int64},
    )


def test_system_columns_come_from_the_table_or_are_null(catalog: SqlCatalog) -> None:
    table = catalog.create_table("ns.t", ARCHIVE)
    append(table, archive(3, range(5)))
    history = open_iceberg(table, NAME)
    assert list(history.schema) == ["v", *system.SYSTEM]
    found = collect(history.plan(HistoryQuery(columns=tuple(history.schema))))
    assert found.schema == history.schema
    assert set(found["_kafka_partition"]) == {3}
    assert list(found["_kafka_offset"]) == list(range(5))
    assert found["_kafka_key"].null_count() == found["_row_watermark"].null_count() == 5
    assert collect(history.plan(HistoryQuery())).columns == ["v"]
    late = history.plan(HistoryQuery(columns=["v"], predicate=pl.col("_row_watermark").is_null()))
    assert collect(late).height == 5


def test_rows_at_or_above_the_boundary_are_left_out(catalog: SqlCatalog) -> None:
    table = catalog.create_table("ns.t", ARCHIVE)
    append(
        table,
        archive(0, range(10)),
        archive(0, range(10, 20)),
        archive(1, range(5)),
        archive(2, range(3)),
        archive(None, range(900, 902)),
        archive(0, range(50, 52), topic="other"),
    )
    trim = Trim({"t": {0: 7, 1: 5}}, OffsetNames(topic="_kafka_topic"))
    found = collect(open_iceberg(table, NAME).plan(HistoryQuery(trim=trim, columns=["v", "_kafka_partition"])))
    assert sorted(found.filter(pl.col("_kafka_partition") == 0)["v"]) == [*range(7), 50, 51]
    assert sorted(found.filter(pl.col("_kafka_partition") == 1)["v"]) == list(range(5))
    assert found.filter(pl.col("_kafka_partition") == 2).height == 0  # the tail reads it from its beginning
    assert sorted(found.filter(pl.col("_kafka_partition").is_null())["v"]) == [900, 901]
    pruned = open_iceberg(table, NAME).plan(HistoryQuery(trim=Trim({"t": {0: 7, 1: 5}}, OffsetNames())))
    assert pruned.report.files == 4  # offsets 10 to 20 and 50 to 52 lie above every boundary


def test_a_projection_of_nothing_keeps_its_height(catalog: SqlCatalog) -> None:
    table = catalog.create_table("ns.t", EVENTS)
    append(table, events(0))
    assert collect(open_iceberg(table, NAME).plan(HistoryQuery(columns=[]))).height == 10
