"""Scripted stages of a hybrid source: one log, archived, cut, split, batched and truncated in any way."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import polars as pl

from headrace.kernel import columns as system
from headrace.kernel.boundary import Boundary, PartitionRange, TopicBoundary, TopicPartition
from headrace.kernel.clock import Clock
from headrace.kernel.errors import GapError
from headrace.kernel.protocols import Json, ReadRequest
from headrace.testing.clock import ManualClock
from headrace.testing.script import TOPIC, Cut, Script, ScriptedLog, World
from hybrid_source.hybrid import HybridSource
from hybrid_source.lake_tail import LakeTail, Wanted, Window
from hybrid_source.resolution import OffsetNames, Resolution
from hybrid_source.stages import (
    END_OF_HISTORY,
    EventTime,
    Expiry,
    HistoryBatch,
    LaterRows,
    TailBatch,
    TopicIdentity,
)
from hybrid_source.tail_position import LostRange, PartitionState, TailPosition
from hybrid_source.tail_watermark import TailWatermark


def scripted_source(log: ScriptedLog, script: Script) -> HybridSource:
    """A log as a hybrid source, with what happens to it."""
    world = World(log, script)
    schema = pl.Schema({**log.payload, **system.SYSTEM})
    return HybridSource(
        TOPIC, schema, ScriptedHistory(world), ScriptedTail(world), log.event_time, policy=script.policy
    )


@dataclass(frozen=True, slots=True)
class ScriptedHistory:
    """See :class:`hybrid_source.stages.LakeStage`. A pin is ``{"version"}``, with ``since`` for an increment."""

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
    ) -> LakeTail:
        """See :meth:`LakeStage.replay`."""
        at = TailPosition.from_json(position)
        wanted = Wanted.of(request, self.world.log.payload, time.column if time else None)
        parts = self._parts(pin)

        def read(window: Window) -> pl.DataFrame:
            self.world.steps += 1
            inside = [
                parts[place].filter(pl.col(system.OFFSET).is_between(begin, end, closed="left"))
                for place, (begin, end) in window.items()
            ]
            # A table holds rows in any order, and may hold one twice.
            return _asked(pl.concat([*inside, inside[0].head(1)]).reverse(), ReadRequest(wanted.read))

        return LakeTail(
            read, wanted, _watermark(self.world.log, at, floor), at, ends, window_rows=self.world.script.window_rows
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
    """See :class:`hybrid_source.stages.OpenHistory`."""

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
            self._world.steps += 1
            frame = self._frames[index]
            rows = frame.with_columns(pl.lit(None, pl.Int64).alias(system.ROW_WATERMARK))
            lowest = self.watermark(index + 1)
            given = _asked(rows, self._request).lazy()
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


@dataclass(frozen=True, slots=True)
class ScriptedTail:
    """See :class:`hybrid_source.stages.TailStage`."""

    world: World
    fails: bool = False

    def strict(self) -> ScriptedTail:
        """See :meth:`TailStage.strict`."""
        return replace(self, fails=True)

    def skip(self, position: Json, gap: GapError) -> Json:
        """See :meth:`TailStage.skip`."""
        if self.world.script.on_gap == "fail":
            raise gap
        at = TopicPartition(gap.context["topic"], gap.context["partition"])
        lost = LostRange(at, gap.context["wanted"], gap.context["earliest"])
        return TailPosition.from_json(position).skipping(lost).to_json()

    def checked(self, position: TailPosition, partitions: Collection[TopicPartition]) -> TailPosition:
        """The position, with the gaps of some partitions met by policy."""
        while True:
            try:
                self.world.check({at: position.nexts[at] for at in partitions})
            except GapError as gap:
                if self.fails:
                    raise
                position = TailPosition.from_json(self.skip(position.to_json(), gap))
            else:
                return position

    def identities(self) -> Mapping[str, TopicIdentity]:
        """See :meth:`TailStage.identities`."""
        return {
            topic: TopicIdentity(topic, None, None) for topic in sorted({at.topic for at in self.world.log.partitions})
        }

    def start(self, boundary: Boundary | None, *, check: bool = True) -> Json:
        """See :meth:`TailStage.start`."""
        known = boundary.nexts if boundary else {}
        nexts = {at: known.get(at, 0) for at in self.world.log.partitions}
        position = TailPosition({at: PartitionState(offset) for at, offset in nexts.items()})
        return (self.checked(position, nexts) if check else position).to_json()

    def offsets(self, position: Json) -> Cut:
        """See :meth:`TailStage.offsets`."""
        return TailPosition.from_json(position).nexts

    def ranges(self) -> Mapping[TopicPartition, tuple[int, int]]:
        """See :meth:`TailStage.ranges`."""
        return {at: (self.world.log_start(at), self.world.log.end(at)) for at in self.world.log.partitions}

    def verify(self, position: Json) -> None:
        """See :meth:`TailStage.verify`."""
        at = TailPosition.from_json(position)
        self.checked(at, at.partitions)

    def expiries(self, position: Json) -> Sequence[Expiry]:
        """See :meth:`TailStage.expiries`. When a script will forget is its secret."""
        starts = {at: self.world.log_start(at) for at in self.world.log.partitions}
        nexts = self.offsets(position)
        return [Expiry(at, nexts[at], start, 0.0 if nexts[at] < start else None) for at, start in starts.items()]

    def first_event_times(self, position: Json, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """See :meth:`TailStage.first_event_times`."""
        nexts, log = self.checked(TailPosition.from_json(position), partitions).nexts, self.world.log
        found = {}
        for at in partitions:
            rest = log.times(log.part(at, nexts[at], log.end(at))).drop_nulls()
            if rest.len():
                found[at] = int(rest[0])
        return found

    def open(
        self, request: ReadRequest, position: Json, floor: int | None, live: Collection[TopicPartition] | None = None
    ) -> OpenScriptedTail:
        """See :meth:`TailStage.open`."""
        at = TailPosition.from_json(position)
        at = self.checked(at, at.partitions)
        return OpenScriptedTail(self, request, at, floor, at.partitions if live is None else live)


class OpenScriptedTail:
    """See :class:`hybrid_source.stages.OpenTail`. Always bounded by the end of the log."""

    def __init__(
        self,
        stage: ScriptedTail,
        request: ReadRequest,
        at: TailPosition,
        floor: int | None,
        live: Collection[TopicPartition],
    ) -> None:
        self._stage = stage
        self._log = stage.world.log
        self._request = request
        self._at = at
        self._live = set(live)
        self._watermark = _watermark(self._log, at, floor, live)
        self._turn = sum(at.nexts.values())

    def poll(self, timeout: float) -> TailBatch | None:  # noqa: ARG002 - the protocol's signature
        """See :meth:`OpenTail.poll`."""
        world, places = self._stage.world, sorted(self._log.partitions)
        world.steps += 1
        if not any(self._left(at) for at in self._live):
            return None
        while True:
            number, count = world.script.polls[self._turn % len(world.script.polls)]
            self._turn += 1
            at = places[number % len(places)]
            if at in self._live and self._left(at):
                self._at = self._stage.checked(self._at, [at])
                return self._taken(at, count)

    def _taken(self, at: TopicPartition, count: int) -> TailBatch:
        offsets, begin = self._log.numbers(at), self._at.nexts[at]
        last = bisect_left(offsets, begin) + count - 1
        # The end of the log is told apart from the last record: what lies between are markers.
        end = offsets[last] + 1 if last < len(offsets) else self._log.end(at)
        rows = self._log.part(at, begin, end)
        times = self._log.times(rows)
        stamps = self._watermark.rows(rows[system.PARTITION], times, {at.partition: at}) if rows.height else None
        stamped = rows.with_columns(
            (pl.lit(None, pl.Int64) if stamps is None else stamps).alias(system.ROW_WATERMARK),
        )
        state = PartitionState(end, self._watermark.max_event_times.get(at))
        self._at = self._at.with_partitions({at: state})
        watermark = self._watermark.advance(lambda place: self._left(place) == 0)
        late = (times < stamped[system.ROW_WATERMARK]).any()
        asked = _asked(stamped, self._request)
        return TailBatch(asked, self._at.to_json(), watermark, bool(late), None, rows.height, rows.height)

    def _left(self, at: TopicPartition) -> int:
        return self._log.end(at) - self._at.nexts[at]

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

    def go_live(self, partitions: Collection[TopicPartition]) -> None:
        """See :meth:`OpenTail.go_live`."""
        for at in set(partitions) - self._live:
            self._live.add(at)
            self._watermark.add(at)

    def hold(self, limit: int | None) -> int | None:
        """See :meth:`OpenTail.hold`."""
        self._watermark.hold(limit)
        return self._watermark.advance(lambda place: self._left(place) == 0)

    def lag(self) -> Sequence[Mapping[str, Json]]:
        """See :meth:`OpenTail.lag`."""
        return [
            {"topic": at.topic, "partition": at.partition, "next": offset, "end": offset + self._left(at)}
            for at, offset in self._at.nexts.items()
        ]

    def close(self) -> None:
        """See :meth:`OpenTail.close`."""


def _watermark(
    log: ScriptedLog, at: TailPosition, floor: int | None, live: Collection[TopicPartition] | None = None
) -> TailWatermark:
    return TailWatermark(
        CLOCK,
        {place: state.max_event_time for place, state in at.partitions.items() if live is None or place in live},
        floor,
        out_of_orderness_us=log.event_time.out_of_orderness_us,
        idle_us=log.event_time.idle_us,
    )


CLOCK: Clock = ManualClock()


def _asked(rows: pl.DataFrame, request: ReadRequest) -> pl.DataFrame:
    if request.predicate is not None:
        rows = rows.filter(request.predicate)
    if request.columns is None:
        return rows
    missing = [pl.lit(None, system.SYSTEM[name]).alias(name) for name in request.columns if name not in rows.columns]
    return rows.with_columns(missing).select(request.columns)
