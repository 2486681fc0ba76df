"""Rows held by time: a list of them, whatever lies in which file, is merged when, and belongs to which instance."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.kernel.errors import GraphChangedError
from headrace.kernel.held import HeldLayout, HeldSnapshot, united_held
from headrace.kernel.keyed import KeyGroups
from headrace.kernel.protocols import OperatorState
from headrace.state import held as implementation
from headrace.state.backend import StateBackend, StateOptions
from headrace.state.held import HeldStore
from headrace.state.keyed import MemoryBudget, Sizes
from headrace.state.runs import RunFolder

TIME = pl.Datetime("us", "UTC")
SCHEMA = pl.Schema({"k": pl.String(), "t": TIME, "v": pl.Int128()})
Row = tuple[Any, ...]


def added_up(rows: pl.LazyFrame) -> pl.LazyFrame:
    return rows.group_by("k", "t").agg(pl.col("v").sum())


PLAIN = HeldLayout("rows", SCHEMA, ["k"], "t")
MERGED = HeldLayout("rows", SCHEMA, ["k"], "t", merge=added_up)
KEYLESS = HeldLayout("rows", SCHEMA, [], "t")
FLAGGED = HeldLayout("rows", pl.Schema({**SCHEMA, "f": pl.Boolean()}), ["k"], "t", flag="f")


def frame(rows: list[Row]) -> pl.DataFrame:
    found = pl.DataFrame(rows, schema={**SCHEMA, "t": pl.Int64()}, orient="row")
    return found.with_columns(pl.col("t").cast(TIME))


def listed(frames: list[pl.DataFrame]) -> list[Row]:
    return in_order(row for one in frames for row in one.with_columns(pl.col("t").to_physical()).rows())


def in_order(rows: Any) -> list[Row]:
    return sorted(rows, key=repr)


def made(layout: HeldLayout, groups: KeyGroups | None = None, memory: int = 300) -> HeldStore:
    sizes = Sizes(small=2, fan=2, segment=8, whole=2, searched=3, few=1, scans=0)
    return HeldStore(layout, groups or KeyGroups(), RunFolder(), MemoryBudget(memory), sizes)


class Pair:
    """A state, and what it should hold."""

    def __init__(self, layout: HeldLayout) -> None:
        self.layout = layout
        self.rows: list[Row] = []
        self.state = made(layout)
        self.kept: list[tuple[HeldSnapshot, list[Row]]] = []

    def merged(self, rows: list[Row]) -> list[Row]:
        if self.layout.merge is None:
            return in_order(rows)
        sums: dict[Row, int] = defaultdict(int)
        for key, time, value in rows:
            sums[key, time] += value
        return in_order((*name, value) for name, value in sums.items())

    def add(self, rows: list[Row]) -> None:
        flagged = self.layout.flag is not None
        self.state.add(frame(rows).with_columns(pl.lit(value=False).alias("f")) if flagged else frame(rows))
        self.rows += [(*row, False) for row in rows] if flagged else rows

    def mark(self, numbers: list[int]) -> None:
        if self.layout.merge is not None or not self.rows:
            return
        places = self.state.numbered("place").with_columns(pl.col("t").to_physical()).collect()
        assert listed([places.drop("place")]) == in_order(self.rows)
        marked = places[sorted({number % places.height for number in numbers})]
        self.state.mark(pl.concat([marked["place"], marked["place"].head(1)]))
        for row in marked.drop("place").rows():
            self.rows.remove(row)
            self.rows += [(*row[:3], True)] if self.layout.flag else []

    def look_up(self, keys: list[str | None]) -> None:
        asked = frame([(key, 0, 0) for key in keys])
        found = self.state.numbered("place", asked).collect()
        places = self.state.numbered("place").collect()
        some = set(found["place"])
        assert len(some) == found.height
        assert listed([found]) == listed([places.filter(pl.col("place").is_in(some))])
        wanted = places.filter(pl.col("k").is_in(keys, nulls_equal=True))["place"] if self.layout.key else []
        assert some.issuperset(wanted)

    def drop(self, before: int) -> None:
        self.state.drop(before)
        left = listed(self.state.frames())
        staying = [[row for row in rows if row[1] >= before] for rows in (left, self.rows)]
        assert self.merged(staying[0]) == self.merged(staying[1])
        self.rows = left

    def take(self, before: int) -> None:
        expected = self.merged([row for row in self.rows if row[1] < before])
        assert listed([self.state.peek(before)]) == expected
        assert listed([self.state.take(before)]) == expected
        self.rows = [row for row in self.rows if row[1] >= before]

    def snapshot(self, _: object) -> None:
        self.kept.append((self.state.snapshot(), list(self.rows)))

    def restore(self, instances: int) -> None:
        snapshot = self.state.snapshot()
        groups = [KeyGroups.of(index, instances) for index in range(instances if self.layout.key else 1)]
        parts = [self.opened(snapshot, each) for each in groups]
        again = [self.opened(united_held([part.snapshot() for part in parts]), each) for each in groups]
        self.state = self.opened(united_held([part.snapshot() for part in again]))

    def opened(self, snapshot: HeldSnapshot, groups: KeyGroups | None = None) -> HeldStore:
        state = made(self.layout, groups)
        state.restore(snapshot, "operator 'x'")
        return state


ROWS = st.lists(
    st.tuples(st.sampled_from([None, *"abcdef"]), st.integers(-30, 30), st.integers(-(2**100), 2**100)), max_size=8
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), ROWS),
        st.tuples(st.just("take"), st.integers(-32, 32)),
        st.tuples(st.just("drop"), st.integers(-32, 0)),
        st.tuples(st.just("mark"), st.lists(st.integers(0, 99), max_size=5)),
        st.tuples(st.just("look_up"), st.lists(st.sampled_from([None, *"abcdefg"]), max_size=2)),
        st.tuples(st.just("snapshot"), st.none()),
        st.tuples(st.just("restore"), st.integers(1, 3)),
    ),
    max_size=20,
)


@pytest.mark.parametrize("layout", [PLAIN, MERGED, KEYLESS, FLAGGED], ids=["plain", "merged", "keyless", "flagged"])
@settings(deadline=None, max_examples=25)
@given(steps=STEPS)
def test_it_is_a_list(layout: HeldLayout, steps: list[Any]) -> None:
    pair = Pair(layout)
    for step, value in steps:
        getattr(pair, step)(value)
        times = [row[1] for row in pair.rows]
        assert (pair.state.earliest, pair.state.latest) == (min(times, default=None), max(times, default=None))
        assert len(pair.merged(pair.rows)) <= pair.state.height <= len(pair.rows)
    assert pair.merged(listed(pair.state.frames())) == pair.merged(pair.rows)
    assert listed([pair.state.merged()]) == pair.merged(pair.rows)
    for snapshot, rows in pair.kept:
        assert listed([pair.opened(snapshot).merged()]) == pair.merged(rows)


def test_of_many_rows_those_of_few_keys_are_looked_up() -> None:
    sizes = Sizes(small=10, whole=10, searched=20, scans=0)
    state = HeldStore(PLAIN, KeyGroups(), RunFolder(), MemoryBudget(1 << 20), sizes)
    state.add(frame([(f"k{at % 50}", at, at) for at in range(200)]))
    few = frame([("k7", 0, 0), ("k9", 0, 0), ("k3", 0, 0), ("none", 0, 0)])
    wanted = [3, 7, 9, 53, 57, 59, 103, 107, 109, 153, 157, 159]
    assert sorted(state.numbered("place", few).collect()["v"]) == wanted
    state.drop(53)
    found = state.numbered("place", few).collect()
    assert sorted(found["v"]) == wanted[3:]
    state.mark(found.filter(pl.col("v") == 57)["place"])
    assert sorted(state.numbered("place", few).collect()["v"]) == [53, 59, 103, 107, 109, 153, 157, 159]
    assert state.numbered("place", frame([(f"k{at}", 0, 0) for at in range(50)])).collect().height == 146


def test_an_index_is_made_once_it_pays(tmp_path: Path) -> None:
    sizes = Sizes(small=10, whole=10, searched=20, scans=3)
    state = HeldStore(PLAIN, KeyGroups(), RunFolder(tmp_path), MemoryBudget(1 << 20), sizes)
    state.add(frame([(f"k{at % 50}", at, at) for at in range(200)]))
    made = []
    for _ in range(9):
        rows = state.numbered("place", frame([("k7", 0, 0)])).filter(pl.col("k") == "k7").collect()
        assert sorted(rows["v"]) == [7, 57, 107, 157]
        made.append(len(list(tmp_path.glob("*/*.arrow"))))
    # The rows are written first, and the index beside them when they have been searched through as often again.
    assert made == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def files(snapshot: HeldSnapshot) -> dict[str, int]:
    return {one.run.file.id: one.run.file.rows for part in snapshot.parts for one in part.segments}


@pytest.mark.parametrize("layout", [PLAIN, MERGED], ids=["plain", "merged"])
def test_a_snapshot_writes_what_has_come_and_no_row_more_often_than_a_logarithm(layout: HeldLayout) -> None:
    sizes = Sizes(small=10, fan=4, segment=100_000, whole=10)
    state = HeldStore(layout, KeyGroups(), RunFolder(), MemoryBudget(1 << 20), sizes)
    state.add(frame([(f"k{at % 100}", at, 1) for at in range(10_000)]))
    seen, written = files(state.snapshot()), []
    for at in range(64):
        state.take(at * 10)
        state.add(frame([("new", 10_000 + at * 20 + n, 1) for n in range(20)]))
        now = files(state.snapshot())
        written.append(sum(rows for name, rows in now.items() if name not in seen))
        assert len(now) < 16
        seen |= now
    assert written[0] == 20
    assert sum(written) <= 64 * 20 * 4
    assert max(written) < 1500


def test_a_segment_that_is_mostly_gone_is_written_anew() -> None:
    state = HeldStore(PLAIN, KeyGroups(), RunFolder(), MemoryBudget(1 << 20), Sizes(small=10, whole=10))
    state.add(frame([("k", at, 1) for at in range(1000)]))
    first = files(state.snapshot())
    state.take(700)
    assert files(state.snapshot()) == first
    state.take(800)
    second = files(state.snapshot())
    assert second.keys().isdisjoint(first)
    assert list(second.values()) == [200]
    state.take(2000)
    assert files(state.snapshot()) == {}


def test_beyond_the_budget_rows_lie_on_disk_and_their_files_go_with_them(tmp_path: Path) -> None:
    runs = RunFolder(tmp_path)
    state = HeldStore(PLAIN, KeyGroups(), runs, MemoryBudget(100_000), Sizes())
    for at in range(20):
        state.add(frame([("k", 1000 * at + n, 1) for n in range(1000)]))
    lying = sum(path.stat().st_size for path in runs.open().glob("*.arrow"))
    assert lying > 19_000 * 8 * 3
    assert state.height == 20_000
    assert state.take(10_000).height == 10_000
    state.take(10**6)
    assert list(runs.open().glob("*.arrow")) == []
    runs.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "has version 1, this release reads version 2"),
        ({"key": ["k", "v"]}, "its state does not fit the job"),
        ({"schema": pl.Schema({**SCHEMA, "v": pl.Int64()})}, "v was Int128, is Int64"),
    ],
)
def test_another_definition_is_refused(change: dict[str, Any], message: str) -> None:
    backend = StateBackend(StateOptions())
    state = backend.context("x").held(PLAIN)
    values = {name: getattr(PLAIN, name) for name in ("name", "schema", "key", "time")} | change
    context = backend.context("window 'w'", OperatorState(1, held={"rows": state.snapshot()}))
    with pytest.raises(GraphChangedError) as caught:
        context.held(HeldLayout(**values))
    assert message in f"{caught.value.message} {caught.value.detail}"
    backend.close()


def test_keys_that_hash_otherwise_than_before_come_to_their_instances(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(key, at, 1) for at, key in enumerate("abcdefghijkl")]
    state = made(PLAIN, KeyGroups.of(0, 2))
    state.add(frame(rows))
    monkeypatch.setattr(implementation, "hash_probe", lambda: "another")
    parts = [made(PLAIN, KeyGroups.of(index, 2)) for index in range(2)]
    snapshot = HeldStore.snapshot(state)
    monkeypatch.setattr(implementation, "hash_probe", lambda: "now")
    for part in parts:
        part.restore(snapshot, "operator 'x'")
    assert listed([frame for part in parts for frame in part.frames()]) == in_order(rows)
    assert all(part.height for part in parts)
