"""Tools for tests of jobs and of Headrace itself: a scripted source, crash points, a movable clock. Public."""

from __future__ import annotations

from headrace.kernel.crash import POINTS as CRASH_POINTS
from headrace.kernel.crash import VARIABLE as CRASH_VARIABLE

__all__ = ["CRASH_POINTS", "CRASH_VARIABLE", "ManualClock"]


class ManualClock:
    """A clock that stands still until it is moved."""

    def __init__(self, now_us: int = 0) -> None:
        self._now_us = now_us

    def monotonic(self) -> float:
        """Seconds since the clock's zero."""
        return self._now_us / 1e6

    def now_us(self) -> int:
        """Microseconds since the Unix epoch."""
        return self._now_us

    def advance(self, us: int) -> None:
        """Move the clock forward by ``us`` microseconds."""
        if us < 0:
            raise ValueError("a clock never goes back")
        self._now_us += us
