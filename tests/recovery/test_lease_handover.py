"""A hybrid job lets its lease go once the handover is durable and no retained checkpoint needs the history."""

from __future__ import annotations

import signal

import polars as pl
import pytest

from catalog.leases import find_leases
from tests.jobs import PLACES, Site, assert_same, readings, source, window_batch, windows_job

HISTORY, TAIL, EPOCH_ROWS, RETAINED = 200, 300, 50, 2

pytestmark = pytest.mark.services


def leased(site: Site, table: str) -> list[str | None]:
    """The sources and static tables of jobs that hold leases on a table."""
    return [lease.holder for lease in find_leases(site.catalogs.load(site.name(table)))]


def test_the_lease_ends_after_the_handover(any_site: Site) -> None:
    site, rows = any_site, readings(HISTORY + TAIL)
    topic, target = site.kafka.topic(2), site.kafka.topic()
    site.produce(topic, rows, 2)
    for begin in range(0, HISTORY, EPOCH_ROWS):
        history = site.table("history", rows[begin : begin + EPOCH_ROWS])
    read = source(topic, history, boundary={"offsets": dict.fromkeys(range(2), HISTORY // 2)})
    read["tail"]["rate_limit"] = 2 * EPOCH_ROWS  # or all of it would be one epoch
    read["history"]["split_rows"] = EPOCH_ROWS
    spec = windows_job("lease", read, site.table("places", PLACES), table=site.name("minutes"), topic=target)
    job = site.job({**spec, "checkpoint": {"rows": EPOCH_ROWS, "retain": RETAINED}})

    assert site.run(job, crash="after-commit:1").end() == -signal.SIGKILL
    site.table("history", rows[:1])  # other writers go on, and somebody expires what nothing holds
    table = site.catalogs.load(history)
    kept = {ref.snapshot_id for ref in table.metadata.refs.values()}
    table.maintenance.expire_snapshots().by_ids(
        [snapshot.snapshot_id for snapshot in table.snapshots() if snapshot.snapshot_id not in kept]
    ).commit()
    assert (leased(site, "history"), leased(site, "places")) == (["readings"], ["places"])

    site.finish(job, "--on-end", "suspend")
    assert (leased(site, "history"), leased(site, "places")) == ([], ["places"])
    site.finish(job)
    assert leased(site, "places") == []
    assert_same(site.read("minutes"), window_batch(rows), "windows")
    assert site.records(target).filter(pl.col("n") == 0).height == 0
