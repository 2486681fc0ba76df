"""Small Iceberg tables on the local disk for tests of the history."""

from __future__ import annotations

import json
import struct
import uuid
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.conversions import to_bytes
from pyiceberg.expressions.literals import literal
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.partitioning import PartitionField
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.transforms import TruncateTransform
from pyiceberg.typedef import Record
from pyiceberg.types import DateType, IntegerType, LongType, TimestampType, TimestamptzType
from pyroaring import BitMap

from hybrid_source.history import HistoryPlan, HistorySplit

_FILE_PATH = 1
"""Place of a data file's name in its record (Iceberg spec, "Manifests")."""


def open_catalog(folder: Path) -> SqlCatalog:
    catalog = SqlCatalog("local", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
    catalog.create_namespace_if_not_exists("ns")
    return catalog


def arrow(frame: pl.DataFrame) -> pa.Table:
    return frame.to_arrow(compat_level=pl.CompatLevel.oldest())


def append(table: Table, *frames: pl.DataFrame) -> None:
    """Each frame becomes a data file (at least) and a snapshot."""
    schema = table.schema().as_arrow()
    for frame in frames:
        table.append(arrow(frame).cast(schema))


def collect(splits: list[HistorySplit] | HistoryPlan) -> pl.DataFrame:
    chosen = list(splits.splits_from()) if isinstance(splits, HistoryPlan) else splits
    return pl.concat([split.rows.collect(engine="streaming") for split in chosen])


def append_by_hand(table: Table, frame: pl.DataFrame) -> None:
    """Append as a Java writer would: one file per partition value; integers are truncated with wrapping subtraction.

    pyiceberg's own writer needs a further package for bucket and truncate, and does not wrap.
    """
    schema, spec = table.schema(), table.spec()
    by_partition: dict[tuple[Any, ...], list[int]] = {}
    for index, row in enumerate(frame.iter_rows(named=True)):
        values = tuple(_partition_value(schema, field, row) for field in spec.fields)
        by_partition.setdefault(values, []).append(index)
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as snapshot:
        for values, indices in by_partition.items():
            rows = arrow(frame[indices]).cast(schema.as_arrow())
            snapshot.append_data_file(_data_file(table, rows, Record(*values)))


def append_arrow(table: Table, rows: pa.Table) -> None:
    """Append to an unpartitioned table as it is: pyiceberg's own writer loses nulls in lists of structs."""
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as snapshot:
        snapshot.append_data_file(_data_file(table, rows, Record()))


def append_named(table: Table, rows: pa.Table, rename: Callable[[str], str]) -> str:
    """Append a file to an unpartitioned table, whose metadata call it by another name; gives that name."""
    file = _data_file(table, rows, Record())
    name = rename(file.file_path)
    file[_FILE_PATH] = name
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as snapshot:
        snapshot.append_data_file(file)
    return name


def append_in_partition(table: Table, rows: pa.Table, *values: Any) -> None:
    """Append rows as they are, under a partition that the writer says is theirs."""
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as snapshot:
        snapshot.append_data_file(_data_file(table, rows, Record(*values)))


def append_files(table: Table, *frames: pl.DataFrame, facts: dict[str, str] | None = None) -> None:
    """Append to an unpartitioned table: one snapshot, with ``facts`` in its summary; a data file of each frame."""
    with table.transaction() as transaction, transaction.update_snapshot(facts or {}).fast_append() as snapshot:
        for frame in frames:
            snapshot.append_data_file(_data_file(table, arrow(frame).cast(table.schema().as_arrow()), Record()))


def rewrite_file(table: Table, path: str, frame: pl.DataFrame) -> None:
    """Overwrite a file of an unpartitioned table by another one in one snapshot, as Spark does (copy-on-write)."""
    old = next(task.file for task in table.scan().plan_files() if task.file.file_path == path)
    with table.transaction() as transaction, transaction.update_snapshot().overwrite() as snapshot:
        snapshot.delete_data_file(old)
        snapshot.append_data_file(_data_file(table, arrow(frame).cast(table.schema().as_arrow()), Record()))


def _partition_value(schema: Schema, field: PartitionField, row: dict[str, Any]) -> Any:
    source = schema.find_field(field.source_id)
    value = row[source.name]
    if value is None:
        return None
    if isinstance(source.field_type, (TimestampType, TimestamptzType, DateType)):
        value = literal(value.isoformat()).to(source.field_type).value
    out = field.transform.transform(source.field_type)(value)
    bits = {IntegerType: 32, LongType: 64}.get(type(source.field_type))
    if bits and isinstance(field.transform, TruncateTransform):
        out = (out + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)
    return out


def append_with_bounds(table: Table, rows: pa.Table, bounds: dict[str, tuple[int, int]]) -> None:
    """Append to an unpartitioned table, with bounds of nested columns, which pyiceberg's writer leaves out."""
    known: dict[str, dict[int, bytes]] = {"lower_bounds": {}, "upper_bounds": {}}
    for name, (low, high) in bounds.items():
        field = table.schema().find_field(name)
        known["lower_bounds"][field.field_id] = to_bytes(field.field_type, low)
        known["upper_bounds"][field.field_id] = to_bytes(field.field_type, high)
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as snapshot:
        snapshot.append_data_file(_data_file(table, rows, Record(), known))


def _data_file(
    table: Table,
    rows: pa.Table,
    partition: Record,
    bounds: dict[str, dict[int, bytes]] | None = None,
    keys: list[int] | None = None,
) -> DataFile:
    path = f"{table.location()}/data/{uuid.uuid4()}.parquet"
    output = table.io.new_output(path)
    with output.create() as stream:
        pq.write_table(rows, stream)
    with table.io.new_input(path).open() as stream:
        footer = pq.read_metadata(stream)
    statistics = data_file_statistics_from_parquet_metadata(
        footer,
        compute_statistics_plan(table.schema(), table.metadata.properties),
        parquet_path_to_id_mapping(table.schema()),
    )
    file = DataFile.from_args(
        content=DataFileContent.EQUALITY_DELETES if keys else DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=partition,
        file_size_in_bytes=len(output),
        sort_order_id=None,
        equality_ids=keys,
        key_metadata=None,
        **{**statistics.to_serialized_dict(), **(bounds or {})},
    )
    file.spec_id = table.spec().spec_id
    return file


def position_deletes(table: Table, rows: list[tuple[str, int]]) -> DataFile:
    """A position delete file (Iceberg spec v2) over (path, position) pairs."""
    schema = pa.schema(
        [
            pa.field("file_path", pa.string(), nullable=False, metadata={b"PARQUET:field_id": b"2147483546"}),
            pa.field("pos", pa.int64(), nullable=False, metadata={b"PARQUET:field_id": b"2147483545"}),
        ]
    )
    paths = sorted({path for path, _ in rows})
    bounds = {2147483546: paths[0].encode()}, {2147483546: paths[-1].encode()}
    columns = {"file_path": [path for path, _ in sorted(rows)], "pos": [position for _, position in sorted(rows)]}
    return _delete_file(table, pa.table(columns, schema=schema), bounds)


def equality_deletes(table: Table, rows: pl.DataFrame, keys: list[str], partition: Record | None = None) -> DataFile:
    """An equality delete file (Iceberg spec v2) by some columns of rows that may have others, too."""
    schema = table.schema()
    known = pa.schema([schema.as_arrow().field(name) for name in rows.columns])
    ids = [schema.find_field(name).field_id for name in keys]
    return _data_file(table, arrow(rows).cast(known), partition or Record(), keys=ids)


def add_deletes(
    table: Table, *files: DataFile, rows: pl.DataFrame | None = None, partition: Record | None = None
) -> None:
    """Commit delete files (pyiceberg has no writer for them), and rows in the same snapshot."""
    operation = Operation.DELETE if rows is None else Operation.OVERWRITE
    with table.transaction() as transaction:
        producer = RowDelta(operation, transaction, table.io, uuid.uuid4(), snapshot_properties={}, branch="main")
        producer.deletes = list(files)
        if rows is not None:
            data = arrow(rows).cast(table.schema().as_arrow())
            producer.append_data_file(_data_file(table, data, partition or Record()))
        producer.commit()


class RowDelta(_FastAppendFiles):  # type: ignore[misc]
    deletes: list[DataFile]

    def _manifests(self) -> list[ManifestFile]:
        class DeleteManifestWriter(ManifestWriterV2):
            def content(self) -> ManifestContent:
                return ManifestContent.DELETES

            @property
            def _meta(self) -> dict[str, str]:
                return {**super()._meta, "content": "deletes"}

        with DeleteManifestWriter(
            self.spec(self.deletes[0].spec_id),
            self.schema(),
            self.new_manifest_output(),
            self._snapshot_id,
            self._compression,
        ) as writer:
            for file in self.deletes:
                writer.add_entry(
                    ManifestEntry.from_args(
                        status=ManifestEntryStatus.ADDED,
                        snapshot_id=self._snapshot_id,
                        sequence_number=None,
                        file_sequence_number=None,
                        data_file=file,
                    )
                )
        return [writer.to_manifest_file(), *super()._manifests()]


def _delete_file(
    table: Table,
    rows: pa.Table,
    bounds: tuple[dict[int, bytes], dict[int, bytes]],
) -> DataFile:
    path = f"{table.location()}/data/{uuid.uuid4()}-deletes.parquet"
    output = table.io.new_output(path)
    with output.create() as stream:
        pq.write_table(rows, stream)
    file = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=rows.num_rows,
        file_size_in_bytes=len(output),
        lower_bounds=bounds[0],
        upper_bounds=bounds[1],
        equality_ids=None,
        column_sizes=None,
        value_counts=None,
        null_value_counts=None,
        nan_value_counts=None,
        key_metadata=None,
        split_offsets=None,
        sort_order_id=None,
    )
    file.spec_id = table.spec().spec_id
    return file


def append_arrow_without(table: Table, frame: pl.DataFrame, name: str, value: Any) -> None:
    """Append a file that lacks a column which is identity-partitioned with ``value``, as migrated Hive files do."""
    schema = table.schema().as_arrow()
    kept = pa.schema([field for field in schema if field.name != name])
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as snapshot:
        snapshot.append_data_file(_data_file(table, arrow(frame).cast(kept), Record(value)))


def write_puffin(path: Path, deleted: dict[str, list[int]], repeat: int = 1) -> None:
    """A Puffin file of deletion vectors (Iceberg Puffin spec, ``deletion-vector-v1``)."""
    body = b"PFA1"
    blobs = []
    for name, positions in [*deleted.items()] * repeat:
        bitmap = b"\xd1\xd3\x39\x64" + struct.pack("<QI", 1, 0) + BitMap(positions).serialize()
        blob = struct.pack(">I", len(bitmap)) + bitmap + struct.pack(">I", zlib.crc32(bitmap))
        blobs.append(
            {
                "type": "deletion-vector-v1",
                "fields": [],
                "snapshot-id": -1,
                "sequence-number": -1,
                "offset": len(body),
                "length": len(blob),
                "properties": {"referenced-data-file": name, "cardinality": str(len(positions))},
            }
        )
        body += blob
    footer = json.dumps({"blobs": blobs}).encode()
    path.write_bytes(body + b"PFA1" + footer + struct.pack("<I", len(footer)) + bytes(4) + b"PFA1")
