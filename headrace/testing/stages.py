"""Scripted stages of a hybrid source: one log, archived, cut, split, batched and truncated in any way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import polars as pl

from headrace.kernel import columns as system
from headrace.kernel.boundary import Boundary, PartitionRange, TopicBoundary, TopicPartition
from headrace.kernel.clock import Clock
from headrace.kernel.protocols import Json, ReadRequest
from headrace.testing.script import TOPIC, Cut, Script, ScriptedLog, World
from headrace.testing.tail_stage import ScriptedTail, asked, scripted_watermark
from hybrid_source.history_protocols import HistoryBatch, LaterRows
from hybrid_source.hybrid import HybridSource
from hybrid_source.lake_tail import LakeTail, Wanted, Window
from hybrid_source.resolution import OffsetNames, Resolution
from hybrid_source.source_values import END_OF_HISTORY, EventTime
from hybrid_source.tail_position import TailPosition


def scripted_source(log: ScriptedLog, script: Script) -> HybridSource:
    """A log as a hybrid source, with what happens to it."""
    return source_of(World(log, script))


def source_of(world: World) -> HybridSource:
    """A world as a hybrid source."""
    log, script = world.log, world.script
    schema = pl.Schema({**log.payload, **system.SYSTEM})
    return HybridSource(
        TOPIC,
        schema,
        ScriptedHistory(world),
        ScriptedTail(world),
        log.event_time,
        clock=world.clock,
        policy=script.policy,
    )


@dataclass(frozen=True, slots=True)
class ScriptedHistory:
    """See :class:`hybrid_source.history_protocols.LakeStage`.

    A pin is ``{"version"}``, with ``since`` for an increment.
    """

    world: World

    def pin(self) -> Json:
        """See :meth:`HistoryStage.pin`."""
        return {"version": 0}

    def resolve(self, pin: Json, topics: Sequence[str]) -> Resolution:
        """See :meth:`HistoryStage.resolve`."""
        ranges: dict[str, dict[int, PartitionRange]] = {topic: {} for topic in topics}
        for at, offset in self.world.script.versions[pin["version"]].items():
            ranges[at.topic][at.partition] = PartitionRange(0, offset)
        boundary = Boundary({topic: TopicBoundary(found) for topic, found in ranges.items()})
        columns = OffsetNames(topic=system.TOPIC) if self.world.script.offsets else None
        return Resolution(boundary, "script", "the script's cut", columns=columns)

    def offset_columns(self, pin: Json, topics: Sequence[str], known: OffsetNames | None) -> OffsetNames | None:  # noqa: ARG002
        """See :meth:`LakeStage.offset_columns`."""
        return known

    def extents(self, pin: Json, topics: Sequence[str], columns: OffsetNames | None) -> Boundary | None:
        """See :meth:`HistoryStage.extents`."""
        if columns is None:
            return None
        ranges: dict[str, dict[int, PartitionRange]] = {topic: {} for topic in topics}
        for at, part in self._parts(pin).items():
            if part.height:
                ranges[at.topic][at.partition] = PartitionRange(part[system.OFFSET][0], part[system.OFFSET][-1] + 1)
        return Boundary({topic: TopicBoundary(found) for topic, found in ranges.items()})

    def spans(
        self,
        pin: Json,  # noqa: ARG002 - the protocol's signature
        topics: Sequence[str],  # noqa: ARG002
        columns: OffsetNames | None,  # noqa: ARG002
    ) -> None:
        """See :meth:`LakeStage.spans`. A script has no statistics."""
        return

    def unplaced(self, pin: Json, columns: OffsetNames) -> int:  # noqa: ARG002
        """See :meth:`LakeStage.unplaced`."""
        return 0

    def at_offsets(
        self,
        pin: Json,
        topics: Sequence[str],  # noqa: ARG002 - the protocol's signature
        columns: OffsetNames | None,  # noqa: ARG002
        window: Window,
        where: pl.Expr | None,  # noqa: ARG002
    ) -> pl.DataFrame | None:
        """See :meth:`LakeStage.at_offsets`."""
        parts = self._parts(pin)
        inside = [parts[at].filter(pl.col(system.OFFSET).is_between(*ends, "left")) for at, ends in window.items()]
        return pl.concat(inside)

    @property
    def where(self) -> pl.Expr | None:
        """See :attr:`LakeStage.where`."""
        return None

    def open(
        self,
        request: ReadRequest,
        pin: Json,
        resolution: Resolution | None,  # noqa: ARG002 - the protocol's signature
        *,
        later: Sequence[LaterRows] = (),  # noqa: ARG002
    ) -> OpenScriptedHistory:
        """See :meth:`LakeStage.open`."""
        return OpenScriptedHistory(self.world, request, self._frames(pin))

    def newest(self) -> Json:
        """See :meth:`LakeStage.newest`."""
        return {"version": self.world.version}

    def newer(self, pin: Json) -> Json:
        """See :meth:`LakeStage.newer`."""
        newest = self.world.version
        return {"version": newest, "since": pin["version"]} if newest > pin["version"] else None

    def changed(self, pin: Json, newest: Json) -> str:  # noqa: ARG002
        """See :meth:`LakeStage.changed`. A script only appends."""
        return ""

    def refuses_replay(self, resolution: Resolution, *, whole: bool = False) -> str:  # noqa: ARG002
        """See :meth:`LakeStage.refuses_replay`."""
        return "" if resolution.columns is not None else "the script's rows carry no offsets"

    def replay(
        self,
        request: ReadRequest,
        pin: Json,
        columns: OffsetNames,  # noqa: ARG002 - the protocol's signature
        position: Json,
        ends: Cut,
        *,
        time: EventTime | None,
        floor: int | None,
        clock: Clock,
    ) -> LakeTail:
        """See :meth:`LakeStage.replay`."""
        at = TailPosition.from_json(position)
        wanted = Wanted.of(request, self.world.log.payload, time.column if time else None)
        parts = self._parts(pin)

        def read(window: Window, most: int | None) -> pl.DataFrame | None:
            self.world.step()
            inside = [
                parts[place].filter(pl.col(system.OFFSET).is_between(begin, end, closed="left"))
                for place, (begin, end) in window.items()
            ]
            # A table holds rows in any order, and may hold one twice.
            rows = asked(pl.concat([*inside, inside[0].head(1)]).reverse(), ReadRequest(wanted.read))
            return None if most is not None and rows.height > most else rows

        return LakeTail(
            read,
            wanted,
            scripted_watermark(self.world.log, at, floor, clock),
            at,
            ends,
            window_rows=self.world.script.window_rows,
        )

    def _parts(self, pin: Json) -> dict[TopicPartition, pl.DataFrame]:
        log, versions = self.world.log, self.world.script.versions
        since = versions[pin["since"]] if "since" in pin else {}
        return {
            at: log.part(at, since.get(at, 0), versions[pin["version"]].get(at, 0)) for at in sorted(log.partitions)
        }

    def _frames(self, pin: Json) -> list[pl.DataFrame]:
        """The splits, ordered by their lowest event time."""
        rows = pl.concat(self._parts(pin).values()).with_row_index("__row")
        taken: set[int] = set()
        frames = []
        for wanted in [*self.world.script.splits, range(rows.height)]:
            mine = {number % rows.height for number in wanted} - taken if rows.height else set()
            taken |= mine
            frames.append(rows.filter(pl.col("__row").is_in(list(mine))).drop("__row"))
        times = self.world.log.times
        return sorted((frame for frame in frames if frame.height), key=lambda frame: times(frame).min() or 0)


class OpenScriptedHistory:
    """See :class:`hybrid_source.history_protocols.OpenHistory`."""

    def __init__(self, world: World, request: ReadRequest, frames: Sequence[pl.DataFrame]) -> None:
        self._world = world
        self._request = request
        self._frames = frames
        self._lowest = [world.log.times(frame).min() for frame in frames]
        self._places = [
            frozenset(TopicPartition(*at) for at in frame.select(system.TOPIC, system.PARTITION).unique().iter_rows())
            for frame in frames
        ]

    def read(self, cursor: Json) -> Iterator[HistoryBatch]:
        """See :meth:`OpenHistory.read`."""
        for index in range(cursor or 0, len(self._frames)):
            self._world.step()
            frame = self._frames[index]
            rows = frame.with_columns(pl.lit(None, pl.Int64).alias(system.ROW_WATERMARK))
            lowest = self.watermark(index + 1)
            given = asked(rows, self._request).lazy()
            yield HistoryBatch(partial(pl.LazyFrame.clone, given), index + 1, lowest, frame.height, frame.height)

    def watermark(self, cursor: Json) -> int | None:
        """See :meth:`OpenHistory.watermark`."""
        rest = self._lowest[cursor or 0 :]
        return min((int(time) - 1 for time in rest if isinstance(time, int)), default=END_OF_HISTORY)

    def pending(self, cursor: Json) -> frozenset[TopicPartition] | None:
        """See :meth:`OpenHistory.pending`."""
        left = self._places[cursor or 0 :]
        return frozenset().union(*left) if self._world.script.offsets or not left else None

    @property
    def records(self) -> int:
        """See :attr:`OpenHistory.records`."""
        return sum(frame.height for frame in self._frames)

    def fraction(self, cursor: Json) -> float:
        """See :meth:`OpenHistory.fraction`."""
        return (cursor or 0) / len(self._frames) if self._frames else 1.0


__all__ = ["ScriptedHistory", "ScriptedTail", "scripted_source", "source_of"]
