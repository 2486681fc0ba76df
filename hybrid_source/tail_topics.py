"""Which topics a tail reads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from headrace.kafka import TOPIC_NOT_FOUND, KafkaMetadata, TopicInfo
from headrace.kernel.boundary import TopicPartition
from headrace.kernel.errors import NotFoundError
from hybrid_source.source_values import TopicIdentity

_INTERNAL: Final = "__"
"""What the names of Kafka's own topics begin with."""

_SHOWN_NAMES: Final = 10


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


@dataclass(frozen=True, slots=True)
class TopicPattern:
    """Topics whose whole name matches a regular expression; Kafka's own topics never do.

    Topics that are created later are found like new partitions.
    """

    pattern: str

    def __str__(self) -> str:
        return f"topics that match {self.pattern!r}"

    def find(self, metadata: KafkaMetadata) -> Mapping[str, TopicInfo]:
        """See :class:`TopicChoice`."""
        names = [name for name in metadata.topics() if not name.startswith(_INTERNAL)]
        matching = [name for name in names if re.fullmatch(self.pattern, name)]
        if not matching:
            shown = ", ".join(names[:_SHOWN_NAMES]) + (", ..." if len(names) > _SHOWN_NAMES else "")
            raise NotFoundError(
                f"no topic matches {self.pattern!r}",
                detail=f"the cluster has {shown or 'no topics'}",
                hint="the pattern must match a whole name; create the first topic, or correct topic_pattern",
                code=TOPIC_NOT_FOUND,
            )
        return metadata.describe_all(matching)


def identities(found: Mapping[str, TopicInfo]) -> dict[str, TopicIdentity]:
    """Described topics as identities."""
    return {name: TopicIdentity(name, topic.topic_id, topic.cluster_id) for name, topic in found.items()}


def places(found: Mapping[str, TopicInfo]) -> tuple[TopicPartition, ...]:
    """All partitions of described topics."""
    return tuple(at for topic in found.values() for at in topic.places)
