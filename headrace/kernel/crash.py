"""Crash points: named places where a test may kill the process.

``HEADRACE_CRASH="NAME:N"`` kills the process with SIGKILL the N-th time (1-based, default 1) that the point is
passed. Without the variable a point costs one dictionary look-up. Tests that need thousands of crashes in one
process install a hook instead (``headrace.testing.crash_at``).
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from typing import Final

VARIABLE: Final = "HEADRACE_CRASH"

POINTS: Final = (
    "before-prepare",
    "after-prepare",
    "after-record",
    "after-head",
    "between-commits",
    "after-commit",
    "iceberg-before-commit",
    "iceberg-after-commit",
    "kafka-before-commit",
    "kafka-after-commit",
)

_passed: Counter[str] = Counter()
_hooks: list[Callable[[str], None]] = []


def install(hook: Callable[[str], None]) -> Callable[[], None]:
    """Call ``hook(name)`` at every point from now on; the function that is returned takes it away again."""
    _hooks.append(hook)
    return lambda: _hooks.remove(hook)


def point(name: str) -> None:
    """Die here by SIGKILL if the environment asks for it, else do nothing.

    Args:
        name: One of :data:`POINTS`.
    """
    for hook in _hooks:
        hook(name)
    wanted = os.environ.get(VARIABLE)
    if not wanted:
        return
    target, _, nth = wanted.partition(":")
    if target != name:
        return
    _passed[name] += 1
    if _passed[name] == int(nth or 1):
        os.kill(os.getpid(), signal.SIGKILL)
