"""Flights as Kafka records: JSON values, keyed by carrier, one partition per carrier's hash."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

import polars as pl
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined] # not in its __all__

from headrace.kafka.cluster import KafkaCluster
from headrace.kafka.errors import mapped

PARTITIONS: Final = 4
CHUNK: Final = 500
PACE_S: Final = 0.1
QUEUED: Final = 20_000
"""Records that wait in the client at most: its own limit is 100,000, and it refuses what is beyond."""


def create_topic(cluster: KafkaCluster, topic: str) -> None:
    """Create the topic of the flights."""
    admin = cluster.admin()
    with mapped(f"topic {topic} cannot be created"):
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result()


def records(flights: pl.DataFrame) -> Iterator[list[tuple[str, int, str]]]:
    """Chunks of records in the order of the rows: key, partition, value."""
    encoded = flights.select(
        key=pl.col("carrier"),
        # A stable assignment of carriers to partitions, so that the demo is the same each time.
        partition=pl.col("carrier").rank("dense").cast(pl.Int32) % PARTITIONS,
        value=pl.struct(
            pl.all().exclude("time_hour"), pl.col("time_hour").dt.strftime("%Y-%m-%dT%H:%M:%SZ")
        ).struct.json_encode(),
    )
    for chunk in encoded.iter_slices(CHUNK):
        yield chunk.rows()


def produce(cluster: KafkaCluster, topic: str, flights: pl.DataFrame, *, paced: bool = False) -> int:
    """Produce all flights and wait until they are acknowledged; returns their number.

    Args:
        cluster: Where.
        topic: The topic.
        flights: The rows.
        paced: Send a chunk about every tenth of a second: time runs fast, but it runs.
    """
    producer: Producer = cluster.producer()
    sent = 0
    for chunk in records(flights):
        for key, partition, value in chunk:
            producer.produce(topic, value, key, partition)
        while len(producer) > QUEUED:
            producer.poll(PACE_S)
        sent += len(chunk)
        if paced:
            time.sleep(PACE_S)
    left = producer.flush(60)
    return sent - left


def delete_before(cluster: KafkaCluster, topic: str, offsets: dict[int, int]) -> None:
    """Delete the records below these offsets, as retention would."""
    wanted = [TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
    admin = cluster.admin()
    with mapped(f"records of topic {topic} cannot be deleted"):
        for deleted in admin.delete_records(wanted).values():
            deleted.result()
