"""Where a tail stands, as a versioned value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from headrace.kernel.boundary import TopicPartition, flat, nested
from headrace.kernel.errors import InternalError
from headrace.kernel.protocols import Json

POSITION_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Where one partition stands.

    Attributes:
        next: Next offset (exclusive end of what was handed out), past transaction markers and holes.
        max_event_time: Largest event time handed out so far, microseconds; None: no row had one.
        first: Offset of the first record that was ever handed out; None: none yet. Evidence for the seam.
    """

    next: int
    max_event_time: int | None = None
    first: int | None = None

    def to_json(self) -> Json:
        """The JSON form; what is not known is left out."""
        out = {"next": self.next, "max_event_time": self.max_event_time, "first": self.first}
        return {name: value for name, value in out.items() if value is not None}


@dataclass(frozen=True, slots=True)
class LostRange:
    """Offsets ``first`` (inclusive) to ``next`` (exclusive) that were gone when wanted, under ``on_gap: record``."""

    at: TopicPartition
    first: int
    next: int

    def __str__(self) -> str:
        return f"{self.at.topic}[{self.at.partition}]: offsets {self.first} to {self.next - 1} were gone, and are lost"

    def to_json(self) -> dict[str, Json]:
        """The JSON form."""
        return {"topic": self.at.topic, "partition": self.at.partition, "first": self.first, "next": self.next}


@dataclass(frozen=True, slots=True)
class TailPosition:
    """Where a tail stands.

    Attributes:
        partitions: State by partition; a partition that is not in it has not been discovered yet.
        lost: The gap ledger, in the order in which the gaps were met.
        began_ms: When a tail without a history began, Unix milliseconds; None behind a history. Evidence for compacted
            topics: nothing that is known is older.
    """

    partitions: Mapping[TopicPartition, PartitionState]
    lost: tuple[LostRange, ...] = ()
    began_ms: int | None = None

    @property
    def nexts(self) -> dict[TopicPartition, int]:
        """Next offset by partition."""
        return {at: state.next for at, state in self.partitions.items()}

    def lost_of(self, at: TopicPartition) -> tuple[tuple[int, int], ...]:
        """The lost ranges of one partition: first (inclusive), next (exclusive)."""
        return tuple((gap.first, gap.next) for gap in self.lost if gap.at == at)

    def with_partitions(self, changed: Mapping[TopicPartition, PartitionState]) -> TailPosition:
        """The position with some partitions replaced or added."""
        return replace(self, partitions={**self.partitions, **changed})

    def knowing(self, nexts: Mapping[TopicPartition, int]) -> TailPosition:
        """The position with the partitions that it does not know, at these next offsets."""
        return self.with_partitions(
            {at: PartitionState(offset) for at, offset in sorted(nexts.items()) if at not in self.partitions}
        )

    def skipping(self, lost: LostRange) -> TailPosition:
        """The position after giving up a range that is gone: the partition continues at its end."""
        before = self.partitions.get(lost.at)
        after = replace(before, next=lost.next) if before else PartitionState(lost.next)
        return replace(self.with_partitions({lost.at: after}), lost=(*self.lost, lost))

    def to_json(self) -> Json:
        """The versioned JSON form, by topic and then partition; 64-bit integers stay integers."""
        out: dict[str, Any] = {
            "version": POSITION_VERSION,
            "topics": nested({at: state.to_json() for at, state in self.partitions.items()}),
        }
        if self.lost:
            out["lost"] = [gap.to_json() for gap in self.lost]
        if self.began_ms is not None:
            out["began_ms"] = self.began_ms
        return out

    @classmethod
    def from_json(cls, value: Json) -> TailPosition:
        """Read the JSON form.

        Raises:
            InternalError: Written by a later release.
        """
        if value.get("version") != POSITION_VERSION:
            raise InternalError(
                f"a tail position has version {value.get('version')!r}; this release reads {POSITION_VERSION}",
                hint="run the release that wrote the checkpoint, or a later one",
            )
        return cls(
            {
                at: PartitionState(state["next"], state.get("max_event_time"), state.get("first"))
                for at, state in flat(value["topics"]).items()
            },
            tuple(
                LostRange(TopicPartition(gap["topic"], gap["partition"]), gap["first"], gap["next"])
                for gap in value.get("lost", ())
            ),
            value.get("began_ms"),
        )
