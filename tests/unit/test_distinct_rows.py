"""Rows that a writer has stored twice are read once, however the history is split and wherever a job stops."""

from __future__ import annotations

import tempfile
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybrid_source.distinct_rows import DistinctRows
from hybrid_source.history import HistoryQuery
from hybrid_source.parquet_history import open_parquet
from hybrid_source.resolution import OffsetNames
from hybrid_source.splits import SplitTarget

SCHEMA = pl.Schema({"topic": pl.String(), "p": pl.Int32(), "o": pl.Int64(), "v": pl.Int64()})
NAMES = OffsetNames("p", "o")
OFFSETS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12)), max_size=12)


def frame(keys: list[tuple[int | None, int | None]], topic: str = "t") -> pl.DataFrame:
    values = [1000 * (p or 0) + (o or 0) for p, o in keys]
    return pl.DataFrame(
        {"topic": [topic] * len(keys), "p": [p for p, _ in keys], "o": [o for _, o in keys], "v": values}, schema=SCHEMA
    )


@settings(max_examples=60, deadline=None)
@given(files=st.lists(OFFSETS, min_size=1, max_size=5), rows=st.integers(1, 8), stop=st.integers(0, 6))
def test_each_offset_is_read_once_whatever_the_splits_and_the_restart(
    files: list[list[tuple[int, int]]], rows: int, stop: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for number, keys in enumerate(files):
            frame([*keys]).write_parquet(Path(folder) / f"{number}.parquet", row_group_size=3)
        history = open_parquet(folder)

        def plan(target: int) -> object:
            return history.plan(HistoryQuery(["v"], distinct=NAMES, target=SplitTarget(target)))

        found: list[int] = []
        cursor = None
        for _, split in zip(range(stop), plan(rows).splits_from(None), strict=False):  # type: ignore[attr-defined]
            found += split.rows.collect(engine="streaming")["v"].to_list()
            cursor = split.cursor
        for split in plan(100).splits_from(cursor):  # type: ignore[attr-defined]  # restarted, and split otherwise
            found += split.rows.collect(engine="streaming")["v"].to_list()
        assert sorted(found) == sorted({1000 * p + o for keys in files for p, o in keys})


def test_rows_that_are_no_records_stay_and_topics_are_told_apart() -> None:
    rows = DistinctRows(SCHEMA, OffsetNames("p", "o", "topic"))
    first = pl.concat([frame([(0, 1), (0, 1), (None, None), (None, None)]), frame([(0, 1), (0, 3)], "u")])
    assert rows.first(first.lazy()).collect()["topic"].to_list() == ["t", "t", "t", "u", "u"]
    second = pl.concat([frame([(0, 2), (0, 1), (None, 4)]), frame([(0, 1), (0, 2)], "u")])
    assert rows.first(second.lazy()).collect().select("topic", "p", "o").rows() == [
        ("t", 0, 2),
        ("t", None, 4),
        ("u", 0, 2),
    ]


def test_what_is_seen_is_kept_as_runs() -> None:
    rows = DistinctRows(SCHEMA, NAMES)
    for start in (500, 0, 1000, 250):
        rows.skip(frame([(0, offset) for offset in range(start, start + 250)]).lazy())
    assert rows._seen.select("start", "next").rows() == [(0, 750), (1000, 1250)]
    assert rows.first(frame([(0, 749), (0, 750), (0, 999), (1, 5)]).lazy()).collect()["v"].to_list() == [750, 999, 1005]


@pytest.mark.parametrize("predicate", [pl.col("v") > 3, pl.col("v") < 0])
def test_a_pushed_predicate_changes_nothing(tmp_path: Path, predicate: pl.Expr) -> None:
    for number in range(3):
        frame([(0, offset) for offset in range(number, number + 6)]).write_parquet(tmp_path / f"{number}.parquet")
    query = HistoryQuery(["v"], predicate, distinct=NAMES, target=SplitTarget(4))
    found = [
        row for split in open_parquet(str(tmp_path)).plan(query).splits_from() for row in split.rows.collect()["v"]
    ]
    assert found == frame([(0, offset) for offset in range(8)]).filter(predicate)["v"].to_list()
