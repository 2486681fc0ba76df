"""What the scans of splits rely on in Polars beyond its public promises."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType

from hybrid_source.history import HistoryQuery
from hybrid_source.iceberg_history import open_iceberg
from tests.history_tables import append_arrow_without, collect, open_catalog

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "region", StringType(), required=False),
    NestedField(3, "small", IntegerType(), required=False),
)


def test_identity_partition_values_stand_in_for_columns_that_the_files_lack(tmp_path: Path) -> None:
    """Files that were migrated from Hive hold no partition columns (Iceberg spec, Column Projection)."""
    catalog = open_catalog(tmp_path)
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"))
    table = catalog.create_table("ns.t", SCHEMA, partition_spec=spec)
    for region, ids in (("eu", [1, 2]), ("us", [3]), (None, [4])):
        append_arrow_without(table, pl.DataFrame({"id": ids, "small": [0] * len(ids)}), "region", region)
    found = collect(open_iceberg(table, "t").plan(HistoryQuery(["id", "region"]))).sort("id")
    assert found.rows() == [(1, "eu"), (2, "eu"), (3, "us"), (4, None)]
    only = collect(open_iceberg(table, "t").plan(HistoryQuery(["id"], predicate=pl.col("region") == "us")))
    assert only.rows() == [(3,)]
    catalog.close()


@pytest.mark.parametrize("engine", ["streaming", "in-memory"])
def test_a_slice_comes_before_the_filter_that_follows_it(tmp_path: Path, engine: str) -> None:
    pl.DataFrame({"a": range(100)}).write_parquet(tmp_path / "f.parquet", row_group_size=10)
    rows = pl.scan_parquet(tmp_path / "f.parquet").slice(15, 20).filter(pl.col("a") % 2 == 0, pl.col("a") > 18)
    assert rows.collect(engine=engine)["a"].to_list() == [20, 22, 24, 26, 28, 30, 32, 34]


def test_local_paths_are_taken_literally_without_the_scheme(tmp_path: Path) -> None:
    """With ``file://`` Polars decodes ``%XX``, which writers leave in the names on the disk."""
    path = tmp_path / "p=%C3%9F+ #?*[x].parquet"
    pl.DataFrame({"a": [1]}).write_parquet(path)
    assert pl.scan_parquet([str(path)], glob=False).collect().height == 1
    with pytest.raises(FileNotFoundError):
        pl.scan_parquet([f"file://{path}"], glob=False).collect()


def test_a_frame_without_columns_loses_its_height(tmp_path: Path) -> None:
    pl.DataFrame({"a": [1, 2]}).write_parquet(tmp_path / "f.parquet")
    assert pl.scan_parquet(tmp_path / "f.parquet").select([]).collect(engine="streaming").height == 0
