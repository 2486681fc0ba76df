"""Where a bounded run ends: taken once, kept in the position, the same whether rows come from the lake or the topic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.kernel.boundary import TopicPartition, flat, nested
from headrace.kernel.protocols import Json

Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class RunEnds:
    """The ends of a bounded run.

    Attributes:
        until: What the run was asked to read to, as people write it.
        ends: Next offset by partition (exclusive); of a partition that is not in it the run reads nothing further.
    """

    until: str
    ends: Offsets

    def reached(self, nexts: Offsets) -> bool:
        """Whether a position is at or beyond all of them; a partition that it does not know begins at 0."""
        return all(nexts.get(at, 0) >= end for at, end in self.ends.items())

    def within(self, ends: Offsets) -> dict[TopicPartition, int]:
        """Other ends, none of them beyond those of the run."""
        return {at: min(end, self.ends.get(at, 0)) for at, end in ends.items()}

    def to_json(self) -> Json:
        """The JSON form."""
        return {"until": self.until, "ends": nested(self.ends)}

    @classmethod
    def from_json(cls, value: Json) -> RunEnds:
        """Read the JSON form."""
        return cls(value["until"], flat(value["ends"]))
