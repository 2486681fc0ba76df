"""Looks, while a source is read, whether its topics will still hold what it needs when it comes to it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from headrace.kernel.boundary import TopicPartition
from headrace.kernel.clock import Clock
from headrace.kernel.durations import format_duration_us
from headrace.kernel.errors import ExternalError
from headrace.kernel.protocols import Json
from hybrid_source.tail_protocols import Expiry, TailStage

logger: Final = logging.getLogger(__name__)

CODE: Final = "retention"
EVERY_S: Final = 60.0
SOON_S: Final = 900.0
"""What counts as soon where nobody knows how long the history will take."""

SPARE: Final = 1.25
"""The end of a history is an estimate: by so much it may come later."""


class RetentionWatch:
    """Estimates about once a minute, the first time a minute after it was made.

    Args:
        tail: The tail.
        clock: Paces the looks.
    """

    def __init__(self, tail: TailStage, clock: Clock) -> None:
        self._tail = tail
        self._clock = clock
        self._looked = clock.monotonic()
        self._expiries: Sequence[Expiry] = ()
        self._warnings: dict[TopicPartition, str] = {}

    @property
    def passed(self) -> bool:
        """Something that is needed was gone at the last look."""
        return any(found.passed for found in self._expiries)

    def look(self, position: Json, history_s: float | None) -> bool:
        """Estimate, if it is time to and the topic answers; says whether it has.

        Args:
            position: What the tail needs next.
            history_s: Estimated seconds until the tail is read; None: unknown.
        """
        now = self._clock.monotonic()
        if now - self._looked < EVERY_S:
            return False
        self._looked = now
        try:
            self._expiries = self._tail.expiries(position)
        except ExternalError as error:  # a source that still reads its history can do without the topic
            logger.warning("how long the topic will hold what is needed is not known: %s", error)
            return False
        limit = SOON_S if history_s is None else history_s * SPARE
        threatened = [found for found in self._expiries if found.seconds is not None and found.seconds <= limit]
        # The words of the first look stay: an event is told once, not again for each minute that passes.
        self._warnings = {
            found.at: _warning(found, history_s)
            if found.passed
            else self._warnings.get(found.at, "") or _warning(found, history_s)
            for found in threatened
        }
        return True

    def facts(self) -> dict[str, Json]:
        """For :meth:`headrace.kernel.protocols.SourceReader.progress`: ``retention`` and ``warnings``."""
        return {
            "retention": [found.to_json() for found in self._expiries],
            "warnings": [{"code": CODE, "message": message} for message in self._warnings.values()],
        }


def _warning(expiry: Expiry, history_s: float | None) -> str:
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
