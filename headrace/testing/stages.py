"""Scripted stages of a hybrid source: one log, cut anywhere, split and batched in any way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from headrace.kernel import columns as system
from headrace.kernel.boundary import Boundary, PartitionRange, TopicBoundary
from headrace.kernel.clock import Clock
from headrace.kernel.protocols import Json, ReadRequest
from headrace.testing.clock import ManualClock
from hybrid_source.hybrid import EventTime, HybridSource
from hybrid_source.stages import END_OF_HISTORY, HistoryBatch, Resolution, TailBatch, TopicIdentity
from hybrid_source.tail_position import PartitionState, TailPosition
from hybrid_source.tail_watermark import TailWatermark

TOPIC = "scripted"


@dataclass(frozen=True, slots=True)
class ScriptedLog:
    """A topic as it would be: payload rows by partition, in offset order; the offset is the index.

    Attributes:
        payload: Schema of the rows.
        partitions: Rows by partition.
        event_time: Column and out-of-orderness.
    """

    payload: pl.Schema
    partitions: Mapping[int, pl.DataFrame]
    event_time: EventTime

    def rows(self) -> pl.DataFrame:
        """All rows with their partition and offset."""
        frames = [
            frame.with_columns(
                pl.lit(partition, pl.Int32).alias(system.PARTITION),
                pl.int_range(frame.height, dtype=pl.Int64).alias(system.OFFSET),
            )
            for partition, frame in self.partitions.items()
        ]
        return pl.concat(frames)

    def times(self, frame: pl.DataFrame) -> pl.Series:
        """Event times of rows, in microseconds."""
        return frame[self.event_time.column].cast(pl.Datetime("us")).to_physical()

    def source(
        self, cut: Mapping[int, int], splits: Sequence[Sequence[int]], polls: Sequence[tuple[int, int]]
    ) -> HybridSource:
        """The log as a hybrid source.

        Args:
            cut: The boundary: next offset by partition.
            splits: Sizes of history splits; rows are dealt to them in turn.
            polls: Endless pattern of (partition, number of records) that the tail's polls give.
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
    cut: Mapping[int, int]
    splits: Sequence[Sequence[int]]

    def pin(self) -> Json:
        """See :meth:`HistoryStage.pin`."""
        return {"snapshot_id": 1}

    def resolve(self, pin: Json, topic: str) -> Resolution:  # noqa: ARG002 - the protocol's signature
        """See :meth:`HistoryStage.resolve`."""
        ranges = {partition: PartitionRange(0, offset) for partition, offset in self.cut.items()}
        return Resolution(Boundary({topic: TopicBoundary(ranges)}), "script", "the script's cut")

    def open(self, request: ReadRequest, pin: Json, trim: Boundary | None) -> OpenScriptedHistory:  # noqa: ARG002
        """See :meth:`HistoryStage.open`."""
        return OpenScriptedHistory(self, request)

    def frames(self) -> list[pl.DataFrame]:
        """The splits, ordered by their lowest event time."""
        rows = self.log.rows()
        limit = pl.col(system.PARTITION).replace_strict(dict(self.cut), default=0, return_dtype=pl.Int64)
        rows = rows.filter(pl.col(system.OFFSET) < limit).with_row_index("n")
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
    topic: str = TOPIC

    def identity(self) -> TopicIdentity:
        """See :meth:`TailStage.identity`."""
        return TopicIdentity(self.topic, None, None)

    def start(self, boundary: Boundary | None) -> Json:
        """See :meth:`TailStage.start`."""
        return TailPosition(
            {
                partition: PartitionState((boundary and boundary.next_offset(self.topic, partition)) or 0)
                for partition in self.log.partitions
            }
        ).to_json()

    def offsets(self, position: Json) -> Mapping[int, int]:
        """See :meth:`TailStage.offsets`."""
        return TailPosition.from_json(position).nexts

    def ranges(self) -> Mapping[int, tuple[int, int]]:
        """See :meth:`TailStage.ranges`."""
        return {partition: (0, frame.height) for partition, frame in self.log.partitions.items()}

    def first_event_times(self, position: Json, partitions: Sequence[int]) -> Mapping[int, int]:
        """See :meth:`TailStage.first_event_times`."""
        nexts = self.offsets(position)
        found = {}
        for partition in partitions:
            rest = self.log.times(self.log.partitions[partition].slice(nexts[partition])).drop_nulls()
            if rest.len():
                found[partition] = int(rest[0])
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
            {partition: state.max_event_time for partition, state in at.partitions.items()},
            floor,
            out_of_orderness_us=stage.log.event_time.out_of_orderness_us,
            idle_us=stage.log.event_time.idle_us,
        )
        self._turn = sum(at.nexts.values())

    def poll(self, timeout: float) -> TailBatch | None:  # noqa: ARG002 - the protocol's signature
        """See :meth:`OpenTail.poll`."""
        frames: list[pl.DataFrame] = []
        while not self.finished and not frames:
            partition, count = self._stage.polls[self._turn % len(self._stage.polls)]
            self._turn += 1
            frames = self._take(partition % len(self._stage.log.partitions), count)
        if not frames:
            return None
        rows = pl.concat(frames)
        times = self._stage.log.times(rows)
        stamps = self._watermark.rows(rows[system.PARTITION], times)
        stamped = rows.with_columns(
            (pl.lit(None, pl.Int64) if stamps is None else stamps).alias(system.ROW_WATERMARK),
        )
        nexts = dict(stamped.group_by(system.PARTITION).agg(pl.col(system.OFFSET).max() + 1).iter_rows())
        maxima = self._watermark.max_event_times
        self._at = self._at.with_partitions(
            {partition: PartitionState(offset, maxima.get(partition)) for partition, offset in nexts.items()}
        )
        watermark = self._watermark.advance(lambda partition: self._left(partition) == 0)
        late = (times < stamped[system.ROW_WATERMARK]).any()
        return TailBatch(
            _asked(stamped, self._request), self._at.to_json(), watermark, bool(late), None, rows.height, rows.height
        )

    def _left(self, partition: int) -> int:
        return self._stage.log.partitions[partition].height - self._at.nexts[partition]

    def _take(self, partition: int, count: int) -> list[pl.DataFrame]:
        offset = self._at.nexts[partition]
        frame = self._stage.log.partitions[partition].slice(offset, count)
        if not frame.height:
            return []
        return [
            frame.with_columns(
                pl.lit(partition, pl.Int32).alias(system.PARTITION),
                (pl.int_range(frame.height, dtype=pl.Int64) + offset).alias(system.OFFSET),
            )
        ]

    @property
    def finished(self) -> bool:
        """See :attr:`OpenTail.finished`."""
        return all(self._left(partition) == 0 for partition in self._at.partitions)

    @property
    def position(self) -> Json:
        """See :attr:`OpenTail.position`."""
        return self._at.to_json()

    def lag(self) -> Sequence[Mapping[str, Any]]:
        """See :meth:`OpenTail.lag`."""
        return [
            {"topic": self._stage.topic, "partition": partition, "next": offset, "end": offset + self._left(partition)}
            for partition, offset in self._at.nexts.items()
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
