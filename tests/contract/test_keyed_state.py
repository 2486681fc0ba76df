"""Keyed state against a dictionary: whatever is put, removed, merged and restored, and however hashes collide."""

from __future__ import annotations

import dataclasses
import errno
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from headrace.kernel import keyed as kernel_keyed
from headrace.kernel.errors import AccessDeniedError, GraphChangedError, HeadraceError, UnavailableError
from headrace.kernel.keyed import GROUPS, KeyedLayout, KeyedSnapshot, KeyedState, KeyGroups, key_groups, united
from headrace.kernel.protocols import OperatorState
from headrace.state.backend import StateBackend, StateOptions
from headrace.state.keyed import KeyedStore, MemoryBudget, Sizes
from headrace.state.runs import RunFolder
from headrace.state.sorted_rows import Hashing

SCHEMA = pl.Schema({"k": pl.String, "seq": pl.Int64, "v": pl.Int128, "t": pl.Int64})
TINY = Sizes(small=2, fan=2, segment=4, sweep=5, share=2, most=6)
ONE = KeyedLayout("one", SCHEMA, ["k"], time="t", ttl_us=10)
MANY = KeyedLayout("many", SCHEMA, ["k"], ["seq"], time="t", ttl_us=10)

Row = tuple[Any, ...]
Make = Callable[[KeyedLayout], KeyedStore]


def plain(layout: KeyedLayout) -> KeyedStore:
    return KeyedStore(Hashing(layout), RunFolder(), MemoryBudget(1 << 20))


def tiny(layout: KeyedLayout) -> KeyedStore:
    return KeyedStore(Hashing(layout), RunFolder(), MemoryBudget(300), TINY)


def colliding(layout: KeyedLayout) -> KeyedStore:
    return KeyedStore(Hashing(layout, kept=0xC000_0000_0000_0000), RunFolder(), MemoryBudget(0), TINY)


MAKES = [plain, tiny, colliding]


def frame(rows: Sequence[Row]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def listed(rows: pl.DataFrame) -> list[Row]:
    return sorted(rows.rows(), key=repr)


def everything(state: KeyedState) -> list[Row]:
    return sorted((row for piece in state.rows() for row in piece.rows()), key=repr)


class Model:
    """What is held, as a dictionary."""

    def __init__(self, layout: KeyedLayout) -> None:
        self.many = bool(layout.within)
        self.held: dict[Row, Row] = {}
        self.now: int | None = None

    def name(self, row: Row) -> Row:
        return row[:2] if self.many else row[:1]

    def alive(self) -> list[Row]:
        rows = self.held.values()
        return [row for row in rows if self.now is None or row[3] is None or row[3] + 10 > self.now]


KEYS = st.sampled_from([None, "", *"abcdefghij"])
ROWS = st.lists(
    st.tuples(KEYS, st.integers(0, 3), st.integers(-(2**127), 2**127 - 1), st.one_of(st.none(), st.integers(0, 40))),
    max_size=8,
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), ROWS),
        st.tuples(st.just("remove"), ROWS),
        st.tuples(st.just("expire"), st.integers(0, 50)),
        st.tuples(st.just("snapshot"), st.none()),
        st.tuples(st.just("restore"), st.integers(1, 3)),
    ),
    max_size=25,
)


class Pair:
    """A state, and what it should hold."""

    def __init__(self, make: Make, layout: KeyedLayout) -> None:
        self.make, self.layout = make, layout
        self.model, self.state = Model(layout), make(layout)
        self.kept: list[tuple[KeyedSnapshot, list[Row]]] = []

    def put(self, rows: list[Row]) -> None:
        last = {self.model.name(row): row for row in rows}
        self.state.put(frame(list(last.values())))
        self.model.held.update(last)

    def remove(self, rows: list[Row]) -> None:
        self.state.remove(frame(rows))
        for row in rows:
            self.model.held.pop(self.model.name(row), None)

    def expire(self, now: int) -> None:
        self.state.expire(now)
        self.model.now = now if self.model.now is None else max(now, self.model.now)
        self.model.held = {self.model.name(row): row for row in self.model.alive()}

    def snapshot(self, _: object) -> None:
        self.kept.append((self.state.snapshot(), self.model.alive()))

    def restore(self, instances: int) -> None:
        snapshot = self.state.snapshot()
        parts = [self.opened(snapshot, KeyGroups.of(index, instances)) for index in range(instances)]
        self.state = self.opened(united([part.snapshot() for part in parts]))

    def opened(self, snapshot: KeyedSnapshot, groups: KeyGroups | None = None) -> KeyedStore:
        state = self.make(self.layout)
        state.restore(snapshot, groups or KeyGroups(), "operator 'x'")
        if self.model.now is not None:
            state.expire(self.model.now)
        return state


@pytest.mark.parametrize("layout", [ONE, MANY], ids=["one", "many"])
@pytest.mark.parametrize("make", MAKES)
@settings(deadline=None, max_examples=60)
@given(steps=STEPS, asked=st.lists(KEYS, max_size=12))
def test_it_is_a_dictionary(make: Make, layout: KeyedLayout, steps: list[Any], asked: list[str | None]) -> None:
    pair = Pair(make, layout)
    keys = pl.DataFrame({"k": asked}, schema={"k": pl.String})
    for step, value in steps:
        getattr(pair, step)(value)
        found = listed(pair.state.find(keys))
        assert found == sorted((row for row in pair.model.alive() if row[0] in asked), key=repr)
        assert pair.state.height >= 0
    assert everything(pair.state) == sorted(pair.model.alive(), key=repr)
    for snapshot, held in pair.kept:
        alive = [row for row in held if pair.model.now is None or row[3] is None or row[3] + 10 > pair.model.now]
        assert everything(pair.opened(snapshot)) == sorted(alive, key=repr)


def test_a_snapshot_shares_its_files_with_the_ones_before() -> None:
    layout = KeyedLayout("one", SCHEMA, ["k"])
    sizes = Sizes(segment=1000, sweep=500)
    state = KeyedStore(Hashing(layout), RunFolder(), MemoryBudget(1 << 20), sizes)
    state.put(frame([(f"k{at}", 0, at, 0) for at in range(20_000)]))

    def files() -> dict[str, int]:
        part = state.snapshot().parts[0]
        return {run.file.id: run.file.nbytes for run in (*part.base, *part.changes)}

    before = files()
    state.put(frame([(f"k{at}", 1, at, 0) for at in range(50)]))
    after = files()
    assert len(before) > 10
    new = sum(size for name, size in after.items() if name not in before)
    assert 0 < new < sum(before.values()) / 20
    assert state.find(pl.DataFrame({"k": ["k7", "k19999"]})).sort("k").rows() == [
        ("k19999", 0, 19999, 0),
        ("k7", 1, 7, 0),
    ]


ODD: dict[str, Any] = {
    "string": ["a", "", None, "ü" * 40],
    "integer": [0, -1, None, 2**62],
    "float": [0.0, float("nan"), None, float("-inf")],
    "time": [datetime(1969, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC), None, datetime(1, 1, 1, tzinfo=UTC)],
    "decimal": [Decimal("1.10"), Decimal("-99999999999999999999.99"), None, Decimal(0)],
    "bytes": [b"", b"\x00", None, b"\xff" * 20],
    "boolean": [True, False, None],
    "wide integer": pl.Series([2**100, -1, None, 0], dtype=pl.Int128),
}


@pytest.mark.parametrize("kind", ODD)
def test_every_type_of_key(kind: str) -> None:
    keys = pl.Series("k", ODD[kind])
    rows = pl.DataFrame({"k": keys, "v": range(len(keys))})
    state = plain(KeyedLayout("x", rows.schema, ["k"]))
    state.put(rows)
    again = plain(KeyedLayout("x", rows.schema, ["k"]))
    again.restore(state.snapshot(), KeyGroups(), "operator 'x'")
    for at in range(len(keys)):
        assert again.find(rows[at : at + 1])["v"].to_list() == [at]
    again.remove(rows[1:2])
    assert again.find(rows).height == len(keys) - 1


def test_every_type_of_value_comes_back() -> None:
    wide = pl.Series("wide", [2**127 - 1, -(2**127), None], dtype=pl.Int128)
    rows = pl.DataFrame(
        {
            "k": ["a", "b", "c"],
            "wide": wide,
            "unsigned": pl.Series([2**128 - 1, 0, None], dtype=pl.UInt128),
            "list": pl.Series([[1, None], [], None], dtype=pl.List(pl.Int128)),
            "array": pl.Series([[1, -1], None, [0, None]], dtype=pl.Array(pl.Int128, 2)),
            "struct": pl.Series(
                [{"a": -1, "b": "x"}, None, {"a": None, "b": None}],
                dtype=pl.Struct({"a": pl.Int128, "b": pl.String}),
            ),
            "cat": pl.Series(["x", None, "y"], dtype=pl.Categorical()),
            "enum": pl.Series(["x", None, "y"], dtype=pl.Enum(["x", "y"])),
            "none": [None, None, None],
            "decimal": pl.Series([Decimal("1.5"), None, Decimal(-3)], dtype=pl.Decimal(38, 2)),
        }
    )
    state = plain(KeyedLayout("x", rows.schema, ["k"]))
    state.put(rows)
    again = plain(KeyedLayout("x", rows.schema, ["k"]))
    again.restore(state.snapshot(), KeyGroups(), "operator 'x'")
    assert_frame_equal(again.find(rows).sort("k"), rows)
    assert again.find(rows).schema == rows.schema


def test_instances_own_every_key_once_and_find_what_others_have_written() -> None:
    layout = KeyedLayout("one", SCHEMA, ["k"])
    rows = frame([(f"k{at}", 0, at, 0) for at in range(3000)])
    sizes = Sizes(small=10, segment=100, sweep=200)

    def make() -> KeyedStore:
        return KeyedStore(Hashing(layout), RunFolder(), MemoryBudget(1000), sizes)

    whole = make()
    for at in range(0, 3000, 700):
        whole.put(rows[at : at + 700])
    snapshot = whole.snapshot()
    for instances in (2, 3):
        parts = [make() for _ in range(instances)]
        group = key_groups(rows, ["k"])
        for index, part in enumerate(parts):
            groups = KeyGroups.of(index, instances)
            part.restore(snapshot, groups, "operator 'x'")
            mine = rows.filter(pl.Series((group >= groups.first) & (group < groups.end)))
            assert everything(part) == listed(mine)
            part.put(mine.with_columns(pl.lit(instances, pl.Int64).alias("seq")))
        rows = rows.with_columns(pl.lit(instances, pl.Int64).alias("seq"))
        snapshot = united([part.snapshot() for part in parts])
        assert len(snapshot.parts) == instances
    assert set(group.tolist()) == set(range(GROUPS))
    again = make()
    again.restore(snapshot, KeyGroups(), "operator 'x'")
    assert everything(again) == listed(rows)


@pytest.mark.parametrize("layout", [ONE, MANY], ids=["one", "many"])
def test_state_hashed_by_another_release_is_hashed_anew(layout: KeyedLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    state = tiny(layout)
    for at in range(6):
        state.put(frame([(f"k{key}", at if layout.within else 0, at, None) for key in range(at, 40)]))
    state.remove(frame([("k39", at, 0, None) for at in range(6)]))
    wanted, snapshot = everything(state), state.snapshot()
    monkeypatch.setattr(kernel_keyed, "_SEED", 12345)
    parts = [tiny(layout) for _ in range(2)]
    for index, part in enumerate(parts):
        part.restore(snapshot, KeyGroups.of(index, 2), "operator 'x'")
    assert sorted(everything(parts[0]) + everything(parts[1]), key=repr) == wanted
    assert all(everything(part) for part in parts)
    keys = pl.DataFrame({"k": [f"k{at}" for at in range(40)]})
    found = pl.concat([part.find(keys) for part in parts])
    assert listed(found) == wanted


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"key": ["k", "seq"]},
        {"within": ["seq"]},
        {"schema": pl.Schema({**SCHEMA, "v": pl.Int64()})},
        {"schema": pl.Schema({**SCHEMA, "more": pl.Int64()})},
    ],
)
def test_state_of_another_layout_is_refused(change: dict[str, Any]) -> None:
    state = plain(KeyedLayout("one", SCHEMA, ["k"]))
    state.put(frame([("a", 1, 1, 1)]))
    backend = StateBackend()
    context = backend.context("window 'w'", OperatorState(1, keyed={"one": state.snapshot()}))
    with pytest.raises(GraphChangedError, match="window 'w': its state"):
        context.keyed(dataclasses.replace(KeyedLayout("one", SCHEMA, ["k"]), **change))


@pytest.mark.parametrize(
    ("error", "kind", "hint"),
    [
        (OSError(errno.ENOSPC, "no space left"), UnavailableError, "the disk is full: make room"),
        (OSError("No space left on device (os error 28)"), UnavailableError, "the disk is full: make room"),
        (OSError(errno.EIO, "broken"), UnavailableError, ""),
        (PermissionError(errno.EACCES, "denied"), AccessDeniedError, "check its owner and mode"),
    ],
)
def test_what_the_disk_says_is_said_with_its_cure(
    error: OSError, kind: type[HeadraceError], hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise error

    state = StateBackend(StateOptions(folder=tmp_path)).context("x").keyed(ONE)
    state.put(frame([("a", 1, 1, 1)]))
    monkeypatch.setattr(pl.DataFrame, "write_ipc", refuse)
    with pytest.raises(kind, match=f"state cannot be kept in the folder {tmp_path}") as caught:
        state.snapshot()
    assert caught.value.hint.startswith(hint)
    assert (caught.value.code == "DISK_FULL") is ("space" in str(error))
    monkeypatch.undo()
    assert state.find(frame([("a", 0, 0, 0)])).rows() == [("a", 1, 1, 1)]


def test_nothing_of_it_stays_on_disk(tmp_path: Path) -> None:
    backend = StateBackend(StateOptions(folder=tmp_path / "spill"))
    assert not (tmp_path / "spill").exists()
    state = backend.context("x").keyed(ONE)
    state.put(frame([("a", 1, 1, 1)]))
    state.snapshot()
    assert list((tmp_path / "spill").glob("*/*.arrow"))
    backend.close()
    assert not list((tmp_path / "spill").iterdir())
    assert everything(state) == [("a", 1, 1, 1)]
