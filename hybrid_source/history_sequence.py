"""Several histories in a row as one: an old archive, then a table, then the tail.

The stages are read one after another, oldest first. Where rows carry offsets, they are disjoint by trimming: of an
earlier stage only the rows are read that no later one gives, which are those below its first offset and, where it has a
``where``, those that this leaves out. Elsewhere the job's ``where`` keeps them apart.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Final

import polars as pl

from headrace.kernel.boundary import Boundary, PartitionRange, TopicBoundary, TopicPartition
from headrace.kernel.errors import BoundaryError
from headrace.kernel.protocols import Json, ReadRequest
from hybrid_source.history_protocols import HistoryBatch, LakeStage, LaterRows, OpenHistory
from hybrid_source.resolution import OffsetNames, Resolution
from hybrid_source.source_values import END_OF_HISTORY
from hybrid_source.stage_notes import check_topics_told, compared, hidden
from hybrid_source.stage_overlap import ORDER, STAGES_NOT_IN_ORDER, StagePart, check_same_records

logger: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HistorySequence:
    """See :class:`hybrid_source.history_protocols.HistoryStage`.

    Attributes:
        stages: Oldest first, at least one; the boundary is that of the last.
    """

    stages: Sequence[LakeStage]

    @property
    def last(self) -> LakeStage:
        """The stage that meets the tail."""
        return self.stages[-1]

    def pin(self) -> Json:
        """``{"stages"}``: the pin of each. See :meth:`hybrid_source.history_protocols.HistoryStage.pin`."""
        return {"stages": [stage.pin() for stage in self.stages]}

    def resolve(self, pin: Json, topics: Sequence[str]) -> Resolution:
        """See :meth:`hybrid_source.history_protocols.HistoryStage.resolve`."""
        pins = pin["stages"]
        found = self.last.resolve(pins[-1], topics)
        ends: list[Boundary] = [found.boundary]
        held = self._held(pin, topics, found.columns)
        if not any(topic.earlier for topic in found.boundary.topics.values()):
            notes = self._checked(pins, held, found.columns, found.boundary)
            found = replace(_with_partitions(found, held), notes=notes)
            ends = [found.boundary]
        for stage, own in zip(self.stages[:0:-1], held[:0:-1], strict=True):
            # Where a stage gives only some of its rows, no offset parts it from the earlier ones: see `_later`.
            ends.insert(0, ends[0] if own is None or stage.where is not None else lower(ends[0], starts(own)))
        return replace(found, ends=ends[:-1])

    def open(self, request: ReadRequest, pin: Json, resolution: Resolution | None) -> OpenHistorySequence:
        """See :meth:`hybrid_source.history_protocols.HistoryStage.open`."""
        opened: list[OpenHistory] = []
        only: Sequence[str] = ()
        notes: Sequence[str] = ()
        if resolution is None:
            only, held = self._held_alone(pin)
            notes = self._checked(pin["stages"], held)
        for number, (stage, own) in enumerate(zip(self.stages, pin["stages"], strict=True)):
            if own is None:  # read already
                continue
            if number == len(self.stages) - 1:
                opened.append(stage.open(request, own, resolution))
                continue
            if resolution is None:
                columns = stage.offset_columns(own, only, None)
                named = Resolution(Boundary(dict.fromkeys(only, TopicBoundary({}))), "", "")
                later = () if columns is None else self._later(number, pin, named, whole=True)
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
        return OpenHistorySequence(opened, notes)

    def _later(self, number: int, pin: Json, resolution: Resolution, *, whole: bool = False) -> Sequence[LaterRows]:
        """Of the stages behind one, the rows that are given of those with a condition on rows, or (whole) of all."""
        found = []
        for stage, own in zip(self.stages[number + 1 :], pin["stages"][number + 1 :], strict=True):
            if whole or stage.where is not None:
                held = stage.extents(own, tuple(resolution.boundary.topics), resolution.columns)
                if held is not None:
                    found.append(LaterRows(starts(held), pl.lit(value=True) if stage.where is None else stage.where))
        return found

    def _held(self, pin: Json, topics: Sequence[str], columns: OffsetNames | None) -> Sequence[Boundary | None]:
        """The offsets that each stage holds."""
        return [stage.extents(own, topics, columns) for stage, own in zip(self.stages, pin["stages"], strict=True)]

    def _held_alone(self, pin: Json) -> tuple[Sequence[str], Sequence[Boundary | None]]:
        """What each stage holds without a tail, and the topic: where one is named, rows that name none are of it."""
        held = self._held(pin, (), None)
        named = {topic for own in held if own is not None for topic in own.topics}
        only = tuple(named - {""})
        return (only, self._held(pin, only, None)) if len(only) == 1 and "" in named else ((), held)

    def _checked(
        self,
        pins: Sequence[Json],
        held: Sequence[Boundary | None],
        columns: OffsetNames | None = None,
        ends: Boundary | None = None,
    ) -> Sequence[str]:
        """Refuse stages whose offsets are not those of one topic in a row: what is cut of them might be in no other.

        A later stage with a condition on rows may hold whatever it leaves out; what it gives is compared all the same.

        Returns:
            Notes for the plan: what was compared, and what holes in later stages hide.

        Raises:
            BoundaryError: ``STAGES_NOT_IN_ORDER``, ``STAGE_WITHOUT_TOPIC``.
        """
        notes: list[str] = []
        parts = [
            None if own is None else StagePart(number, self.stages[number], pins[number], own, columns)
            for number, own in enumerate(held)
        ]
        self._check_topics_told(pins, held)
        for old, new in combinations([part for part in parts if part is not None], 2):
            wrong = not_older(old.held, new.held) if new.stage.where is None else None
            if wrong is not None:
                raise _out_of_order(wrong, (old.number, old.held.ranges[wrong]), (new.number, new.held.ranges[wrong]))
            check_same_records(old, new)
            notes += compared(old, new)
        for number, part in enumerate(parts[:-1]):
            later = [one for one in parts[number + 1 :] if one is not None]
            if part is not None and later:
                lost = [*hidden(part, later, ends)]
                notes += lost
                for note in lost:
                    logger.warning("%s", note)
        return tuple(notes)

    def _check_topics_told(self, pins: Sequence[Json], held: Sequence[Boundary | None]) -> None:
        for number, (stage, pin) in enumerate(zip(self.stages[:-1], pins, strict=False)):
            later = [own for own in held[number + 1 :] if own is not None]
            if stage.where is not None or len({topic for own in later for topic in own.topics if topic}) <= 1:
                continue
            names = stage.offset_columns(pin, (), None)
            unnamed = stage.extents(pin, (), None) if names is not None and names.topic is None else None
            if unnamed is not None:
                for own in later:
                    check_topics_told(StagePart(number, stage, pin, unnamed), own)


def _with_partitions(resolution: Resolution, held: Sequence[Boundary | None]) -> Resolution:
    """A boundary that also knows the partitions that only earlier stages hold: they end with the latest of these.

    Whether the last stage has rows of a partition is known where its rows carry offsets.
    """
    *earlier, last = held
    if last is None or resolution.columns is None:
        return resolution
    known = {**last.ranges, **resolution.boundary.ranges}
    found: dict[TopicPartition, PartitionRange] = {}
    for own in earlier:
        for at, covered in own.ranges.items() if own is not None else ():
            if at not in known and at.topic in resolution.boundary.topics:
                before = found.get(at, covered)
                found[at] = PartitionRange(min(before.start, covered.start), max(before.next, covered.next))
    if not found:
        return resolution
    topics = dict(resolution.boundary.topics)
    for at, covered in found.items():
        topics[at.topic] = replace(topics[at.topic], partitions={**topics[at.topic].partitions, at.partition: covered})
    listed = ", ".join(f"{at.topic}[{at.partition}] up to {covered.next}" for at, covered in sorted(found.items()))
    evidence = f"{resolution.evidence}; offset columns of earlier stages: {listed}"
    return replace(resolution, boundary=replace(resolution.boundary, topics=topics), evidence=evidence)


def not_older(old: Boundary, new: Boundary) -> TopicPartition | None:
    """A partition of which one stage cannot hold what came before the rows of a later one; None: there is none.

    Older rows begin at lower offsets. In some partitions of a topic both may begin at the same one, if the later stage
    then reaches as far. All that is cut of an older stage is, then, in the later one or still to be read of the topic.
    """
    later = new.ranges
    shared: dict[str, list[TopicPartition]] = {}
    for at, held in sorted(old.ranges.items()):
        if at in later:
            shared.setdefault(at.topic, []).append(at)
            if (held.start, held.next) > (later[at].start, later[at].next):
                return at
    redundant = [both[0] for both in shared.values() if all(old.ranges[at].start >= later[at].start for at in both)]
    return next(iter(redundant), None)


def _out_of_order(
    at: TopicPartition, old: tuple[int, PartitionRange], new: tuple[int, PartitionRange]
) -> BoundaryError:
    return BoundaryError(
        f"history stage {old[0]} does not hold what came before stage {new[0]}"
        + (f": topic {at.topic}," if at.topic else ":")
        + f" partition {at.partition}",
        detail=f"stage {old[0]} holds offsets {old[1].start} to {old[1].next}, and stage {new[0]} offsets "
        f"{new[1].start} to {new[1].next} (exclusive); rows from {new[1].start} on would be taken for doubled, and "
        f"left out; rule tried: {ORDER}",
        hint="if the earlier stage is of a former incarnation of the topic or of another cluster, leave the offset "
        "columns out of its files, or let the table's record say so (headrace boundary reset); if the later stage "
        "holds all its rows, leave the earlier one out",
        code=STAGES_NOT_IN_ORDER,
        context={
            "topic": at.topic,
            "partition": at.partition,
            "stages": [old[0], new[0]],
            "wanted": [old[1].start, old[1].next],
            "available": [new[1].start, new[1].next],
            "rule": ORDER,
        },
    )


def starts(boundary: Boundary) -> Boundary:
    """What lies before a boundary's ranges: their starts are its next offsets."""
    topics: dict[str, dict[int, PartitionRange]] = {name: {} for name in boundary.topics}
    for at, covered in boundary.ranges.items():
        topics[at.topic][at.partition] = PartitionRange(0, covered.start)
    return Boundary({name: TopicBoundary(found) for name, found in topics.items()})


def lower(left: Boundary, right: Boundary) -> Boundary:
    """The left boundary, lowered by partition to the right one; what only the right one knows is left to the tail."""
    known = right.nexts
    topics: dict[str, dict[int, PartitionRange]] = {name: {} for name in left.topics}
    for at, offset in sorted(left.nexts.items()):
        topics[at.topic][at.partition] = PartitionRange(0, min(offset, known.get(at, offset)))
    return Boundary({name: TopicBoundary(ranges) for name, ranges in topics.items()}, left.cluster or right.cluster)


class OpenHistorySequence:
    """See :class:`hybrid_source.history_protocols.OpenHistory`. A cursor is ``{"stage": number, "cursor": its own}``.

    Attributes:
        stages: The planned stages.
        notes: What was found where nothing follows the history; see :attr:`hybrid_source.resolution.Resolution.notes`.
    """

    def __init__(self, stages: Sequence[OpenHistory], notes: Sequence[str] = ()) -> None:
        self.stages = stages
        self.notes = notes
        self._later: list[int | None] = [END_OF_HISTORY]
        for stage in stages[:0:-1]:
            self._later.insert(0, earlier(stage.watermark(None), self._later[0]))
        self.records = sum(stage.records for stage in stages)

    def read(self, cursor: Json) -> Iterator[HistoryBatch]:
        """See :meth:`hybrid_source.history_protocols.OpenHistory.read`."""
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
        """See :meth:`hybrid_source.history_protocols.OpenHistory.watermark`."""
        number, own = _place(cursor)
        return earlier(self.stages[number].watermark(own), self._later[number])

    def pending(self, cursor: Json) -> frozenset[TopicPartition] | None:
        """See :meth:`hybrid_source.history_protocols.OpenHistory.pending`."""
        number, own = _place(cursor)
        found = [self.stages[number].pending(own), *(stage.pending(None) for stage in self.stages[number + 1 :])]
        return None if None in found else frozenset().union(*(one for one in found if one is not None))

    def fraction(self, cursor: Json) -> float:
        """See :meth:`hybrid_source.history_protocols.OpenHistory.fraction`."""
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
