"""How long topics will still hold what a job needs of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Final

from headrace.kafka import KafkaCluster, KafkaMetadata, OffsetRange
from headrace.kernel.boundary import TopicPartition
from headrace.kernel.clock import Clock
from headrace.kernel.errors import AccessDeniedError
from hybrid_source.tail_assignment import Assignment, place
from hybrid_source.tail_protocols import Expiry

logger: Final = logging.getLogger(__name__)

DEADLINE_S: Final = 5.0
SETTINGS: Final = ("cleanup.policy", "retention.ms", "retention.bytes")


class Retention:
    """Estimates when topics lose records.

    Estimates are *at the earliest*: a broker deletes whole segments, once the newest record of a segment is old enough.

    Args:
        cluster: The cluster.
        metadata: Its metadata.
        clock: For the age of records, whose timestamps are compared with the wall clock.
    """

    def __init__(self, cluster: KafkaCluster, metadata: KafkaMetadata, clock: Clock) -> None:
        self._cluster = cluster
        self._metadata = metadata
        self._clock = clock
        self._denied = False

    def expiries(self, nexts: Mapping[TopicPartition, int]) -> Sequence[Expiry]:
        """One estimate for each partition, in their order.

        Args:
            nexts: The next offset that is needed, by partition.
        """
        held = self._metadata.ranges(sorted(nexts))
        settings = self._settings({at.topic for at in nexts})
        limited = {at for at in held if _limits(settings.get(at.topic, {}))}
        needed = {at: nexts[at] for at in limited if held[at].earliest <= nexts[at] < held[at].latest}
        written = self._written(needed) if needed else {}
        now_ms = self._clock.now_us() // 1000
        return [
            Expiry(at, nexts[at], log.earliest, 0.0)
            if nexts[at] < log.earliest
            else Expiry(at, nexts[at], log.earliest, _seconds(nexts[at], log, settings[at.topic], written[at], now_ms))
            if at in written
            else Expiry(at, nexts[at], log.earliest, None)
            for at, log in held.items()
        ]

    def _settings(self, topics: set[str]) -> Mapping[str, Mapping[str, str]]:
        if self._denied:
            return {}
        try:
            return self._metadata.settings(topics, SETTINGS)
        except AccessDeniedError as error:
            self._denied = True
            logger.warning("how long the topics are kept is not known: %s", error)
            return {}

    def _written(self, nexts: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Timestamp (ms) of the first record at or after an offset; partitions that give none in time are left out."""
        found: dict[TopicPartition, int] = {}
        ended: set[TopicPartition] = set()
        deadline = time.monotonic() + DEADLINE_S
        assignment = Assignment(self._cluster, nexts, ahead=False)
        try:
            while nexts.keys() - found.keys() - ended and time.monotonic() < deadline:
                for message in assignment.consume(len(nexts), 0.1):
                    at = place(message)
                    if at is None:
                        continue
                    if message.error() is not None:
                        ended.add(at)
                    else:
                        found.setdefault(at, message.timestamp()[1])
        finally:
            assignment.close()
        return {at: ms for at, ms in found.items() if ms > 0}


def _limits(settings: Mapping[str, str]) -> dict[str, int]:
    """The limits of a topic that deletes: ``retention.ms`` and ``retention.bytes``, where they are set."""
    if "delete" not in settings.get("cleanup.policy", "delete"):
        return {}
    limits = {name: int(settings[name]) for name in SETTINGS[1:] if name in settings}
    return {name: limit for name, limit in limits.items() if limit >= 0}


def _seconds(wanted: int, log: OffsetRange, settings: Mapping[str, str], written_ms: int, now_ms: int) -> float:
    """Seconds until retention may pass ``wanted``, whose record was written at ``written_ms``."""
    limits = _limits(settings)
    age_s = max(now_ms - written_ms, 1) / 1000
    out = []
    if "retention.ms" in limits:
        out.append(limits["retention.ms"] / 1000 - age_s)
    if "retention.bytes" in limits:
        # As if the log were as large as it may be: then one record goes for each that comes, at the rate since.
        out.append((wanted - log.earliest) * age_s / (log.latest - wanted))
    return max(0.0, min(out))
