"""What a cluster says about a topic: identity, partitions, offsets. Every call has a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec  # type: ignore[attr-defined]  # not in its __all__

from headrace.kafka.cluster import KafkaCluster
from headrace.kafka.errors import kafka_error, map_error, mapped
from headrace.kafka.reach import Reach
from headrace.kernel.boundary import TopicPartition
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

    @property
    def places(self) -> tuple[TopicPartition, ...]:
        """Its partitions with its name."""
        return tuple(TopicPartition(self.name, partition) for partition in self.partitions)


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """What a partition holds: ``earliest`` (log start, inclusive) to ``latest`` (high watermark, exclusive)."""

    earliest: int
    latest: int


class KafkaMetadata:
    """Metadata calls on one admin client, made at the first use.

    All of them raise ``NotFoundError`` (code ``TOPIC_NOT_FOUND``) for a topic that is not there,
    ``AccessDeniedError``, and ``UnavailableError`` when no answer came within the deadline. Partitions whose leader
    is just being elected are asked again until then. Where no broker can be reached, the error says why.

    Args:
        cluster: The cluster.
        deadline: Seconds that a call may take.
        patience: Seconds after which a call ends when no broker has answered so far and none can be connected to; for
            people who wait. None: the deadline, as brokers may come back.
    """

    def __init__(self, cluster: KafkaCluster, *, deadline: float = DEADLINE, patience: float | None = None) -> None:
        self._cluster = cluster
        self._deadline = deadline
        self._patience = patience
        self._reach = Reach()
        self._opened = 0.0
        self._client: AdminClient | None = None

    def topics(self) -> list[str]:
        """Names of all topics that the principal may see, in order."""
        found = self._call(
            f"topics of {self._where} cannot be listed", lambda left: self._admin.list_topics(timeout=left).topics
        )
        return sorted(found)

    def describe(self, topic: str) -> TopicInfo:
        """Identity and partitions of a topic."""
        return self.describe_all([topic])[topic]

    def describe_all(self, topics: Collection[str]) -> dict[str, TopicInfo]:
        """Identity and partitions of several topics, in the order of their names; all of them must be there."""
        names = sorted(topics)

        def ask(left: float) -> dict[str, Any]:
            answers = self._admin.describe_topics(TopicCollection(names), request_timeout=left)
            found = {}
            for name in names:
                with mapped(f"topic {name!r} on {self._where} cannot be described"):
                    found[name] = self._answer(answers[name], left)
            return found

        found = self._call(f"topics of {self._where} cannot be described", ask) if names else {}
        cluster = self.cluster_id()
        return {
            name: TopicInfo(
                name,
                str(topic.topic_id) if topic.topic_id else None,
                cluster,
                tuple(sorted(partition.id for partition in topic.partitions)),
            )
            for name, topic in found.items()
        }

    def cluster_id(self) -> str | None:
        """The cluster's id."""
        found = self._call(
            f"{self._where} cannot be described",
            lambda left: self._answer(self._admin.describe_cluster(request_timeout=left), left),
        )
        return str(found.cluster_id) if found.cluster_id else None

    def earliest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Log start by partition: the first offset that is still there."""
        return self._offsets(partitions, _EARLIEST)

    def latest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """High watermark by partition, exclusive: records of open transactions lie below it."""
        return self._offsets(partitions, _LATEST)

    def stable(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Last stable offset by partition, exclusive: no open transaction has records below it."""
        return self._offsets(partitions, _LATEST, committed=True)

    def ranges(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetRange]:
        """Log start and high watermark by partition."""
        wanted = tuple(partitions)
        earliest, latest = self.earliest(wanted), self.latest(wanted)
        return {at: OffsetRange(earliest[at], latest[at]) for at in wanted}

    def at_time(self, partitions: Iterable[TopicPartition], timestamp_ms: int) -> dict[TopicPartition, int]:
        """First offset by partition whose record timestamp is at or after ``timestamp_ms``, or the end without one.

        The end is the one from before the search: a record that comes meanwhile is never skipped.
        """
        wanted = tuple(partitions)
        ends = self.latest(wanted)
        # Records have no negative timestamps, and to the broker those mean other things (-1: the end).
        found = self._offsets(wanted, OffsetSpec.for_timestamp(max(timestamp_ms, 0)))
        return {at: ends[at] if offset < 0 else offset for at, offset in found.items()}

    def settings(self, topics: Collection[str], names: Collection[str]) -> dict[str, dict[str, str]]:
        """Settings of topics in force (``retention.ms`` ...), by topic and name; those that the broker knows."""
        resources = {name: ConfigResource(ConfigResource.Type.TOPIC, name) for name in sorted(topics)}

        def ask(left: float) -> dict[str, dict[str, str]]:
            answers = self._admin.describe_configs(list(resources.values()), request_timeout=left)
            found = {}
            for topic, resource in resources.items():
                with mapped(f"the settings of topic {topic!r} on {self._where} cannot be read"):
                    entries = self._answer(answers[resource], left)
                found[topic] = {name: str(entries[name].value) for name in names if name in entries}
            return found

        return self._call(f"settings of topics of {self._where} cannot be read", ask) if resources else {}

    def _offsets(
        self, partitions: Iterable[TopicPartition], spec: OffsetSpec, *, committed: bool = False
    ) -> dict[TopicPartition, int]:
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        request = {ClientPartition(*at): spec for at in partitions}
        if not request:
            return {}

        def ask(left: float) -> dict[TopicPartition, int]:
            answers = self._admin.list_offsets(request, isolation_level=level, request_timeout=left)
            return {
                TopicPartition(key.topic, key.partition): self._answer(answer, left).offset
                for key, answer in answers.items()
            }

        topics = ", ".join(sorted({repr(key.topic) for key in request}))
        return self._call(f"offsets of topic {topics} on {self._where} cannot be read", ask)

    @property
    def _where(self) -> str:
        return f"cluster {self._cluster.name!r} ({self._cluster.options.get('bootstrap.servers')})"

    @property
    def _admin(self) -> AdminClient:
        if self._client is None:
            self._opened = time.monotonic()
            self._client = self._cluster.admin(on_error=self._reach.on_error)
        return self._client

    def _answer(self, answer: Future[_T], left: float) -> _T:
        """The answer to a request; looks meanwhile whether it can come at all.

        Raises:
            KafkaException, TimeoutError: There is none.
        """
        ends = time.monotonic() + left
        while True:
            try:
                found = answer.result(min(_PAUSE, max(ends - time.monotonic(), 0)))
            except TimeoutError:
                self._admin.poll(0)
                if time.monotonic() >= ends or self._is_hopeless:
                    raise
            else:
                self._reach.answered()
                self._patience = None
                return found

    @property
    def _is_hopeless(self) -> bool:
        return self._patience is not None and self._reach.down and time.monotonic() - self._opened >= self._patience

    def _call(self, message: str, ask: Callable[[float], _T]) -> _T:
        try:
            return self._asked(message, ask)
        except UnavailableError as error:
            if self._reach.down and self._reach.reason is not None:
                raise map_error(self._reach.reason, f"{self._where} cannot be reached") from error
            raise

    def _asked(self, message: str, ask: Callable[[float], _T]) -> _T:
        deadline = time.monotonic() + self._deadline
        with mapped(message):
            while True:
                try:
                    return ask(max(deadline - time.monotonic(), _PAUSE))
                except (UnavailableError, TimeoutError):
                    if time.monotonic() + _PAUSE >= deadline or self._is_hopeless:
                        raise
                except KafkaException as error:
                    stale = kafka_error(error).code() == KafkaError._UNKNOWN_PARTITION  # noqa: SLF001 - its public name
                    if stale:
                        # The client's view of the topic is older than the partition.
                        self._client = None
                    transient = stale or isinstance(map_error(error, message), UnavailableError)
                    if not transient or time.monotonic() + _PAUSE >= deadline:
                        raise
                time.sleep(_PAUSE)
