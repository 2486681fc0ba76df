"""Several writers of one Iceberg table at the same time: jobs, owners, compaction, schema changes (SNK-02)."""

from __future__ import annotations

import threading
from contextlib import suppress

from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.types import StringType

from catalog.tables import create_table
from headrace.kernel.protocols import EpochId
from tests.lake import ROWS, Blobs, Lake, compact, epoch, rows


def test_two_owners_race_on_an_empty_table(lake: Lake) -> None:
    one, two = lake.writer(), lake.writer()
    one.recover(None)
    two.recover(None)
    one.write(rows(1))
    two.write(rows(1))
    prepared = [one.prepare(epoch(1, attempt="a"), None), two.prepare(epoch(1, attempt="b"), None)]
    threads = [
        threading.Thread(target=writer.commit, args=(pre,)) for writer, pre in zip((one, two), prepared, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lake.ids() == [1]


def appending(lake: Lake, count: int, failures: list[BaseException]) -> list[threading.Thread]:
    """Two jobs that append ``count`` epochs of one row each, at work."""

    def job(name: str, first: int) -> None:
        try:
            writer = lake.writer(job=name, blobs=Blobs())
            writer.recover(None)
            for number in range(1, count + 1):
                writer.write(rows(first + number))
                pre_commit = writer.prepare(EpochId(name, "L1", number, "a"), None)
                assert pre_commit is not None
                writer.commit(pre_commit)
        except BaseException as error:  # noqa: BLE001 - shown by the caller's assertion
            failures.append(error)

    threads = [threading.Thread(target=job, args=(f"job-{n}", 100 * n)) for n in (1, 2)]
    for thread in threads:
        thread.start()
    return threads


def test_snk_02_two_jobs_and_a_schema_change_on_one_table(lake: Lake) -> None:
    create_table(lake.catalogs, lake.name, ROWS)
    failures: list[BaseException] = []
    threads = appending(lake, 10, failures)
    add_note(lake)
    for thread in threads:
        thread.join()
    assert failures == []
    assert lake.ids() == [*range(101, 111), *range(201, 211)]
    facts = [s.summary.additional_properties for s in lake.data_snapshots()]
    assert len({(f["headrace.job"], f["headrace.epoch"]) for f in facts}) == len(facts) == 20


def test_snk_02_two_jobs_while_a_third_compacts_and_adds_a_column(local: Lake) -> None:
    create_table(local.catalogs, local.name, ROWS)
    failures: list[BaseException] = []
    threads = appending(local, 20, failures)
    add_note(local)
    for _ in range(5):
        with suppress(CommitFailedException, ValidationException):
            compact(local.table())
    for thread in threads:
        thread.join()
    compact(local.table())
    assert failures == []
    assert local.ids() == [*range(101, 121), *range(201, 221)]
    facts = [s.summary.additional_properties for s in local.table().snapshots()]
    appended = [(f["headrace.job"], f["headrace.epoch"]) for f in facts if "headrace.epoch" in f]
    assert len(set(appended)) == len(appended) == 40


def add_note(lake: Lake) -> None:
    while "note" not in lake.table().schema().column_names:
        with suppress(CommitFailedException), lake.table().update_schema() as update:
            update.add_column("note", StringType())
