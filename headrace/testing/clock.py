"""A clock that tests move by hand."""

from __future__ import annotations


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
        """Move the clock forward by ``us`` microseconds.

        Raises:
            ValueError: ``us`` is negative.
        """
        if us < 0:
            raise ValueError("a clock never goes back")
        self._now_us += us
