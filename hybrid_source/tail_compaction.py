"""Compacted topics: what compaction may have taken, and what must be refused for it.

A compacted topic keeps the newest record of each key; a tombstone is kept for ``delete.retention.ms`` after the cleaner
has removed what it deletes (Kafka documentation, "Log Compaction"; KIP-534). A reader that already knows a key and
comes to the tombstone later than that never learns that the key is gone.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from headrace.kafka import KafkaMetadata
from headrace.kernel.boundary import TopicPartition
from headrace.kernel.errors import AccessDeniedError, GapError, SpecError
from hybrid_source.decode.upserts import KeyFormat
from hybrid_source.tail_position import TailPosition

logger: Final = logging.getLogger(__name__)

_POLICY: Final = "cleanup.policy"
_RETENTION: Final = "delete.retention.ms"


@dataclass(frozen=True, slots=True)
class UpsertKey:
    """The records are versions of rows: which columns name the row, and how a tombstone's key is read."""

    columns: tuple[str, ...]
    key_format: KeyFormat


@dataclass(frozen=True, slots=True)
class Compaction:
    """Checks a tail's topics against what it is declared to be.

    Attributes:
        metadata: The cluster.
        declared: The job says how a compacted topic is to be read; else it is refused.
    """

    metadata: KafkaMetadata
    declared: bool

    def check_declared(self, topics: Collection[str]) -> None:
        """Refuse a compacted topic that is read row by row without the job's word.

        Raises:
            SpecError: ``TOPIC_COMPACTED``.
        """
        compacted = [] if self.declared else self._compacted(topics)
        if compacted:
            raise SpecError(
                f"topic {compacted[0]!r} is compacted, so that how many records it holds depends on when that was done",
                detail=f"{_POLICY} has compact: older records of a key are removed",
                hint="read it by key with changelog: {key: [...]}, or row by row with changelog: false",
                code="TOPIC_COMPACTED",
                context={"topics": compacted},
            )

    def check_tombstones(self, position: TailPosition, now_ms: int) -> None:
        """Refuse to go on where tombstones that are needed may be gone.

        Nothing can be missing while the reading itself began less than the retention ago (everything that is known was
        read since then), nor in a partition whose unread records are all younger than it.

        Raises:
            GapError: ``TOMBSTONES_GONE``.
        """
        for topic, retention_ms in self._retention({at.topic for at in position.partitions}).items():
            oldest = now_ms - retention_ms
            if position.began_ms is not None and position.began_ms >= oldest:
                continue
            nexts = {at: offset for at, offset in position.nexts.items() if at.topic == topic}
            young = self.metadata.at_time(nexts, oldest)
            ends = self.metadata.latest(nexts)
            for at, offset in nexts.items():
                if offset < young[at]:
                    raise _gone(at, offset, young[at], ends[at], retention_ms)

    def _compacted(self, topics: Collection[str]) -> list[str]:
        settings = self._settings(topics)
        return [topic for topic in sorted(settings) if "compact" in settings[topic].get(_POLICY, "")]

    def _retention(self, topics: Collection[str]) -> dict[str, int]:
        settings = self._settings(topics)
        return {
            topic: int(found[_RETENTION])
            for topic, found in sorted(settings.items())
            if "compact" in found.get(_POLICY, "") and _RETENTION in found
        }

    def _settings(self, topics: Collection[str]) -> Mapping[str, Mapping[str, str]]:
        try:
            return self.metadata.settings(topics, (_POLICY, _RETENTION))
        except AccessDeniedError as error:
            logger.warning("whether topics %s are compacted is not known: %s", ", ".join(sorted(topics)), error)
            return {}


def _gone(at: TopicPartition, wanted: int, needed: int, end: int, retention_ms: int) -> GapError:
    return GapError(
        f"topic {at.topic!r} partition {at.partition}: deletions between offsets {wanted} and {needed} may be gone",
        detail=f"records from offset {wanted} on are older than {_RETENTION}={retention_ms}, after which compaction "
        f"drops tombstones; keys that were deleted there would stay; complete are {needed} to {end} (exclusive)",
        hint="start the job under a new uid from a newer snapshot, or without a history from the topic's start; raise "
        f"{_RETENTION} of the topic above the longest time that the job may stand still",
        code="TOMBSTONES_GONE",
        context={"topic": at.topic, "partition": at.partition, "wanted": wanted, "needed": needed}
        | {"available": [needed, end]},
    )
