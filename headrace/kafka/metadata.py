"""What a cluster says about a topic: identity, partitions, offsets. Every call has a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # not in its __all__

from headrace.kafka.cluster import KafkaCluster
from headrace.kafka.errors import kafka_error, map_error, mapped
from headrace.kernel.errors import UnavailableError

DEADLINE: Final = 30.0
"""Seconds a metadata call may take, retries included."""

_PAUSE: Final = 0.1
_EARLIEST: Final = OffsetSpec.earliest()  # type: ignore[no-untyped-call]  # untyped in confluent-kafka
_LATEST: Final = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # untyped in confluent-kafka
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as it is now.

    Attributes:
        name: Its name.
        topic_id: Its id (KIP-516), changed by deletion and creation; None from brokers that know none.
        cluster_id: The cluster's id.
        partitions: Partition numbers, ascending.
    """

    name: str
    topic_id: str | None
    cluster_id: str | None
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """What a partition holds: ``earliest`` (log start, inclusive) to ``latest`` (high watermark, exclusive)."""

    earliest: int
    latest: int


class KafkaMetadata:
    """Metadata calls on one admin client, made at the first use.

    All of them raise ``NotFoundError`` (code ``TOPIC_NOT_FOUND``) for a topic that is not there,
    ``AccessDeniedError``, and ``UnavailableError`` when no answer came within the deadline. Partitions whose leader
    is just being elected are asked again until then.
    """

    def __init__(self, cluster: KafkaCluster, *, deadline: float = DEADLINE) -> None:
        self._cluster = cluster
        self._deadline = deadline
        self._client: AdminClient | None = None

    def describe(self, topic: str) -> TopicInfo:
        """Identity and partitions of a topic."""
        found = self._call(
            f"topic {topic!r} on {self._where} cannot be described",
            lambda left: self._admin.describe_topics(TopicCollection([topic]), request_timeout=left)[topic].result(
                left
            ),
        )
        return TopicInfo(
            topic,
            str(found.topic_id) if found.topic_id else None,
            self.cluster_id(),
            tuple(sorted(partition.id for partition in found.partitions)),
        )

    def cluster_id(self) -> str | None:
        """The cluster's id."""
        found = self._call(
            f"{self._where} cannot be described",
            lambda left: self._admin.describe_cluster(request_timeout=left).result(left),
        )
        return str(found.cluster_id) if found.cluster_id else None

    def earliest(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """Log start by partition: the first offset that is still there."""
        return self._offsets(topic, partitions, _EARLIEST)

    def latest(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """High watermark by partition, exclusive: records of open transactions lie below it."""
        return self._offsets(topic, partitions, _LATEST)

    def stable(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """Last stable offset by partition, exclusive: no open transaction has records below it."""
        return self._offsets(topic, partitions, _LATEST, committed=True)

    def ranges(self, topic: str, partitions: Iterable[int]) -> dict[int, OffsetRange]:
        """Log start and high watermark by partition."""
        wanted = tuple(partitions)
        earliest, latest = self.earliest(topic, wanted), self.latest(topic, wanted)
        return {partition: OffsetRange(earliest[partition], latest[partition]) for partition in wanted}

    def at_time(self, topic: str, partitions: Iterable[int], timestamp_ms: int) -> dict[int, int | None]:
        """First offset by partition whose record timestamp is at or after ``timestamp_ms``; None: no such record."""
        found = self._offsets(topic, partitions, OffsetSpec.for_timestamp(timestamp_ms))
        return {partition: None if offset < 0 else offset for partition, offset in found.items()}

    def _offsets(
        self, topic: str, partitions: Iterable[int], spec: OffsetSpec, *, committed: bool = False
    ) -> dict[int, int]:
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        request = {TopicPartition(topic, partition): spec for partition in partitions}
        if not request:
            return {}

        def ask(left: float) -> dict[int, int]:
            answers = self._admin.list_offsets(request, isolation_level=level, request_timeout=left)
            return {key.partition: answer.result(left).offset for key, answer in answers.items()}

        return self._call(f"offsets of topic {topic!r} on {self._where} cannot be read", ask)

    @property
    def _where(self) -> str:
        return f"cluster {self._cluster.name!r} ({self._cluster.options.get('bootstrap.servers')})"

    @property
    def _admin(self) -> AdminClient:
        if self._client is None:
            self._client = self._cluster.admin()
        return self._client

    def _call(self, message: str, ask: Callable[[float], _T]) -> _T:
        deadline = time.monotonic() + self._deadline
        with mapped(message):
            while True:
                try:
                    return ask(max(deadline - time.monotonic(), _PAUSE))
                except KafkaException as error:
                    stale = kafka_error(error).code() == KafkaError._UNKNOWN_PARTITION  # noqa: SLF001 - its public name
                    if stale:
                        # The client's view of the topic is older than the partition.
                        self._client = None
                    transient = stale or isinstance(map_error(error, message), UnavailableError)
                    if not transient or time.monotonic() + _PAUSE >= deadline:
                        raise
                time.sleep(_PAUSE)
