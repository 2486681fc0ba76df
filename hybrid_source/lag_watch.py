"""Looks, while a topic is read, how far the reading is behind."""

from __future__ import annotations

from headrace.kernel.clock import Clock
from hybrid_source.tail_protocols import OpenTail


class LagWatch:
    """Looks now and then whether a tail is too far behind.

    Args:
        most: Records behind that are not too many; None: no number is.
        every_s: Seconds between two looks.
        clock: Paces them.
    """

    def __init__(self, most: int | None, every_s: float, clock: Clock) -> None:
        self._most = most
        self._every_s = every_s
        self._clock = clock
        self._looked = clock.monotonic()

    def is_behind(self, tail: OpenTail) -> bool:
        """Whether it is time to look, and it is."""
        now = self._clock.monotonic()
        if self._most is None or now - self._looked < self._every_s:
            return False
        self._looked = now
        return sum(int(at["end"] - at["next"]) for at in tail.lag()) > self._most
