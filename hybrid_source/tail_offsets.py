"""Which offsets a tail begins at, and whether they are still there.

No silent gap: what is gone is an error, or a record in the position.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from headrace.kafka import KafkaMetadata, OffsetRange
from headrace.kernel.boundary import TopicPartition
from headrace.kernel.errors import GapError, IdentityError
from hybrid_source.gaps import Gap, gap_error, gaps_of
from hybrid_source.tail_position import LostRange, PartitionState, TailPosition

OnGap = Literal["fail", "record"]

EARLIEST: Final = "earliest"
LATEST: Final = "latest"

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
        if start == LATEST:
            return starting_at(self.metadata.latest(partitions))
        if isinstance(start, AtTime):
            return starting_at(self.metadata.at_time(partitions, start.timestamp_ms))
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

    def checked(
        self,
        position: TailPosition,
        partitions: Collection[TopicPartition],
        ends: Mapping[TopicPartition, int] | None = None,
    ) -> TailPosition:
        """The position, with partitions that it does not know added at offset 0, and every gap met by policy.

        Args:
            position: The position.
            partitions: Those that are there.
            ends: Where a bounded read ends; it needs nothing of a partition that stands at its end. None: no end.

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
                raise deleted(topic, recorded)
            raise IdentityError(
                f"topic {topic!r} has no partition {partition}, but a position on it is recorded",
                detail=f"recorded partitions {recorded}, found {found}",
                hint="the topic was deleted and created again, or it is another one; start the job under a new uid",
                code=RECREATED,
                context={"topic": topic, "partition": partition, "wanted": recorded, "available": found},
            )
        position = position.knowing(dict.fromkeys(partitions, 0))
        gaps = []
        for at, held in self.metadata.ranges(partitions).items():
            wanted = position.partitions[at].next
            if ends is not None and held.latest >= wanted >= ends.get(at, 0):
                continue
            gap = _gap(position, at, held)
            if gap is not None:
                gaps.append(gap)
        return self._met(position, gaps)

    def check(self, position: TailPosition, at: TopicPartition, held: OffsetRange) -> TailPosition:
        """One partition's next offset against what the broker holds; see :meth:`checked`."""
        gap = _gap(position, at, held)
        return position if gap is None else self._met(position, [gap])

    def skip(self, position: TailPosition, gap: GapError) -> TailPosition:
        """The position behind a gap, with the gap in its ledger.

        Raises:
            GapError: The gap, under ``fail``, and where deletions may be gone: no offset says which.
        """
        gaps = gaps_of(gap)
        if self.on_gap == "fail" or not gaps:
            raise gap
        return skipped(position, gaps)

    def _met(self, position: TailPosition, gaps: Sequence[Gap]) -> TailPosition:
        if gaps and self.on_gap == "fail":
            raise gap_error(gaps)
        return skipped(position, gaps)


def deleted(topic: str, recorded: Sequence[int]) -> IdentityError:
    """The error for a topic of which there is a position, and which is no longer there."""
    return IdentityError(
        f"topic {topic!r} is no longer there, but a position on it is recorded",
        detail=f"recorded partitions {list(recorded)}, found none",
        hint="the topic was deleted; start the job under a new uid to go on without it",
        code=DELETED,
        context={"topic": topic, "wanted": list(recorded), "available": []},
    )


def skipped(position: TailPosition, gaps: Iterable[Gap]) -> TailPosition:
    """The position behind some gaps, with the gaps in its ledger."""
    for gap in gaps:
        position = position.skipping(LostRange(gap.at, gap.wanted, gap.earliest))
    return position


def _gap(position: TailPosition, at: TopicPartition, held: OffsetRange) -> Gap | None:
    """What one partition lacks.

    Raises:
        IdentityError: The position lies beyond the end of the log.
    """
    wanted = position.partitions[at].next
    if wanted > held.latest:
        raise IdentityError(
            f"topic {at.topic!r} partition {at.partition}: recorded offset {wanted} lies beyond the end {held.latest}",
            detail=f"the partition holds {held.earliest} to {held.latest} (exclusive)",
            hint="the topic was deleted and created again, or lost records; recorded offsets mean nothing in it. "
            "Start the job under a new uid, and set the table's boundary anew",
            code=RECREATED,
            context=Gap(at, wanted, held.earliest, held.latest).to_json(),
        )
    return Gap(at, wanted, held.earliest, held.latest) if wanted < held.earliest else None


def starting_at(nexts: Mapping[TopicPartition, int]) -> TailPosition:
    """The position of a tail that begins at these offsets."""
    return TailPosition({at: PartitionState(offset) for at, offset in sorted(nexts.items())})
