"""The Iceberg sink on every catalog: SQLite with local files, REST on S3, PostgreSQL on S3."""

from __future__ import annotations

import datetime as dt
from typing import Any

import polars as pl
import pytest

from catalog.boundary_record import BOUNDARY, find_boundary
from catalog.catalogs import Catalogs, TableName
from catalog.changing import RetryPolicy
from catalog.commit import commit_epoch, set_boundary
from catalog.tables import create_table
from catalog.tokens import SinkKey, find_state
from headrace.kernel.boundary import Boundary, PartitionRange, TopicBoundary
from headrace.kernel.errors import DataError, FencedError, IdentityError, NotFoundError, SchemaError
from headrace.kernel.protocols import Entry
from headrace.sinks.iceberg import HOUR_US, IcebergWriter
from headrace.sinks.iceberg_precommit import from_json
from tests.lake import ROWS, Blobs, Clock, Lake, compact, covers, epoch, rows


def run(writer: IcebergWriter, number: int, frame: pl.DataFrame, coverage: Boundary | None = None) -> Any:
    writer.write(frame)
    pre_commit = writer.prepare(epoch(number), coverage)
    if pre_commit is not None:
        writer.commit(pre_commit)
    return pre_commit


def test_epochs_become_visible_at_commit_only(lake: Lake) -> None:
    writer = lake.writer()
    writer.recover(None)
    writer.write(rows(1, 2))
    writer.write(rows())
    pre_commit = writer.prepare(epoch(1), covers(2))
    assert pre_commit is not None
    assert (pre_commit["rows"], pre_commit["kind"], pre_commit["coverage"]) == (2, "iceberg", covers(2).to_json())
    assert lake.ids() == []
    writer.commit(pre_commit)
    assert lake.ids() == [1, 2]
    writer.commit(pre_commit)
    lake.writer().commit(pre_commit)
    assert lake.ids() == [1, 2]
    run(writer, 2, rows(3))
    assert lake.ids() == [1, 2, 3]
    facts = lake.table().current_snapshot().summary.additional_properties
    assert (facts["headrace.job"], facts["headrace.epoch"], facts["headrace.lineage"]) == ("job", "2", "L1")
    writer.close()


def test_another_process_finishes_a_prepared_epoch(lake: Lake) -> None:
    first = lake.writer()
    first.recover(None)
    first.write(rows(1))
    pre_commit = first.prepare(epoch(1), None)
    first.close()
    second = lake.writer()
    second.recover(pre_commit)
    assert lake.ids() == [1]
    run(second, 2, rows(2))
    third = lake.writer()
    third.recover(pre_commit)
    assert lake.ids() == [1, 2]


def test_snk_03_a_zombie_of_the_same_lineage_never_doubles_an_epoch(lake: Lake) -> None:
    zombie = lake.writer()
    zombie.recover(None)
    zombie.write(rows(1))
    decided = zombie.prepare(epoch(1), covers(1))
    assert decided is not None
    owner = lake.writer()
    owner.recover(decided)
    run(owner, 2, rows(2), covers(2))
    zombie.commit(decided)
    assert lake.ids() == [1, 2]
    found = find_boundary(lake.table(), lake.table().current_snapshot().snapshot_id)
    assert found is not None
    assert found.boundary.next_offset("bids", 0) == 2


@pytest.mark.parametrize("before", ["empty table", "with commits", "with rows of others"])
def test_snk_03_a_zombie_of_an_older_lineage_is_fenced(lake: Lake, before: str) -> None:
    zombie = lake.writer()
    zombie.recover(None)
    if before == "with commits":
        run(zombie, 1, rows(1))
    if before == "with rows of others":
        other = lake.writer(job="other", blobs=Blobs())
        other.recover(None)
        run(other, 1, rows(1))
    zombie.write(rows(99))
    undecided = zombie.prepare(epoch(9), covers(99))
    assert undecided is not None
    stale = lake.catalogs.load(lake.name)
    owner = lake.writer("L2", entry=Entry.RESTORED)
    owner.recover(None)
    with pytest.raises(FencedError):
        zombie.commit(undecided)
    with pytest.raises(FencedError):
        send_as_if_read_before_the_fence(lake, stale, undecided)
    assert 99 not in lake.ids()
    owner.write(rows(2))
    pre_commit = owner.prepare(epoch(2, "L2"), covers(2))
    assert pre_commit is not None
    owner.commit(pre_commit)
    assert lake.ids() == ([2] if before == "empty table" else [1, 2])


def send_as_if_read_before_the_fence(lake: Lake, stale: Any, pre_commit: Any) -> None:
    """Commit with a catalog that shows the table as it was before, the first time it is asked."""

    class Stale(Catalogs):
        shown = False

        def load(self, name: str | TableName) -> Any:
            if not self.shown:
                self.shown = True
                return stale
            return super().load(name)

    commit_epoch(Stale(lake.catalogs._options), from_json(pre_commit))


def test_snk_02_a_compaction_between_prepare_and_commit(lake: Lake) -> None:
    writer = lake.writer()
    writer.recover(None)
    for number in (1, 2, 3):
        run(writer, number, rows(number), covers(number))
    writer.write(rows(4))
    pre_commit = writer.prepare(epoch(4), covers(4))
    assert pre_commit is not None
    compact(lake.table())
    table = lake.table()
    assert len(list(table.scan().plan_files())) == 1
    found = find_boundary(table, table.current_snapshot().snapshot_id)
    assert found is not None
    assert (found.boundary, found.foreign_changes) == (covers(3), ())
    writer.commit(pre_commit)
    lake.writer().recover(pre_commit)
    compact(lake.table())
    lake.writer().recover(pre_commit)
    assert lake.ids() == [1, 2, 3, 4]


def test_snk_02_a_schema_change_that_no_longer_takes_the_rows_is_detected(lake: Lake) -> None:
    writer = lake.writer()
    writer.recover(None)
    run(writer, 1, rows(1))
    with lake.table().update_schema() as update:
        update.rename_column("day", "date")
    writer.write(rows(2))
    with pytest.raises(SchemaError) as caught:
        writer.prepare(epoch(2), None)
    assert caught.value.code == "COLUMN_UNKNOWN"
    assert lake.ids() == [1]


def test_snk_04_a_table_that_is_dropped_or_recreated(lake: Lake) -> None:
    writer = lake.writer()
    writer.recover(None)
    writer.write(rows(1))
    prepared = writer.prepare(epoch(1), None)
    assert prepared is not None
    writer.commit(prepared)
    writer.write(rows(2))
    pending = writer.prepare(epoch(2), None)
    assert pending is not None
    lake.catalogs.catalog("lake").drop_table(lake.name.identifier)
    writer.write(rows(3))
    for action in (
        lambda: writer.prepare(epoch(3), None),
        lambda: writer.commit(pending),
        lake.writer,
        lambda: lake.writer().recover(pending),
    ):
        with pytest.raises(NotFoundError) as missing:
            action()
        assert missing.value.code == "TABLE_NOT_FOUND"
    create_table(lake.catalogs, lake.name, ROWS)
    for action in (lambda: writer.commit(pending), lake.writer):
        with pytest.raises(IdentityError):
            action()
    assert lake.ids() == []


@pytest.mark.parametrize("damage", [b"", b'{"version": 1', b"[]", b"\xff", b"{}"])
def test_a_damaged_note_of_the_table_is_named(local: Lake, damage: bytes) -> None:
    local.writer()
    (note,) = local.blobs.list("staging/")
    local.blobs.blobs[note] = damage
    with pytest.raises(DataError, match=note) as caught:
        local.writer()
    assert caught.value.code == "CHECKPOINT_DAMAGED"


def test_snk_05_epochs_without_rows_make_no_snapshots(lake: Lake) -> None:
    writer = lake.writer(partition_by=["day"])
    writer.recover(None)
    for number in range(1, 21):
        lake.clock.us += 10_000_000
        frame = rows(number) if number in (3, 17) else rows()
        assert (run(writer, number, frame, covers(number)) is not None) == (number in (3, 17))
    assert lake.ids() == [3, 17]
    assert len(lake.table().snapshots()) == 2


def test_snk_05_markers_at_most_once_per_interval(lake: Lake) -> None:
    writer = lake.writer()
    writer.recover(None)
    run(writer, 1, rows(1), covers(1))
    lake.clock.us += HOUR_US - 1
    assert run(writer, 2, rows(), covers(2)) is None
    lake.clock.us += 1
    assert run(writer, 3, rows(), covers(1)) is None
    marker = run(writer, 4, rows(), covers(4))
    assert (marker["rows"], marker["staged"]) == (0, [])
    lake.clock.us += HOUR_US // 2
    again = lake.writer()
    again.recover(None)
    assert run(again, 5, rows(), covers(5)) is None
    assert run(again, 6, rows()) is None
    lake.clock.us += HOUR_US
    assert run(again, 7, rows(), covers(4)) is None
    found = find_boundary(lake.table(), lake.table().current_snapshot().snapshot_id)
    assert found is not None
    assert found.boundary.next_offset("bids", 0) == 4
    assert lake.ids() == [1]


def test_snk_05_fifty_partitions(local: Lake) -> None:
    days = [dt.date(2024, 1, 1) + dt.timedelta(days=n) for n in range(50)]
    frame = pl.DataFrame({"id": range(50), "day": days}, schema=ROWS)
    writer = local.writer(partition_by=["day"])
    writer.recover(None)
    run(writer, 1, frame)
    assert local.ids() == list(range(50))
    assert len(list(local.table().scan().plan_files())) == 50
    assert len(list(local.table().scan(row_filter="day = '2024-01-09'").plan_files())) == 1
    assert len(local.table().snapshots()) == 1


def test_snp_04_an_empty_table_keeps_its_schema(lake: Lake) -> None:
    schema = pl.Schema({"x": pl.Int32(), "d": pl.Decimal(10, 2)})
    writer = lake.writer(schema=schema)
    writer.recover(None)
    assert lake.table().current_snapshot() is None
    assert lake.table().scan().to_arrow().num_rows == 0
    writer.write(pl.DataFrame(schema=schema))
    assert writer.prepare(epoch(1), None) is None
    writer.write(pl.DataFrame({"x": [None], "d": [None]}, schema=schema))
    pre_commit = writer.prepare(epoch(2), None)
    assert pre_commit is not None
    writer.commit(pre_commit)
    assert lake.table().scan().to_arrow().to_pylist() == [{"x": None, "d": None}]


def test_large_epochs_are_written_as_they_come_and_split_by_size(local: Lake) -> None:
    writer = local.writer(buffer_bytes=200_000, target_file_size=100_000)
    writer.recover(None)
    for part in range(4):
        writer.write(rows(*range(part * 20_000, part * 20_000 + 20_000)))
    pre_commit = writer.prepare(epoch(1), None)
    assert pre_commit is not None
    assert pre_commit["rows"] == 80_000
    writer.commit(pre_commit)
    files = [task.file for task in local.table().scan().plan_files()]
    assert len(files) >= 4
    assert max(data_file.file_size_in_bytes for data_file in files) < 300_000
    assert local.ids() == list(range(80_000))


def test_an_aborted_epoch_leaves_nothing(local: Lake) -> None:
    writer = local.writer(buffer_bytes=1)
    writer.recover(None)
    writer.write(rows(1))
    writer.write(rows(2))
    writer.abort()
    assert writer.prepare(epoch(1), None) is None
    run(writer, 2, rows(3))
    assert local.ids() == [3]


def test_sta_02_a_table_rolled_back_behind_the_job_is_refused(lake: Lake) -> None:
    writer = lake.writer()
    writer.recover(None)
    run(writer, 1, rows(1), covers(1))
    back_to = lake.table().current_snapshot().snapshot_id
    run(writer, 2, rows(2), covers(2))
    with lake.table().manage_snapshots() as manage:
        manage.rollback_to_snapshot(back_to)
    assert lake.ids() == [1]
    writer.write(rows(3))
    pre_commit = writer.prepare(epoch(3), covers(3))
    assert pre_commit is not None
    for action in (lambda: writer.commit(pre_commit), lambda: lake.writer().recover(None)):
        with pytest.raises(DataError) as caught:
            action()
        assert caught.value.code == "TABLE_ROLLED_BACK"
    found = find_boundary(lake.table(), back_to)
    assert found is not None
    assert found.boundary == covers(1)
    restored = lake.writer("L2", entry=Entry.RESTORED)
    restored.recover(None)
    restored.write(rows(2))
    again = restored.prepare(epoch(2, "L2"), covers(2))
    assert again is not None
    restored.commit(again)
    assert lake.ids() == [1, 2]
    with pytest.raises(FencedError):
        writer.commit(pre_commit)


def test_a_branch_is_made_from_main_and_main_stays(lake: Lake) -> None:
    with pytest.raises(NotFoundError) as caught:
        lake.writer(branch="stage").recover(None)
    assert caught.value.code == "BRANCH_NOT_FOUND"
    main = lake.writer()
    main.recover(None)
    run(main, 1, rows(1), covers(1))
    staged = lake.writer(branch="stage")
    staged.recover(None)
    run(staged, 1, rows(2), covers(2))
    assert lake.ids() == [1]
    table = lake.table()
    head = table.metadata.refs["stage"].snapshot_id
    assert sorted(table.scan(snapshot_id=head).to_arrow()["id"].to_pylist()) == [1, 2]
    assert find_boundary(table, head).boundary == covers(2)  # type: ignore[union-attr]
    assert find_boundary(table, table.current_snapshot().snapshot_id).boundary == covers(1)  # type: ignore[union-attr]


def test_the_token_is_found_after_everything_else_expired(lake: Lake) -> None:
    writer = lake.writer()
    writer.recover(None)
    for number in (1, 2):
        run(writer, number, rows(number), covers(number))
    pre_commit = run(writer, 3, rows(3), covers(3))
    other = lake.writer(job="other", blobs=Blobs())
    other.recover(None)
    for number in range(4, 8):
        run(other, number, rows(number))
    table = lake.table()
    ours = find_state(table.metadata, SinkKey("job", "out")).committed
    assert ours is not None
    keep = {table.current_snapshot().snapshot_id} | {ref.snapshot_id for ref in table.metadata.refs.values()}
    expire = [s.snapshot_id for s in table.snapshots() if s.snapshot_id not in keep]
    table.maintenance.expire_snapshots().by_ids(expire).commit()
    assert len(lake.table().snapshots()) == 2
    writer.commit(pre_commit)
    lake.writer().recover(pre_commit)
    with lake.table().transaction() as change:
        change.remove_properties(SinkKey("job", "out").property_name)
    assert find_state(lake.table().metadata, SinkKey("job", "out")).where == "tag"
    lake.writer().recover(pre_commit)
    assert lake.ids() == list(range(1, 8))
    found = find_boundary(lake.table(), lake.table().current_snapshot().snapshot_id)
    assert found is not None
    assert (found.boundary, found.proven, found.where) == (covers(3), False, "table property, ancestors expired")


def test_the_boundary_of_foreign_changes_and_compaction(lake: Lake) -> None:
    writer = lake.writer()
    writer.recover(None)
    run(writer, 1, rows(1), covers(1))
    ours = lake.table().current_snapshot().snapshot_id
    lake.table().append(rows(2).to_arrow().cast(lake.table().schema().as_arrow()))
    table = lake.table()
    found = find_boundary(table, table.current_snapshot().snapshot_id)
    assert found is not None
    assert (found.boundary, found.snapshot_id, found.where) == (covers(1), ours, "snapshot summary")
    assert [(change.operation, change.added) for change in found.foreign_changes] == [("append", 1)]
    assert find_boundary(table, ours).foreign_changes == ()  # type: ignore[union-attr]
    assert find_boundary(table, None) is None


def test_set_boundary_follows_the_snapshot(lake: Lake) -> None:
    create_table(lake.catalogs, lake.name, ROWS)
    lake.table().append(rows(1).to_arrow().cast(lake.table().schema().as_arrow()))
    before = lake.table().current_snapshot().snapshot_id
    assert find_boundary(lake.table(), before) is None
    wide = Boundary(
        {"bids": TopicBoundary({n: PartitionRange(0, 10_000_000 + n, 3) for n in range(300)}, "id-1")}, "cluster-1"
    )
    snapshot_id = set_boundary(lake.catalogs, lake.name, wide)
    table = lake.table()
    assert table.current_snapshot().snapshot_id == snapshot_id
    assert len(table.current_snapshot().summary.additional_properties[BOUNDARY]) < 400
    assert find_boundary(table, snapshot_id).boundary == wide  # type: ignore[union-attr]
    assert find_boundary(table, before) is None
    assert lake.ids() == [1]


def test_two_archives_into_one_table_keep_each_others_topics(lake: Lake) -> None:
    one, two = lake.writer(job="a"), lake.writer(job="b")
    one.recover(None)
    two.recover(None)
    run(one, 1, rows(1), covers(5, "bids"))
    run(two, 1, rows(2), covers(7, "asks"))
    table = lake.table()
    found = find_boundary(table, table.current_snapshot().snapshot_id)
    assert found is not None
    assert (found.boundary.next_offset("bids", 0), found.boundary.next_offset("asks", 0)) == (5, 7)


def test_a_commit_gives_up_after_its_time(local: Lake) -> None:
    clock = Clock()
    create_table(local.catalogs, local.name, ROWS)
    writer = local.writer(retry=RetryPolicy(timeout=3, clock=clock, sleep=clock.sleep))
    writer.recover(None)
    writer.write(rows(1))
    pre_commit = writer.prepare(epoch(1), None)
    assert pre_commit is not None
    writer.commit(pre_commit)
    assert local.ids() == [1]
