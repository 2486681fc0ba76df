"""Where a bounded tail ends, and the wait for transactions that are open below its end."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from headrace.kernel.clock import Clock
from headrace.kernel.errors import UnavailableError

logger: Final = logging.getLogger(__name__)

WARN_EVERY_S: Final = 10.0
TRANSACTION_WAIT_S: Final = 1200.0
"""A little above the longest transaction that a broker allows by default (15 minutes)."""


class Bounds:
    """End offsets of a bounded read. A partition is done when its *position* has reached its end.

    Args:
        topic: The topic.
        ends: End offset by partition (exclusive): high watermarks, below which open transactions may hold records back.
        clock: For the wait.
        transaction_wait_s: How long a partition may stand still below its end.
    """

    def __init__(
        self, topic: str, ends: Mapping[int, int], clock: Clock, *, transaction_wait_s: float = TRANSACTION_WAIT_S
    ) -> None:
        self._topic = topic
        self.ends = dict(ends)
        self._clock = clock
        self._limit = transaction_wait_s
        self._blocked: dict[int, tuple[int, float]] = {}
        self._warned = clock.monotonic()

    def done(self, partition: int, position: int) -> bool:
        """Whether a partition has been read to its end; one without an end is done."""
        return position >= self.ends.get(partition, 0)

    def finished(self, nexts: Mapping[int, int]) -> bool:
        """Whether all partitions are done."""
        return all(self.done(partition, position) for partition, position in nexts.items())

    def wait_for_transactions(self, stable: Mapping[int, int]) -> None:
        """Note the partitions that have been read as far as they are stable, and are not done.

        Args:
            stable: Last stable offset by partition, where the reader stands at it.

        Raises:
            UnavailableError: One of them has stood still for longer than the limit.
        """
        now = self._clock.monotonic()
        waiting = {partition: at for partition, at in stable.items() if not self.done(partition, at)}
        self._blocked = {
            partition: known if (known := self._blocked.get(partition)) and known[0] == at else (at, now)
            for partition, at in waiting.items()
        }
        for partition, (at, since) in self._blocked.items():
            if now - since >= self._limit:
                raise self._error(partition, at, now - since)
        if waiting and now - self._warned >= WARN_EVERY_S:
            self._warned = now
            for partition, at in waiting.items():
                logger.warning(
                    "topic %r partition %d waits for an open transaction: last stable offset %d, wanted end %d",
                    self._topic,
                    partition,
                    at,
                    self.ends[partition],
                )

    def _error(self, partition: int, at: int, waited: float) -> UnavailableError:
        return UnavailableError(
            f"topic {self._topic!r} partition {partition}: an open transaction hides the records from offset {at} on",
            detail=f"waited {waited:.0f} s at last stable offset {at} for the end {self.ends[partition]}",
            hint="end or abort the producer's hanging transaction (kafka-transactions.sh find-hanging), then run again",
            code="TRANSACTION_OPEN",
            context={"topic": self._topic, "partition": partition, "stable": at, "end": self.ends[partition]},
        )
