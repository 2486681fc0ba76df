"""Leases on the catalogs that people use: expiry spares what is leased, and only that."""

from __future__ import annotations

import datetime as dt

import polars as pl
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField

from catalog.catalogs import Catalogs, TableName
from catalog.leases import DAY_US, TTL_US, Lease, find_leases, own_prefix, release, take
from headrace.kernel.errors import SnapshotGoneError
from tests.history_tables import append
from tests.services import CatalogCase

ROWS = pl.DataFrame({"id": [1]})
SCHEMA = Schema(NestedField(1, "id", LongType(), required=False))
EAGER = {"history.expire.max-ref-age-ms": "1", "history.expire.min-snapshots-to-keep": "1"}


def now_us() -> int:
    return int(dt.datetime.now(dt.UTC).timestamp() * 1e6)


def expire(table: Table) -> list[int]:
    """Expire all that may be expired; gives the snapshots that are left."""
    table.refresh().maintenance.expire_snapshots().older_than(dt.datetime.now() + dt.timedelta(days=1)).commit()  # noqa: DTZ005
    return [snapshot.snapshot_id for snapshot in table.refresh().snapshots()]


def test_expiry_spares_a_leased_snapshot_until_it_is_released(catalog: CatalogCase) -> None:
    table = catalog.client.create_table(catalog.identifier("t"), SCHEMA, properties=EAGER)
    append(table, ROWS, ROWS, ROWS)
    first, second, head = [snapshot.snapshot_id for snapshot in table.refresh().snapshots()]
    catalogs = Catalogs({catalog.name: catalog.properties})
    name = TableName.parse(f"{catalog.name}.{catalog.identifier('t')}")
    lease, other = Lease.of("job", "events", first, now_us()), Lease.of("other", "events", first, now_us())
    for wanted in (lease, lease, other):  # twice is once; two jobs hold two
        take(catalogs, name, wanted)
    assert expire(table) == [first, head]  # the second one is gone: it had no lease
    found = {held.name: held for held in find_leases(table)}
    assert set(found) == {lease.name, other.name}
    assert found[lease.name].job == "job"
    assert found[lease.name].holder == "events"
    assert abs((found[lease.name].until_us or 0) - (lease.until_us or 0)) < 1000
    assert lease.name.startswith(own_prefix("job"))
    release(catalogs, name, [lease.name, "headrace-lease-unknown"])
    assert expire(table) == [first, head]
    release(catalogs, name, [other.name])
    release(catalogs, name, [other.name])
    assert expire(table) == [head]
    assert not [key for key in table.refresh().properties if key.startswith("headrace-lease-")]
    with pytest.raises(SnapshotGoneError, match=str(second)):
        take(catalogs, name, Lease.of("job", "events", second, now_us()))
    catalogs.close()


def test_a_lease_ends_a_week_after_it_was_renewed_however_old_the_snapshot_is(catalog: CatalogCase) -> None:
    table = catalog.client.create_table(catalog.identifier("t"), SCHEMA)
    append(table, ROWS)
    snapshot = table.refresh().current_snapshot().snapshot_id
    catalogs = Catalogs({catalog.name: catalog.properties})
    name = TableName.parse(f"{catalog.name}.{catalog.identifier('t')}")
    later = now_us() + 400 * DAY_US
    for taken in (now_us(), later):
        take(catalogs, name, Lease.of("job", "events", snapshot, taken))
        (found,) = find_leases(table.refresh())
        assert not found.is_due(taken + DAY_US - 1_000_000)
        assert found.is_due(taken + DAY_US + 1_000_000)
        assert not found.is_stale(taken + TTL_US - 1_000_000)
        assert found.is_stale(taken + TTL_US)
    take(catalogs, name, Lease.of("job", "events", snapshot, now_us()))  # an older renewal takes nothing back
    assert not find_leases(table.refresh())[0].is_stale(later)
    catalogs.close()
