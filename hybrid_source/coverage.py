"""What of its topics a source has handed out: what sinks write as the boundary record."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.kernel.boundary import Boundary, PartitionRange, TopicBoundary, TopicPartition, timestamp
from hybrid_source.source_values import TopicIdentity
from hybrid_source.tail_position import TailPosition


def coverage(
    start: Mapping[TopicPartition, int],
    position: TailPosition,
    identities: Mapping[str, TopicIdentity],
    watermark: int | None,
) -> Boundary:
    """The covered ranges at a position of the tail.

    A record speaks of one range without a hole. Where a range was lost, it begins behind the last one: rows below it
    are in the table, but nobody must take them for all that there were.

    Args:
        start: Where coverage begins, by partition (inclusive); 0 for partitions that are not in it.
        position: Where the tail stands.
        identities: The topics, by name.
        watermark: Microseconds, or None.
    """
    ranges: dict[str, dict[int, PartitionRange]] = {}
    for at, state in position.partitions.items():
        begin = max(start.get(at, 0), *(after for _, after in position.lost_of(at)), 0)
        ranges.setdefault(at.topic, {})[at.partition] = PartitionRange(min(begin, state.next), state.next)
    topics = {name: TopicBoundary(found, identities[name].topic_id) for name, found in ranges.items()}
    cluster = next((topic.cluster_id for topic in identities.values()), None)
    return Boundary(topics, cluster, None if watermark is None else timestamp(watermark))
