"""The watermark while history is read: what is unread, capped by what the tail is known to begin with."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from headrace.kernel.boundary import TopicPartition
from headrace.kernel.clock import Clock
from headrace.kernel.errors import GapError
from headrace.kernel.protocols import Json
from hybrid_source.stages import EventTime, TailStage

PEEK_EVERY_S: Final = 1.0


class TailStartTimes:
    """The event times that the tail's partitions begin with, as far as they are known.

    Args:
        tail: The tail.
        time: How the source keeps time.
        clock: For idleness, and between two looks.
    """

    def __init__(self, tail: TailStage, time: EventTime, clock: Clock) -> None:
        self._tail = tail
        self._time = time
        self._clock = clock
        self._opened = clock.monotonic()
        self._first: dict[TopicPartition, int] = {}
        self._looked = float("-inf")
        self._gap: GapError | None = None

    def cap(self, position: Json, partitions: Collection[TopicPartition]) -> int | None:
        """Smallest first event time of some partitions at a position, minus the out-of-orderness.

        A partition without a record holds the watermark, as it would in the tail, until it counts as idle.

        Returns:
            None while one is unknown.

        Raises:
            GapError: Wanted offsets have been deleted.
        """
        unknown = [at for at in partitions if at not in self._first]
        now = self._clock.monotonic()
        if unknown and now - self._looked >= PEEK_EVERY_S:
            self._looked = now
            self._gap = None
            try:
                self._first.update(self._tail.first_event_times(position, unknown))
            except GapError as gap:
                self._gap = gap
            unknown = [at for at in unknown if at not in self._first]
        if unknown and self._gap is not None:
            raise self._gap  # between two looks, too: what is gone is not silent
        silent_us = (now - self._opened) * 1e6
        if unknown and (self._time.idle_us is None or silent_us < self._time.idle_us):
            return None
        known = [self._first[at] for at in partitions if at in self._first]
        return min(known) - self._time.out_of_orderness_us if known else None


def raised(watermark: int | None, to: int | None) -> int | None:
    """The higher of two watermarks; what is not known raises nothing."""
    return watermark if to is None else to if watermark is None else max(watermark, to)
