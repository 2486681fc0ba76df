"""What has happened to a table between two of its versions: whether rows were only added."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from hybrid_source.iceberg_history import open_iceberg
from hybrid_source.iceberg_versions import changed_between
from tests.history_tables import append, arrow, open_catalog

if TYPE_CHECKING:
    from pathlib import Path

    from pyiceberg.table import Table

    from headrace.kernel.protocols import Json

NAME = "local.ns.t"


def rows(first: int, next_: int) -> pl.DataFrame:
    return pl.DataFrame({"id": range(first, next_)}, schema={"id": pl.Int64()})


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return open_catalog(tmp_path).create_table("ns.t", Schema(NestedField(1, "id", LongType(), required=False)))


def pin(table: Table) -> Json:
    return open_iceberg(table, NAME).pin


def test_rows_that_are_added_change_nothing(table: Table) -> None:
    empty = pin(table)
    append(table, rows(0, 3))
    first = pin(table)
    append(table, rows(3, 5), rows(5, 6))
    for since in (empty, first, pin(table)):
        assert not changed_between(table, NAME, since, pin(table))


@pytest.mark.parametrize("change", ["delete", "overwrite"])
def test_rows_that_are_deleted_or_overwritten_are_named_by_their_snapshot(table: Table, change: str) -> None:
    append(table, rows(0, 3))
    first = pin(table)
    if change == "delete":
        table.delete("id = 1")
    else:
        table.overwrite(arrow(rows(7, 9)).cast(table.schema().as_arrow()))
    changed = pin(table)
    append(table, rows(3, 5))
    said = changed_between(table, NAME, first, pin(table))
    assert NAME in said
    assert "operation" in said
    assert not changed_between(table, NAME, changed, pin(table))


def test_of_expired_snapshots_those_that_are_left_are_looked_at(table: Table) -> None:
    append(table, rows(0, 3))
    first = pin(table)
    append(table, rows(3, 5))
    expire(table, first)
    append(table, rows(5, 6))
    expire(table, {"snapshot_id": table.metadata.snapshots[0].snapshot_id})
    assert not changed_between(table, NAME, first, pin(table))
    table.delete("id = 4")
    assert changed_between(table, NAME, first, pin(table))


def test_a_table_that_was_created_again_has_changed(table: Table) -> None:
    append(table, rows(0, 3))
    assert "not the one" in changed_between(table, NAME, {**pin(table), "table_uuid": "another"}, pin(table))


def expire(table: Table, pinned: Any) -> None:
    table.maintenance.expire_snapshots().by_id(pinned["snapshot_id"]).commit()
    table.refresh()
