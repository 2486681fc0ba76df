"""The private parts of pyiceberg and Polars that Headrace leans on still do what it needs."""

# ruff: noqa: DTZ001 - naive datetimes are part of what is tested
from __future__ import annotations

import datetime as dt
import re
import struct
from decimal import Decimal
from pathlib import Path
from uuid import uuid4

import polars as pl
import pyarrow.parquet as pq
import pytest
from pyiceberg import types as ice
from pyiceberg.avro.decoder import new_decoder
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import EqualTo
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)

from catalog.catalogs import Catalogs, sqlite_options
from catalog.fitting import cast, fit
from catalog.iceberg_internals import Commit
from catalog.partition_values import split_by_partition
from catalog.staging import DataFileWriter, seal, staged_files
from headrace.kernel.errors import SchemaError


@pytest.fixture(autouse=True)
def plain_planner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")


@pytest.fixture
def catalogs(tmp_path: Path) -> Catalogs:
    return Catalogs({"lake": sqlite_options(tmp_path)})


def create(catalogs: Catalogs, schema: Schema, spec: PartitionSpec | None = None) -> Table:
    client = catalogs.catalog("lake")
    client.create_namespace_if_not_exists("ns")
    return client.create_table("ns.t", schema, partition_spec=spec or PartitionSpec())


def append(table: Table, frame: pl.DataFrame) -> None:
    rows = cast(frame, fit(frame.schema, table.schema(), "t"), "t")
    commit = Commit(table)
    commit.append(DataFileWriter(table, "test").write(rows), "main", {})
    commit.write()
    commit.send()


ALL = Schema(
    ice.NestedField(1, "id", ice.IntegerType()),
    ice.NestedField(2, "c", ice.ListType(10, ice.StructType(ice.NestedField(11, "x", ice.IntegerType())), False)),
    ice.NestedField(3, "p", ice.ListType(12, ice.IntegerType(), False)),
    ice.NestedField(4, "s", ice.StructType(ice.NestedField(13, "y", ice.IntegerType()))),
    ice.NestedField(5, "m", ice.MapType(14, ice.StringType(), 15, ice.IntegerType(), False)),
    ice.NestedField(6, "d", ice.DecimalType(10, 2)),
    ice.NestedField(7, "big", ice.DecimalType(38, 3)),
    ice.NestedField(8, "u", ice.UUIDType()),
    ice.NestedField(9, "f", ice.FixedType(4)),
    ice.NestedField(16, "t", ice.TimeType()),
    ice.NestedField(17, "tz", ice.TimestamptzType()),
    ice.NestedField(18, "ts", ice.TimestampType()),
    ice.NestedField(19, "day", ice.DateType()),
    ice.NestedField(20, "b", ice.BinaryType()),
    ice.NestedField(21, "txt", ice.StringType()),
    ice.NestedField(22, "fl", ice.DoubleType()),
    ice.NestedField(23, "ok", ice.BooleanType()),
)


def everything() -> pl.DataFrame:
    moment = dt.datetime(2024, 7, 1, 12, 30, 15, 123456)
    return pl.DataFrame(
        {
            "id": pl.Series([1, 2, 3], dtype=pl.Int32),
            "c": pl.Series([None, [], [None, {"x": 1}]], dtype=pl.List(pl.Struct({"x": pl.Int32}))),
            "p": pl.Series([None, [], [None]], dtype=pl.List(pl.Int32)),
            "s": pl.Series([None, {"y": None}, {"y": 1}], dtype=pl.Struct({"y": pl.Int32})),
            "m": pl.Series(
                [None, [], [{"key": "a", "value": None}]],
                dtype=pl.List(pl.Struct({"key": pl.String, "value": pl.Int32})),
            ),
            "d": pl.Series([Decimal("1.10"), None, Decimal("-7.25")], dtype=pl.Decimal(10, 2)),
            "big": pl.Series([Decimal("12345678901234567890.123"), None, Decimal(-1)], dtype=pl.Decimal(38, 3)),
            "u": [uuid4().bytes, None, uuid4().bytes],
            "f": [b"abcd", None, b"\x00\x01\x02\x03"],
            "t": [dt.time(1, 2, 3, 4), None, dt.time(23, 59)],
            "tz": pl.Series([moment, None, moment]).dt.replace_time_zone("UTC"),
            "ts": [moment, None, dt.datetime(1969, 1, 1)],
            "day": [dt.date(2024, 1, 1), None, dt.date(1960, 1, 1)],
            "b": [b"x", None, b""],
            "txt": ["x" * 40, None, ""],
            "fl": [1.5, None, float("nan")],
            "ok": [True, None, False],
        }
    )


def test_typ_01_every_type_round_trips_with_null_and_empty_apart(catalogs: Catalogs) -> None:
    table, rows = create(catalogs, ALL), everything()
    append(table, rows)
    back = pl.scan_iceberg(table).collect()
    assert rows.equals(back.select(pl.col(name).cast(kind) for name, kind in rows.schema.items()))
    # Not pyiceberg's own reader: it turns a null list of structs into an empty one (0.12).
    (task,) = table.scan().plan_files()
    arrow = pq.read_table(task.file.file_path.removeprefix("file://")).to_pylist()
    assert [row["c"] for row in arrow] == [None, [], [None, {"x": 1}]]
    assert [row["p"] for row in arrow] == [None, [], [None]]
    assert [row["s"] for row in arrow] == [None, {"y": None}, {"y": 1}]
    assert [row["m"] for row in arrow] == [None, [], [("a", None)]]
    assert [row["u"].bytes if row["u"] else None for row in arrow] == rows["u"].to_list()


def test_statistics_are_those_of_pyicebergs_own_writer(catalogs: Catalogs) -> None:
    table, rows = create(catalogs, ALL), everything()
    append(table, rows)
    table.append(table.scan().to_arrow())
    ours, theirs = sorted((task.file for task in table.scan().plan_files()), key=lambda f: "-test-" not in f.file_path)
    ours, theirs = (theirs, ours) if "test-" in theirs.file_path else (ours, theirs)
    assert ours.record_count == theirs.record_count
    assert ours.value_counts == theirs.value_counts
    assert ours.null_value_counts == theirs.null_value_counts
    assert ours.lower_bounds == theirs.lower_bounds
    assert ours.upper_bounds == theirs.upper_bounds


def test_nans_are_counted_as_the_bounds_leave_them_out(catalogs: Catalogs) -> None:
    """Without the count, engines take a file whose bounds are 1 and 1 for one of nothing but 1, and delete it whole."""
    schema = Schema(
        ice.NestedField(1, "d", ice.DoubleType()),
        ice.NestedField(2, "f", ice.FloatType()),
        ice.NestedField(3, "unseen", ice.DoubleType()),
    )
    table = create(catalogs, schema)
    with table.transaction() as change:
        change.set_properties({"write.metadata.metrics.column.unseen": "none"})
    nan = float("nan")
    values = {"d": [1.0, nan, nan, None], "f": [2.0, None, 3.0, 2.0], "unseen": [nan, nan, 1.0, None]}
    append(table, pl.DataFrame(values, schema_overrides={"f": pl.Float32}))
    (task,) = table.refresh().scan().plan_files()
    assert task.file.nan_value_counts == {1: 2, 2: 0}
    assert task.file.lower_bounds[1] == task.file.upper_bounds[1] == struct.pack("<d", 1.0)
    assert task.file.null_value_counts == {1: 1, 2: 1}


def test_field_ids_stand_in_the_file(catalogs: Catalogs) -> None:
    table = create(catalogs, ALL)
    append(table, everything())
    (task,) = table.scan().plan_files()
    schema = pq.read_schema(task.file.file_path.removeprefix("file://"))
    assert [int(field.metadata[b"PARQUET:field_id"]) for field in schema] == [
        field.field_id for field in table.schema().fields
    ]
    with table.update_schema() as update:
        update.rename_column("txt", "renamed")
    assert pl.scan_iceberg(table).collect()["renamed"].to_list() == ["x" * 40, None, ""]


MOMENTS = [dt.datetime(1969, 12, 31, 23, 59, 59, 999999), dt.datetime(2024, 2, 29, 12), None, dt.datetime(1900, 1, 1)]
CASES: list[tuple[ice.PrimitiveType, list[object], list[Transform]]] = [
    (ice.LongType(), [-1, -4, 10, -12, None, 2**62], [BucketTransform(16), TruncateTransform(10), IdentityTransform()]),
    (ice.IntegerType(), [-1, 5, None, 34], [BucketTransform(7), TruncateTransform(10), VoidTransform()]),
    (ice.StringType(), ["iceberg", "", None, "naïve ☃ text"], [BucketTransform(16), TruncateTransform(3)]),
    (ice.BinaryType(), [b"\x00\x01", b"", None], [BucketTransform(16), TruncateTransform(1)]),
    (ice.DecimalType(9, 2), [Decimal("14.20"), Decimal("-0.01"), None], [BucketTransform(16), TruncateTransform(50)]),
    (ice.DateType(), [dt.date(2017, 11, 16), dt.date(1960, 1, 1), None], [BucketTransform(8), YearTransform()]),
    (ice.DateType(), [dt.date(2017, 11, 16), dt.date(1960, 1, 1), None], [MonthTransform(), DayTransform()]),
    (ice.TimestampType(), MOMENTS, [BucketTransform(8), YearTransform(), MonthTransform(), DayTransform()]),
    (ice.TimestampType(), MOMENTS, [HourTransform(), IdentityTransform()]),
    (ice.TimeType(), [dt.time(22, 31, 8), None], [BucketTransform(8)]),
    (ice.UUIDType(), [b"\xf7\x9c\x3e\x09\x67\x7c\x4b\xbd\xa4\x79\x3f\x34\x9c\xb7\x85\xe7", None], [BucketTransform(8)]),
]


@pytest.mark.parametrize(
    ("kind", "values", "transform"),
    [(kind, values, transform) for kind, values, transforms in CASES for transform in transforms],
    ids=str,
)
def test_partition_values_are_those_of_pyicebergs_transforms(
    catalogs: Catalogs, kind: ice.PrimitiveType, values: list[object], transform: Transform
) -> None:
    schema = Schema(ice.NestedField(1, "v", kind))
    table = create(catalogs, schema, PartitionSpec(PartitionField(1, 1000, transform, "p")))
    frame = (
        cast(pl.DataFrame({"v": values}), fit({}, schema, "t"), "t")
        if all(v is None for v in values)
        else (pl.DataFrame({"v": values}, schema_overrides={"v": fit({}, schema, "t").target["v"]}))
    )
    reference = transform.transform(kind)
    for key, rows in split_by_partition(frame, table):
        assert key is not None
        for value in rows["v"]:
            assert key.partition[0] == reference(physical(value)), value


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (ice.IntegerType(), -(2**31)),
        (ice.LongType(), -(2**63)),
        (ice.DecimalType(4, 2), Decimal("-99.99")),
        (ice.DecimalType(38, 2), Decimal("-" + "9" * 36 + ".99")),
    ],
    ids=str,
)
def test_pru_01_a_value_whose_truncation_is_no_value_of_its_type_is_refused_by_name(
    catalogs: Catalogs, kind: ice.PrimitiveType, value: object
) -> None:
    schema = Schema(ice.NestedField(1, "v", kind))
    table = create(catalogs, schema, PartitionSpec(PartitionField(1, 1000, TruncateTransform(1000), "p")))
    with pytest.raises(SchemaError, match=re.escape(f"the value {value} has no partition: truncate[1000]")) as caught:
        append(table, pl.DataFrame({"v": [value]}, schema=dict(fit({}, schema, "t").target)))
    assert caught.value.code == "PARTITION_VALUE"
    higher = -value // 2 if isinstance(value, int) else Decimal("-1.05")
    append(table, pl.DataFrame({"v": [higher]}, schema=dict(fit({}, schema, "t").target)))
    assert table.scan().to_arrow()["v"].to_pylist() == [higher]


BEYOND = {"year 50000": 1_515_680_404_560_000_000, "year -231": -69_425_294_400_000_000, "last": 2**63 - 1}
TIMES = Schema(
    ice.NestedField(1, "t", ice.TimestamptzType()),
    ice.NestedField(2, "ts", ice.TimestampType()),
    ice.NestedField(3, "d", ice.DateType()),
)


@pytest.mark.parametrize("us", BEYOND.values(), ids=BEYOND)
def test_times_that_python_does_not_know_are_written_with_their_bounds(catalogs: Catalogs, us: int) -> None:
    table, kinds = create(catalogs, TIMES), fit({}, TIMES, "t").target
    at = pl.Series([us, 0, None], dtype=pl.Int64)
    rows = pl.DataFrame(
        {name: (at // 86_400_000_000 if name == "d" else at).cast(kind) for name, kind in kinds.items()}
    )
    append(table, rows)
    (task,) = table.refresh().scan().plan_files()
    assert pl.read_parquet(task.file.file_path).equals(rows)
    low, high = sorted([us, 0])
    for field_id, shape, unit in ((1, "<q", 1), (2, "<q", 1), (3, "<i", 86_400_000_000)):
        assert task.file.lower_bounds[field_id] == struct.pack(shape, low // unit)
        assert task.file.upper_bounds[field_id] == struct.pack(shape, high // unit)


@pytest.mark.parametrize("us", BEYOND.values(), ids=BEYOND)
@pytest.mark.parametrize("transform", [IdentityTransform(), YearTransform(), MonthTransform(), DayTransform()], ids=str)
@pytest.mark.parametrize("column", [1, 2, 3])
def test_times_that_nobody_can_name_have_no_partition(
    catalogs: Catalogs, transform: Transform, column: int, us: int
) -> None:
    table = create(catalogs, TIMES, PartitionSpec(PartitionField(column, 1000, transform, "p")))
    kinds = fit({}, TIMES, "t").target
    value = us // 86_400_000_000 if column == 3 else us
    name = TIMES.find_field(column).name
    with pytest.raises(SchemaError, match=f"'{name}' is before the year 1 or after") as caught:
        append(table, pl.DataFrame({name: pl.Series([0, value], dtype=pl.Int64).cast(kinds[name])}))
    assert caught.value.code == "PARTITION_VALUE"


DOUBLES = [0.1, -0.1, 5e-324, 1.7976931348623157e308, 429496729622.314, 2.0**53 + 2]


def test_partitions_of_doubles_are_found_by_every_digit(catalogs: Catalogs) -> None:
    """The sink's manifests are written, read and merged: the values stay what they were."""
    schema = Schema(ice.NestedField(1, "v", ice.DoubleType()))
    table = create(catalogs, schema, PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "v")))
    with table.transaction() as change:
        change.set_properties({"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"})
    for value in DOUBLES:
        table = catalogs.load("lake.ns.t")
        staged = seal(table, DataFileWriter(table, "test").write(pl.DataFrame({"v": [value]})), f"{value!r}")
        commit = Commit(table)
        commit.append(staged_files(table.io, staged), "main", {})
        commit.write()
        commit.send()
    table = catalogs.load("lake.ns.t")
    assert sorted(task.file.partition[0] for task in table.scan().plan_files()) == sorted(DOUBLES)
    for value in DOUBLES:
        assert table.scan(row_filter=EqualTo("v", value)).to_arrow()["v"].to_pylist() == [value]


def test_pyicebergs_own_decoder_still_rounds_doubles() -> None:
    """Once this fails, ``catalog.manifest_doubles`` can go."""
    written = struct.pack("<d", 0.1)
    assert new_decoder(written).read_double() != 0.1


def physical(value: object) -> object:
    """The value as pyiceberg's transforms take it."""
    match value:
        case dt.datetime():
            return (value - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1)
        case dt.date():
            return (value - dt.date(1970, 1, 1)).days
        case dt.time():
            return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
        case _:
            return value


def test_partitioned_rows_are_found_by_their_partition(catalogs: Catalogs) -> None:
    schema = Schema(ice.NestedField(1, "day", ice.DateType()), ice.NestedField(2, "id", ice.LongType()))
    spec = PartitionSpec(
        PartitionField(1, 1000, IdentityTransform(), "day"), PartitionField(2, 1001, BucketTransform(4), "id_bucket")
    )
    table = create(catalogs, schema, spec)
    days = [dt.date(2024, 1, 1 + n % 3) for n in range(30)]
    rows = pl.DataFrame({"day": days, "id": range(30)})
    append(table, rows)
    assert table.scan(row_filter="day = '2024-01-02' and id = 4").to_arrow().to_pylist() == [
        {"day": dt.date(2024, 1, 2), "id": 4}
    ]
    assert len(list(table.scan(row_filter="day = '2024-01-02' and id = 4").plan_files())) == 1
    assert rows.equals(pl.scan_iceberg(table).collect().sort("id"))


def test_staged_manifests_survive_a_change_of_partitioning(catalogs: Catalogs) -> None:
    schema = Schema(ice.NestedField(1, "id", ice.LongType()))
    table = create(catalogs, schema, PartitionSpec(PartitionField(1, 1000, BucketTransform(2), "b")))
    staged = seal(table, DataFileWriter(table, "test").write(pl.DataFrame({"id": range(20)})), "x")
    with table.update_spec() as update:
        update.remove_field("b")
        update.add_field("id", BucketTransform(5), "c")
    commit = Commit(table)
    commit.append(staged_files(table.io, staged), "main", {})
    commit.write()
    commit.send()
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == list(range(20))
    assert table.scan(row_filter="id = 7").to_arrow()["id"].to_pylist() == [7]
    assert {task.file.spec_id for task in table.scan().plan_files()} == {0}


def test_a_commit_asserts_the_branch_the_reference_and_the_table(catalogs: Catalogs) -> None:
    schema = Schema(ice.NestedField(1, "id", ice.LongType()))
    table = create(catalogs, schema)
    append(table, pl.DataFrame({"id": [1]}))
    stale = catalogs.load("lake.ns.t")
    append(table, pl.DataFrame({"id": [2]}))
    late = Commit(stale)
    late.append((), "main", {})
    late.write()
    with pytest.raises(CommitFailedException):
        late.send()
    late.discard()

    base = catalogs.load("lake.ns.t")
    mover, loser = Commit(base), Commit(catalogs.load("lake.ns.t"))
    mover.set_ref("mark", SnapshotRefType.TAG, base.metadata.refs["main"].snapshot_id)
    mover.send()
    loser.require_ref("mark")
    loser.append((), "main", {})
    loser.write()
    with pytest.raises(CommitFailedException):
        loser.send()
    assert catalogs.load("lake.ns.t").metadata.refs["mark"].max_ref_age_ms == 2**63 - 1


def test_manifests_are_merged(catalogs: Catalogs) -> None:
    table = create(catalogs, Schema(ice.NestedField(1, "id", ice.LongType())))
    table.transaction().set_properties(
        {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "5"}
    ).commit_transaction()
    table = catalogs.load("lake.ns.t")
    for number in range(12):
        append(table, pl.DataFrame({"id": [number]}))
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert len(snapshot.manifests(table.io)) < 6
    assert table.scan().to_arrow().num_rows == 12
