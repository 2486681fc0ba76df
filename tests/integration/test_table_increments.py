"""Increments of a table on the catalogs that people use: what snapshots appended, and nothing else."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField, TimestamptzType

from headrace.kernel.errors import DataError, IdentityError, SnapshotGoneError
from headrace.kernel.protocols import ReadRequest
from hybrid_source.history import HistoryQuery
from hybrid_source.iceberg_history import open_iceberg
from hybrid_source.iceberg_increments import CHANGED, NOT_AN_ANCESTOR, OnChange
from hybrid_source.iceberg_pins import whole_pin
from hybrid_source.iceberg_versions import newer_pin
from hybrid_source.source_values import END_OF_HISTORY, EventTime
from hybrid_source.splits import SplitTarget
from hybrid_source.table_source import TableSource
from tests.history_tables import add_deletes as commit_deletes
from tests.history_tables import append, collect, open_catalog, position_deletes
from tests.lake import compact
from tests.services import CatalogCase

NEW_YEAR = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
EVENTS = Schema(
    NestedField(1, "id", LongType(), required=False), NestedField(2, "at", TimestamptzType(), required=False)
)
MERGING = {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2", "format-version": "2"}


def events(*ids: int) -> pl.DataFrame:
    return pl.DataFrame(
        {"id": ids, "at": [NEW_YEAR + dt.timedelta(minutes=i) for i in ids]},
        schema={"id": pl.Int64, "at": pl.Datetime("us", "UTC")},
    )


def head(table: Table) -> int:
    found = table.refresh().current_snapshot()
    assert found is not None
    return found.snapshot_id


def ids(table: Table, since: int, to: int | None = None, on_change: OnChange = "fail", **query: Any) -> list[int]:
    history = open_iceberg(table.refresh(), "t", snapshot_id=to, since=since, on_change=on_change)
    splits = list(history.plan(HistoryQuery(**query)).splits_from())
    return list(collect(splits)["id"]) if splits else []


@pytest.fixture
def local(tmp_path: Path) -> Any:
    catalog = open_catalog(tmp_path)
    yield catalog.create_table("ns.t", EVENTS, properties=MERGING)
    catalog.close()


def test_snp_01_an_increment_is_what_was_appended_whatever_compaction_did_since(catalog: CatalogCase) -> None:
    table = catalog.client.create_table(catalog.identifier("t"), EVENTS, properties=MERGING)
    append(table, events(1, 2))
    first = head(table)
    append(table, events(9), events(5))
    middle = head(table)
    compact(table)
    table.refresh()
    append(table, events(7))
    pin = newer_pin(table.refresh(), "t", open_iceberg(table, "t", snapshot_id=first).pin)
    assert pin["since"] == first
    assert pin["snapshot_id"] == head(table)
    again = open_iceberg(catalog.load().load_table(catalog.identifier("t")), "t", pin=json.loads(json.dumps(pin)))
    plan = again.plan(HistoryQuery(columns=["id"], event_time="at", target=SplitTarget(1, 1)))
    splits = list(plan.splits_from())
    assert list(collect(splits)["id"]) == [5, 7, 9]  # in event-time order, the compacted ones among them
    assert splits[0].watermark == int((NEW_YEAR + dt.timedelta(minutes=7)).timestamp() * 1e6) - 1
    assert splits[-1].watermark == END_OF_HISTORY
    rest = list(again.plan(HistoryQuery(columns=["id"], event_time="at")).splits_from(splits[0].cursor))
    assert list(collect(rest)["id"]) == [7, 9]
    assert ids(table, middle) == [7]
    assert ids(table, first, middle, event_time="at") == [5, 9]
    assert sorted(collect(open_iceberg(table, "t", pin=whole_pin(pin)).plan(HistoryQuery()))["id"]) == [1, 2, 5, 7, 9]
    assert newer_pin(table.refresh(), "t", pin) is None


def test_an_increment_is_pruned_and_reads_its_own_manifests_only(local: Table) -> None:
    append(local, *(events(n) for n in range(6)))
    since = head(local)
    append(local, events(10, 11), events(20, 21))
    history = open_iceberg(local.refresh(), "t", since=since)
    plan = history.plan(HistoryQuery(predicate=pl.col("id") > 15))
    assert (plan.report.files, plan.report.files_total, plan.report.records_total) == (1, 2, 4)
    assert list(collect(plan)["id"]) == [20, 21]
    assert sorted(low for ((low, _),) in history.bounds(["id"])) == [10, 20]
    assert not history.is_empty
    assert open_iceberg(local, "t", since=head(local)).is_empty


def test_changes_are_refused_by_name_or_passed_over_as_declared(catalog: CatalogCase) -> None:
    table = catalog.client.create_table(catalog.identifier("t"), EVENTS, properties=MERGING)
    append(table, events(1, 2))
    first = head(table)
    append(table, events(3, 4))
    table.delete("id = 3")
    changed = next(s for s in table.snapshots() if s.summary and s.summary.operation.value in {"delete", "overwrite"})
    append(table, events(5))
    with pytest.raises(DataError) as caught:
        ids(table, first)
    assert caught.value.code == CHANGED
    assert str(changed.snapshot_id) in caught.value.message
    assert changed.summary is not None
    assert f"operation is {changed.summary.operation.value}" in caught.value.message
    assert "on_change: skip" in caught.value.hint
    with pytest.raises(DataError, match="is no append"):
        newer_pin(table, "t", open_iceberg(table, "t", snapshot_id=first).pin)
    assert sorted(ids(table, first, on_change="skip")) == [3, 4, 5]
    assert ids(table, changed.snapshot_id) == [5]


def test_an_append_with_delete_files_is_a_change(local: Table) -> None:
    append(local, events(1, 2))
    since = head(local)
    path = local.inspect.files()["file_path"][0].as_py()
    commit_deletes(local, position_deletes(local, [(path, 0)]))
    with pytest.raises(DataError, match="is no append"):
        ids(local, since)


def test_a_compaction_alone_is_an_increment_without_rows(local: Table) -> None:
    append(local, events(1), events(2))
    pin = open_iceberg(local.refresh(), "t").pin
    compact(local)
    newer = newer_pin(local.refresh(), "t", pin)
    assert newer["snapshot_id"] == head(local) != pin["snapshot_id"]
    history = open_iceberg(local, "t", pin=newer)
    assert history.is_empty
    assert history.plan(HistoryQuery(event_time="at")).watermark() == END_OF_HISTORY


def test_the_increment_after_an_empty_table_is_all_of_it(local: Table) -> None:
    pin = open_iceberg(local, "t").pin
    assert newer_pin(local, "t", pin) is None
    append(local, events(1), events(2))
    newer = newer_pin(local.refresh(), "t", pin)
    assert "since" not in newer
    assert sorted(collect(open_iceberg(local, "t", pin=newer).plan(HistoryQuery()))["id"]) == [1, 2]


def test_snp_01_snapshots_that_expired_unread_are_an_error(catalog: CatalogCase) -> None:
    table = catalog.client.create_table(catalog.identifier("t"), EVENTS, properties=MERGING)
    append(table, events(1))
    first = head(table)
    append(table, events(2))
    middle = head(table)
    append(table, events(3))
    table.manage_snapshots().create_tag(first, "kept").commit()
    table.maintenance.expire_snapshots().by_id(middle).commit()
    with pytest.raises(SnapshotGoneError, match=f"after {first} have been expired"):
        ids(table, first)
    with pytest.raises(SnapshotGoneError):
        newer_pin(table.refresh(), "t", {**open_iceberg(table, "t").pin, "snapshot_id": 7})


def test_a_rolled_back_table_has_no_increment(catalog: CatalogCase) -> None:
    table = catalog.client.create_table(catalog.identifier("t"), EVENTS, properties=MERGING)
    append(table, events(1))
    first = head(table)
    append(table, events(2))
    read = head(table)
    table.manage_snapshots().rollback_to_snapshot(first).commit()
    table.refresh()
    append(table, events(3))
    with pytest.raises(DataError) as caught:
        ids(table, read)
    assert caught.value.code == NOT_AN_ANCESTOR
    assert caught.value.context["wanted"] == str(read)
    assert ids(table, first) == [3]


def test_a_table_is_followed_snapshot_by_snapshot(catalog: CatalogCase) -> None:
    table = catalog.client.create_table(catalog.identifier("t"), EVENTS, properties=MERGING)
    append(table, events(1, 2))

    def load() -> Table:
        return catalog.client.load_table(catalog.identifier("t"))

    schema = pl.Schema({"id": pl.Int64(), "at": pl.Datetime("us", "UTC")})
    source = TableSource("s", "t", load, schema, history=True, event_time=EventTime("at"))
    request = ReadRequest(["id"], until="caught-up")
    reader = source.open(request, None)
    seen = [batch.rows.collect()["id"].to_list() for batch in iter(lambda: reader.poll(0), None)]
    append(table, events(3), events(4))
    compact(table.refresh())
    reader = source.open(request, json.loads(json.dumps(reader.position)))
    seen += [batch.rows.collect()["id"].to_list() for batch in iter(lambda: reader.poll(0), None)]
    assert seen == [[1, 2], [3], [4], []]  # the last one for the compaction: a position without rows
    assert reader.finished


def test_the_increment_of_another_table_is_refused(local: Table) -> None:
    append(local, events(1))
    pin = {**open_iceberg(local.refresh(), "t").pin, "table_uuid": "other"}
    with pytest.raises(IdentityError):
        newer_pin(local, "t", pin)
