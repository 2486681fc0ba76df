"""A job that runs through the real engine to its end, killed on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from headrace.kernel import columns
from headrace.runtime.job import CheckpointPolicy, RunOptions
from headrace.runtime.observer import SilentObserver, StopSignal
from headrace.runtime.restarts import run
from headrace.state.backend import StateOptions
from headrace.state.keyed import Sizes
from headrace.testing import CRASH_POINTS, SimulatedCrashError, StaticProgram, crash_at, memory_store
from headrace.testing.stages import scripted_source
from tests.worlds import PAYLOAD

if TYPE_CHECKING:
    import random

    from headrace.testing.script import Script, ScriptedLog
    from hybrid_source.hybrid import HybridSource

POINTS = [point for point in CRASH_POINTS if not point.startswith(("iceberg", "kafka"))]
"""Those that a job between scripts and memory comes by."""

SMALL = StateOptions(4000, sizes=Sizes(small=4, fan=2, segment=64, sweep=64, whole=4))
"""Little state lies in several files."""

Crash = tuple[str, int]
"""A point, and at which coming by it the process dies."""


def named_source(name: str, log: ScriptedLog, script: Script) -> HybridSource:
    """A source of one of several logs: with their payload only."""
    source = scripted_source(log, script)
    schema = pl.Schema({column: source.schema[column] for column in (*PAYLOAD, columns.ROW_WATERMARK)})
    return replace(source, name=name, schema=schema)


def random_crashes(dice: random.Random, most: int = 3) -> list[Crash]:
    """Where a job is killed, run by run; it may be never."""
    return [(dice.choice(POINTS), dice.randint(1, 4)) for _ in range(dice.randint(0, most))]


def run_to_end(
    program: StaticProgram, rows: int, crashes: Sequence[Crash] = (), parallelisms: Sequence[int] = (1,)
) -> str:
    """Run a job until it has caught up; gives the status of its last run.

    Args:
        program: The job.
        rows: Input rows in an epoch.
        crashes: The first runs end there, where they come by it.
        parallelisms: Of each run in turn.
    """
    store = memory_store()
    policy = CheckpointPolicy(interval_us=10**12, rows=rows, timeout_s=60)

    def go(attempt: int) -> str:
        options = RunOptions("caught-up", "drain", parallelism=parallelisms[attempt % len(parallelisms)])
        return run(program, store, policy, options, SilentObserver(), StopSignal(), state=SMALL).status

    for attempt, (point, nth) in enumerate(crashes):
        with crash_at(point, nth):
            try:
                go(attempt)
            except SimulatedCrashError:
                continue
    return go(len(crashes))
