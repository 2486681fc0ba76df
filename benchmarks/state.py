"""``python -m benchmarks.state``: a running aggregate over many keys; exit 1 when a target is missed.

* An update batch of 100,000 random keys is looked up, merged, put and given out as changes, with a checkpoint to a
  local folder every tenth batch (not part of the update). Mean and 99th percentile are over all batches, so that what
  is merged and swept in between is in them; beside them the same by hand in Polars: one frame, grouped anew with each
  batch.
* Memory is the peak of the anonymous resident memory (``RssAnon``: heap, not mapped files, whose pages the system takes
  back when others need them) above what the process had before it held any key.
* What checkpoints write is compared with what has changed since the one before, and with the whole state.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import numpy as np
import polars as pl

from headrace.kernel.protocols import EpochId, OperatorInstance
from headrace.state.backend import StateBackend, StateOptions
from headrace.state.checkpoint import CheckpointStore
from headrace.state.records import Checkpoint, SavedOperator
from headrace.state.stores import open_store
from operators.keyed_aggregate import KeyedAggregate

AGGREGATE: Final = KeyedAggregate("totals", {"n": "count(*)", "total": "sum(v)"}, ["k"])
ROWS: Final = pl.Schema({"k": pl.Int64, "v": pl.Int64})
BATCH: Final = 100_000
LOAD: Final = 250_000
BUDGET: Final = 256 << 20
_MIB: Final = 1 << 20
_STRIDE: Final = 7919


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured."""

    update_keys: int
    held_keys: int
    updates: int
    by_hand: int
    batch: int = BATCH


FULL: Final = Plan(10_000_000, 20_000_000, 100, 3)
QUICK: Final = Plan(20_000, 40_000, 12, 1, 1_000)


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure, and what it is to be."""

    name: str
    value: float
    unit: str
    at_most: float | None = None

    @property
    def ok(self) -> bool:
        """Whether the target is met."""
        return self.at_most is None or self.value <= self.at_most

    def __str__(self) -> str:
        target = "" if self.at_most is None else f"  target at most {self.at_most:g}: {'met' if self.ok else 'MISSED'}"
        return f"{self.name}: {self.value:.3g} {self.unit}{target}"


def main() -> int:
    """Measure, print, and write the figures where asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.state")
    parser.add_argument("--quick", action="store_true", help="tiny data: shows that it runs, its figures mean nothing")
    parser.add_argument(
        "--work", type=Path, help="folder for data (about 5 GB); the system's temporary one if not given"
    )
    parser.add_argument("--output", type=Path, help="where the figures go, as JSON")
    asked = parser.parse_args()
    plan = QUICK if asked.quick else FULL
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    figures: list[Figure] = []
    for work in (_updates, _held):
        with tempfile.TemporaryDirectory(prefix="headrace-bench-", dir=asked.work) as folder:
            for figure in _in_a_process(work, plan, Path(folder)):
                print(figure, flush=True)
                figures.append(figure)
    if asked.output:
        found = {figure.name: {"value": figure.value, "unit": figure.unit, "ok": figure.ok} for figure in figures}
        asked.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0 if asked.quick or all(figure.ok for figure in figures) else 1


def _in_a_process(work: Callable[[Plan, Path], list[Figure]], plan: Plan, folder: Path) -> list[Figure]:
    """Each measurement starts afresh, so that no heap is inherited."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, (plan, folder))


def _updates(plan: Plan, folder: Path) -> list[Figure]:
    """Updates of many keys, and what checkpoints of them write."""
    dice = np.random.default_rng(1)
    job = _Job(folder)
    job.load(plan.update_keys)
    job.checkpoint()
    walls, cpus, written, changed = [], [], [], 0
    for number in range(plan.updates):
        batch = job.batch(dice.integers(0, plan.update_keys, plan.batch))
        changed += batch.height
        wall, cpu = time.perf_counter(), time.process_time()
        job.running.process(batch)
        walls.append((time.perf_counter() - wall) * 1e3)
        cpus.append((time.process_time() - cpu) * 1e3)
        if number % 10 == 9:
            written.append(job.checkpoint())
    state, row = job.stored(), job.stored() / plan.update_keys
    job.close()
    by_hand = _by_hand(plan, dice)
    return [
        Figure("state_update_ms", float(np.mean(walls)), "ms a batch, compaction included", 250),
        Figure("state_update_p99_ms", float(np.percentile(walls, 99)), "ms"),
        Figure("state_update_cpu_ms", float(np.mean(cpus)), "CPU ms a batch"),
        Figure("state_update_to_by_hand", float(np.mean(walls)) / by_hand, "of the time by hand", 1),
        Figure("state_checkpoint_of_change", sum(written) / (changed * row), "times what has changed", 10),
        Figure("state_checkpoint_of_state", float(np.mean(written)) / state, "of the state, each"),
    ]


def _held(plan: Plan, folder: Path) -> list[Figure]:
    """Memory while many keys are loaded and updated."""
    dice = np.random.default_rng(2)
    job = _Job(folder)
    with _PeakHeap() as heap:
        job.load(plan.held_keys)
        for _ in range(10):
            job.running.process(job.batch(dice.integers(0, plan.held_keys, plan.batch)))
        job.checkpoint()
    held = job.running.rows_held()
    job.close()
    return [
        Figure("state_held_keys", held, "keys, updates that wait to be merged counted again"),
        Figure("state_held_heap_mib", heap.peak / _MIB, "MiB of heap above an empty process, at most", 1024),
    ]


class _Job:
    """The aggregate, with state on the local disk and a checkpoint store."""

    def __init__(self, folder: Path) -> None:
        self._backend = StateBackend(StateOptions(BUDGET, folder / "spill"))
        self._store = open_store(str(folder / "store"))
        self._checkpoints = CheckpointStore(self._store, "job")
        self._head, _ = self._checkpoints.acquire("benchmark")
        schema = AGGREGATE.partial(pl.LazyFrame(schema=ROWS)).collect_schema()
        self.running: OperatorInstance = AGGREGATE.open(schema, self._backend.context("the benchmark"))
        self._epoch = 0
        self._sizes: Mapping[str, int] = {}

    def batch(self, keys: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pl.DataFrame:
        rows = pl.DataFrame({"k": keys * _STRIDE, "v": keys % 100}, schema=ROWS)
        return AGGREGATE.partial(rows.lazy()).collect()

    def load(self, keys: int) -> None:
        for first in range(0, keys, LOAD):
            self.running.process(self.batch(np.arange(first, min(first + LOAD, keys))))

    def checkpoint(self) -> int:
        """Make a checkpoint; gives the bytes of keyed state that it has written."""
        self._epoch += 1
        epoch = EpochId("job", self._head.lineage, self._epoch, f"a{self._epoch}")
        record = Checkpoint("job", epoch.lineage, epoch.epoch, epoch.attempt, created_us=0)
        saved = {"totals": SavedOperator(AGGREGATE.fingerprint, (), self.running.snapshot())}
        name, full = self._checkpoints.save(record, saved)
        self._head = self._checkpoints.advance(self._head, name)
        self._checkpoints.retire(self._head, 1)
        parts = full.operators["totals"].keyed["groups"].parts
        before, self._sizes = self._sizes, {run.blob: run.nbytes for part in parts for run in part.runs}
        return sum(nbytes for blob, nbytes in self._sizes.items() if blob not in before)

    def stored(self) -> int:
        """Bytes of the whole state in the last checkpoint."""
        return sum(self._sizes.values())

    def close(self) -> None:
        self._backend.close()


def _by_hand(plan: Plan, dice: np.random.Generator) -> float:
    """The same in Polars: one frame, in ms a batch."""
    sums = [pl.col("n").sum(), pl.col("total").sum()]
    held = pl.DataFrame({"k": np.arange(plan.update_keys) * _STRIDE}).with_columns(n=1, total=pl.col("k") % 100)
    walls = []
    for _ in range(plan.by_hand):
        keys = dice.integers(0, plan.update_keys, plan.batch)
        rows = pl.DataFrame({"k": keys * _STRIDE, "total": keys % 100}).with_columns(n=1).select(held.columns)
        started = time.perf_counter()
        held = pl.concat([held, rows]).lazy().group_by("k").agg(sums).collect(engine="streaming")
        walls.append((time.perf_counter() - started) * 1e3)
    return float(np.mean(walls))


class _PeakHeap:
    """The peak of anonymous memory above what there was at the beginning, sampled a hundred times a second."""

    def __enter__(self) -> Self:
        self._done = threading.Event()
        self._before = _anonymous()
        self.peak = 0
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.01):
            self.peak = max(self.peak, _anonymous() - self._before)


def _anonymous() -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))


if __name__ == "__main__":
    sys.exit(main())
