"""A consumer with explicit offsets."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final

from confluent_kafka import Consumer, KafkaError, Message
from confluent_kafka import TopicPartition as ClientPartition

from headrace.kafka import KafkaCluster, map_error, mapped
from headrace.kernel.boundary import TopicPartition
from headrace.kernel.errors import AccessDeniedError, HeadraceError

logger: Final = logging.getLogger(__name__)

_QUEUED_ROWS: Final = 32_768
_QUEUED_KBYTES: Final = 131_072
"""What the client may hold ready, over all partitions."""

_FETCH_BYTES: Final = 1_048_576
_FETCH_BYTES_ONE: Final = 4096
"""Bytes per partition and fetch: the client's default, and enough for one record (a larger one comes all the same)."""


class Assignment:
    """A consumer that reads given partitions from given offsets; a group's offsets never decide.

    Args:
        cluster: The cluster.
        nexts: Next offset by partition, given to the client with the assignment itself.
        ahead: Fetch ahead, for a reader; False: little more than the first record of each.
    """

    def __init__(self, cluster: KafkaCluster, nexts: Mapping[TopicPartition, int], *, ahead: bool = True) -> None:
        self._cluster = cluster
        self._message = f"cluster {cluster.name!r} cannot be read"
        self._fatal: KafkaError | None = None
        share = max(1, len(nexts))
        self._consumer: Consumer = cluster.consumer(
            on_error=self._on_error,
            queued_min_messages=max(1000, _QUEUED_ROWS // share) if ahead else 1,
            queued_max_messages_kbytes=max(1024, _QUEUED_KBYTES // share) if ahead else 1,
            fetch_message_max_bytes=_FETCH_BYTES if ahead else _FETCH_BYTES_ONE,
        )
        with mapped(self._message):
            self._consumer.assign(self._targets(nexts))

    def consume(self, most: int, timeout: float) -> Sequence[Message]:
        """Messages and events; waits the whole timeout unless ``most`` come.

        Raises:
            HeadraceError: The client cannot go on (authentication, a fatal error).
        """
        with mapped(self._message):
            messages = self._consumer.consume(most, timeout)
        if self._fatal is not None:
            raise map_error(self._fatal, self._message)
        return messages

    def add(self, nexts: Mapping[TopicPartition, int]) -> None:
        """Read further partitions."""
        with mapped(self._message):
            self._consumer.incremental_assign(self._targets(nexts))

    def drop(self, partitions: Sequence[TopicPartition]) -> None:
        """Read some partitions no longer."""
        with mapped(self._message):
            self._consumer.incremental_unassign([ClientPartition(*at) for at in partitions])

    def end(self, at: TopicPartition) -> int | None:
        """High watermark of a partition as the client last saw it; asks nobody."""
        with mapped(self._message):
            seen = self._consumer.get_watermark_offsets(ClientPartition(*at), cached=True)
        return seen[1] if seen[1] >= 0 else None

    def error(self, error: KafkaError, at: TopicPartition) -> HeadraceError:
        """Our error for an event of a partition."""
        return map_error(
            error,
            f"topic {at.topic!r} on cluster {self._cluster.name!r} cannot be read",
            context={"topic": at.topic, "partition": at.partition},
        )

    def close(self) -> None:
        """Leave."""
        self._consumer.close()

    def _targets(self, nexts: Mapping[TopicPartition, int]) -> list[ClientPartition]:
        return [ClientPartition(at.topic, at.partition, offset) for at, offset in nexts.items()]

    def _on_error(self, error: KafkaError) -> None:
        kind = type(map_error(error, self._message))
        if error.fatal() or issubclass(kind, AccessDeniedError):
            self._fatal = error
        else:
            logger.warning("%s: %s: %s; the client keeps trying", self._message, error.name(), error.str())


def place(message: Message) -> TopicPartition | None:
    """The partition that a message or an event is of; None: an event of none."""
    topic, partition = message.topic(), message.partition()
    return None if topic is None or partition is None else TopicPartition(topic, partition)
