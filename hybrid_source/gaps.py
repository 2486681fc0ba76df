"""Offsets that are wanted and gone, as values and as the one error that names them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headrace.kernel.boundary import TopicPartition
from headrace.kernel.errors import GapError
from headrace.kernel.protocols import Json

GAP_HINT: Final = (
    "read the missing range from a newer snapshot of the history, lengthen the topic's retention, "
    "or set on_gap: record to go on without these records"
)


@dataclass(frozen=True, slots=True)
class Gap:
    """Of one partition: ``wanted`` lies below ``earliest``; the log holds that offset to ``latest`` (exclusive)."""

    at: TopicPartition
    wanted: int
    earliest: int
    latest: int

    def __str__(self) -> str:
        return (
            f"topic {self.at.topic!r} partition {self.at.partition}: wanted offset {self.wanted} is gone, "
            f"available are {self.earliest} to {self.latest} (exclusive)"
        )

    def to_json(self) -> dict[str, Json]:
        """As the context of an error."""
        return {
            "topic": self.at.topic,
            "partition": self.at.partition,
            "wanted": self.wanted,
            "available": [self.earliest, self.latest],
        }


def gap_error(gaps: Sequence[Gap]) -> GapError:
    """The error that stands for some gaps, at least one: its message is of the first, its context names all."""
    first, *others = gaps
    detail = f"offsets {first.wanted} to {first.earliest - 1} were deleted by retention or by a person"
    more = {"others": [gap.to_json() for gap in others]} if others else {}
    return GapError(
        str(first),
        detail="; ".join([detail, *map(str, others)]),
        hint=GAP_HINT,
        context={**first.to_json(), **more},
    )


def gaps_of(error: GapError) -> Sequence[Gap]:
    """The gaps that an error of :func:`gap_error` stands for; none where it stands for something else."""
    found = error.context
    named = [found, *found.get("others", ())] if "available" in found and "needed" not in found else []
    return [Gap(TopicPartition(one["topic"], one["partition"]), one["wanted"], *one["available"]) for one in named]


def wanted_of(error: GapError) -> Mapping[TopicPartition, int]:
    """The next offsets that :func:`gaps_of` an error are wanted from."""
    return {gap.at: gap.wanted for gap in gaps_of(error)}


def looked_for(gap: GapError, found: str) -> GapError:
    """A gap that the lake does not close, with what was found there."""
    if "lake" not in gap.context:
        gap.detail = f"{gap.detail}; looked for in the lake: {found}"
        gap.context = {**gap.context, "lake": found}
    return gap
