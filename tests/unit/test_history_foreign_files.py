"""History from files of other and older writers: without field ids, with partition values and defaults of their own."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadataUtil
from pyiceberg.transforms import DayTransform, HourTransform, MonthTransform, Transform, YearTransform
from pyiceberg.types import (
    DateType,
    DecimalType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from headrace.kernel.errors import SchemaError, UserError
from hybrid_source.history import HistoryQuery
from hybrid_source.iceberg_history import open_iceberg
from hybrid_source.read_errors import reading
from tests.history_tables import append, append_in_partition, collect, open_catalog

NAME = "local.ns.t"
PAIR = Schema(NestedField(1, "a", LongType(), required=False), NestedField(2, "b", StringType(), required=False))
NESTED = Schema(
    NestedField(1, "a", LongType(), required=False),
    NestedField(2, "s", StructType(NestedField(3, "x", LongType(), required=False)), required=False),
    NestedField(
        4,
        "l",
        ListType(5, StructType(NestedField(6, "y", LongType(), required=False)), element_required=False),
        required=False,
    ),
)


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[SqlCatalog]:
    opened = open_catalog(tmp_path)
    yield opened
    opened.close()


def read(table: Table, predicate: pl.Expr | None = None) -> list[tuple[Any, ...]]:
    splits = list(open_iceberg(table, NAME).plan(HistoryQuery(predicate=predicate)).splits_from())
    return sorted(collect(splits).rows()) if splits else []


def add_file(table: Table, folder: Path, rows: pa.Table) -> None:
    """Take in a file that was written without the table: it has no field ids, and is found by the name mapping."""
    path = folder / f"foreign-{len(list(folder.glob('*.parquet')))}.parquet"
    pq.write_table(rows, path)
    table.add_files([f"file://{path}"])


# ---------------------------------------------------------------------------------------------- files without field ids


def test_files_without_field_ids_follow_the_tables_name_mapping(catalog: SqlCatalog, tmp_path: Path) -> None:
    table = catalog.create_table("ns.t", NESTED)
    add_file(table, tmp_path, pa.table({"l": [[{"y": 7}, None]], "a": [1], "s": [{"x": 5}]}))
    with table.update_schema() as update:
        update.rename_column("a", "z")
        update.rename_column(("s", "x"), "xx")
        update.rename_column(("l", "element", "y"), "yy")
    expected = [(1, {"xx": 5}, [{"yy": 7}, None])]
    assert read(table) == expected
    assert read(table, pl.col("z") == 1) == expected
    assert read(table, pl.col("s").struct.field("xx") == 5) == expected
    assert read(table, pl.col("z") == 2) == []


def test_files_without_field_ids_and_without_a_name_mapping_are_refused(catalog: SqlCatalog) -> None:
    table = catalog.create_table("ns.t", PAIR)
    append_in_partition(table, pa.table({"a": [1], "b": ["x"]}))
    path = table.inspect.files()["file_path"][0].as_py()
    with (
        pytest.raises(UserError, match="a file of the history of s has columns without field ids") as caught,
        reading("history of s", [path]),
    ):
        read(table)
    assert caught.value.code == "TABLE_UNSUPPORTED"
    assert path in caught.value.detail
    assert "schema.name-mapping.default" in caught.value.hint


@pytest.mark.parametrize(
    ("kind", "value"),
    [(pa.int64(), 2**40), (pa.uint64(), 2**63), (pa.string(), "1"), (pa.decimal128(10, 3), Decimal("1.234"))],
    ids=["int64", "uint64", "string", "decimal"],
)
def test_a_column_of_another_type_is_refused_not_cut_to_fit(
    catalog: SqlCatalog, tmp_path: Path, kind: pa.DataType, value: object
) -> None:
    wanted = DecimalType(10, 2) if pa.types.is_decimal(kind) else IntegerType()
    schema = Schema(NestedField(1, "a", wanted, required=False))
    table = catalog.create_table("ns.t", schema, properties={"write.metadata.metrics.default": "none"})
    append_in_partition(
        table, pa.table({"a": [value]}, schema=pa.schema([pa.field("a", kind, metadata={"PARQUET:field_id": "1"})]))
    )
    history = open_iceberg(table, NAME)
    (split,) = history.plan(HistoryQuery()).splits_from()
    with pytest.raises(SchemaError, match="has a column of another type") as caught, reading("history of s"):
        collect([split])
    assert "data type mismatch for column a" in caught.value.detail


# ------------------------------------------------------------------------------------------------ names and old values


def test_two_columns_that_swapped_names_keep_their_values(catalog: SqlCatalog) -> None:
    schema = Schema(NestedField(1, "a", LongType(), required=False), NestedField(2, "b", LongType(), required=False))
    table = catalog.create_table("ns.t", schema)
    append(table, pl.DataFrame({"a": [1], "b": [2]}))
    for old, new in (("a", "c"), ("b", "a"), ("c", "b")):
        with table.update_schema() as update:
            update.rename_column(old, new)
    assert list(open_iceberg(table, NAME).stored) == ["b", "a"]
    assert read(table) == [(1, 2)]
    assert read(table, pl.col("a") == 2) == [(1, 2)]
    assert read(table, pl.col("a") == 1) == []


def with_fields(table: Table, change: Callable[[list[dict[str, Any]]], None]) -> Table:
    """The table in format version 3, which pyiceberg reads but does not write, with changed fields."""
    metadata = json.loads(table.metadata.model_dump_json())
    metadata |= {"format-version": 3, "next-row-id": 0, "last-column-id": 100}
    change(metadata["schemas"][-1]["fields"])
    parsed = TableMetadataUtil.parse_obj(metadata)
    return Table(table.name(), parsed, table.metadata_location, table.io, table.catalog)


@pytest.mark.parametrize("predicate", [None, pl.col("day") < pl.datetime(1970, 1, 1)], ids=["all", "filtered"])
def test_files_of_dates_that_became_timestamps_are_refused_whatever_is_filtered(
    catalog: SqlCatalog, predicate: pl.Expr | None
) -> None:
    table = catalog.create_table("ns.t", Schema(NestedField(1, "day", DateType(), required=False)))
    append(table, pl.DataFrame({"day": [dt.date(1969, 12, 31), dt.date(2026, 1, 1)]}))
    table = with_fields(table, lambda fields: fields[0].update({"type": "timestamp"}))
    with pytest.raises(SchemaError, match="has a column of another type"), reading("history of s"):
        read(table, predicate)


def field(name: str) -> dict[str, Any]:
    return {"id": 50, "name": name, "required": False, "type": "long", "initial-default": 7, "write-default": 7}


def test_files_older_than_a_column_have_its_initial_default(catalog: SqlCatalog) -> None:
    table = catalog.create_table("ns.t", PAIR)
    append(table, pl.DataFrame({"a": [1], "b": ["x"]}))
    table = with_fields(table, lambda fields: fields.append(field("c")))
    assert read(table) == read(table, pl.col("c") == 7) == read(table, pl.col("c").is_not_null()) == [(1, "x", 7)]
    assert read(table, pl.col("c").is_null()) == read(table, pl.col("c") < 7) == []


@pytest.mark.parametrize(("column", "path"), [(1, "s.c"), (2, "l.element.c")], ids=["within-a-struct", "within-a-list"])
def test_an_initial_default_within_a_column_is_refused_not_read_as_null(
    catalog: SqlCatalog, column: int, path: str
) -> None:
    def add(fields: list[dict[str, Any]]) -> None:
        outer = fields[column]["type"]
        outer.get("element", outer)["fields"].append(field("c"))

    table = with_fields(catalog.create_table("ns.t", NESTED), add)
    with pytest.raises(UserError, match=f"table {NAME} has a field {path} with an initial default") as caught:
        open_iceberg(table, NAME)
    assert caught.value.code == "TABLE_UNSUPPORTED"


# ------------------------------------------------------------------------------------------------- partitions by time

BEFORE_1970 = dt.datetime(1969, 12, 31, 22, 30, tzinfo=dt.UTC)
"""In the last year, month and day before 1970, and the second last hour."""


@pytest.mark.parametrize(
    ("transform", "right"),
    [(YearTransform(), -1), (MonthTransform(), -1), (DayTransform(), -1), (HourTransform(), -2)],
    ids=["year", "month", "day", "hour"],
)
@pytest.mark.parametrize("late", [0, 1], ids=["rounded-down", "truncated-towards-zero"])
def test_pru_02_times_before_1970_are_found_in_either_partition(
    catalog: SqlCatalog, transform: Transform[Any, int], right: int, late: int
) -> None:
    schema = Schema(
        NestedField(1, "at", TimestamptzType(), required=False),
        NestedField(2, "local", TimestampType(), required=False),
    )
    spec = PartitionSpec(PartitionField(1, 1000, transform, "p"), PartitionField(2, 1001, transform, "q"))
    table = catalog.create_table("ns.t", schema, partition_spec=spec)
    after = dt.datetime(1999, 1, 1, tzinfo=dt.UTC)
    kind = table.schema().as_arrow()
    for at, values in ((BEFORE_1970, right + late), (after, transform.transform(TimestampType())(_micros(after)))):
        rows = pa.table({"at": [at], "local": [at.replace(tzinfo=None)]}, schema=kind)
        append_in_partition(table, rows, values, values)
    hour = dt.timedelta(hours=1)
    for column, value in ((pl.col("at"), BEFORE_1970), (pl.col("local"), BEFORE_1970.replace(tzinfo=None))):
        for predicate in (
            column == value,
            column <= value,
            column < value + hour,
            column.is_in([value, value - 9000 * hour]),
            column.is_between(value - hour, value + hour),
            ~(column > value),
        ):
            plan = open_iceberg(table, NAME).plan(HistoryQuery(predicate=predicate))
            assert plan.report.files == 1, predicate
            assert collect(plan)["at"].to_list() == [BEFORE_1970], predicate


def _micros(at: dt.datetime) -> int:
    return int(at.timestamp()) * 10**6
