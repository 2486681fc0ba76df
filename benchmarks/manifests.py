"""A table of many data files that are only in its manifests: what planning reads of a table, without the data."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.typedef import Record
from pyiceberg.types import BinaryType, IntegerType, LongType, NestedField, StructType, TimestamptzType

from benchmarks.lake import properties

MANY: Final = "local.bench.many"
PARTITIONS: Final = 12
ROWS: Final = 1_000
_PER_SNAPSHOT: Final = 500
_SCHEMA: Final = Schema(
    NestedField(
        1,
        "redpanda",
        StructType(
            NestedField(3, "partition", IntegerType(), required=False),
            NestedField(4, "offset", LongType(), required=False),
            NestedField(5, "timestamp", TimestamptzType(), required=False),
            NestedField(6, "key", BinaryType(), required=False),
        ),
        required=False,
    ),
    NestedField(2, "value", BinaryType(), required=False),
)
"""As Redpanda lays out an Iceberg topic without a schema."""


def build(folder: Path, files: int) -> dict[int, int]:
    """Commit ``files`` data files that do not exist, each with one partition and its offsets' bounds.

    Returns:
        The next offset by partition: the boundary that is right.
    """
    catalog = SqlCatalog("local", **properties(folder))
    catalog.create_namespace_if_not_exists("bench")
    table = catalog.create_table(MANY.partition(".")[2], _SCHEMA)
    nexts = dict.fromkeys(range(min(PARTITIONS, files)), 0)
    for start in range(0, files, _PER_SNAPSHOT):
        with table.transaction() as transaction, transaction.update_snapshot().fast_append() as snapshot:
            for number in range(start, min(start + _PER_SNAPSHOT, files)):
                partition = number % PARTITIONS
                snapshot.append_data_file(_file(table, number, partition, nexts[partition]))
                nexts[partition] += ROWS
    catalog.close()
    return nexts


def _file(table: Table, number: int, partition: int, offset: int) -> DataFile:
    def bounds(offset_: int) -> dict[int, bytes]:
        return {3: to_bytes(IntegerType(), partition), 4: to_bytes(LongType(), offset_)}

    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"{table.location()}/data/{number:08d}.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=ROWS,
        file_size_in_bytes=ROWS * 100,
        column_sizes={3: 100, 4: 4_000, 5: 4_000, 6: 10_000, 2: 60_000},
        value_counts=dict.fromkeys((2, 3, 4, 5, 6), ROWS),
        null_value_counts=dict.fromkeys((2, 3, 4, 5, 6), 0),
        nan_value_counts=None,
        lower_bounds=bounds(offset),
        upper_bounds=bounds(offset + ROWS - 1),
        key_metadata=None,
        split_offsets=[4],
        equality_ids=None,
        sort_order_id=None,
    )
    file.spec_id = table.spec().spec_id
    return file
