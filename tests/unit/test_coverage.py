"""What a source claims to have handed out, at a position of its tail."""

from headrace.kernel.boundary import Boundary, PartitionRange, TopicBoundary, TopicPartition
from hybrid_source.coverage import coverage
from hybrid_source.source_values import TopicIdentity
from hybrid_source.tail_position import LostRange, PartitionState, TailPosition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
IDENTITIES = {"a": TopicIdentity("a", "id-a", "cluster"), "b": TopicIdentity("b", "id-b", "cluster")}


def test_coverage_begins_where_the_history_does_and_with_offset_0_for_partitions_found_later() -> None:
    at = TailPosition({A0: PartitionState(10), A1: PartitionState(3), B0: PartitionState(7)})
    assert coverage({A0: 5, B0: 7}, at, IDENTITIES, 0) == Boundary(
        {
            "a": TopicBoundary({0: PartitionRange(5, 10), 1: PartitionRange(0, 3)}, "id-a"),
            "b": TopicBoundary({0: PartitionRange(7, 7)}, "id-b"),
        },
        "cluster",
        "1970-01-01T00:00:00Z",
    )


def test_hyb_04_a_lost_range_is_not_covered() -> None:
    at = TailPosition({A0: PartitionState(20), A1: PartitionState(4)}, (LostRange(A0, 8, 10), LostRange(A0, 12, 15)))
    found = coverage({A0: 5}, at, IDENTITIES, None)
    assert found.topics["a"].partitions == {0: PartitionRange(15, 20), 1: PartitionRange(0, 4)}
    nothing_since = TailPosition({A0: PartitionState(10)}, (LostRange(A0, 8, 10),))
    assert coverage({}, nothing_since, IDENTITIES, None).topics["a"].partitions == {0: PartitionRange(10, 10)}
