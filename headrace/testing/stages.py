"""Scripted stages of a hybrid source: one log, cut anywhere, split and batched in any way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from headrace.kernel import columns as system
from headrace.kernel.boundary import Boundary, PartitionRange, TopicBoundary, TopicPartition
from headrace.kernel.clock import Clock
from headrace.kernel.protocols import Json, ReadRequest
from headrace.testing.clock import ManualClock
from hybrid_source.hybrid import EventTime, HybridSource
from hybrid_source.resolution import Resolution
from hybrid_source.stages import END_OF_HISTORY, Expiry, HistoryBatch, TailBatch, TopicIdentity
from hybrid_source.tail_position import PartitionState, TailPosition
from hybrid_source.tail_watermark import TailWatermark

TOPIC = "scripted"


@dataclass(frozen=True, slots=True)
class ScriptedLog:
    """Topics as they would be: payload rows by partition, in offset order; the offset is the index.

    Attributes:
        payload: Schema of the rows.
        partitions: Rows by partition.
        event_time: Column and out-of-orderness.
    """

    payload: pl.Schema
    partitions: Mapping[TopicPartition, pl.DataFrame]
    event_time: EventTime

    def rows(self) -> pl.DataFrame:
        """All rows with their topic, partition and offset."""
        return pl.concat([self.part(at, 0, frame.height) for at, frame in self.partitions.items()])

    def part(self, at: TopicPartition, offset: int, count: int) -> pl.DataFrame:
        """Some rows of one partition with their topic, partition and offset."""
        frame = self.partitions[at].slice(offset, count)
        return frame.with_columns(
            pl.lit(at.topic).alias(system.TOPIC),
            pl.lit(at.partition, pl.Int32).alias(system.PARTITION),
            (pl.int_range(frame.height, dtype=pl.Int64) + offset).alias(system.OFFSET),
        )

    def times(self, frame: pl.DataFrame) -> pl.Series:
        """Event times of rows, in microseconds."""
        return frame[self.event_time.column].cast(pl.Datetime("us")).to_physical()

    def source(
        self, cut: Mapping[TopicPartition, int], splits: Sequence[Sequence[int]], polls: Sequence[tuple[int, int]]
    ) -> HybridSource:
        """The log as a hybrid source.

        Args:
            cut: The boundary: next offset by partition.
            splits: Sizes of history splits; rows are dealt to them in turn.
            polls: Endless pattern of (number of the partition, in their order; number of records) for the tail's polls.
        """
        schema = pl.Schema({**self.payload, **system.SYSTEM})
        return HybridSource(
            TOPIC, schema, ScriptedHistory(self, cut, splits), ScriptedTail(self, polls), self.event_time
        )


@dataclass(frozen=True, slots=True)
class ScriptedHistory:
    """See :class:`hybrid_source.stages.HistoryStage`.

    Attributes:
        log: The log.
        cut: The boundary.
        splits: For each split, the numbers of its rows (modulo their count); what no split takes makes one more.
    """

    log: ScriptedLog
    cut: Mapping[TopicPartition, int]
    splits: Sequence[Sequence[int]]

    def pin(self) -> Json:
        """See :meth:`HistoryStage.pin`."""
        return {"snapshot_id": 1}

    def resolve(self, pin: Json, topics: Sequence[str]) -> Resolution:  # noqa: ARG002 - the protocol's signature
        """See :meth:`HistoryStage.resolve`."""
        ranges: dict[str, dict[int, PartitionRange]] = {topic: {} for topic in topics}
        for at, offset in self.cut.items():
            ranges[at.topic][at.partition] = PartitionRange(0, offset)
        boundary = Boundary({topic: TopicBoundary(found) for topic, found in ranges.items()})
        return Resolution(boundary, "script", "the script's cut")

    def open(self, request: ReadRequest, pin: Json, resolution: Resolution | None) -> OpenScriptedHistory:  # noqa: ARG002
        """See :meth:`HistoryStage.open`."""
        return OpenScriptedHistory(self, request)

    def frames(self) -> list[pl.DataFrame]:
        """The splits, ordered by their lowest event time."""
        parts = [self.log.part(at, 0, self.cut.get(at, 0)) for at in self.log.partitions]
        rows = pl.concat(parts).with_row_index("n")
        taken: set[int] = set()
        frames = []
        for wanted in [*self.splits, range(rows.height)]:
            mine = {number % rows.height for number in wanted} - taken if rows.height else set()
            taken |= mine
            frames.append(rows.filter(pl.col("n").is_in(list(mine))).drop("n"))
        return sorted((frame for frame in frames if frame.height), key=lambda frame: self.log.times(frame).min() or 0)


class OpenScriptedHistory:
    """See :class:`hybrid_source.stages.OpenHistory`."""

    def __init__(self, stage: ScriptedHistory, request: ReadRequest) -> None:
        self._stage = stage
        self._request = request
        self._frames = stage.frames()

    def read(self, cursor: Json) -> Iterator[HistoryBatch]:
        """See :meth:`OpenHistory.read`."""
        for index in range(cursor or 0, len(self._frames)):
            frame = self._frames[index]
            rest = [self._stage.log.times(later).min() for later in self._frames[index + 1 :]]
            lowest = min((int(time) - 1 for time in rest if isinstance(time, int)), default=END_OF_HISTORY)
            rows = frame.with_columns(pl.lit(None, pl.Int64).alias(system.ROW_WATERMARK))
            yield HistoryBatch(_asked(rows, self._request).lazy(), index + 1, lowest, frame.height, frame.height)

    def fraction(self, cursor: Json) -> float:
        """See :meth:`OpenHistory.fraction`."""
        return (cursor or 0) / len(self._frames) if self._frames else 1.0


@dataclass(frozen=True, slots=True)
class ScriptedTail:
    """See :class:`hybrid_source.stages.TailStage`."""

    log: ScriptedLog
    polls: Sequence[tuple[int, int]]
    clock: Clock = field(default_factory=ManualClock)

    def identities(self) -> Mapping[str, TopicIdentity]:
        """See :meth:`TailStage.identities`."""
        return {topic: TopicIdentity(topic, None, None) for topic in sorted({at.topic for at in self.log.partitions})}

    def start(self, boundary: Boundary | None) -> Json:
        """See :meth:`TailStage.start`."""
        nexts = boundary.nexts if boundary else {}
        return TailPosition({at: PartitionState(nexts.get(at, 0)) for at in self.log.partitions}).to_json()

    def offsets(self, position: Json) -> Mapping[TopicPartition, int]:
        """See :meth:`TailStage.offsets`."""
        return TailPosition.from_json(position).nexts

    def ranges(self) -> Mapping[TopicPartition, tuple[int, int]]:
        """See :meth:`TailStage.ranges`."""
        return {at: (0, frame.height) for at, frame in self.log.partitions.items()}

    def expiries(self, position: Json) -> Sequence[Expiry]:  # noqa: ARG002 - the protocol's signature
        """See :meth:`TailStage.expiries`. A script forgets nothing."""
        return ()

    def first_event_times(self, position: Json, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """See :meth:`TailStage.first_event_times`."""
        nexts = self.offsets(position)
        found = {}
        for at in partitions:
            rest = self.log.times(self.log.partitions[at].slice(nexts[at])).drop_nulls()
            if rest.len():
                found[at] = int(rest[0])
        return found

    def open(self, request: ReadRequest, position: Json, floor: int | None) -> OpenScriptedTail:
        """See :meth:`TailStage.open`."""
        return OpenScriptedTail(self, request, TailPosition.from_json(position), floor)


class OpenScriptedTail:
    """See :class:`hybrid_source.stages.OpenTail`. Always bounded by the end of the log."""

    def __init__(self, stage: ScriptedTail, request: ReadRequest, at: TailPosition, floor: int | None) -> None:
        self._stage = stage
        self._request = request
        self._at = at
        self._watermark = TailWatermark(
            stage.clock,
            {place: state.max_event_time for place, state in at.partitions.items()},
            floor,
            out_of_orderness_us=stage.log.event_time.out_of_orderness_us,
            idle_us=stage.log.event_time.idle_us,
        )
        self._turn = sum(at.nexts.values())

    def poll(self, timeout: float) -> TailBatch | None:  # noqa: ARG002 - the protocol's signature
        """See :meth:`OpenTail.poll`."""
        rows, at = None, None
        while not self.finished and rows is None:
            number, count = self._stage.polls[self._turn % len(self._stage.polls)]
            self._turn += 1
            places = sorted(self._stage.log.partitions)
            at = places[number % len(places)]
            rows = self._stage.log.part(at, self._at.nexts[at], count) if self._left(at) else None
        if rows is None or at is None:
            return None
        times = self._stage.log.times(rows)
        stamps = self._watermark.rows(rows[system.PARTITION], times, {at.partition: at})
        stamped = rows.with_columns(
            (pl.lit(None, pl.Int64) if stamps is None else stamps).alias(system.ROW_WATERMARK),
        )
        state = PartitionState(self._at.nexts[at] + rows.height, self._watermark.max_event_times.get(at))
        self._at = self._at.with_partitions({at: state})
        watermark = self._watermark.advance(lambda place: self._left(place) == 0)
        late = (times < stamped[system.ROW_WATERMARK]).any()
        return TailBatch(
            _asked(stamped, self._request), self._at.to_json(), watermark, bool(late), None, rows.height, rows.height
        )

    def _left(self, at: TopicPartition) -> int:
        return self._stage.log.partitions[at].height - self._at.nexts[at]

    @property
    def finished(self) -> bool:
        """See :attr:`OpenTail.finished`."""
        return all(self._left(at) == 0 for at in self._at.partitions)

    @property
    def position(self) -> Json:
        """See :attr:`OpenTail.position`."""
        return self._at.to_json()

    @property
    def identities(self) -> Mapping[str, TopicIdentity]:
        """See :attr:`OpenTail.identities`."""
        return self._stage.identities()

    def lag(self) -> Sequence[Mapping[str, Any]]:
        """See :meth:`OpenTail.lag`."""
        return [
            {"topic": at.topic, "partition": at.partition, "next": offset, "end": offset + self._left(at)}
            for at, offset in self._at.nexts.items()
        ]

    def close(self) -> None:
        """See :meth:`OpenTail.close`."""


def _asked(rows: pl.DataFrame, request: ReadRequest) -> pl.DataFrame:
    if request.predicate is not None:
        rows = rows.filter(request.predicate)
    if request.columns is None:
        return rows
    missing = [pl.lit(None, system.SYSTEM[name]).alias(name) for name in request.columns if name not in rows.columns]
    return rows.with_columns(missing).select(request.columns)
