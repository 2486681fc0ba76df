"""A source that follows a table: every row once, in the order of snapshots, however they fall into polls."""

from __future__ import annotations

import datetime as dt
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField, TimestamptzType

from catalog.boundary_record import BOUNDARY
from headrace.kernel import columns as system
from headrace.kernel.boundary import Boundary, microseconds, timestamp
from headrace.kernel.errors import BoundaryError, DataError, InternalError, SchemaError, SnapshotGoneError, SpecError
from headrace.kernel.protocols import ReadRequest
from headrace.testing import ManualClock
from hybrid_source.source_values import EventTime
from hybrid_source.splits import SplitTarget
from hybrid_source.table_reader import TableReader
from hybrid_source.table_source import TableSource
from tests.history_tables import append, append_files, open_catalog
from tests.lake import compact

NEW_YEAR = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
EVENTS = Schema(
    NestedField(1, "id", LongType(), required=False), NestedField(2, "at", TimestamptzType(), required=False)
)
FRAME = pl.Schema({"id": pl.Int64(), "at": pl.Datetime("us", "UTC")})
BOUNDED = ReadRequest(["id", system.ROW_WATERMARK], until="caught-up")
ENDLESS = ReadRequest(["id", system.ROW_WATERMARK])
OUT_OF_ORDER_S = 60
numbers = itertools.count()


def us(seconds: float) -> int:
    """Event time of a second after new year."""
    return int((NEW_YEAR.timestamp() + seconds) * 1e6)


def events(*seconds: float | None, first: int = 0) -> pl.DataFrame:
    at = [None if n is None else NEW_YEAR + dt.timedelta(seconds=n) for n in seconds]
    return pl.DataFrame({"id": range(first, first + len(at)), "at": at}, schema=FRAME)


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Table]]:
    catalog = open_catalog(tmp_path_factory.mktemp("lake"))
    yield lambda **properties: catalog.create_table(f"ns.t{next(numbers)}", EVENTS, properties=properties)
    catalog.close()


def follow(table: Table, **more: Any) -> TableSource:
    schema = pl.Schema({**FRAME, system.ROW_WATERMARK: pl.Int64()})
    time = EventTime("at", OUT_OF_ORDER_S * 1_000_000)
    options = {"history": True, "event_time": time, "interval_s": 0.0, "clock": ManualClock(1_000_000), **more}
    return TableSource("s", "t", table.refresh, schema, **options)


def everything(reader: TableReader) -> tuple[list[tuple[int, int | None]], int | None]:
    """All rows as (id, row watermark), and the last watermark."""
    rows, watermark = [], None
    while (batch := reader.poll(0)) is not None:
        found = batch.rows.collect()
        rows += found.select("id", system.ROW_WATERMARK).rows()
        late = [row for row in found.rows() if row[1] is not None]
        assert batch.maybe_late or not late
        assert batch.watermark is None or watermark is None or batch.watermark >= watermark
        watermark = batch.watermark
    return rows, watermark


def ids(reader: TableReader) -> list[int]:
    return [found for found, _ in everything(reader)[0]]


# -------------------------------------------------------------------------------------------------------------- rows


def test_history_then_each_snapshot_then_the_end(make: Callable[..., Table]) -> None:
    table = make()
    append(table, events(5, 6), events(1, 2, first=2))
    source = follow(table, target=SplitTarget(1, 1))
    reader = source.open(ENDLESS, None)
    assert ids(reader) == [2, 3, 0, 1]
    append(table, events(7, first=4))
    compact(table.refresh())
    append(table.refresh(), events(8, first=5))
    assert ids(reader) == [4, 5]
    assert not reader.finished
    assert reader.progress()["phase"] == "tail"
    bounded = source.open(BOUNDED, None)
    append(table.refresh(), events(9, first=6))
    assert sorted(ids(bounded)) == [0, 1, 2, 3, 4, 5]  # as of when it was opened
    assert bounded.finished
    assert ids(source.open(BOUNDED, bounded.position)) == [6]


def test_a_run_until_a_time_ends_before_the_first_later_commit(make: Callable[..., Table]) -> None:
    table = make()
    for number in range(3):
        append(table.refresh(), events(number, first=number))
    first, second, third = table.refresh().snapshots()
    for limit, expected in ((third, [0, 1]), (second, [0])):
        until = dt.datetime.fromtimestamp(limit.timestamp_ms / 1000, dt.UTC)
        reader = follow(table, snapshot_id=first.snapshot_id).open(replace(BOUNDED, until=until), None)
        assert ids(reader) == expected
        assert reader.finished


def test_without_a_history_only_later_appends_are_read(make: Callable[..., Table]) -> None:
    table = make()
    append(table, events(1))
    first = table.refresh().current_snapshot().snapshot_id
    append(table, events(2, first=1))
    reader = follow(table, history=False).open(ENDLESS, None)
    assert ids(reader) == []
    assert ids(follow(table, history=False, snapshot_id=first).open(BOUNDED, None)) == [1]
    append(table.refresh(), events(3, first=2))
    assert ids(reader) == [2]
    assert reader.coverage(reader.position) is None


@pytest.mark.parametrize("history", [True, False])
def test_snp_04_a_table_without_a_snapshot_is_followed_from_its_first_one(
    make: Callable[..., Table], *, history: bool
) -> None:
    table = make()
    source = follow(table, history=history)
    bounded = source.open(BOUNDED, None)
    assert everything(bounded) == ([], None)
    assert bounded.finished
    append(table, events(1), events(2, first=1))
    assert ids(source.open(BOUNDED, json.loads(json.dumps(bounded.position)))) == [0, 1]


def test_every_batch_is_a_place_to_go_on_from(make: Callable[..., Table]) -> None:
    table = make(**{"write.parquet.row-group-limit": "2"})
    append(table, events(*range(4)), events(10, 11, first=4), events(12, first=6))
    source = follow(table, snapshot_id=table.refresh().snapshots()[0].snapshot_id, target=SplitTarget(2, 1 << 30))
    positions, reader, seen = [source.plan().to_json()], source.open(BOUNDED, None), []
    while (batch := reader.poll(0)) is not None:
        seen.append(batch.rows.collect()["id"].to_list())
        positions.append(json.loads(json.dumps(batch.position)))
    assert seen == [[0, 1], [2, 3], [4, 5], [6]]
    for index, position in enumerate(positions):
        assert ids(source.open(BOUNDED, position)) == list(itertools.chain(*seen[index:]))


def test_the_predicate_is_applied_and_where_is_the_historys(make: Callable[..., Table]) -> None:
    table = make()
    append(table, events(1, 2, 3), events(4, 5, 6, first=3))
    first = table.refresh().snapshots()[0].snapshot_id
    request = ReadRequest(["id"], pl.col("id") != 4, "caught-up")
    reader = follow(table, snapshot_id=first, where=pl.col("id") > 0).open(request, None)
    found = [batch.rows.collect()["id"].to_list() for batch in iter(lambda: reader.poll(0), None)]
    assert found == [[1, 2], [3, 5]]


def test_new_snapshots_are_looked_for_once_per_interval(make: Callable[..., Table]) -> None:
    table, clock, loads = make(), ManualClock(1_000_000), []
    append(table, events(1))

    def load() -> Table:
        loads.append(clock.monotonic())
        return table.refresh()

    source = follow(table, clock=clock, interval_s=10.0, sleep=lambda seconds: clock.advance(round(seconds * 1e6)))
    reader = replace(source, load_table=load).open(ENDLESS, None)
    while clock.monotonic() < 25:
        reader.poll(0.5)
    assert len(loads) == 2 + 3  # to plan, to open; then at 1, 11 and 21 s


# ------------------------------------------------------------------------------------------------------- event time


def test_rows_are_measured_against_the_snapshots_before_theirs(make: Callable[..., Table]) -> None:
    table = make()
    append(table, events(1000, 0))
    first = table.refresh().snapshots()[0].snapshot_id
    append(table, events(950, 900, 5000, first=2), events(4940, 4939, first=5))
    rows, watermark = everything(follow(table, snapshot_id=first).open(BOUNDED, None))
    assert rows[:2] == [(0, None), (1, None)]  # history is never late, whatever its order
    assert rows[2:5] == [(2, us(940)), (3, us(940)), (4, us(940))]  # 900 is late; nothing for what 5000 says
    assert rows[5:] == [(5, us(4940)), (6, us(4940))]
    assert watermark == us(4940)


def test_within_a_snapshot_the_watermark_follows_the_unread_files(make: Callable[..., Table]) -> None:
    table = make()
    append(table, events(0))
    first = table.refresh().snapshots()[0].snapshot_id
    append_files(table, events(200, first=1), events(100, first=2), events(300, first=3))
    reader = follow(table, snapshot_id=first, target=SplitTarget(1, 1)).open(BOUNDED, None)
    got = [(batch.rows.collect()["id"].to_list(), batch.watermark) for batch in iter(lambda: reader.poll(0), None)]
    assert got == [([0], us(-60)), ([2], us(200) - 1), ([1], us(240)), ([3], us(240))]


def test_times_without_statistics_of_odd_years_and_nulls(make: Callable[..., Table]) -> None:
    bare = {"write.metadata.metrics.default": "none"}
    year_1, year_2100 = -62_135_596_800, 4_102_444_800
    offset = NEW_YEAR.timestamp()
    for properties in ({}, bare):
        table = make(**properties)
        append(table, events(10, None, year_1 - offset))
        first = table.refresh().snapshots()[0].snapshot_id
        append(table, events(None, None, first=3), events(20, first=5), events(year_2100 - offset, first=6))
        append(table, events(30, first=7))
        rows, watermark = everything(follow(table, snapshot_id=first).open(BOUNDED, None))
        assert [found for found, _ in rows] == list(range(8))
        late = {found: at for found, at in rows if at is not None}
        committed = table.refresh().snapshots()[-2].timestamp_ms * 1000
        assert late == {7: committed - OUT_OF_ORDER_S * 1_000_000}  # 2100 lies beyond its commit
        assert watermark == late[7]


def test_a_recorded_watermark_counts_before_the_files_statistics(make: Callable[..., Table]) -> None:
    table = make()
    append(table, events(0))
    first = table.refresh().snapshots()[0].snapshot_id
    recorded(table, events(1000, first=1), 100)
    append(table.refresh(), events(90, 150, first=2))
    recorded(table.refresh(), None, 700)  # a marker: no rows, event time goes on
    append(table.refresh(), events(600, first=4))
    rows, watermark = everything(follow(table, snapshot_id=first).open(BOUNDED, None))
    assert rows == [(0, None), (1, None), (2, us(100)), (3, us(100)), (4, us(700))]
    assert watermark == us(700)
    whole = follow(table, snapshot_id=table.refresh().snapshots()[1].snapshot_id)
    assert whole.plan().after == us(100)
    recorded(table.refresh(), None, 0, text="soon")
    with pytest.raises(BoundaryError, match="cannot be read"):
        everything(follow(table, snapshot_id=first).open(BOUNDED, None))


def recorded(table: Table, rows: pl.DataFrame | None, seconds: float, text: str | None = None) -> None:
    """Append with a boundary record, as our own sink does."""
    record = Boundary(watermark=text or timestamp(us(seconds))).to_json()
    frame = events() if rows is None else rows
    data = frame.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(table.schema().as_arrow())
    table.append(data, snapshot_properties={BOUNDARY: json.dumps(record)})


def test_watermarks_as_text_keep_their_microseconds() -> None:
    for at in (0, 1, -1, us(0) + 123_456, us(1e9), -62_135_596_800_000_000):
        text = timestamp(at)
        assert text is not None
        assert microseconds(text) == at
    assert timestamp(2**62) is None
    assert microseconds("2026-01-01T01:00:00+01:00") == microseconds("2026-01-01") == us(0)


@given(data=st.data())
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_same_rows_and_watermarks_however_polls_and_restarts_fall(
    make: Callable[..., Table], data: st.DataObject
) -> None:
    table, numbered = make(), itertools.count()
    snapshots = data.draw(st.lists(st.lists(st.integers(-100, 100) | st.none(), max_size=4), min_size=2, max_size=5))
    frames = [
        events(*seconds).with_columns(id=pl.Series([next(numbered) for _ in seconds], dtype=pl.Int64))
        for seconds in snapshots
    ]
    append(table, frames[0])
    source = follow(table, snapshot_id=table.refresh().snapshots()[0].snapshot_id, target=SplitTarget(1, 1))
    reader, rows, watermark = source.open(ENDLESS, None), [], None
    for frame in frames[1:]:
        append(table.refresh(), frame)
        for _ in range(data.draw(st.integers(0, 3))):
            if (batch := reader.poll(0)) is None:
                break
            rows += batch.rows.collect().select("id", system.ROW_WATERMARK).rows()
            watermark = batch.watermark
            if data.draw(st.booleans()):
                reader = source.open(ENDLESS, json.loads(json.dumps(batch.position)))
    rest, last = everything(reader)
    once, at_once = everything(source.open(BOUNDED, None))
    assert rows + rest == once
    assert (last if rest or last is not None else watermark) == at_once


# ---------------------------------------------------------------------------------------------------------- refusals


def test_a_change_is_refused_when_it_is_come_to_or_passed_over(make: Callable[..., Table]) -> None:
    table = make()
    append(table, events(1, 2), events(3, first=2))
    first = table.refresh().snapshots()[0].snapshot_id
    table.delete("id = 1")
    append(table.refresh(), events(4, first=3))
    reader = follow(table, snapshot_id=first).open(BOUNDED, None)
    assert [reader.poll(0).rows.collect().height for _ in range(2)] == [2, 1]
    with pytest.raises(DataError, match="is no append"):
        reader.poll(0)
    assert ids(follow(table, snapshot_id=first, on_change="skip").open(BOUNDED, None)) == [0, 1, 2, 3]


def test_snp_01_a_position_whose_snapshots_have_expired_is_refused(make: Callable[..., Table]) -> None:
    table = make()
    append(table, events(1))
    source = follow(table)
    reader = source.open(BOUNDED, None)
    assert ids(reader) == [0]
    append(table.refresh(), events(2, first=1), events(3, first=2), events(4, first=3))
    one, two, *_ = table.refresh().snapshots()
    table.maintenance.expire_snapshots().by_ids([one.snapshot_id, two.snapshot_id]).commit()
    with pytest.raises(SnapshotGoneError, match="expired"):
        source.open(BOUNDED, reader.position)


def test_a_column_that_changes_under_the_job_is_named(make: Callable[..., Table]) -> None:
    table = make()
    append(table, events(1))
    reader = follow(table).open(ENDLESS, None)
    assert ids(reader) == [0]
    with table.refresh().update_schema() as update:
        update.rename_column("at", "when")
    append(table.refresh(), events(2).rename({"at": "when"}))
    with pytest.raises(SchemaError, match="column 'at' of table t has changed"):
        reader.poll(0)


def test_a_position_belongs_to_its_kind_and_order(make: Callable[..., Table]) -> None:
    table = make()
    append(table, events(1), events(2))
    source = follow(table, target=SplitTarget(1, 1))
    batch = source.open(BOUNDED, None).poll(0)
    assert batch is not None
    with pytest.raises(SpecError, match="in the order of 'at'"):
        replace(source, event_time=None).open(BOUNDED, batch.position)
    with pytest.raises(InternalError, match="kind None"):
        source.open(BOUNDED, {"version": 1, "phase": "tail"})
