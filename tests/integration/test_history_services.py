"""History on the catalogs and object stores that people use."""

from __future__ import annotations

import uuid

import polars as pl
import pyarrow as pa
import pyarrow.fs
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from headrace.kernel.errors import NotFoundError, SnapshotGoneError
from hybrid_source.history import HistoryQuery
from hybrid_source.iceberg_history import open_iceberg
from hybrid_source.lookup import IcebergLookup
from hybrid_source.parquet_history import open_parquet
from hybrid_source.splits import SplitTarget
from tests.history_tables import add_deletes, append, append_named, collect, position_deletes
from tests.services import CatalogCase, Stack

SCHEMA = Schema(NestedField(1, "id", LongType(), required=False), NestedField(2, "k", StringType(), required=False))
ODD = ["a b", "ß", "x/y", "50%", "a+b=c", "#?*[]"]
ROWS = pl.DataFrame({"id": range(len(ODD)), "k": ODD}, schema={"id": pl.Int64, "k": pl.String})


def test_partition_values_that_urls_would_change_are_read(catalog: CatalogCase) -> None:
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "k"))
    table = catalog.client.create_table(catalog.identifier("t"), SCHEMA, partition_spec=spec)
    append(table, ROWS)
    plan = open_iceberg(table, "t").plan(HistoryQuery(predicate=pl.col("k") != "ß"))
    assert sorted(collect(plan)["k"]) == sorted(set(ODD) - {"ß"})
    one = open_iceberg(table, "t").plan(HistoryQuery(predicate=pl.col("k") == "x/y"))
    assert one.report.files == 1
    assert collect(one)["k"].to_list() == ["x/y"]
    lookup = IcebergLookup("t", lambda: catalog.client.load_table(catalog.identifier("t")))
    assert lookup.load(lookup.pin()).height == len(ODD)


@pytest.mark.services
@pytest.mark.parametrize("catalog", ["lake", "postgres"], indirect=True)  # whose files are on S3
@pytest.mark.parametrize("scheme", ["s3a", "s3n"])
def test_files_and_deletes_under_hadoops_names_of_s3_are_read(catalog: CatalogCase, scheme: str) -> None:
    table = catalog.client.create_table(catalog.identifier("t"), SCHEMA)
    rows = pa.table({"id": [1, 2, 3], "k": ["a", "b", "c"]}, schema=table.schema().as_arrow())
    path = append_named(table, rows, lambda name: scheme + name.removeprefix("s3"))
    assert path.startswith(f"{scheme}://")
    add_deletes(table, position_deletes(table, [(path, 1)]))
    assert collect(open_iceberg(table, "t").plan(HistoryQuery()))["k"].to_list() == ["a", "c"]


def test_snp_01_a_missing_file_is_named(catalog: CatalogCase) -> None:
    table = catalog.client.create_table(catalog.identifier("t"), SCHEMA)
    append(table, ROWS[:3], ROWS[3:])
    splits = open_iceberg(table, "t").plan(HistoryQuery(target=SplitTarget(3, 1 << 30))).splits_from()
    next(splits)
    for path in table.inspect.files()["file_path"].to_pylist():
        table.io.delete(path)
    with pytest.raises(SnapshotGoneError, match="no longer available"):
        _ = [split.rows for split in splits]


@pytest.mark.services
def test_parquet_files_on_s3(stack: Stack) -> None:
    s3 = stack.endpoints.s3
    assert s3 is not None
    storage = {
        "endpoint_url": s3.endpoint,
        "aws_access_key_id": s3.access_key,
        "aws_secret_access_key": s3.secret_key,
        "region_name": s3.region,
    }
    store = pyarrow.fs.S3FileSystem(
        endpoint_override=s3.endpoint, access_key=s3.access_key, secret_key=s3.secret_key, region=s3.region
    )
    folder = f"{s3.bucket}/history-{uuid.uuid4().hex}"
    for name, rows in (("day=1/a b%20.parquet", ROWS[:4]), ("day=2/b.parquet", ROWS[4:])):
        with store.open_output_stream(f"{folder}/{name}") as stream:
            rows.write_parquet(stream)
    for pattern in (f"s3://{folder}", f"s3://{folder}/*/*.parquet", f"s3://{folder}/**/*.parquet"):
        history = open_parquet(pattern, storage=storage)
        assert sorted(collect(history.plan(HistoryQuery()))["k"]) == sorted(ODD)
    pin = history.pin
    store.delete_file(f"{folder}/day=2/b.parquet")
    with pytest.raises(SnapshotGoneError, match=r"b\.parquet is gone"):
        open_parquet(pattern, storage=storage, pin=pin)
    with pytest.raises(NotFoundError):
        open_parquet(f"s3://{folder}/none/*.parquet", storage=storage)
