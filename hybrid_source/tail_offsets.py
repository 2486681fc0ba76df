"""Which offsets a tail begins at, and whether they are still there.

No silent gap: what is gone is an error, or a record in the position.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from headrace.kafka import KafkaMetadata, OffsetRange
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


@dataclass(frozen=True, slots=True)
class AtTime:
    """Begin at the first record whose timestamp is at or after ``timestamp_ms`` (milliseconds since the epoch, UTC)."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """Begin at explicit next offsets; partitions that are not named begin at their earliest offset."""

    offsets: Mapping[int, int]


Start = Literal["earliest", "latest"] | AtTime | AtOffsets
"""Where a tail without a history begins; resolved once, then kept in the position."""


@dataclass(frozen=True, slots=True)
class TopicOffsets:
    """Offsets of one topic: resolves starts and checks positions against what the broker holds.

    Attributes:
        topic: The topic.
        metadata: The cluster.
        on_gap: ``fail`` raises on a gap; ``record`` goes on behind it and writes it into the position's ledger.
    """

    topic: str
    metadata: KafkaMetadata
    on_gap: OnGap = "fail"

    def resolve(self, start: Start, partitions: tuple[int, ...]) -> TailPosition:
        """The position that a start mode stands for now.

        Raises:
            GapError: An explicit offset is below the log start.
            IdentityError: An explicit offset lies beyond the end, or names a partition that is not there.
        """
        earliest = self.metadata.earliest(self.topic, partitions)
        if start == EARLIEST:
            return _at(earliest)
        latest = self.metadata.latest(self.topic, partitions)
        if start == LATEST:
            return _at(latest)
        if isinstance(start, AtTime):
            found = self.metadata.at_time(self.topic, partitions, start.timestamp_ms)
            return _at({partition: latest[partition] if at is None else at for partition, at in found.items()})
        if isinstance(start, AtOffsets):
            wanted = _at({**earliest, **start.offsets})
            return self.checked(wanted, partitions)
        raise ValueError(f"no start mode: {start!r}")

    def resume(self, nexts: Mapping[int, int], partitions: tuple[int, ...]) -> TailPosition:
        """The position after a history that ends at ``nexts``; a partition it does not know begins at offset 0.

        Raises:
            GapError: An offset is below the log start (for an unknown partition: the log start is not 0).
            IdentityError: An offset lies beyond the end, or the topic lacks the partition.
        """
        return self.checked(_at({**dict.fromkeys(partitions, 0), **nexts}), partitions)

    def checked(self, position: TailPosition, partitions: tuple[int, ...]) -> TailPosition:
        """The position, with partitions that it does not know added at offset 0, and every gap met by policy.

        Raises:
            GapError: Under ``fail``: a next offset is below the log start.
            IdentityError: A next offset lies beyond the end of the log, or a partition is not there.
        """
        missing = sorted(set(position.partitions) - set(partitions))
        if missing:
            raise IdentityError(
                f"topic {self.topic!r} has no partition {missing[0]}, but a position on it is recorded",
                detail=f"recorded partitions {sorted(position.partitions)}, found {list(partitions)}",
                hint="the topic was deleted and created again, or it is another one; start the job under a new uid",
                code=RECREATED,
                context={"topic": self.topic, "partition": missing[0]},
            )
        new = {partition: PartitionState(0) for partition in partitions if partition not in position.partitions}
        position = position.with_partitions(new)
        for partition, held in self.metadata.ranges(self.topic, partitions).items():
            position = self.check(position, partition, held)
        return position

    def check(self, position: TailPosition, partition: int, held: OffsetRange) -> TailPosition:
        """One partition's next offset against what the broker holds; see :meth:`checked`."""
        wanted = position.partitions[partition].next
        if wanted > held.latest:
            raise IdentityError(
                f"topic {self.topic!r} partition {partition}: "
                f"recorded offset {wanted} lies beyond the end {held.latest}",
                detail=f"the partition holds {held.earliest} to {held.latest} (exclusive)",
                hint="the topic was deleted and created again, or lost records; recorded offsets mean nothing in it. "
                "Start the job under a new uid, and set the table's boundary anew",
                code=RECREATED,
                context=_context(self.topic, partition, wanted, held),
            )
        if wanted >= held.earliest:
            return position
        if self.on_gap == "record":
            return position.skipping(LostRange(partition, wanted, held.earliest))
        raise GapError(
            f"topic {self.topic!r} partition {partition}: wanted offset {wanted} is gone, "
            f"available are {held.earliest} to {held.latest} (exclusive)",
            detail=f"offsets {wanted} to {held.earliest - 1} were deleted by retention or by a person",
            hint=GAP_HINT,
            context=_context(self.topic, partition, wanted, held),
        )


def _at(nexts: Mapping[int, int]) -> TailPosition:
    return TailPosition({partition: PartitionState(offset) for partition, offset in sorted(nexts.items())})


def _context(topic: str, partition: int, wanted: int, held: OffsetRange) -> dict[str, str | int]:
    return {
        "topic": topic,
        "partition": partition,
        "wanted": wanted,
        "earliest": held.earliest,
        "latest": held.latest,
    }
