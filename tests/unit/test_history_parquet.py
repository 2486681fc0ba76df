"""History from a frozen set of Parquet files."""

from __future__ import annotations

import datetime as dt
import json
import os
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.kernel import columns as system
from headrace.kernel.errors import NotFoundError, SchemaError, SnapshotGoneError, UserError
from hybrid_source import parquet_listing
from hybrid_source.history import HistoryQuery
from hybrid_source.parquet_history import open_parquet
from hybrid_source.source_values import END_OF_HISTORY
from hybrid_source.splits import SplitTarget
from tests.history_tables import collect

NEW_YEAR = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
SMALL = SplitTarget(rows=1, nbytes=1)


def write(path: Path, hour: int, rows: int = 10, **more: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    at = [NEW_YEAR + dt.timedelta(hours=hour, seconds=n) for n in range(rows)]
    frame = pl.DataFrame({"hour": [hour] * rows, "at": at, **{name: [value] * rows for name, value in more.items()}})
    frame.write_parquet(path, row_group_size=4)
    return path


def hours(pattern: object) -> list[int]:
    splits = open_parquet(str(pattern)).plan(HistoryQuery(event_time="at", target=SMALL)).splits_from()
    return [split.rows.collect()["hour"][0] for split in splits if split.rows.collect().height]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("", [0, 1, 2, 3]),
        ("/**/*.parquet", [0, 1, 2, 3]),
        ("/*.parquet", [1, 3]),
        ("/b/*.parquet", [0, 2]),
        ("/*/f[02].parquet", [0, 2]),
        ("/b/f?.parquet", [0, 2]),
        ("/b/f[!0].parquet", [2]),
        ("/f3.parquet", [3]),
    ],
)
def test_patterns(tmp_path: Path, pattern: str, expected: list[int]) -> None:
    write(tmp_path / "f3.parquet", 3, rows=4)
    write(tmp_path / "b/f2.parquet", 2, rows=4)
    write(tmp_path / "b/f0.parquet", 0, rows=4)
    write(tmp_path / "f1.parquet", 1, rows=4)
    write(tmp_path / "_tmp.parquet", 9)
    write(tmp_path / ".part.parquet", 9)
    (tmp_path / "notes.txt").write_text("no data")
    assert hours(f"{tmp_path}{pattern}") == expected


def test_files_are_read_in_event_time_order_by_row_groups(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", 5)
    write(tmp_path / "b.parquet", 4)
    history = open_parquet(str(tmp_path))
    plan = history.plan(HistoryQuery(event_time="at", target=SplitTarget(4, 1 << 30)))
    splits = list(plan.splits_from())
    assert [split.records for split in splits] == [4, 4, 2, 4, 4, 2]
    assert splits[2].watermark == int((NEW_YEAR + dt.timedelta(hours=5)).timestamp() * 1e6) - 1
    assert splits[-1].watermark == END_OF_HISTORY
    assert list(collect(splits)["hour"]) == [4] * 10 + [5] * 10
    resumed = list(plan.splits_from(json.loads(json.dumps(splits[0].cursor))))
    assert list(collect(resumed)["hour"]) == [4] * 6 + [5] * 10


def test_the_predicate_is_exact_and_only_wanted_columns_come(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", 1, v=float("nan"))
    write(tmp_path / "b.parquet", 2, v=1.0)
    history = open_parquet(str(tmp_path))
    found = collect(history.plan(HistoryQuery(["hour", "_kafka_offset"], predicate=pl.col("v") > 1.5)))
    assert found.rows() == [(1, None)] * 10
    assert found.schema["_kafka_offset"] == pl.Int64


def test_columns_are_united_by_name_and_missing_ones_are_null(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", 1)
    write(tmp_path / "b.parquet", 2, extra="x")
    history = open_parquet(str(tmp_path))
    assert list(history.schema) == ["hour", "at", "extra", *system.SYSTEM]
    assert collect(history.plan(HistoryQuery(["extra"]))).rows() == [(None,)] * 10 + [("x",)] * 10


def test_one_column_in_two_types_is_refused_with_both_files(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", 1, v=1)
    write(tmp_path / "b.parquet", 2, v="x")
    with pytest.raises(SchemaError, match="column v has two types") as caught:
        open_parquet(str(tmp_path))
    assert "a.parquet" in caught.value.detail
    assert "b.parquet" in caught.value.detail


def test_no_match_and_no_parquet_are_user_errors(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no Parquet files match"):
        open_parquet(f"{tmp_path}/*.parquet")
    with pytest.raises(NotFoundError):
        open_parquet(f"{tmp_path}/missing/file.parquet")
    (tmp_path / "a.parquet").write_text("not parquet")
    with pytest.raises(UserError, match=r"a\.parquet is no Parquet file"):
        open_parquet(str(tmp_path))


def test_files_that_come_later_do_not_belong_to_the_pinned_version(tmp_path: Path) -> None:
    write(tmp_path / "b.parquet", 2)
    pin = json.loads(json.dumps(open_parquet(str(tmp_path)).pin))
    write(tmp_path / "a.parquet", 1)
    assert set(collect(open_parquet(str(tmp_path), pin=pin).plan(HistoryQuery()))["hour"]) == {2}


def test_snp_01_a_changed_or_missing_file_is_named_on_resume(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", 1)
    write(tmp_path / "b.parquet", 2)
    pin = open_parquet(str(tmp_path)).pin
    write(path, 1, rows=11)
    with pytest.raises(SnapshotGoneError, match=r"a\.parquet has changed"):
        open_parquet(str(tmp_path), pin=pin)
    path.unlink()
    with pytest.raises(SnapshotGoneError, match=r"a\.parquet is gone"):
        open_parquet(str(tmp_path), pin=pin)


def test_snp_01_a_changed_or_missing_file_is_named_while_reading(tmp_path: Path) -> None:
    path = write(tmp_path / "b.parquet", 2)
    write(tmp_path / "a.parquet", 1)
    for spoil, words in ((lambda: write(path, 2, rows=50), "has changed"), (path.unlink, "is gone")):
        splits = (
            open_parquet(str(tmp_path)).plan(HistoryQuery(event_time="at", target=SplitTarget(10, 1))).splits_from()
        )
        next(splits)
        spoil()
        with pytest.raises(SnapshotGoneError, match=f"b.parquet {words}"):
            _ = [split.rows for split in splits]


def test_a_pin_of_many_files_stays_small_and_still_notices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_listing, "_NAMED_FILES", 1)
    for hour in range(3):
        os.utime(write(tmp_path / f"f{hour}.parquet", hour), (1000 + hour, 1000 + hour))
    pin = open_parquet(str(tmp_path)).pin
    assert "listing" not in pin
    write(tmp_path / "later.parquet", 9)
    assert set(collect(open_parquet(str(tmp_path), pin=pin).plan(HistoryQuery()))["hour"]) == {0, 1, 2}
    write(tmp_path / "f1.parquet", 7)
    with pytest.raises(SnapshotGoneError, match=r"2 are left.*f1\.parquet"):
        open_parquet(str(tmp_path), pin=pin)


def test_event_time_bounds_of_odd_units_years_and_nulls(tmp_path: Path) -> None:
    cases = {
        "ms": pl.Series([dt.datetime(1, 1, 1, tzinfo=dt.UTC)]).cast(pl.Datetime("ms", "UTC")),
        "ns": pl.Series([dt.datetime(2100, 1, 1, tzinfo=dt.UTC)]).cast(pl.Datetime("ns", "UTC")),
        "date": pl.Series([dt.date(1969, 12, 31)]),
        "nulls": pl.Series([None], dtype=pl.Datetime("us")),
        "text": pl.Series(["2026-01-01"]),
    }
    expected = {
        "ms": -62135596800_000_000,
        "ns": 4102444800_000_000,
        "date": -86_400_000_000,
        "nulls": END_OF_HISTORY,
        "text": None,
    }
    for name, values in cases.items():
        pl.DataFrame({"at": values}).write_parquet(tmp_path / f"{name}.parquet")
        plan = open_parquet(str(tmp_path / f"{name}.parquet")).plan(HistoryQuery(event_time="at"))
        low = expected[name]
        assert plan.watermark() == (low if low in {None, END_OF_HISTORY} else low - 1), name


@pytest.mark.parametrize("noted", [True, False], ids=["unit-noted", "as-spark-writes"])
def test_timestamps_in_96_bits_keep_every_year(tmp_path: Path, *, noted: bool) -> None:
    times = [dt.datetime.fromisoformat(text) for text in ("0001-01-01", "1969-12-31T23:59:59.999999", "9999-12-31")]
    path = tmp_path / "a.parquet"
    nested = pa.array([{"t": [at]} for at in times], pa.struct([("t", pa.list_(pa.timestamp("us")))]))
    written = pa.table({"at": pa.array(times, pa.timestamp("us")), "nested": nested})
    pq.write_table(written, path, use_deprecated_int96_timestamps=True, store_schema=noted)
    history = open_parquet(str(path))
    assert history.schema["at"] == pl.Datetime("us")
    plan = history.plan(HistoryQuery(event_time="at"))
    assert plan.watermark() is None  # 96 bits have no statistics
    found = collect(plan)
    assert found["at"].to_list() == times
    assert found["nested"].to_list() == [{"t": [at]} for at in times]
    late = collect(history.plan(HistoryQuery(predicate=pl.col("at") > NEW_YEAR.replace(tzinfo=None))))
    assert late["at"].to_list() == times[2:]


def test_digits_beyond_microseconds_are_cut_off_timestamps_in_96_bits(tmp_path: Path) -> None:
    written = pa.table({"at": pa.array([-1, 1_001], pa.timestamp("ns"))})
    pq.write_table(written, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    found = collect(open_parquet(str(tmp_path)).plan(HistoryQuery()))
    assert found["at"].to_physical().to_list() == [-1, 1]


def test_columns_that_cannot_be_told_apart_or_held_are_refused_by_name(tmp_path: Path) -> None:
    twice, wide = tmp_path / "twice.parquet", tmp_path / "wide.parquet"
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]), twice)
    with pytest.raises(SchemaError, match=r"twice\.parquet has several columns 'a'"):
        open_parquet(str(twice))
    pq.write_table(pa.table({"d": pa.array([1], pa.int64()).cast(pa.decimal256(60, 2))}), wide)
    with pytest.raises(SchemaError, match=r"column 'd' of .*wide\.parquet has decimals of 60 digits"):
        open_parquet(str(wide))


def test_typ_04_times_with_a_zone_are_instants_in_utc_whatever_zone_the_writer_notes(tmp_path: Path) -> None:
    for number, zone in enumerate(("America/New_York", "UTC", "+02:00")):
        kind = pa.timestamp("us", zone)
        at = pa.array([NEW_YEAR + dt.timedelta(hours=number), None], kind)
        within = pa.array([{"t": [NEW_YEAR]}, None], pa.struct([("t", pa.list_(kind))]))
        pq.write_table(pa.table({"at": at, "within": within}), tmp_path / f"{number}.parquet")
    history = open_parquet(str(tmp_path))
    assert history.schema["at"] == pl.Datetime("us", "UTC")
    assert history.schema["within"] == pl.Struct({"t": pl.List(pl.Datetime("us", "UTC"))})
    found = collect(history.plan(HistoryQuery(event_time="at", target=SMALL))).drop_nulls()
    assert found["at"].to_list() == [NEW_YEAR + dt.timedelta(hours=number) for number in range(3)]
    assert found["within"].to_list() == [{"t": [NEW_YEAR]}] * 3
    later = collect(history.plan(HistoryQuery(predicate=pl.col("at") > NEW_YEAR)))
    assert later["at"].to_list() == [NEW_YEAR + dt.timedelta(hours=1), NEW_YEAR + dt.timedelta(hours=2)]
