"""Which topics a tail reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from headrace.kafka import KafkaMetadata, TopicInfo
from headrace.kernel.boundary import TopicPartition
from hybrid_source.stages import TopicIdentity


class TopicChoice(Protocol):
    """Names topics; what it finds may grow, and never shrinks while a job lives."""

    def find(self, metadata: KafkaMetadata) -> Mapping[str, TopicInfo]:
        """The chosen topics as they are now, by name, in the order of their names.

        Raises:
            NotFoundError: A topic is not there, or none is.
        """


@dataclass(frozen=True, slots=True)
class TopicList:
    """Topics by name, all of which must be there."""

    names: tuple[str, ...]

    def __str__(self) -> str:
        return ", ".join(f"topic {name!r}" for name in self.names)

    def find(self, metadata: KafkaMetadata) -> Mapping[str, TopicInfo]:
        """See :class:`TopicChoice`."""
        return metadata.describe_all(self.names)


def identities(found: Mapping[str, TopicInfo]) -> dict[str, TopicIdentity]:
    """Described topics as identities."""
    return {name: TopicIdentity(name, topic.topic_id, topic.cluster_id) for name, topic in found.items()}


def places(found: Mapping[str, TopicInfo]) -> tuple[TopicPartition, ...]:
    """All partitions of described topics."""
    return tuple(at for topic in found.values() for at in topic.places)
