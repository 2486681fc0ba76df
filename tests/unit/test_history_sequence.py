"""Several history stages in a row: order, watermark, cursors, trimming of what later stages hold, missing columns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import polars as pl
import pytest

from headrace.jobs.compile import CompiledJob, compile_job
from headrace.jobs.config import load_config
from headrace.jobs.loading import load_job_text
from headrace.jobs.planning import plan_job
from headrace.jobs.run import run_job
from headrace.kernel import columns as system
from headrace.kernel.boundary import Boundary, Incarnation, PartitionRange, TopicBoundary, TopicPartition
from headrace.kernel.errors import BoundaryError, SpecError
from headrace.kernel.protocols import ReadRequest
from headrace.runtime.job import RunOptions
from headrace.runtime.observer import SilentObserver, StopSignal
from hybrid_source.boundary import BoundaryContext, NamedColumns
from hybrid_source.history_sequence import HistorySequence, not_older
from hybrid_source.history_stage import LakeHistory
from hybrid_source.iceberg_history import open_iceberg
from hybrid_source.parquet_history import ParquetHistory, open_parquet
from hybrid_source.resolution import OffsetNames, Resolution
from hybrid_source.source_values import END_OF_HISTORY
from hybrid_source.splits import SplitTarget
from tests.history_tables import append, arrow, open_catalog

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.kernel.protocols import Json

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
NEW_YEAR_US = int(NEW_YEAR.timestamp()) * 1_000_000
ALL = ReadRequest(["id", "at"])


def rows(first: int, next_: int, partition: int = 0) -> pl.DataFrame:
    """Rows of one partition, one a second; the offset is the id."""
    ids = range(first, next_)
    data = {"id": ids, "at": [NEW_YEAR + timedelta(seconds=n) for n in ids]}
    offsets = {system.PARTITION: pl.lit(partition, pl.Int32), system.OFFSET: pl.col("id")}
    return pl.DataFrame(data, schema={"id": pl.Int64(), "at": pl.Datetime("us", "UTC")}).with_columns(**offsets)


def plain(first: int, next_: int) -> pl.DataFrame:
    """Rows that carry no offsets."""
    return rows(first, next_).drop(system.PARTITION, system.OFFSET)


def stage(folder: Path, *files: pl.DataFrame) -> LakeHistory:
    folder.mkdir()
    for number, frame in enumerate(files):
        frame.write_parquet(folder / f"{number}.parquet")

    def opened(pin: Json) -> ParquetHistory:
        return open_parquet(str(folder), pin=pin)

    return LakeHistory(opened, event_time="at", target=SplitTarget(rows=1))


@dataclass(frozen=True, slots=True)
class Stated:
    """A boundary rule of the tests."""

    nexts: dict[int, int]
    trim: bool = False
    name: str = "stated"
    looks_for: str = "nothing"
    earlier: tuple[Incarnation, ...] = ()

    def resolve(self, context: BoundaryContext) -> Resolution:
        ranges = {partition: PartitionRange(0, offset) for partition, offset in self.nexts.items()}
        columns = OffsetNames() if self.trim else None
        boundary = Boundary({context.topic: TopicBoundary(ranges, earlier=self.earlier)})
        return Resolution(boundary, "stated", "", trim=self.trim, columns=columns)


def read(sequence: HistorySequence, nexts: dict[int, int], *, trim: bool = False) -> pl.DataFrame:
    """All rows below a boundary, by partition and offset."""
    *earlier, last = sequence.stages
    assert isinstance(last, LakeHistory)
    sequence = HistorySequence([*earlier, replace(last, rules=[Stated(nexts, trim)])])
    pin = sequence.pin()
    found = sequence.resolve(pin, ["t"])
    assert Resolution.from_json(found.to_json()) == replace(found, tried=(), notes=())
    request = ReadRequest(["id", system.PARTITION, system.OFFSET])
    frames = [batch.rows.collect() for batch in sequence.open(request, pin, found).read(None)]
    return pl.concat(frames, how="diagonal").sort(system.PARTITION, system.OFFSET, "id")


def test_stages_are_read_in_their_order_and_from_any_cursor(tmp_path: Path) -> None:
    sequence = HistorySequence(
        [
            stage(tmp_path / "a", plain(5, 7), plain(3, 5)),
            stage(tmp_path / "empty", plain(0, 0)),
            stage(tmp_path / "b", plain(0, 2), plain(7, 9)),
        ]
    )
    opened = sequence.open(ALL, sequence.pin(), None)
    batches = list(opened.read(None))
    found = [batch.rows.collect()["id"].to_list() for batch in batches]
    assert [ids for ids in found if ids] == [[3, 4], [5, 6], [0, 1], [7, 8]]
    for number, batch in enumerate(batches):
        rest = [part.rows.collect()["id"].to_list() for part in opened.read(batch.cursor)]
        assert rest == found[number + 1 :]
        assert opened.watermark(batch.cursor) == batch.watermark
    assert opened.fraction(None) == 0
    assert opened.fraction(batches[0].cursor) == 2 / 8
    assert opened.fraction(batches[-1].cursor) == 1


def test_the_watermark_knows_of_the_stages_that_are_not_read_yet(tmp_path: Path) -> None:
    sequence = HistorySequence([stage(tmp_path / "a", plain(5, 7), plain(8, 9)), stage(tmp_path / "b", plain(2, 4))])
    opened = sequence.open(ALL, sequence.pin(), None)
    second_us = 1_000_000
    assert opened.watermark(None) == NEW_YEAR_US + 2 * second_us - 1
    assert [batch.watermark for batch in opened.read(None)] == [
        NEW_YEAR_US + 2 * second_us - 1,
        NEW_YEAR_US + 2 * second_us - 1,
        END_OF_HISTORY,
    ]


def test_an_earlier_stage_ends_where_a_later_one_begins(tmp_path: Path) -> None:
    old = pl.concat([rows(0, 8), rows(0, 4, partition=1), rows(0, 3, partition=2), rows(0, 2, partition=3)])
    middle = pl.concat([rows(6, 12), rows(0, 9, partition=2)])
    new = pl.concat([rows(10, 14), rows(2, 6, partition=1)])
    sequence = HistorySequence(
        [stage(tmp_path / "old", old), stage(tmp_path / "middle", middle), stage(tmp_path / "new", new)]
    )
    found = read(sequence, {0: 14, 1: 6, 2: 5}).group_by(system.PARTITION).agg(system.OFFSET).sort(system.PARTITION)
    # Nobody but the oldest stage knows partition 3: the tail begins it at offset 0. The last stage is not cut.
    assert found.rows() == [(0, list(range(14))), (1, list(range(6))), (2, list(range(5)))]


def test_rows_that_a_later_stage_leaves_out_by_its_where_are_read_from_the_earlier_one(tmp_path: Path) -> None:
    old, new = rows(0, 10), rows(4, 14)
    first, last = stage(tmp_path / "old", old), stage(tmp_path / "new", new)
    sequence = HistorySequence([first, replace(last, where=pl.col("id") >= 8)])
    assert read(sequence, {0: 14})["id"].to_list() == list(range(14))
    odd = HistorySequence([first, replace(last, where=pl.col("id") % 2 == 1)])
    assert read(odd, {0: 14})["id"].to_list() == [*range(10), 11, 13]
    middle = HistorySequence([first, replace(last, where=pl.col("id") >= 8), stage(tmp_path / "newest", rows(12, 16))])
    assert read(middle, {0: 16})["id"].to_list() == list(range(16))


def test_of_a_partition_that_the_boundary_does_not_know_no_stage_gives_a_row(tmp_path: Path) -> None:
    old, new = pl.concat([rows(0, 4), rows(0, 9, partition=1)]), pl.concat([rows(4, 8), rows(6, 9, partition=1)])
    sequence = HistorySequence([stage(tmp_path / "old", old), stage(tmp_path / "new", new)])
    found = read(sequence, {0: 8}, trim=True)
    assert found.select(system.PARTITION, "id").rows() == [(0, number) for number in range(8)]


@pytest.mark.parametrize("topics", [False, True])
def test_without_a_tail_no_row_is_read_from_two_stages_either(tmp_path: Path, *, topics: bool) -> None:
    old, new = pl.concat([rows(0, 10), rows(0, 3, partition=1)]), rows(4, 14)
    if topics:
        old, new = (frame.with_columns(pl.lit("t").alias(system.TOPIC)) for frame in (old, new))
        old = pl.concat([old, rows(0, 6).with_columns(pl.lit("other").alias(system.TOPIC))])
    first, last = stage(tmp_path / "old", old), stage(tmp_path / "new", new)
    whole = [*range(14), *range(3), *(range(6) if topics else ())]
    for later in (last, replace(last, where=pl.col("id") >= 8)):
        sequence = HistorySequence([first, later])
        found = pl.concat([batch.rows.collect() for batch in sequence.open(ALL, sequence.pin(), None).read(None)])
        assert sorted(found["id"]) == sorted(whole)


def measured(tmp_path: Path) -> HistorySequence:
    """An archive of a topic that was deleted since, and a table of the one that was created again."""
    return HistorySequence([stage(tmp_path / "old", rows(0, 1000)), stage(tmp_path / "new", rows(0, 10))])


def test_an_archive_of_a_former_incarnation_is_not_taken_for_doubled(tmp_path: Path) -> None:
    sequence = measured(tmp_path)
    with pytest.raises(BoundaryError, match="stage 0 does not hold what came before stage 1: topic t, partition 0") as (
        refused
    ):
        read(sequence, {0: 10})
    assert refused.value.code == "STAGES_NOT_IN_ORDER"
    assert refused.value.detail is not None
    assert "offsets 0 to 1000, and stage 1 offsets 0 to 10 (exclusive);" in refused.value.detail
    with pytest.raises(BoundaryError, match="stage 0 does not hold what came before stage 1: partition 0"):
        sequence.open(ALL, sequence.pin(), None)
    outgrown = HistorySequence([sequence.stages[0], stage(tmp_path / "outgrown", rows(0, 2000))])
    with pytest.raises(BoundaryError, match="stage 0 does not hold"):
        read(outgrown, {0: 2000})


def reborn(first: int, next_: int, partition: int = 0) -> pl.DataFrame:
    """Rows of another incarnation of the topic: the same offsets a day later, and other ids."""
    return rows(first, next_, partition).with_columns(pl.col("at") + timedelta(days=1), -pl.col("id"))


@pytest.mark.parametrize("time", ["at", None])
@pytest.mark.parametrize("where", [None, pl.col("id") % 2 == 0])
@pytest.mark.parametrize("follow", [True, False])
def test_an_archive_of_a_former_incarnation_that_began_lower_is_refused(
    tmp_path: Path, time: str | None, where: pl.Expr | None, *, follow: bool
) -> None:
    old, new = stage(tmp_path / "old", rows(0, 1000)), stage(tmp_path / "new", reborn(500, 2000))
    old, new = replace(old, event_time=time), replace(new, event_time=time, where=where)
    sequence = HistorySequence([old, new])
    refusal = pytest.raises(
        BoundaryError, match=r"stage 0 has offset 500 of .*partition 0, which is another record in stage 1"
    )
    with refusal as refused:
        _ = read(sequence, {0: 2000}) if follow else sequence.open(ALL, sequence.pin(), None)
    assert refused.value.code == "STAGES_NOT_IN_ORDER"
    assert refused.value.context["wanted"] == 500
    assert refused.value.context["available"] == [[0, 1000], [500, 2000]]
    same = HistorySequence([old, replace(stage(tmp_path / "same", rows(500, 2000)), event_time=time, where=where)])
    assert read(same, {0: 2000})["id"].to_list() == [
        number for number in range(2000) if where is None or number < 1000 or number % 2 == 0
    ]


@pytest.mark.parametrize("names", ["old", "new"])
def test_without_a_tail_rows_that_name_no_topic_are_of_the_one_that_is_named(tmp_path: Path, names: str) -> None:
    topic = pl.lit("t").alias(system.TOPIC)
    made = {"old": rows(0, 1000), "new": rows(500, 2000), "other": reborn(500, 2000)}
    found = {
        name: frame.with_columns(topic) if (name == "old") == (names == "old") else frame
        for name, frame in made.items()
    }
    old, new, other = (stage(tmp_path / name, frame) for name, frame in found.items())
    sequence = HistorySequence([old, new])
    given = pl.concat(
        [batch.rows.collect() for batch in sequence.open(ALL, sequence.pin(), None).read(None)], how="diagonal"
    )
    assert sorted(given["id"]) == list(range(2000))
    sequence = HistorySequence([old, other])
    with pytest.raises(BoundaryError, match="offset 500 of topic t, partition 0, which is another record in stage 1"):
        sequence.open(ALL, sequence.pin(), None)


def test_shared_offsets_in_columns_that_the_job_names_are_compared_as_well(tmp_path: Path) -> None:
    named = {system.PARTITION: "p", system.OFFSET: "o"}
    old = stage(tmp_path / "old", rows(0, 1000).rename(named))
    for name, make in (("same", rows), ("new", reborn)):
        last = replace(
            stage(tmp_path / name, make(500, 2000).rename(named)), rules=[NamedColumns(OffsetNames("p", "o"))]
        )
        sequence = HistorySequence([old, last])
        if make is rows:
            assert sequence.resolve(sequence.pin(), ["t"]).boundary.nexts == {TopicPartition("t", 0): 2000}
            continue
        with pytest.raises(BoundaryError, match="another record in stage 1"):
            sequence.resolve(sequence.pin(), ["t"])


def test_a_later_stage_that_has_none_of_the_shared_offsets_is_refused(tmp_path: Path) -> None:
    later = stage(tmp_path / "new", pl.concat([rows(0, 1, 1), rows(500, 501), rows(900, 910)]))
    old = stage(tmp_path / "old", pl.concat([rows(0, 499), rows(501, 800)]))
    with pytest.raises(BoundaryError, match="offset 501 of topic t, partition 0, which stage 1 does not have"):
        read(HistorySequence([old, later]), {0: 910})


def test_writers_that_round_event_times_and_rows_changed_since_are_no_other_incarnation(tmp_path: Path) -> None:
    rounded = rows(4, 14).with_columns(at=pl.col("at") + timedelta(milliseconds=400))
    changed = rounded.with_columns(at=pl.when(pl.col("id") == 7).then("at").otherwise(pl.col("at") + timedelta(days=1)))
    nulls = rounded.with_columns(at=pl.lit(None, pl.Datetime("us", "UTC")))
    old = stage(tmp_path / "old", rows(0, 10))
    for name, new in (("rounded", rounded), ("changed", changed), ("nulls", nulls)):
        sequence = HistorySequence([old, stage(tmp_path / name, new)])
        assert read(sequence, {0: 14})["id"].to_list() == list(range(14))


def test_a_partition_that_only_the_archive_has_ends_with_it(tmp_path: Path) -> None:
    old = pl.concat([rows(0, 8), rows(3, 7, partition=1)])
    oldest = rows(0, 5, partition=1)
    stages = [stage(tmp_path / "oldest", oldest), stage(tmp_path / "old", old), stage(tmp_path / "new", rows(6, 12))]
    found = read(HistorySequence(stages), {0: 12}, trim=True).select(system.PARTITION, "id").rows()
    assert found == [*((0, number) for number in range(12)), *((1, number) for number in range(7))]
    sequence = HistorySequence([*stages[:2], replace(stages[2], rules=[Stated({0: 12}, trim=True)])])
    resolution = sequence.resolve(sequence.pin(), ["t"])
    assert resolution.boundary.ranges[TopicPartition("t", 1)] == PartitionRange(0, 7)
    assert "t[1] up to 7" in resolution.evidence


def test_an_archive_without_offsets_is_read_whole(tmp_path: Path) -> None:
    sequence = HistorySequence([stage(tmp_path / "old", plain(0, 1000)), stage(tmp_path / "new", rows(0, 10))])
    assert read(sequence, {0: 10}).height == 1010


def test_an_archive_that_the_record_calls_a_former_incarnation_is_read_whole(tmp_path: Path) -> None:
    sequence = measured(tmp_path)
    again = replace(sequence.stages[1], rules=[Stated({0: 10}, earlier=(Incarnation("a"),))])
    found = HistorySequence([sequence.stages[0], again])
    pin = found.pin()
    batches = found.open(ALL, pin, found.resolve(pin, ["t"])).read(None)
    assert sum(batch.rows.collect().height for batch in batches) == 1010


RANGES = [
    ({0: (0, 1000)}, {0: (900, 1200)}, None),
    ({0: (0, 1000)}, {0: (900, 950)}, None),  # a pinned snapshot may be older than the archive
    ({0: (0, 1000), 1: (0, 5)}, {0: (900, 1200), 1: (0, 20)}, None),  # partition 1 was slow
    ({0: (0, 1000), 1: (0, 50)}, {0: (900, 1200), 1: (0, 20)}, 1),
    ({0: (0, 1000), 1: (3, 5)}, {0: (900, 1200), 1: (0, 20)}, 1),
    ({0: (0, 10), 1: (0, 5)}, {0: (0, 10), 1: (0, 20)}, 0),
    ({0: (0, 10)}, {1: (0, 10)}, None),
    ({}, {0: (0, 10)}, None),
]


@pytest.mark.parametrize(("old", "new", "wrong"), RANGES)
def test_older_rows_begin_at_lower_offsets(
    old: dict[int, tuple[int, int]], new: dict[int, tuple[int, int]], wrong: int | None
) -> None:
    held = [
        Boundary({"t": TopicBoundary({at: PartitionRange(*ends) for at, ends in one.items()})}) for one in (old, new)
    ]
    assert not_older(*held) == (None if wrong is None else TopicPartition("t", wrong))


def test_what_the_last_stage_cannot_say_is_left_to_the_boundary(tmp_path: Path) -> None:
    sequence = HistorySequence([stage(tmp_path / "old", rows(0, 5)), stage(tmp_path / "new", plain(5, 9))])
    assert read(sequence, {0: 3})["id"].sort().to_list() == [0, 1, 2, 5, 6, 7, 8]


def test_columns_that_came_later_are_null_in_earlier_stages(tmp_path: Path) -> None:
    old, new = rows(0, 2).drop(system.PARTITION, system.OFFSET), rows(2, 4).with_columns(v=pl.lit(1.5))
    payload = pl.Schema({"id": pl.Int64(), "at": pl.Datetime("us", "UTC"), "v": pl.Float64()})
    first, last = (stage(tmp_path / name, frame) for name, frame in (("old", old), ("new", new)))
    wide = LakeHistory(first.open_history, event_time="at", payload=payload)
    sequence = HistorySequence([wide, last])
    request = ReadRequest(["id", "v"], pl.col("v").is_null() | (pl.col("v") > 0))
    found = pl.concat([batch.rows.collect() for batch in sequence.open(request, sequence.pin(), None).read(None)])
    assert found.rows() == [(0, None), (1, None), (2, 1.5), (3, 1.5)]


def job(tmp_path: Path, history: str) -> CompiledJob:
    text = f"""
name: staged
sources:
  s:
    history: {history}
    event_time: {{column: at}}
steps:
  - window: {{tumbling: 1m, aggregate: {{n: count(*), last: max(id)}}}}
sinks:
  - iceberg: {{table: local.ns.out, create: true}}
"""
    return compile_job(load_job_text(text, "job.yaml"), load_config(state_path=tmp_path / "state", cwd=tmp_path))


def test_a_job_over_two_stages(tmp_path: Path) -> None:
    rows(0, 100).write_parquet(tmp_path / "old.parquet")
    rows(90, 200).write_parquet(tmp_path / "new.parquet")
    compiled = job(
        tmp_path, f'[{{parquet: "{tmp_path}/old.parquet", where: id < 90}}, {{parquet: "{tmp_path}/new.parquet"}}]'
    )
    plan = plan_job(compiled).sources[0]
    assert [stage.location for stage in (*plan.earlier, plan.history) if stage] == [
        f"{tmp_path}/old.parquet",
        f"{tmp_path}/new.parquet",
    ]
    assert (
        run_job(compiled.spec, compiled.config, RunOptions("caught-up"), SilentObserver(), StopSignal()).status
        == "finished"
    )
    found = pl.DataFrame(compiled.catalogs.load("local.ns.out").scan().to_arrow()).sort("last")
    assert found.select("n", "last").rows() == [(60, 59), (60, 119), (60, 179), (20, 199)]


def test_a_stage_with_other_types_is_refused_where_it_stands(tmp_path: Path) -> None:
    rows(0, 2).with_columns(pl.col("id").cast(pl.Int32)).write_parquet(tmp_path / "old.parquet")
    rows(2, 4).write_parquet(tmp_path / "new.parquet")
    with pytest.raises(SpecError, match=r"sources\.s\.history\[0\]: column 'id' is int32 in this stage and int64"):
        job(tmp_path, f'[{{parquet: "{tmp_path}/old.parquet"}}, {{parquet: "{tmp_path}/new.parquet"}}]')


def test_an_empty_list_of_stages_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"sources\.s\.history: must not be empty"):
        job(tmp_path, "[]")


def iceberg(folder: Path, *files: pl.DataFrame) -> LakeHistory:
    """A table with one file for each frame."""
    folder.mkdir()
    table = open_catalog(folder).create_table("ns.t", arrow(files[0]).schema)
    append(table, *files)
    return LakeHistory(lambda pin: open_iceberg(table, "local.ns.t", pin=pin), event_time="at")


def test_what_a_hole_in_a_later_stage_hides_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    archive = stage(tmp_path / "archive", rows(0, 40))
    table = iceberg(tmp_path / "table", rows(10, 15), rows(20, 25))
    sequence = HistorySequence([archive, replace(table, rules=[Stated({0: 32}, trim=True)])])
    pin = sequence.pin()
    found = sequence.resolve(pin, ["t"])
    assert read(sequence, {0: 32}, trim=True)["id"].to_list() == [*range(15), *range(20, 25)]
    assert [note for note in found.notes if "may hold" in note] == [
        f"history stage 0 may hold offsets {begin} to {end} of t[0], of which no later stage has a file: they are left "
        "out, as a later stage begins below them; add them to it, or restrict the stages with where"
        for begin, end in ((15, 19), (25, 31))
    ]
    assert "offsets 15 to 19 of t[0]" in caplog.text
    alone = sequence.open(ALL, pin, None)
    assert any("may hold offsets 25 to 39 of partition 0" in note for note in alone.notes)
    whole = HistorySequence([archive, replace(iceberg(tmp_path / "whole", rows(10, 40)), rules=[Stated({0: 40})])])
    (note,) = whole.resolve(whole.pin(), ["t"]).notes
    assert note.startswith(
        "history stages 0 and 1 share t[0] offsets 10 to 39: they are read from stage 1; of these 30"
    )
    assert "all of them were compared" in note


@pytest.mark.parametrize("follow", [True, False])
def test_an_archive_that_names_no_topic_before_a_table_of_several_is_refused(tmp_path: Path, *, follow: bool) -> None:
    archive = stage(tmp_path / "archive", rows(0, 20))
    named = [rows(10, 30).with_columns(pl.lit(topic).alias(system.TOPIC)) for topic in "tu"]
    table = replace(stage(tmp_path / "table", *named), rules=[Named()])

    def planned(first: LakeHistory) -> HistorySequence:
        sequence = HistorySequence([first, table])
        _ = sequence.resolve(sequence.pin(), ["t", "u"]) if follow else sequence.open(ALL, sequence.pin(), None)
        return sequence

    with pytest.raises(BoundaryError, match=r"offsets 10 to 20 .exclusive. of partition 0 with topic t of") as refused:
        planned(archive)
    assert refused.value.code == "STAGE_WITHOUT_TOPIC"
    assert (refused.value.context["partition"], refused.value.context["available"]) == (0, [10, 20])
    planned(replace(archive, where=pl.col("id") < 10))
    planned(stage(tmp_path / "older", rows(0, 10)))


@dataclass(frozen=True, slots=True)
class Named:
    """A boundary of the tests, by columns that name the topic."""

    name: str = "named"
    looks_for: str = "nothing"

    def resolve(self, context: BoundaryContext) -> Resolution:
        boundary = Boundary({context.topic: TopicBoundary({0: PartitionRange(10, 30)})})
        return Resolution(boundary, "named", "", columns=OffsetNames(topic=system.TOPIC))
