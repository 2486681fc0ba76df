"""Keeps the partitions of a tail together in event time, so that a fast one does not fill the state of operators.

As in Flink's watermark alignment (FLIP-182, FLIP-217), by partition.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headrace.kernel.boundary import TopicPartition

_BACK: Final = 2
"""A partition that waits goes on when it is ahead by half the limit: going on costs what was fetched ahead."""


class Alignment:
    """Which partitions wait for the others.

    A partition is measured by its largest event time, against the smallest of those that still have records to give.
    One that has not given its first record yet is waited for. One that stands at the end of what can be read holds
    nobody up, so that silence, or a transaction that is never ended, cannot stop the rest; nor does one whose records
    have no event time. What is read elsewhere meanwhile (the history that other partitions are in) counts as one
    more, which never waits.

    Args:
        max_drift_us: How far ahead a partition may be; None: there is no limit.
    """

    def __init__(self, max_drift_us: int | None) -> None:
        self._limit = max_drift_us
        self.waiting: frozenset[TopicPartition] = frozenset()

    def measure(
        self, behind: Mapping[TopicPartition, int | None], *, unheard: bool = False, beside: int | None = None
    ) -> frozenset[TopicPartition]:
        """Decide anew who waits.

        Args:
            behind: Largest event time (microseconds, or None) of each partition that has records to give, whether it
                waits or not. Those that are not in it do not wait.
            unheard: One of them has not given a record yet.
            beside: Event time to which that has come that is read elsewhere; None: nothing is, or it is not known.
        """
        times = {at: time for at, time in behind.items() if time is not None}
        if self._limit is None or not times:
            self.waiting = frozenset()
            return self.waiting
        if unheard:
            self.waiting = frozenset(times)
            return self.waiting
        slowest = min(times.values() if beside is None else [*times.values(), beside])
        self.waiting = frozenset(
            at
            for at, time in times.items()
            if time - slowest > (self._limit // _BACK if at in self.waiting else self._limit)
        )
        return self.waiting
