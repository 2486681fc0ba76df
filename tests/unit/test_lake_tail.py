"""The lake in the place of the topic: windows of offsets, order, lateness; which partitions are left in a history."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.kafka import KafkaCluster
from headrace.kernel import columns as system
from headrace.kernel.boundary import Boundary, PartitionRange, TopicBoundary, TopicPartition
from headrace.kernel.errors import BoundaryError
from headrace.kernel.protocols import ReadRequest
from headrace.testing import ManualClock
from hybrid_source.boundary import auto_rules
from hybrid_source.gaps import Gap, gap_error
from hybrid_source.history import HistoryQuery
from hybrid_source.history_stage import LakeHistory, OpenLakeHistory
from hybrid_source.lake_tail import LakeTail, Wanted, next_window, within
from hybrid_source.lake_versions import NewerVersion, reach
from hybrid_source.offset_rows import OffsetRows, check_placed
from hybrid_source.parquet_history import open_parquet
from hybrid_source.pending import PendingPartitions
from hybrid_source.resolution import OffsetNames, Resolution
from hybrid_source.source_values import EventTime
from hybrid_source.splits import HistoryFile, SplitTarget
from hybrid_source.tail_position import PartitionState, TailPosition
from hybrid_source.tail_watermark import TailWatermark

if TYPE_CHECKING:
    from pathlib import Path

    from hybrid_source.lake_tail import Window

NO_CLUSTER = KafkaCluster("none", {"bootstrap.servers": "localhost:1"})
A, B = TopicPartition("a", 0), TopicPartition("b", 1)
PAYLOAD = pl.Schema({"at": pl.Datetime("us"), "n": pl.Int64()})


def table(rows: list[tuple[TopicPartition, int, int]]) -> pl.DataFrame:
    """Rows as (partition, offset, event time)."""
    data = {
        "at": pl.Series([time for *_, time in rows], dtype=pl.Int64).cast(pl.Datetime("us")),
        "n": [offset for _, offset, _ in rows],
        system.TOPIC: [at.topic for at, *_ in rows],
        system.PARTITION: pl.Series([at.partition for at, *_ in rows], dtype=pl.Int32),
        system.OFFSET: [offset for _, offset, _ in rows],
    }
    return pl.DataFrame(data)


def inside(rows: pl.DataFrame, window: Window, most: int | None) -> pl.DataFrame | None:
    """The rows of a window, None where they are more than asked for."""
    found = rows.filter(within(window, pl.col(system.TOPIC), pl.col(system.PARTITION), pl.col(system.OFFSET)))
    return None if most is not None and found.height > most else found


def lake_tail(rows: pl.DataFrame, request: ReadRequest, window: int, **nexts: int) -> LakeTail:
    def read(wanted: Window, most: int | None) -> pl.DataFrame | None:
        return inside(rows, wanted, most)

    at = TailPosition({A: PartitionState(nexts.get("a", 0)), B: PartitionState(nexts.get("b", 0), 1000)})
    watermark = TailWatermark(ManualClock(), {A: None, B: 1000}, None, out_of_orderness_us=10)
    return LakeTail(read, Wanted.of(request, PAYLOAD, "at"), watermark, at, {A: 6, B: 4}, window_rows=window)


@pytest.mark.parametrize("window", [1, 3, 100])
def test_rows_come_once_in_the_order_of_their_offsets_with_the_watermarks_of_the_tail(window: int) -> None:
    rows = table([(B, 3, 900), (A, 5, 130), (A, 2, 100), (A, 2, 100), (A, 3, 80), (B, 1, 995), (A, 9, 1), (B, 0, 5)])
    names = [system.TOPIC, system.OFFSET, system.ROW_WATERMARK]
    tail = lake_tail(rows, ReadRequest(names, pl.col("n") != 5), window, a=2, b=1)
    frames = []
    while (batch := tail.poll()) is not None:
        assert batch.maybe_late == batch.rows[system.ROW_WATERMARK].is_not_null().any() or batch.rows.is_empty()
        frames.append(batch.rows)
    found = pl.concat(frames)
    by_topic = [found.filter(pl.col(system.TOPIC) == topic)[system.OFFSET].to_list() for topic in "ab"]
    assert by_topic == [[2, 3], [1, 3]]
    late = found.filter(pl.col(system.OFFSET) == 3)[system.ROW_WATERMARK].to_list()
    assert sorted(late) == [90, 990]  # 80 < 100 - 10 and 900 < 1000 - 10
    assert tail.finished
    assert [at["next"] for at in tail.lag()] == [6, 4]


@pytest.mark.parametrize("beside", [0, 300])
def test_a_huge_hole_of_offsets_is_read_in_few_windows_that_hold_no_more_rows(beside: int) -> None:
    """Also where another partition has rows all the while."""
    end, most, sizes = 10**12, 100, []
    rows = table([*((A, end - 500 + n, n) for n in range(500)), *((A, n, n) for n in range(500))])
    rows = pl.concat([rows, table([(B, n, n) for n in range(beside)])])

    def read(window: Window, limit: int | None) -> pl.DataFrame | None:
        sizes.append(0)
        return inside(rows, window, limit)

    at = TailPosition({A: PartitionState(0), B: PartitionState(0)})
    watermark = TailWatermark(ManualClock(), {A: None, B: None}, None)
    wanted = Wanted.of(ReadRequest([system.TOPIC, system.OFFSET]), PAYLOAD, None)
    tail = LakeTail(read, wanted, watermark, at, {A: end, B: beside}, window_rows=most)
    frames = []
    while len(sizes) < 10_000 and (batch := tail.poll()) is not None:
        assert batch.rows.height <= most + 2
        frames.append(batch.rows)
    assert len(sizes) < 2_000
    found = pl.concat(frames)
    assert (
        found.filter(pl.col(system.TOPIC) == "a")[system.OFFSET].to_list()
        == rows.filter(pl.col(system.TOPIC) == "a")[system.OFFSET].sort().to_list()
    )
    assert found.height == rows.height


@given(st.dictionaries(st.sampled_from([A, B]), st.tuples(st.integers(0, 50), st.integers(0, 50))), st.integers(1, 60))
def test_windows_cover_all_offsets_once_and_are_never_too_large(spans: dict, most: int) -> None:
    nexts = {at: begin for at, (begin, _) in spans.items()}
    ends = {at: end for at, (_, end) in spans.items()}
    left = sum(max(0, end - begin) for begin, end in spans.values())
    while window := next_window(nexts, ends, most):
        assert all(nexts[at] == begin < end <= ends[at] for at, (begin, end) in window.items())
        taken = sum(end - begin for begin, end in window.values())
        assert taken <= most + len(window)
        left -= taken
        nexts = nexts | {at: end for at, (_, end) in window.items()}
    assert left == 0


def test_a_version_leads_on_only_where_it_has_what_comes_next() -> None:
    covered = {0: PartitionRange(5, 20), 1: PartitionRange(0, 7), 2: PartitionRange(0, 9)}
    resolution = Resolution(Boundary({"a": TopicBoundary(covered)}), "r", "e")
    at = [TopicPartition("a", number) for number in range(4)]
    nexts = {at[0]: 3, at[1]: 7, at[2]: 4, at[3]: 0}
    assert reach(resolution, nexts) == {at[2]: 9}
    newer = NewerVersion({}, resolution, reach(resolution, nexts), 5)
    for partition, earliest, closes in ((2, 9, True), (2, 10, False), (0, 4, False)):
        gap = gap_error([Gap(TopicPartition("a", partition), 3, earliest, 30)])
        assert (newer.leaves(gap) is None) == closes


@pytest.mark.parametrize(("most", "height"), [(None, 4), (4, 4), (3, None)])
def test_a_window_with_more_rows_than_asked_for_is_given_up(
    tmp_path: Path, most: int | None, height: int | None
) -> None:
    for number in range(3):
        rows = pl.DataFrame({"p": [0, 0], "o": [number * 10**9, number * 10**9 + 1]})
        rows.write_parquet(tmp_path / f"{number}.parquet")
    query = HistoryQuery([system.TOPIC, system.PARTITION, system.OFFSET])
    found = OffsetRows(open_parquet(str(tmp_path)), OffsetNames("p", "o"), query, ["a"]).read({A: (0, 10**9 + 2)}, most)
    assert (None if found is None else found.height) == height


def test_a_table_that_holds_offsets_twice_gives_each_once_in_the_place_of_the_topic(tmp_path: Path) -> None:
    """As Aiven's sink lays rows out, which may write an offset again."""
    for number, offsets in enumerate(([0, 1, 2], [2, 1, 3])):
        rows = pl.DataFrame({"n": offsets, "at": pl.Series(offsets, dtype=pl.Int64).cast(pl.Datetime("us"))})
        place = pl.struct(
            partition=pl.lit(0, pl.Int32), offset=pl.col("n"), timestamp=pl.col("at").dt.replace_time_zone("UTC")
        )
        rows.with_columns(place.alias("kafka")).write_parquet(tmp_path / f"{number}.parquet")
    lake = LakeHistory(lambda pin: open_parquet(str(tmp_path), pin=pin), rules=auto_rules(NO_CLUSTER), payload=PAYLOAD)
    pin = lake.pin()
    resolution = lake.resolve(pin, ["a"])
    assert resolution.distinct
    assert resolution.columns is not None
    assert not lake.refuses_replay(resolution)
    position = TailPosition({A: PartitionState(1)}).to_json()
    time, request = EventTime("at"), ReadRequest(["n", system.OFFSET])
    ends = reach(resolution, {A: 1})
    replay = lake.replay(request, pin, resolution.columns, position, ends, time=time, floor=None, clock=ManualClock())
    batch = replay.poll()
    assert batch is not None
    assert batch.rows.rows() == [(1, 1), (2, 2), (3, 3)]
    assert (batch.records, batch.maybe_late, batch.watermark) == (3, False, 3)
    assert replay.finished


def file(path: str, *bounds: tuple[object, object] | None) -> HistoryFile:
    return HistoryFile(path, 1, 1, bounds=bounds)


def test_a_partition_is_done_when_its_last_file_has_been_read() -> None:
    pending = PendingPartitions([file("1", (0, 1)), file("2", (2, 2)), file("3", (1, 1))], ["a"])
    one, two, three = (TopicPartition("a", number) for number in (0, 1, 2))
    assert [pending.after(read) for read in range(4)] == [{one, two, three}, {two, three}, {two}, frozenset()]


def test_a_file_without_exact_bounds_may_hold_any_partition() -> None:
    pending = PendingPartitions([file("1", (0, 0)), file("2", None), file("3", (1, 1))], ["a"])
    assert [pending.after(read) for read in range(4)] == [None, None, {TopicPartition("a", 1)}, frozenset()]


def test_topics_are_told_apart_by_bounds_that_are_not_cut_off() -> None:
    files = [file("1", (0, 0), ("a", "a")), file("2", (0, 0), ("b", "b"))]
    assert PendingPartitions(files, ["a", "b"]).after(1) == {TopicPartition("b", 0)}
    for named in (("a", "b"), ("x" * 16, "x" * 16), None):
        assert PendingPartitions([file("1", (0, 0), named)], ["a", "b"]).after(0) is None


def test_parquet_files_say_which_partitions_they_hold(tmp_path: Path) -> None:
    for partition in range(2):
        rows = table([(TopicPartition("a", partition), n, 10 * partition + n) for n in range(3)])
        rows.write_parquet(tmp_path / f"{partition}.parquet", row_group_size=2)
    query = HistoryQuery(["n"], event_time="at", bounds=[system.PARTITION], target=SplitTarget(rows=1))
    opened = OpenLakeHistory(open_parquet(str(tmp_path)).plan(query), ["a"])
    left = [opened.pending(batch.cursor) for batch in opened.read(None)]
    both = {TopicPartition("a", 0), TopicPartition("a", 1)}
    assert left == [both, {TopicPartition("a", 1)}, {TopicPartition("a", 1)}, frozenset()]
    nulls = pl.DataFrame({system.PARTITION: [None, 1]}, schema={system.PARTITION: pl.Int32})
    nulls.write_parquet(tmp_path / "2.parquet")
    assert OpenLakeHistory(open_parquet(str(tmp_path)).plan(query), ["a"]).pending(None) is None


def test_a_held_watermark_waits_for_rows_that_are_read_elsewhere() -> None:
    watermark = TailWatermark(ManualClock(), {A: 100}, 5, out_of_orderness_us=10)
    watermark.hold(20)
    assert watermark.advance(lambda _: False) == 20
    watermark.add(B)
    watermark.hold(50)
    assert watermark.advance(lambda _: False) == 20  # B has not been heard of
    watermark.hold(None)
    watermark.rows(pl.Series([0]), pl.Series([70]), {0: B})
    assert watermark.advance(lambda _: False) == 60


def unnamed(tmp_path: Path) -> LakeHistory:
    """A table whose rows at offset 1 of either partition name no topic."""
    rows = pl.DataFrame(
        {
            "n": [0, 1, 2, 3],
            "at": pl.Series([0, 1, 2, 3]).cast(pl.Datetime("us")),
            system.TOPIC: ["a", None, "a", "b"],
            system.PARTITION: pl.Series([0, 0, 0, 0], dtype=pl.Int32),
            system.OFFSET: [0, 1, 2, 0],
        }
    )
    rows.write_parquet(tmp_path / "rows.parquet")
    return LakeHistory(lambda pin: open_parquet(str(tmp_path), pin=pin), rules=auto_rules(NO_CLUSTER), payload=PAYLOAD)


def test_rows_that_name_no_topic_are_of_the_only_one(tmp_path: Path) -> None:
    lake = unnamed(tmp_path)
    pin = lake.pin()
    resolution = lake.resolve(pin, ["a"])
    assert resolution.columns is not None
    position = TailPosition({A: PartitionState(0)}).to_json()
    ends = reach(resolution, {A: 0})
    request = ReadRequest(["n", system.TOPIC])
    replay = lake.replay(request, pin, resolution.columns, position, ends, time=None, floor=None, clock=ManualClock())
    batch = replay.poll()
    assert batch is not None
    assert batch.rows.rows() == [(0, "a"), (1, "a"), (2, "a")]


def test_rows_that_name_none_of_several_topics_are_refused(tmp_path: Path) -> None:
    lake = unnamed(tmp_path)
    pin = lake.pin()
    with pytest.raises(BoundaryError, match="no boundary") as none:
        lake.resolve(pin, ["a", "b"])  # it would be the same row that says how far either has come
    assert "1 rows have an offset and no _kafka_topic" in none.value.detail
    columns = OffsetNames(topic=system.TOPIC)
    b = TopicPartition("b", 0)
    position = TailPosition({A: PartitionState(0), b: PartitionState(0)}).to_json()
    request = ReadRequest(["n"])
    replay = lake.replay(request, pin, columns, position, {A: 3, b: 1}, time=None, floor=None, clock=ManualClock())
    with pytest.raises(BoundaryError, match=r"1 rows of .* do not say which topic they are of") as refused:
        replay.poll()
    assert refused.value.code == "ROWS_WITHOUT_TOPIC"
    assert (refused.value.context["partition"], refused.value.context["wanted"]) == (0, 1)


def test_rows_without_an_offset_are_not_left_out_of_a_history_in_the_order_of_offsets(tmp_path: Path) -> None:
    lake = unnamed(tmp_path)
    whole = pl.read_parquet(tmp_path / "rows.parquet")
    loose = whole.with_columns(pl.lit(None, pl.Int64).alias(system.OFFSET), n=pl.col("n") + 10)
    loose.write_parquet(tmp_path / "loose.parquet")
    columns = OffsetNames(topic=system.TOPIC)
    assert lake.unplaced(lake.pin(), columns) == 4
    assert replace(lake, where=pl.col(system.OFFSET).is_not_null()).unplaced(lake.pin(), columns) == 0
    with pytest.raises(BoundaryError, match=r"4 rows .* of a, b have no partition or no offset") as refused:
        check_placed(4, columns, ["a", "b"])
    assert refused.value.code == "ROWS_WITHOUT_OFFSET"


def test_a_window_of_many_partitions_is_a_shallow_filter() -> None:
    # Of a chain Polars takes minutes for some thousand partitions.
    window = {TopicPartition("t", partition): (partition, partition + 1) for partition in range(256)}
    wanted = within(window, pl.col("t"), pl.col("p"), pl.col("o"))
    drawn = wanted.meta.tree_format(return_as_string=True)
    rows = pl.DataFrame({"t": ["t", "u", None], "p": [200, 201, 202], "o": [200, 201, 202]})
    assert rows.filter(wanted)["p"].to_list() == [200, 202]
    assert drawn is not None
    assert len(drawn.splitlines()) < 100
