"""Time as a dependency, so that tests can move it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where the runtime takes its time from."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never goes back."""

    def now_us(self) -> int:
        """Wall clock, microseconds since the Unix epoch, UTC."""


class SystemClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        """See :meth:`Clock.monotonic`."""
        return time.monotonic()

    def now_us(self) -> int:
        """See :meth:`Clock.now_us`."""
        return time.time_ns() // 1000
