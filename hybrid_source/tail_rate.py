"""A limit on rows per second."""

from __future__ import annotations

from headrace.kernel.clock import Clock


class RateLimit:
    """A token bucket that holds one second's worth.

    Args:
        rows_per_second: The limit; None: no limit.
        clock: Where time comes from.
    """

    def __init__(self, rows_per_second: float | None, clock: Clock) -> None:
        self._rate = rows_per_second
        self._clock = clock
        self._tokens = rows_per_second or 0.0
        self._filled = clock.monotonic()

    def allowed(self, most: int) -> int:
        """How many rows may be taken now, at most ``most``."""
        if self._rate is None:
            return most
        now = self._clock.monotonic()
        self._tokens = min(max(self._rate, 1.0), self._tokens + (now - self._filled) * self._rate)
        self._filled = now
        return min(most, int(self._tokens))

    def take(self, rows: int) -> None:
        """Rows have been taken."""
        if self._rate is not None:
            self._tokens -= rows

    def wait(self) -> float:
        """Seconds until one row is allowed."""
        return 0.0 if self._rate is None else max(0.0, (1.0 - self._tokens) / self._rate)
