"""Crash points: named places where a test may kill the process.

``HEADRACE_CRASH="NAME:N"`` kills the process with SIGKILL the N-th time (1-based, default 1) that the point is
passed. Without the variable a point costs one dictionary look-up.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
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


def point(name: str) -> None:
    """Die here by SIGKILL if the environment asks for it, else do nothing.

    Args:
        name: One of :data:`POINTS`.
    """
    wanted = os.environ.get(VARIABLE)
    if not wanted:
        return
    target, _, nth = wanted.partition(":")
    if target != name:
        return
    _passed[name] += 1
    if _passed[name] == int(nth or 1):
        os.kill(os.getpid(), signal.SIGKILL)
