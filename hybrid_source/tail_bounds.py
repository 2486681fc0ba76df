"""Where a bounded tail ends, and the wait for transactions that are open below its end."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from headrace.kernel.boundary import TopicPartition
from headrace.kernel.clock import Clock
from headrace.kernel.errors import UnavailableError

logger: Final = logging.getLogger(__name__)

WARN_EVERY_S: Final = 10.0
TRANSACTION_WAIT_S: Final = 1200.0
"""A little above the longest transaction that a broker allows by default (15 minutes)."""


class Bounds:
    """End offsets of a bounded read. A partition is done when its *position* has reached its end.

    Args:
        ends: End offset by partition (exclusive); below it open transactions may hold records back.
        clock: For the wait.
        transaction_wait_s: How long a partition may stand still below its end.
    """

    def __init__(
        self, ends: Mapping[TopicPartition, int], clock: Clock, *, transaction_wait_s: float = TRANSACTION_WAIT_S
    ) -> None:
        self.ends = dict(ends)
        self._clock = clock
        self._limit = transaction_wait_s
        self._blocked: dict[TopicPartition, tuple[int, float]] = {}
        self._warned = clock.monotonic()

    def done(self, at: TopicPartition, position: int) -> bool:
        """Whether a partition has been read to its end; one without an end is done."""
        return position >= self.ends.get(at, 0)

    def passed(self, nexts: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The partitions of which a record beyond the end has come, with their ends: nothing below is to come."""
        return {at: self.ends[at] for at, after in nexts.items() if after > self.ends.get(at, after)}

    def finished(self, nexts: Mapping[TopicPartition, int]) -> bool:
        """Whether all partitions are done."""
        return all(self.done(at, position) for at, position in nexts.items())

    def wait_for_transactions(self, stable: Mapping[TopicPartition, int]) -> None:
        """Note the partitions that have been read as far as they are stable, and are not done.

        Args:
            stable: Last stable offset by partition, where the reader stands at it.

        Raises:
            UnavailableError: One of them has stood still for longer than the limit.
        """
        now = self._clock.monotonic()
        waiting = {at: offset for at, offset in stable.items() if not self.done(at, offset)}
        self._blocked = {
            at: known if (known := self._blocked.get(at)) and known[0] == offset else (offset, now)
            for at, offset in waiting.items()
        }
        for at, (offset, since) in self._blocked.items():
            if now - since >= self._limit:
                raise self._error(at, offset, now - since)
        if waiting and now - self._warned >= WARN_EVERY_S:
            self._warned = now
            for at, offset in waiting.items():
                logger.warning(
                    "topic %r partition %d waits for an open transaction: last stable offset %d, wanted end %d",
                    at.topic,
                    at.partition,
                    offset,
                    self.ends[at],
                )

    def _error(self, at: TopicPartition, offset: int, waited: float) -> UnavailableError:
        return UnavailableError(
            f"topic {at.topic!r} partition {at.partition}: "
            f"an open transaction hides the records from offset {offset} on",
            detail=f"waited {waited:.0f} s at last stable offset {offset} for the end {self.ends[at]}",
            hint="end or abort the producer's hanging transaction (kafka-transactions.sh find-hanging), then run again",
            code="TRANSACTION_OPEN",
            context={"topic": at.topic, "partition": at.partition, "wanted": self.ends[at], "available": offset},
        )
