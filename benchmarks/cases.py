"""What is measured, and against which target."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks import handover, manifests, trim
from benchmarks import slow_store as slow_store_
from benchmarks.compare import Result, bounds, pairs, ratio
from benchmarks.lake import Lake
from benchmarks.measure import Cost, in_process
from benchmarks.with_headrace import config_of
from infra.dev import S3

HISTORY_TARGET: Final = 0.7
EXACT_SUM_TARGET: Final = 0.55
"""Lower: the plain side's sum of doubles depends on the order in which its threads get to them, Headrace's does not."""
TAIL_TARGET: Final = 0.6
MEMORY_TARGET: Final = 1.3
CHECKPOINT_TARGET: Final = 0.05
PAUSE_TARGET: Final = 1.0
BOUNDARY_TARGET: Final = 0.8
AHEAD_TARGET: Final = 1.5
TRIM_TARGET: Final = 0.4
EPOCH_S: Final = 10.0

_AGGREGATES: Final = {"n": "count(*)", "total": "sum(amount)", "least": "min(amount)", "most": "max(amount)"}
_FLOATS: Final = {"n": "count(*)", "total": "sum(latency)", "least": "min(latency)", "most": "max(latency)"}
_WINDOWS: Final = {
    "history_window_1h": ("1h", _AGGREGATES),
    "history_window_1m": ("1m", _AGGREGATES),
    "history_window_1h_float_sum": ("1h", _FLOATS),
}
_TAILS: Final = {"tail_json_window": "window", "tail_json_3_columns": "columns", "tail_json_6_columns": "all"}


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured.

    Attributes:
        pairs: Pairs for each ratio of costs.
        memory_pairs: Pairs for the ratio of peaks, which hardly vary.
        rows_per_file: Rows in each data file.
        small: Files of the smaller history for memory; the larger one has ten times as many.
        history: Files for the history's CPU and for checkpoints.
        records: Records in the topic.
        epoch_rows: Rows in each epoch of the checkpoint case.
        jobs: How many of the jobs for history and tail are measured.
        boundary_files: Data files of the table whose boundary is resolved from manifests.
        slow_files: Data files, each a split, in the store with latency.
        slow_rows: Rows in each of them.
        trim_rows: Rows that are compared with a boundary.
    """

    pairs: int
    memory_pairs: int
    rows_per_file: int
    small: int
    history: int
    records: int
    epoch_rows: int
    jobs: int = 3
    boundary_files: int = 10_000
    slow_files: int = 24
    slow_rows: int = 20_000
    trim_rows: int = 1 << 20

    @property
    def files(self) -> int:
        """Files that the table must have."""
        return max(10 * self.small, self.history)


FULL: Final = Plan(9, 3, 1 << 20, 4, 10, 1_000_000, 1 << 20)
QUICK: Final = Plan(1, 1, 2_000, 1, 3, 2_000, 2_000, 1, 60, 3, 1_000, 20_000)


def history(plan: Plan, lake: Lake) -> Iterator[Result]:
    """CPU per row: Polars streaming by hand over Headrace, over the same files and with equal results."""
    for name, (every, aggregates) in list(_WINDOWS.items())[: plan.jobs]:
        query = {"folder": str(lake.folder), "every": every, "aggregates": aggregates, "by": ["site"]}
        files = list(lake.files[: plan.history])
        snapshot = lake.snapshots[plan.history - 1]

        def by_hand(query: dict[str, Any] = query, files: list[str] = files) -> Cost:
            return in_process("hand-written history", files=files, **query)

        def ours(query: dict[str, Any] = query, snapshot: int = snapshot) -> Cost:
            return in_process("headrace history", snapshot=snapshot, checkpoint={}, **query)

        target = EXACT_SUM_TARGET if aggregates is _FLOATS else HISTORY_TARGET
        yield _by_cpu(name, pairs(plan.pairs, by_hand, ours), target)


def slow_store(plan: Plan, folder: Path, store: S3 | None) -> Iterator[Result]:
    """Seconds for a history in a store with latency: one split at a time over four at once."""
    if store is None:
        return
    times = list(slow_store_.seconds(folder, store, plan.slow_files, plan.slow_rows, (1, 4) * max(1, plan.pairs // 2)))
    found = [one / four for one, four in zip(times[::2], times[1::2], strict=True)]
    low, high = bounds(found)
    details = {"pairs": len(found), "one_s": round(median(times[::2]), 3), "four_s": round(median(times[1::2]), 3)}
    yield Result(
        "history_read_ahead", "ratio", median(found), AHEAD_TARGET, at_least=True, low=low, high=high, details=details
    )


def tail(plan: Plan, lake: Lake, bootstrap: str, topic: str) -> Iterator[Result]:
    """CPU per record: a bare consume loop over Headrace, on one topic of a real broker."""
    for name, steps in list(_TAILS.items())[: plan.jobs]:

        def ours(steps: str = steps) -> Cost:
            return in_process("headrace tail", folder=str(lake.folder), bootstrap=bootstrap, topic=topic, steps=steps)

        def bare() -> Cost:
            return in_process("bare tail", bootstrap=bootstrap, topic=topic)

        yield _by_cpu(name, pairs(plan.pairs, bare, ours), TAIL_TARGET)
    yield _pause(plan, lake, bootstrap, topic)


def _pause(plan: Plan, lake: Lake, bootstrap: str, topic: str) -> Result:
    """Seconds from the last row of a history to the first one of the topic."""
    found = handover.pauses(
        lake.folder, config_of(str(lake.folder), bootstrap), topic, plan.records, max(3, plan.pairs)
    )
    low, high = bounds(found)
    return Result(
        "tail_handover_pause_s",
        "value",
        median(found),
        PAUSE_TARGET,
        at_least=False,
        low=low,
        high=high,
        details={"times": len(found), "longest": round(max(found), 4)},
    )


def memory(plan: Plan, lake: Lake) -> Iterator[Result]:
    """Peak resident memory of the same job over ten times the history."""

    def job(files: int) -> Cost:
        return in_process(
            "headrace history",
            folder=str(lake.folder),
            every="1h",
            aggregates=_AGGREGATES,
            by=["site"],
            snapshot=lake.snapshots[files - 1],
            checkpoint={},
        )

    measured = [(job(10 * plan.small), job(plan.small)) for _ in range(plan.memory_pairs)]
    yield ratio(
        "memory_peak_10x_history",
        measured,
        lambda large, small: large.peak_mib / small.peak_mib,
        MEMORY_TARGET,
        at_least=False,
        rows=[measured[0][1].rows, measured[0][0].rows],
        peak_mib=[round(median(cost.peak_mib for cost in side)) for side in zip(*measured, strict=True)][::-1],
    )


def boundary(plan: Plan, folder: Path) -> Iterator[Result]:
    """CPU per data file: PyIceberg's own plan over the boundary from manifest bounds; the data files do not exist."""
    nexts = {str(partition): offset for partition, offset in manifests.build(folder, plan.boundary_files).items()}
    measured = pairs(
        plan.pairs,
        lambda: in_process("bare manifests", folder=str(folder)),
        lambda: in_process("headrace boundary", folder=str(folder), nexts=nexts),
    )
    yield _by_cpu("boundary_bounds_10k_files", measured, BOUNDARY_TARGET)
    yield _trim(plan)


def _trim(plan: Plan) -> Result:
    """Seconds that the trim of two topics takes over those of 400, for as many rows."""
    found = [(trim.seconds(plan.trim_rows, 2), trim.seconds(plan.trim_rows, 400)) for _ in range(plan.pairs + 1)][1:]
    ratios = [two / many for two, many in found]
    low, high = bounds(ratios)
    details = {
        "pairs": len(found),
        "two_topics_s": round(median(two for two, _ in found), 4),
        "400_topics_s": round(median(many for _, many in found), 4),
    }
    return Result(
        "boundary_trim_400_topics",
        "ratio",
        median(ratios),
        TRIM_TARGET,
        at_least=True,
        low=low,
        high=high,
        details=details,
    )


def checkpoint(plan: Plan, lake: Lake) -> Iterator[Result]:
    """Share of a ten-second epoch that its checkpoint and commits take, measured on many short epochs.

    The job holds a hundred thousand groups in windows of a week, which each checkpoint stores as a whole.
    """
    cost = in_process(
        "headrace history",
        folder=str(lake.folder),
        every="7d",
        aggregates=_AGGREGATES,
        by=["user"],
        snapshot=lake.snapshots[plan.history - 1],
        checkpoint={"rows": plan.epoch_rows},
    )
    epochs = cost.facts["epochs"]
    shares = [(stored + committed) / (EPOCH_S + stored + committed) for _, stored, committed in epochs]
    low, high = bounds(shares)
    yield Result(
        "checkpoint_share_of_10s_epoch",
        "value",
        median(shares),
        CHECKPOINT_TARGET,
        at_least=False,
        low=low,
        high=high,
        details={
            "epochs": len(epochs),
            "state_groups": median(cost.facts["state_rows"]),
            "checkpoint_s": round(median(stored for _, stored, _ in epochs), 4),
            "commit_s": round(median(committed for _, _, committed in epochs), 4),
        },
    )


def _by_cpu(name: str, measured: list[tuple[Cost, Cost]], target: float) -> Result:
    plain, ours = zip(*measured, strict=True)
    return ratio(
        name,
        measured,
        lambda plain, ours: plain.cpu_s / ours.cpu_s,
        target,
        at_least=True,
        rows=ours[0].rows,
        plain_cpu_us_per_row=round(median(cost.cpu_us_per_row for cost in plain), 4),
        headrace_cpu_us_per_row=round(median(cost.cpu_us_per_row for cost in ours), 4),
        plain_wall_s=round(median(cost.wall_s for cost in plain), 3),
        headrace_wall_s=round(median(cost.wall_s for cost in ours), 3),
    )
