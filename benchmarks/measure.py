"""One measurement: CPU seconds, wall seconds and peak memory of some work, in a process of its own.

CPU seconds (user and system, all threads, children that have ended) say more than wall seconds on a machine that
others use too. A process starts afresh for each measurement, so that no cache, thread pool or heap is inherited.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

_MIB: Final = 1 << 20
_TIMEOUT_S: Final = 900


@dataclass(frozen=True, slots=True)
class Cost:
    """What some work has cost.

    Attributes:
        rows: Input rows.
        cpu_s: CPU seconds between the end of the imports and the end of the work.
        wall_s: Wall seconds of the same.
        peak_mib: Peak resident memory of the whole process, imports included.
        facts: What the work found; both sides of a comparison must find the same.
    """

    rows: int
    cpu_s: float
    wall_s: float
    peak_mib: float
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def cpu_us_per_row(self) -> float:
        """CPU microseconds per input row."""
        return self.cpu_s / self.rows * 1e6


def measured(work: Callable[[], int]) -> Cost:
    """Run ``work``, which gives the number of its input rows."""
    cpu, wall = _cpu_s(), time.perf_counter()
    rows = work()
    return Cost(rows, _cpu_s() - cpu, time.perf_counter() - wall, _peak_mib())


def in_process(side: str, **arguments: Any) -> Cost:
    """Measure a side (:mod:`benchmarks.child`) in a fresh process.

    Raises:
        RuntimeError: The process failed; with what it wrote.
    """
    command = [sys.executable, "-m", "benchmarks.child", side, json.dumps(arguments)]
    root = Path(__file__).parents[1]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, cwd=root, check=False)
    if ended.returncode:
        raise RuntimeError(f"{side} failed with {ended.returncode}:\n{ended.stderr[-4000:]}")
    return Cost(**json.loads(ended.stdout.splitlines()[-1]))


def to_json(cost: Cost) -> str:
    """One line."""
    return json.dumps(asdict(cost))


def _cpu_s() -> float:
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    )


def _peak_mib() -> float:
    # ru_maxrss survives exec: it would count the memory of the process that started this one.
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / _MIB
    raise RuntimeError("/proc/self/status names no VmHWM")
