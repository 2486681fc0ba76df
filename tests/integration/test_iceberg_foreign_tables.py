"""Tables that others made: their properties, required fields and names decide how the sink writes, or whether."""

from __future__ import annotations

import random
import re

import polars as pl
import pytest
from pyiceberg import types as ice
from pyiceberg.schema import Schema

from catalog.tables import create_table
from headrace.kernel.errors import UserError
from headrace.sinks.iceberg import IcebergWriter
from tests.lake import ROWS, Lake, epoch, rows


def run(writer: IcebergWriter, number: int, frame: pl.DataFrame) -> None:
    writer.write(frame)
    pre_commit = writer.prepare(epoch(number), None)
    assert pre_commit is not None
    writer.commit(pre_commit)


PROPERTIES = [
    ("write.parquet.compression-codec", "ZSTD", True),
    ("write.parquet.compression-codec", "lz4_raw", True),
    ("write.parquet.compression-codec", "uncompressed", True),
    ("write.parquet.compression-codec", "lzo", False),
    ("write.format.default", "PARQUET", True),
    ("write.target-file-size-bytes", "128MB", False),
    ("write.metadata.metrics.default", "truncate(4)", True),
    ("write.metadata.metrics.column.id", "most", False),
]


@pytest.mark.parametrize(("key", "value", "good"), PROPERTIES)
def test_properties_of_the_table_are_kept_or_refused_by_name(local: Lake, key: str, value: str, *, good: bool) -> None:
    create_table(local.catalogs, local.name, ROWS, properties={key: value})
    if good:
        writer = local.writer()
        writer.recover(None)
        run(writer, 1, rows(1, 2))
        assert local.ids() == [1, 2]
        return
    with pytest.raises(UserError, match=re.escape(key.rsplit(".", 1)[0])) as caught:
        local.writer()
    assert caught.value.code == "TABLE_PROPERTY"


def test_the_target_file_size_of_the_table_counts(local: Lake) -> None:
    create_table(local.catalogs, local.name, ROWS, properties={"write.target-file-size-bytes": "50000"})
    writer = local.writer()
    writer.recover(None)
    dice = random.Random(3)
    for number in (1, 2):  # the first file tells how far rows are compressed
        run(writer, number, rows(*(dice.getrandbits(62) for _ in range(20_000))))
    sizes = sorted(task.file.file_size_in_bytes for task in local.table().scan().plan_files())
    assert len(sizes) > 2, "the second epoch is in several files"
    assert sizes[1] < 100_000


def test_rows_whose_structs_are_null_fit_structs_with_required_fields(local: Lake) -> None:
    inner = ice.StructType(ice.NestedField(3, "x", ice.LongType(), required=True))
    kinds = pl.Schema({"id": pl.Int64(), "s": pl.Struct({"x": pl.Int64()})})
    catalog = local.catalogs.catalog("lake")
    catalog.create_namespace_if_not_exists(local.name.namespace)
    schema = Schema(ice.NestedField(1, "id", ice.LongType(), required=True), ice.NestedField(2, "s", inner))
    catalog.create_table(local.name.identifier, schema, properties={"format-version": "2"})
    writer = local.writer(schema=kinds)
    writer.recover(None)
    run(writer, 1, pl.DataFrame([{"id": 1, "s": {"x": 5}}, {"id": 2, "s": None}], schema=kinds))
    assert local.table().scan().to_arrow().to_pylist() == [{"id": 1, "s": {"x": 5}}, {"id": 2, "s": None}]


def test_partition_columns_with_dots_in_their_names(local: Lake) -> None:
    kinds = pl.Schema({"id": pl.Int64(), "a.b": pl.String(), "s": pl.Struct({"x.y": pl.Int64()})})
    writer = local.writer(schema=kinds, partition_by=["a.b", "bucket(4, s.x.y)"])
    writer.recover(None)
    values = [{"id": n, "a.b": f"p{n % 2}", "s": {"x.y": n}} for n in range(8)]
    run(writer, 1, pl.DataFrame(values, schema=kinds))
    assert local.ids() == list(range(8))
    assert {task.file.partition[0] for task in local.table().scan().plan_files()} == {"p0", "p1"}
