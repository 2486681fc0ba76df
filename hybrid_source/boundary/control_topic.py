"""Reads a bounded range of a small topic, e.g. a control topic: committed records only, no group."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Final

from confluent_kafka import KafkaError, TopicPartition

from headrace.kafka import KafkaCluster, map_error, mapped
from headrace.kernel.errors import UnavailableError

DEADLINE_S: Final = 60.0
_AT_ONCE: Final = 1000


def read_range(
    cluster: KafkaCluster, topic: str, starts: Mapping[int, int], ends: Mapping[int, int]
) -> Iterator[tuple[int, int, bytes]]:
    """Partition, offset and value of the records from ``starts`` (inclusive) to ``ends`` (exclusive), by partition.

    Records without a value are left out. It ends at a record at or above the end, or at the end of the partition.

    Raises:
        UnavailableError: Not all came in time.
        HeadraceError: The topic cannot be read.
    """
    message = f"topic {topic!r} on cluster {cluster.name!r} cannot be read"
    waiting = {partition for partition, end in ends.items() if end > starts[partition]}
    if not waiting:
        return
    deadline = time.monotonic() + DEADLINE_S
    consumer = cluster.consumer()
    try:
        with mapped(message):
            consumer.assign([TopicPartition(topic, partition, starts[partition]) for partition in sorted(waiting)])
        while waiting:
            if time.monotonic() > deadline:
                raise UnavailableError(
                    f"topic {topic!r}: partitions {sorted(waiting)} were not read to their wanted ends in time",
                    detail=f"waited {DEADLINE_S:.0f} s",
                    hint="check the brokers",
                )
            with mapped(message):
                got = consumer.consume(_AT_ONCE, 0.2)
            for record in got:
                error, partition, offset = record.error(), record.partition() or 0, record.offset() or 0
                ended = error is not None and error.code() == KafkaError._PARTITION_EOF  # noqa: SLF001 - its public name
                if error is not None and not ended:
                    raise map_error(error, message, context={"topic": topic, "partition": partition})
                if ended or offset >= ends[partition]:
                    waiting.discard(partition)
                elif (value := record.value()) is not None:
                    yield partition, offset, bytes(value)
    finally:
        consumer.close()
