"""Crashes within one process, for property tests with thousands of examples."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.kernel import crash


class SimulatedCrashError(BaseException):
    """The process would have died here. No ``except Exception`` catches it."""


@contextmanager
def crash_at(name: str, nth: int = 1) -> Iterator[None]:
    """Raise :class:`SimulatedCrashError` the ``nth`` time (1-based) that the crash point ``name`` is passed."""
    passed = 0

    def hook(point: str) -> None:
        nonlocal passed
        if point == name:
            passed += 1
            if passed == nth:
                raise SimulatedCrashError(f"{name}:{nth}")

    uninstall = crash.install(hook)
    try:
        yield
    finally:
        uninstall()
