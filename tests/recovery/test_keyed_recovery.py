"""Jobs whose state is larger than what a checkpoint writes: killed anywhere, they go on from files that are there."""

from __future__ import annotations

import itertools
from pathlib import Path

import polars as pl
import pytest

from headrace.kernel import columns
from headrace.kernel.errors import DataError
from headrace.runtime.graph import Graph, Node, SinkNode, SourceNode, StatefulNode, Stream
from headrace.runtime.job import CheckpointPolicy, RunOptions
from headrace.runtime.observer import SilentObserver, StopSignal
from headrace.runtime.restarts import run
from headrace.state.backend import StateOptions
from headrace.state.checkpoint import CheckpointStore
from headrace.state.keyed import Sizes
from headrace.state.records import Checkpoint
from headrace.state.stores import JobStore, open_store
from headrace.testing import (
    CRASH_POINTS,
    MemorySink,
    MemoryTable,
    ScriptedSource,
    SimulatedCrashError,
    StaticProgram,
    Tick,
    crash_at,
    memory_store,
)
from operators.keyed_aggregate import KeyedAggregate

SCHEMA = pl.Schema({"k": pl.Int64(), "v": pl.Int64()})
SIZES = Sizes(small=4, fan=2, segment=50, sweep=40)
BATCHES = [
    pl.DataFrame({"k": [(batch * 37 + n * 11) % 400 for n in range(120)], "v": [batch] * 120}, schema=SCHEMA)
    for batch in range(8)
]
EXPECTED = sorted(pl.concat(BATCHES).group_by("k").agg(n=pl.len(), s=pl.col("v").sum()).rows())


def program(table: MemoryTable, batches: list[pl.DataFrame]) -> StaticProgram:
    totals = KeyedAggregate("totals", {"n": "count(*)", "s": "sum(v)"}, ["k"])
    source = ScriptedSource("s", SCHEMA, [Tick(batch) for batch in batches])
    nodes: list[Node] = [
        SourceNode("s", source),
        StatefulNode("totals", Stream("s"), totals),
        SinkNode("out", Stream("totals"), MemorySink("out", table), None),
    ]
    return StaticProgram("job", Graph(nodes))


def go(table: MemoryTable, store: JobStore, folder: Path, batches: list[pl.DataFrame], parallelism: int = 1) -> None:
    policy = CheckpointPolicy(interval_us=0, timeout_s=60, retain=2)
    options = RunOptions(until="caught-up", on_end="suspend", parallelism=parallelism)
    state = StateOptions(2000, folder, SIZES)
    run(program(table, batches), store, policy, options, SilentObserver(), StopSignal(), state=state)


def totals(table: MemoryTable) -> list[tuple[int, ...]]:
    whole = table.rows().group_by("k", "n", "s").agg(pl.col(columns.WEIGHT).sum())
    return sorted(whole.filter(pl.col(columns.WEIGHT) != 0).drop(columns.WEIGHT).rows())


def last(store: JobStore) -> Checkpoint:
    return CheckpointStore(store, "job").find()


def named(record: Checkpoint) -> dict[str, int]:
    parts = record.operators["totals"].keyed["groups"].parts
    return {run.blob: run.nbytes for part in parts for run in part.runs}


@pytest.mark.parametrize("nth", [1, 4])
@pytest.mark.parametrize(
    "point", [point for point in CRASH_POINTS if not point.startswith(("iceberg", "kafka", "betw"))]
)
def test_killed_at_each_point_it_goes_on_at_another_parallelism(point: str, nth: int, tmp_path: Path) -> None:
    table, store = MemoryTable(), memory_store()
    with crash_at(point, nth), pytest.raises(SimulatedCrashError):
        go(table, store, tmp_path, BATCHES, parallelism=2)
    go(table, store, tmp_path, BATCHES, parallelism=3)
    assert totals(table) == EXPECTED


def test_checkpoints_share_files_and_only_what_they_name_is_kept(tmp_path: Path) -> None:
    table, store = MemoryTable(), open_store(str(tmp_path / "store"))
    seen: list[dict[str, int]] = []
    for count in range(1, len(BATCHES) + 1):
        go(table, store, tmp_path / "spill", BATCHES[:count])
        seen.append(named(last(store)))
        there = set(store.blobs.list("epochs/"))
        assert seen[-1].keys() <= there
        runs = {name for name in there if name.endswith(".run")}
        assert runs <= set().union(*seen[-2:])
    assert totals(table) == EXPECTED
    shared = [before.keys() & after.keys() for before, after in itertools.pairwise(seen)]
    assert all(shared[2:])
    assert any(int(name.split("/")[2][:12]) < last(store).epoch - 2 for name in seen[-1])
    assert list((tmp_path / "spill").iterdir()) == []


@pytest.mark.parametrize("damage", ["gone", "cut"])
def test_a_file_that_is_gone_or_damaged_is_named(damage: str, tmp_path: Path) -> None:
    table, store = MemoryTable(), open_store(str(tmp_path / "store"))
    go(table, store, tmp_path / "spill", BATCHES[:4])
    name = next(iter(named(last(store))))
    path = tmp_path / "store" / "blobs" / name
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match="gone" if damage == "gone" else "damaged") as caught:
        go(table, store, tmp_path / "spill", BATCHES)
    assert name in caught.value.message
