"""Lookup tables: pinned once, loaded whole, the same rows for the life of a lineage."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from headrace.kernel.errors import IdentityError, SnapshotGoneError
from hybrid_source.lookup import IcebergLookup, ParquetLookup
from tests.history_tables import append, open_catalog

SCHEMA = Schema(
    NestedField(1, "carrier", StringType(), required=False), NestedField(2, "_kafka_offset", LongType(), required=False)
)
FIRST = pl.DataFrame({"carrier": ["AA"], "_kafka_offset": [4]})
SECOND = pl.DataFrame({"carrier": ["UA"], "_kafka_offset": [5]})


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[SqlCatalog]:
    opened = open_catalog(tmp_path)
    yield opened
    opened.close()


def test_an_iceberg_lookup_is_pinned_by_snapshot(catalog: SqlCatalog) -> None:
    table = catalog.create_table("ns.l", SCHEMA)
    append(table, FIRST)
    lookup = IcebergLookup("local.ns.l", lambda: catalog.load_table("ns.l"))
    pin = json.loads(json.dumps(lookup.pin()))
    append(table, SECOND)
    assert_frame_equal(lookup.load(pin), FIRST)
    assert lookup.load(lookup.pin()).height == 2
    assert lookup.schema == FIRST.schema


def test_an_empty_iceberg_lookup_keeps_its_columns(catalog: SqlCatalog) -> None:
    catalog.create_table("ns.l", SCHEMA)
    lookup = IcebergLookup("local.ns.l", lambda: catalog.load_table("ns.l"))
    assert_frame_equal(lookup.load(lookup.pin()), FIRST.clear())


def test_a_lookup_that_is_gone_is_an_error(catalog: SqlCatalog) -> None:
    table = catalog.create_table("ns.l", SCHEMA)
    append(table, FIRST)
    lookup = IcebergLookup("local.ns.l", lambda: catalog.load_table("ns.l"))
    pin = lookup.pin()
    append(table, SECOND)
    table.maintenance.expire_snapshots().by_id(pin["snapshot_id"]).commit()
    with pytest.raises(SnapshotGoneError, match=r"local\.ns\.l"):
        lookup.load(pin)
    catalog.drop_table("ns.l")
    catalog.create_table("ns.l", SCHEMA)
    with pytest.raises(IdentityError):
        lookup.load(pin)


def test_a_parquet_lookup_is_pinned_by_its_listing(tmp_path: Path) -> None:
    FIRST.write_parquet(tmp_path / "a.parquet")
    lookup = ParquetLookup(str(tmp_path))
    pin = json.loads(json.dumps(lookup.pin()))
    SECOND.write_parquet(tmp_path / "b.parquet")
    assert_frame_equal(lookup.load(pin), FIRST)
    assert lookup.schema == FIRST.schema
    pl.concat([FIRST, SECOND]).write_parquet(tmp_path / "a.parquet")
    with pytest.raises(SnapshotGoneError, match=r"a\.parquet has changed"):
        lookup.load(pin)
