"""The boundary of a source: the spec's choice as rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

from headrace.jobs.config import Config
from headrace.jobs.spec_boundary import BoundaryColumns, BoundaryConnect, BoundaryOffsets, BoundaryTimestamp
from headrace.jobs.spec_sources import SourceSpec, TailSpec
from headrace.kafka.cluster import KafkaCluster
from headrace.kernel import columns as system
from headrace.kernel.boundary import TopicPartition
from hybrid_source.boundary import (
    BoundaryRule,
    ConnectReplay,
    EmptyHistory,
    ExplicitOffsets,
    NamedColumns,
    TimeBoundary,
    auto_rules,
)
from hybrid_source.resolution import OffsetNames


def boundary_rules(source: SourceSpec, config: Config) -> Sequence[BoundaryRule]:
    """The rules of a source with history and tail, in order; none for one without a tail in Kafka."""
    tail, stated = source.topic_tail, source.boundary
    if tail is None:
        return ()
    cluster = tail_cluster(tail, config)
    if isinstance(stated, BoundaryOffsets):
        return (ExplicitOffsets(by_topic(stated.offsets, tail.topic)),)
    if isinstance(stated, BoundaryColumns):
        named = stated.columns
        topic = named.topic or (None if len(tail.topic) == 1 else system.TOPIC)
        return (EmptyHistory(), NamedColumns(OffsetNames(named.partition, named.offset, topic)))
    if isinstance(stated, BoundaryConnect):
        control, other = stated.connect, stated.connect.cluster
        where = KafkaCluster(other, config.kafka_cluster(other)) if other is not None else cluster
        return (EmptyHistory(), ConnectReplay(where, control.control_topic, control.group, cluster, required=True))
    if isinstance(stated, BoundaryTimestamp):
        time = None if stated.timestamp == "recorded" else stated.timestamp
        return (TimeBoundary(cluster, time, timedelta(microseconds=stated.overlap)),)
    return auto_rules(cluster)


def tail_cluster(tail: TailSpec, config: Config) -> KafkaCluster:
    """The cluster of a tail, with the tail's own options over it."""
    return KafkaCluster(tail.cluster, {**config.kafka_cluster(tail.cluster), **tail.options})


def by_topic(
    offsets: Mapping[int, int] | Mapping[str, Mapping[int, int]], topics: Sequence[str]
) -> Mapping[TopicPartition, int]:
    """Offsets of a spec by topic and partition; those without a topic are of the only one."""
    out = {}
    for key, value in offsets.items():
        named = {str(key): value} if isinstance(value, Mapping) else {topics[0]: {int(key): value}}
        for topic, found in named.items():
            out.update({TopicPartition(topic, partition): offset for partition, offset in found.items()})
    return out
