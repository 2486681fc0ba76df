"""The watermark while the lake is read: what is unread, capped by what the tail is known to begin with."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Final

from headrace.kernel.boundary import TopicPartition
from headrace.kernel.clock import Clock
from headrace.kernel.errors import ExternalError, GapError
from headrace.kernel.protocols import Json
from hybrid_source.source_values import END_OF_HISTORY, EventTime
from hybrid_source.tail_protocols import Begins, OpenTail, TailStage
from hybrid_source.tail_watermark import SILENT_S

logger: Final = logging.getLogger(__name__)

PEEK_EVERY_S: Final = 1.0
_SHARE: Final = 10
"""A look that took long is followed by a pause of this many times its length."""


class TailStartTimes:
    """The event times that the tail's partitions begin with, as far as they are known.

    Args:
        tail: The tail.
        time: How the source keeps time.
        clock: For idleness, and between two looks.
        raises: A gap is an error; else what lies behind it is not known, as it is met where the topic takes over.
    """

    def __init__(self, tail: TailStage, time: EventTime, clock: Clock, *, raises: bool = True) -> None:
        self._raises = raises
        self._tail = tail
        self._time = time
        self._clock = clock
        self._opened = clock.monotonic()
        self._known: dict[TopicPartition, int | None] = {}
        self._next_look = self._opened
        self._gap: GapError | None = None

    def begins(self, position: Json, partitions: Collection[TopicPartition]) -> Begins:
        """What some partitions have at and after a position, by the last look; see :data:`Begins`.

        A topic that does not answer now tells nothing; who reads the lake can do without.

        Raises:
            GapError: Wanted offsets have been deleted.
        """
        unknown = [at for at in partitions if self._known.get(at) is None]
        if unknown and self._clock.monotonic() >= self._next_look:
            self._look(position, unknown)
        if unknown and self._gap is not None and self._raises:
            raise self._gap  # between two looks, too: what is gone is not silent
        return {at: self._known[at] for at in partitions if at in self._known}

    def limit(self, unread: int | None, position: Json, waiting: Collection[TopicPartition]) -> int | None:
        """What is unread of a history, capped (:meth:`cap`) by the partitions that wait for its end; None: it holds."""
        if unread is None or not waiting:
            return unread
        cap = self.cap(position, waiting)
        return None if cap is None else min(unread, cap)

    def cap(self, position: Json, partitions: Collection[TopicPartition]) -> int | None:
        """Smallest first event time of some partitions at a position, minus the out-of-orderness.

        A partition whose log ends without a record holds the watermark, as it would in the tail, until it counts as
        idle; one whose records are hidden, or not known yet, holds it always.

        Returns:
            None while one holds it; ``END_OF_HISTORY`` where all are idle.

        Raises:
            GapError: Wanted offsets have been deleted.
        """
        begins = self.begins(position, partitions)
        silent_us = (self._clock.monotonic() - self._opened) * 1e6
        idle = self._time.idle_us is not None and silent_us >= self._time.idle_us
        if any(at not in begins or (begins[at] is None and not idle) for at in partitions):
            return None
        known = [time for time in begins.values() if time is not None]
        return min(known) - self._time.out_of_orderness_us if known else END_OF_HISTORY

    def silent(self, partitions: Collection[TopicPartition]) -> Sequence[TopicPartition]:
        """Those of some partitions that hold the watermark as their logs end without a record; for people."""
        silent_s = self._clock.monotonic() - self._opened
        idle = self._time.idle_us is not None and silent_s * 1e6 >= self._time.idle_us
        if silent_s < SILENT_S or idle:
            return ()
        return [at for at in partitions if at in self._known and self._known[at] is None]

    def _look(self, position: Json, partitions: Collection[TopicPartition]) -> None:
        began, self._gap = self._clock.monotonic(), None
        for at in partitions:
            self._known.pop(at, None)
        try:
            self._known.update(self._tail.first_event_times(position, list(partitions)))
        except GapError as gap:
            self._gap = gap
        except ExternalError as error:
            logger.warning("what the topic begins with is not known: %s", error)
        took = self._clock.monotonic() - began
        self._next_look = began + took + max(PEEK_EVERY_S, _SHARE * took)


def silent_partitions(
    tail: OpenTail | None, starts: TailStartTimes | None, waiting: Collection[TopicPartition]
) -> Sequence[TopicPartition]:
    """The partitions that have nothing to say, and for which the watermark waits.

    Args:
        tail: The topic, as far as it is read.
        starts: What the others begin with.
        waiting: The others: those that wait for what is read of the lake.
    """
    return sorted(
        {*(tail.silent() if tail is not None else ()), *(starts.silent(waiting) if starts is not None else ())}
    )


def raised(watermark: int | None, to: int | None) -> int | None:
    """The higher of two watermarks; what is not known raises nothing."""
    return watermark if to is None else to if watermark is None else max(watermark, to)
