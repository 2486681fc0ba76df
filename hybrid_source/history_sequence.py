"""Several histories in a row as one: an old archive, then a table, then the tail.

The stages are read one after another, oldest first. Where rows carry offsets, they are disjoint by trimming: of an
earlier stage only the rows are read that no later one gives, which are those below its first offset and, where it has a
``where``, those that this leaves out. Elsewhere the job's ``where`` keeps them apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import polars as pl

from headrace.kernel.boundary import Boundary, PartitionRange, TopicBoundary, TopicPartition
from headrace.kernel.protocols import Json, ReadRequest
from hybrid_source.resolution import Resolution
from hybrid_source.stages import END_OF_HISTORY, HistoryBatch, LakeStage, LaterRows, OpenHistory


@dataclass(frozen=True, slots=True)
class HistorySequence:
    """See :class:`hybrid_source.stages.HistoryStage`.

    Attributes:
        stages: Oldest first, at least one; the boundary is that of the last.
    """

    stages: Sequence[LakeStage]

    @property
    def last(self) -> LakeStage:
        """The stage that meets the tail."""
        return self.stages[-1]

    def pin(self) -> Json:
        """``{"stages"}``: the pin of each. See :meth:`hybrid_source.stages.HistoryStage.pin`."""
        return {"stages": [stage.pin() for stage in self.stages]}

    def resolve(self, pin: Json, topics: Sequence[str]) -> Resolution:
        """See :meth:`hybrid_source.stages.HistoryStage.resolve`."""
        pins = pin["stages"]
        found = self.last.resolve(pins[-1], topics)
        ends: list[Boundary] = [found.boundary]
        for stage, own in zip(self.stages[:0:-1], pins[:0:-1], strict=True):
            # Where a stage gives only some of its rows, no offset parts it from the earlier ones: see `_later`.
            begins = stage.begins(own, topics, found.columns) if stage.where is None else None
            ends.insert(0, ends[0] if begins is None else lower(ends[0], begins))
        return replace(found, ends=ends[:-1])

    def open(self, request: ReadRequest, pin: Json, resolution: Resolution | None) -> OpenHistorySequence:
        """See :meth:`hybrid_source.stages.HistoryStage.open`."""
        opened = []
        for number, (stage, own) in enumerate(zip(self.stages, pin["stages"], strict=True)):
            if own is None:  # read already
                continue
            if number == len(self.stages) - 1:
                opened.append(stage.open(request, own, resolution))
                continue
            if resolution is None:
                columns = stage.offset_columns(own, (), None)
                later = () if columns is None else self._later(number, pin, Resolution(Boundary(), "", ""), whole=True)
                alone = Resolution(Boundary(), "later stages", "", trim=False, columns=columns)
                opened.append(stage.open(request, own, alone, later=later))
                continue
            topics = resolution.boundary.topics
            # Offsets of a topic that was created again say nothing about its earlier incarnations' rows.
            again = any(topic.earlier for topic in topics.values())
            columns = None if again else stage.offset_columns(own, tuple(topics), resolution.columns)
            cut = replace(resolution, boundary=resolution.ends[number], trim=True, columns=columns, ends=())
            later = () if columns is None else self._later(number, pin, resolution)
            opened.append(stage.open(request, own, cut, later=later))
        return OpenHistorySequence(opened)

    def _later(self, number: int, pin: Json, resolution: Resolution, *, whole: bool = False) -> Sequence[LaterRows]:
        """Of the stages behind one, the rows that are given of those with a condition on rows, or (whole) of all."""
        found = []
        for stage, own in zip(self.stages[number + 1 :], pin["stages"][number + 1 :], strict=True):
            if whole or stage.where is not None:
                begins = stage.begins(own, tuple(resolution.boundary.topics), resolution.columns)
                if begins is not None:
                    found.append(LaterRows(begins, pl.lit(value=True) if stage.where is None else stage.where))
        return found


def lower(left: Boundary, right: Boundary) -> Boundary:
    """The left boundary, lowered by partition to the right one; what only the right one knows is left to the tail."""
    known = right.nexts
    topics: dict[str, dict[int, PartitionRange]] = {name: {} for name in left.topics}
    for at, offset in sorted(left.nexts.items()):
        topics[at.topic][at.partition] = PartitionRange(0, min(offset, known.get(at, offset)))
    return Boundary({name: TopicBoundary(ranges) for name, ranges in topics.items()}, left.cluster or right.cluster)


class OpenHistorySequence:
    """See :class:`hybrid_source.stages.OpenHistory`. A cursor is ``{"stage": number, "cursor": its own}``.

    Attributes:
        stages: The planned stages.
    """

    def __init__(self, stages: Sequence[OpenHistory]) -> None:
        self.stages = stages
        self._later: list[int | None] = [END_OF_HISTORY]
        for stage in stages[:0:-1]:
            self._later.insert(0, earlier(stage.watermark(None), self._later[0]))
        self.records = sum(stage.records for stage in stages)

    def read(self, cursor: Json) -> Iterator[HistoryBatch]:
        """See :meth:`hybrid_source.stages.OpenHistory.read`."""
        first, own = _place(cursor)
        for number in range(first, len(self.stages)):
            for batch in self.stages[number].read(own):
                yield replace(
                    batch,
                    cursor={"stage": number, "cursor": batch.cursor},
                    watermark=earlier(batch.watermark, self._later[number]),
                )
            own = None

    def watermark(self, cursor: Json) -> int | None:
        """See :meth:`hybrid_source.stages.OpenHistory.watermark`."""
        number, own = _place(cursor)
        return earlier(self.stages[number].watermark(own), self._later[number])

    def pending(self, cursor: Json) -> frozenset[TopicPartition] | None:
        """See :meth:`hybrid_source.stages.OpenHistory.pending`."""
        number, own = _place(cursor)
        found = [self.stages[number].pending(own), *(stage.pending(None) for stage in self.stages[number + 1 :])]
        return None if None in found else frozenset().union(*(one for one in found if one is not None))

    def fraction(self, cursor: Json) -> float:
        """See :meth:`hybrid_source.stages.OpenHistory.fraction`."""
        number, own = _place(cursor)
        before = sum(stage.records for stage in self.stages[:number])
        done = before + self.stages[number].fraction(own) * self.stages[number].records
        return done / self.records if self.records else 1.0


def _place(cursor: Json) -> tuple[int, Json]:
    return (0, None) if cursor is None else (cursor["stage"], cursor["cursor"])


def earlier(left: int | None, right: int | None) -> int | None:
    """The lower of two watermarks; one that is not known holds."""
    return None if left is None or right is None else min(left, right)


def last_stage(history: LakeStage | HistorySequence, pin: Json) -> tuple[LakeStage, Json]:
    """The stage of a history that meets the tail, with its own pin."""
    return (history.last, pin["stages"][-1]) if isinstance(history, HistorySequence) else (history, pin)


def with_last(history: LakeStage | HistorySequence, pin: Json, last: Json) -> Json:
    """A history's pin with another version of its last stage."""
    return {"stages": [*pin["stages"][:-1], last]} if isinstance(history, HistorySequence) else last


def increment_of(history: LakeStage | HistorySequence, last: Json) -> Json:
    """The pin of a version of the last stage alone; earlier stages are left out."""
    if not isinstance(history, HistorySequence):
        return last
    return {"stages": [*[None] * (len(history.stages) - 1), last]}
