"""Which offsets a tail begins at, and whether they are still there.

No silent gap: what is gone is an error, or a record in the position.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from headrace.kafka import KafkaMetadata, OffsetRange
from headrace.kernel.boundary import TopicPartition
from headrace.kernel.errors import GapError, IdentityError
from hybrid_source.tail_position import LostRange, PartitionState, TailPosition

OnGap = Literal["fail", "record"]

EARLIEST: Final = "earliest"
LATEST: Final = "latest"

GAP_HINT: Final = (
    "read the missing range from a newer snapshot of the history, lengthen the topic's retention, "
    "or set on_gap: record to go on without these records"
)
RECREATED: Final = "TOPIC_RECREATED"
DELETED: Final = "TOPIC_DELETED"


@dataclass(frozen=True, slots=True)
class AtTime:
    """Begin at the first record whose timestamp is at or after ``timestamp_ms`` (milliseconds since the epoch, UTC)."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """Begin at explicit next offsets; partitions that are not named begin at their earliest offset."""

    offsets: Mapping[TopicPartition, int]


Start = Literal["earliest", "latest"] | AtTime | AtOffsets
"""Where a tail without a history begins; resolved once, then kept in the position."""


@dataclass(frozen=True, slots=True)
class LogOffsets:
    """Resolves starts, and checks positions against what the broker holds.

    Attributes:
        metadata: The cluster.
        on_gap: ``fail`` raises on a gap; ``record`` goes on behind it and writes it into the position's ledger.
    """

    metadata: KafkaMetadata
    on_gap: OnGap = "fail"

    def resolve(self, start: Start, partitions: Collection[TopicPartition]) -> TailPosition:
        """The position that a start mode stands for now.

        Raises:
            GapError: An explicit offset is below the log start.
            IdentityError: An explicit offset lies beyond the end, or names a partition that is not there.
        """
        earliest = self.metadata.earliest(partitions)
        if start == EARLIEST:
            return starting_at(earliest)
        latest = self.metadata.latest(partitions)
        if start == LATEST:
            return starting_at(latest)
        if isinstance(start, AtTime):
            found = self.metadata.at_time(partitions, start.timestamp_ms)
            return starting_at({at: latest[at] if offset is None else offset for at, offset in found.items()})
        if isinstance(start, AtOffsets):
            return self.checked(starting_at({**earliest, **start.offsets}), partitions)
        raise ValueError(f"no start mode: {start!r}")

    def resume(self, nexts: Mapping[TopicPartition, int], partitions: Collection[TopicPartition]) -> TailPosition:
        """The position after a history that ends at ``nexts``; a partition it does not know begins at offset 0.

        Raises:
            GapError: An offset is below the log start (for an unknown partition: the log start is not 0).
            IdentityError: An offset lies beyond the end, or the topic lacks the partition.
        """
        return self.checked(starting_at({**dict.fromkeys(partitions, 0), **nexts}), partitions)

    def checked(self, position: TailPosition, partitions: Collection[TopicPartition]) -> TailPosition:
        """The position, with partitions that it does not know added at offset 0, and every gap met by policy.

        Raises:
            GapError: Under ``fail``: a next offset is below the log start.
            IdentityError: A next offset lies beyond the end of the log, or a partition is not there.
        """
        missing = sorted(set(position.partitions) - set(partitions))
        if missing:
            topic, partition = missing[0]
            found, recorded = (
                sorted(at.partition for at in known if at.topic == topic) for known in (partitions, position.partitions)
            )
            if not found:
                raise IdentityError(
                    f"topic {topic!r} is no longer there, but a position on it is recorded",
                    hint="the topic was deleted; start the job under a new uid to go on without it",
                    code=DELETED,
                    context={"topic": topic},
                )
            raise IdentityError(
                f"topic {topic!r} has no partition {partition}, but a position on it is recorded",
                detail=f"recorded partitions {recorded}, found {found}",
                hint="the topic was deleted and created again, or it is another one; start the job under a new uid",
                code=RECREATED,
                context={"topic": topic, "partition": partition},
            )
        position = position.with_partitions(
            {at: PartitionState(0) for at in sorted(partitions) if at not in position.partitions}
        )
        for at, held in self.metadata.ranges(partitions).items():
            position = self.check(position, at, held)
        return position

    def check(self, position: TailPosition, at: TopicPartition, held: OffsetRange) -> TailPosition:
        """One partition's next offset against what the broker holds; see :meth:`checked`."""
        wanted = position.partitions[at].next
        if wanted > held.latest:
            raise IdentityError(
                f"topic {at.topic!r} partition {at.partition}: "
                f"recorded offset {wanted} lies beyond the end {held.latest}",
                detail=f"the partition holds {held.earliest} to {held.latest} (exclusive)",
                hint="the topic was deleted and created again, or lost records; recorded offsets mean nothing in it. "
                "Start the job under a new uid, and set the table's boundary anew",
                code=RECREATED,
                context=_context(at, wanted, held),
            )
        if wanted >= held.earliest:
            return position
        if self.on_gap == "record":
            return position.skipping(LostRange(at, wanted, held.earliest))
        raise GapError(
            f"topic {at.topic!r} partition {at.partition}: wanted offset {wanted} is gone, "
            f"available are {held.earliest} to {held.latest} (exclusive)",
            detail=f"offsets {wanted} to {held.earliest - 1} were deleted by retention or by a person",
            hint=GAP_HINT,
            context=_context(at, wanted, held),
        )

    def skip(self, position: TailPosition, gap: GapError) -> TailPosition:
        """The position behind a gap, with the gap in its ledger.

        Raises:
            GapError: The gap, under ``fail``, and where deletions may be gone: no offset says which.
        """
        if self.on_gap == "fail" or "earliest" not in gap.context:
            raise gap
        at = TopicPartition(gap.context["topic"], gap.context["partition"])
        return position.skipping(LostRange(at, gap.context["wanted"], gap.context["earliest"]))


def starting_at(nexts: Mapping[TopicPartition, int]) -> TailPosition:
    """The position of a tail that begins at these offsets."""
    return TailPosition({at: PartitionState(offset) for at, offset in sorted(nexts.items())})


def _context(at: TopicPartition, wanted: int, held: OffsetRange) -> dict[str, str | int]:
    return {
        "topic": at.topic,
        "partition": at.partition,
        "wanted": wanted,
        "earliest": held.earliest,
        "latest": held.latest,
    }
