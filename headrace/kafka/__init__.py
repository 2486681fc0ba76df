"""Kafka clients: a named cluster, its metadata, and the one mapping of the client's errors."""

from __future__ import annotations

from headrace.kafka.cluster import KafkaCluster
from headrace.kafka.errors import TOPIC_NOT_FOUND, is_fencing, kafka_error, map_error, mapped, needs_abort
from headrace.kafka.metadata import KafkaMetadata, OffsetRange, TopicInfo

__all__ = [
    "TOPIC_NOT_FOUND",
    "KafkaCluster",
    "KafkaMetadata",
    "OffsetRange",
    "TopicInfo",
    "is_fencing",
    "kafka_error",
    "map_error",
    "mapped",
    "needs_abort",
]
