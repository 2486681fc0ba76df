"""Looks, while a source is read, whether its topics will still hold what it needs when it comes to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headrace.kernel.boundary import TopicPartition
from headrace.kernel.clock import Clock
from headrace.kernel.durations import format_duration_us
from headrace.kernel.protocols import Json
from hybrid_source.stages import Expiry, TailStage

EVERY_S: Final = 60.0
SOON_S: Final = 900.0
"""What counts as soon where nobody knows how long the history will take."""

SPARE: Final = 1.25
"""The end of a history is an estimate: by so much it may come later."""


class RetentionWatch:
    """Estimates about once a minute, and says what threatens once.

    Args:
        tail: The tail.
        clock: Paces the looks.
    """

    def __init__(self, tail: TailStage, clock: Clock) -> None:
        self._tail = tail
        self._clock = clock
        self._looked = float("-inf")
        self._warned: set[TopicPartition] = set()
        self.expiries: Sequence[Expiry] = ()

    def look(self, position: Json, history_s: float | None) -> Sequence[Expiry]:
        """Estimate, if it is time to.

        Args:
            position: What the tail needs next.
            history_s: Estimated seconds until the tail is read; None: unknown.

        Returns:
            The partitions whose records may be gone by then and that have not been named since they last were safe.
        """
        now = self._clock.monotonic()
        if now - self._looked < EVERY_S:
            return ()
        self._looked = now
        self.expiries = self._tail.expiries(position)
        limit = SOON_S if history_s is None else history_s * SPARE
        threatened = [found for found in self.expiries if found.seconds is not None and found.seconds <= limit]
        new = [found for found in threatened if found.at not in self._warned]
        self._warned = {found.at for found in threatened}
        return new


def warning(expiry: Expiry, history_s: float | None) -> str:
    """What threatens a partition, in words."""
    place = f"{expiry.at.topic}[{expiry.at.partition}]"
    if expiry.passed:
        return f"retention has deleted {place} up to offset {expiry.log_start}; wanted is {expiry.next}"
    left = format_duration_us(int(expiry.seconds or 0) * 1_000_000)
    history = "" if history_s is None else f", and the history takes about {format_duration_us(int(history_s) * 10**6)}"
    return (
        f"retention may delete {place} from offset {expiry.next} on in {left}{history}: "
        "lengthen the topic's retention, or let the job chase newer snapshots of the history"
    )
