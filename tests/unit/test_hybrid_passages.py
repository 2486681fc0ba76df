"""Passages of a hybrid source between table and topic."""

from __future__ import annotations

import pytest

from headrace.kernel.boundary import Boundary, PartitionRange, TopicBoundary, TopicPartition
from headrace.kernel.protocols import Json
from hybrid_source.history import History
from hybrid_source.history_stage import LakeHistory
from hybrid_source.hybrid_passages import into_topic
from hybrid_source.hybrid_position import HybridPosition, LakeRead
from hybrid_source.resolution import Resolution


def unopened(_pin: Json) -> History:
    pytest.fail("a passage opens nothing")


def test_of_a_partition_that_a_newer_version_begins_beyond_nothing_was_read() -> None:
    """Its first offsets are a hole, for all that the table's rows can say: the topic gives all of it."""
    read, behind = TopicPartition("t", 0), TopicPartition("t", 1)
    newer = Boundary({"t": TopicBoundary({0: PartitionRange(0, 9), 1: PartitionRange(4, 9)})})
    pinned = Boundary({"t": TopicBoundary({0: PartitionRange(0, 3)})})
    at = HybridPosition(
        "tail",
        {"snapshot_id": 1},
        resolution=Resolution(pinned, "columns", ""),
        lake=LakeRead({"snapshot_id": 2}, Resolution(newer, "columns", ""), "chase"),
    )
    after = into_topic(at, {read: 7, behind: 0}, LakeHistory(unopened))
    assert after.resolution is not None
    assert after.resolution.boundary.ranges == {read: PartitionRange(0, 7)}
    assert after.handover == {read: 7, behind: 0}
