"""What tests do with a real broker."""

from __future__ import annotations

import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from infra.dev.process import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class KafkaHelper:
    """A broker's address and the things that tests do there; every call ends within ``SECONDS`` or fails."""

    bootstrap: str

    def config(self, **options: Any) -> dict[str, Any]:
        """Librdkafka's options for this broker; ``group_id`` stands for ``group.id`` and so on."""
        return {
            "bootstrap.servers": self.bootstrap,
            "log_level": 0,
            **{name.replace("_", "."): value for name, value in options.items()},
        }

    def admin(self) -> AdminClient:
        """An admin client; hold it until its futures are done, for they die with it."""
        return AdminClient(self.config())

    def topic(self, partitions: int = 1, *, prefix: str = "t", config: Mapping[str, str] | None = None) -> str:
        """Make a topic with a name of its own, and wait until the broker serves it."""
        return self.topic_named(f"{prefix}-{uuid.uuid4().hex[:12]}", partitions, config=config)

    def topic_named(self, name: str, partitions: int = 1, *, config: Mapping[str, str] | None = None) -> str:
        """Make a topic of a given name, and wait until the broker serves it."""
        new = NewTopic(name, num_partitions=partitions, replication_factor=1, config=dict(config or {}))
        admin = self.admin()
        admin.create_topics([new])[name].result(SECONDS)
        # The controller answers before the broker's own view of the cluster has caught up.
        assert wait_until(lambda: len(_led(admin, name)) == partitions, SECONDS)
        return name

    def add_partition(self, topic: str, partitions: int) -> None:
        """Let a topic have so many partitions, and wait until the broker serves them."""
        admin = self.admin()
        admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(SECONDS)
        assert wait_until(lambda: len(_led(admin, topic)) == partitions, SECONDS)

    def delete_topic(self, topic: str) -> None:
        admin = self.admin()
        admin.delete_topics([topic])[topic].result(SECONDS)
        assert wait_until(lambda: topic not in admin.list_topics(timeout=SECONDS).topics, SECONDS)

    def topic_id(self, topic: str) -> str:
        admin = self.admin()
        described = admin.describe_topics(TopicCollection([topic]))[topic].result(SECONDS)
        return str(described.topic_id)

    def partitions(self, topic: str) -> list[int]:
        found = self.admin().list_topics(topic, timeout=SECONDS).topics[topic]
        assert found.error is None, found.error
        return sorted(found.partitions)

    def produce(
        self,
        topic: str,
        values: Iterable[bytes | None],
        *,
        partition: int = 0,
        key: bytes | None = None,
        timestamp_ms: int = 0,
        **options: Any,
    ) -> list[int]:
        """Write plain records to one partition and give their offsets."""
        producer = Producer(self.config(**{"linger_ms": 0, **options}))
        common = {"topic": topic, "partition": partition, "key": key, "timestamp": timestamp_ms}
        return write(producer, ({**common, "value": value} for value in values))

    @contextmanager
    def transaction(self, transactional_id: str | None = None, **options: Any) -> Iterator[Transaction]:
        """An open transaction; aborted on leaving unless it was committed or aborted before."""
        transaction = self.begin(transactional_id, **options)
        try:
            yield transaction
        finally:
            if transaction.open:
                transaction.abort()

    def begin(self, transactional_id: str | None = None, **options: Any) -> Transaction:
        """Begin a transaction (fencing former owners of the id) that nobody ends for the caller."""
        identity = transactional_id or f"x-{uuid.uuid4().hex[:12]}"
        producer = Producer(self.config(transactional_id=identity, linger_ms=0, **options))
        producer.init_transactions(SECONDS)
        producer.begin_transaction()
        return Transaction(producer)

    def delete_records(self, topic: str, before: Mapping[int, int]) -> None:
        """Delete the records below an offset of each partition; -1 for all."""
        asked = [TopicPartition(topic, partition, offset) for partition, offset in before.items()]
        admin = self.admin()
        for future in admin.delete_records(asked).values():
            future.result(SECONDS)

    def watermarks(self, topic: str, partition: int = 0, *, isolation: str = "read_committed") -> tuple[int, int]:
        """First offset and next offset; under read_committed the next is the last stable one."""
        consumer = self._consumer(isolation)
        try:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=SECONDS)
        finally:
            consumer.close()
        return low, high

    def settle(self, topic: str, end: int, partition: int = 0) -> None:
        """Wait until a partition is stable up to ``end``: a commit returns before its marker is written."""
        assert wait_until(lambda: self.watermarks(topic, partition)[1] >= end, SECONDS)

    def drain(self, topic: str, *, isolation: str = "read_committed", start: int = OFFSET_BEGINNING) -> list[Message]:
        """Every record of a topic up to its present end, by partition and offset."""
        waiting = set(self.partitions(topic))
        consumer = self._consumer(isolation)
        found: list[Message] = []
        try:
            consumer.assign([TopicPartition(topic, partition, start) for partition in waiting])
            while waiting:
                message = consumer.poll(SECONDS)
                assert message is not None, f"no end of partitions {sorted(waiting)} of {topic}"
                error = message.error()
                if error is None:
                    found.append(message)
                else:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    waiting.discard(message.partition())
        finally:
            consumer.close()
        return sorted(found, key=lambda message: (message.partition(), message.offset()))

    def values(self, topic: str, *, isolation: str = "read_committed") -> list[bytes | None]:
        """The values of :meth:`drain`."""
        return [message.value() for message in self.drain(topic, isolation=isolation)]

    def _consumer(self, isolation: str) -> Consumer:
        return Consumer(
            self.config(
                group_id="tests",
                enable_auto_commit=False,
                enable_partition_eof=True,
                isolation_level=isolation,
                fetch_queue_backoff_ms=10,
                fetch_wait_max_ms=20,
                auto_offset_reset="error",
            )
        )


class Transaction:
    """One transaction of one transactional producer."""

    def __init__(self, producer: Producer) -> None:
        self.producer = producer
        self.open = True

    def produce(
        self, topic: str, values: Iterable[bytes | None], *, partition: int = 0, timestamp_ms: int = 0
    ) -> list[int]:
        """Write records and wait until the broker has them; gives their offsets."""
        common = {"topic": topic, "partition": partition, "timestamp": timestamp_ms}
        return write(self.producer, ({**common, "value": value} for value in values))

    def commit(self) -> None:
        self.producer.commit_transaction(SECONDS)
        self.open = False

    def abort(self) -> None:
        self.producer.abort_transaction(SECONDS)
        self.open = False


def _led(admin: AdminClient, topic: str) -> list[int]:
    """The partitions of a topic that have a leader."""
    found = admin.list_topics(topic, timeout=SECONDS).topics[topic].partitions
    return [number for number, partition in found.items() if partition.leader >= 0]


def write(producer: Producer, records: Iterable[dict[str, Any]]) -> list[int]:
    """Write records (produce's own arguments), wait until the broker has them, and give their offsets."""
    offsets: list[int] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        offsets.append(message.offset())

    for record in records:
        while True:
            try:
                producer.produce(**record, on_delivery=delivered)
            except BufferError:
                producer.poll(1)
            else:
                break
    assert producer.flush(SECONDS) == 0
    return offsets
