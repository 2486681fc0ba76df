"""The scripted tail: the topic as it would be, with what happens to it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import polars as pl

from headrace.kernel import columns as system
from headrace.kernel.boundary import Boundary, TopicPartition
from headrace.kernel.clock import Clock
from headrace.kernel.errors import GapError
from headrace.kernel.protocols import Json, ReadRequest
from headrace.kernel.until import Until
from headrace.testing.script import Cut, ScriptedLog, World
from hybrid_source.gaps import gaps_of
from hybrid_source.source_values import TopicIdentity
from hybrid_source.tail_offsets import skipped
from hybrid_source.tail_position import PartitionState, TailPosition
from hybrid_source.tail_protocols import Begins, Expiry, TailBatch
from hybrid_source.tail_watermark import TailWatermark


@dataclass(frozen=True, slots=True)
class ScriptedTail:
    """See :class:`hybrid_source.tail_protocols.TailStage`."""

    world: World
    fails: bool = False

    def strict(self) -> ScriptedTail:
        """See :meth:`TailStage.strict`."""
        return replace(self, fails=True)

    def skip(self, position: Json, gap: GapError) -> Json:
        """See :meth:`TailStage.skip`."""
        if self.world.script.on_gap == "fail":
            raise gap
        return skipped(TailPosition.from_json(position), gaps_of(gap)).to_json()

    def checked(
        self, position: TailPosition, partitions: Collection[TopicPartition], ends: Cut | None = None
    ) -> TailPosition:
        """The position, with the gaps of some partitions met by policy; those at their end need nothing."""
        nexts = position.nexts
        try:
            self.world.check({at: nexts[at] for at in partitions if ends is None or nexts[at] < ends.get(at, 0)})
        except GapError as gap:
            if self.fails:
                raise
            return TailPosition.from_json(self.skip(position.to_json(), gap))
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

    def knowing(self, position: Json, nexts: Mapping[TopicPartition, int]) -> Json:
        """See :meth:`TailStage.knowing`."""
        return TailPosition.from_json(position).knowing(nexts).to_json()

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

    def first_event_times(self, position: Json, partitions: Sequence[TopicPartition]) -> Begins:
        """See :meth:`TailStage.first_event_times`."""
        nexts, log = self.checked(TailPosition.from_json(position), partitions).nexts, self.world.log
        found: dict[TopicPartition, int | None] = {}
        for at in partitions:
            rest = log.times(log.part(at, nexts[at], log.end(at))).drop_nulls()
            found[at] = int(rest[0]) if rest.len() else None
        return found

    def ends(self, until: Until) -> Cut:  # noqa: ARG002 - the script knows them
        """See :meth:`TailStage.ends`."""
        return self.world.run_ends()

    def open(
        self,
        request: ReadRequest,
        position: Json,
        floor: int | None,
        live: Collection[TopicPartition] | None = None,
        ends: Cut | None = None,
    ) -> OpenScriptedTail:
        """See :meth:`TailStage.open`."""
        at = TailPosition.from_json(position)
        at = self.checked(at, at.partitions, ends)
        return OpenScriptedTail(self, request, at, floor, at.partitions if live is None else live, ends)


class OpenScriptedTail:
    """See :class:`hybrid_source.tail_protocols.OpenTail`. One without ends ends with the log."""

    def __init__(
        self,
        stage: ScriptedTail,
        request: ReadRequest,
        at: TailPosition,
        floor: int | None,
        live: Collection[TopicPartition],
        ends: Cut | None,
    ) -> None:
        self._stage = stage
        self._ends = ends
        self._log = stage.world.log
        self._request = request
        self._at = at
        self._live = set(live)
        self._watermark = scripted_watermark(self._log, at, floor, stage.world.clock, live)
        self._turn = sum(at.nexts.values())

    def poll(self, timeout: float) -> TailBatch | None:  # noqa: ARG002 - the protocol's signature
        """See :meth:`OpenTail.poll`."""
        world, places = self._stage.world, sorted(self._log.partitions)
        world.step()
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
        end = min(offsets[last] + 1 if last < len(offsets) else self._end(at), self._end(at))
        rows = self._log.part(at, begin, end)
        times = self._log.times(rows)
        stamps = self._watermark.rows(rows[system.PARTITION], times, {at.partition: at}) if rows.height else None
        stamped = rows.with_columns(
            (pl.lit(None, pl.Int64) if stamps is None else stamps).alias(system.ROW_WATERMARK),
        )
        if rows.height:
            self._watermark.heard(at)
        state = PartitionState(end, self._watermark.max_event_times.get(at))
        self._at = self._at.with_partitions({at: state})
        watermark = self._watermark.advance(self._at_end)
        late = (times < stamped[system.ROW_WATERMARK]).any()
        given = asked(stamped, self._request)
        return TailBatch(given, self._at.to_json(), watermark, bool(late), None, rows.height, rows.height)

    def _left(self, at: TopicPartition) -> int:
        return max(0, self._end(at) - self._at.nexts[at])

    def _end(self, at: TopicPartition) -> int:
        return self._log.end(at) if self._ends is None else self._ends.get(at, 0)

    def _at_end(self, at: TopicPartition) -> bool:
        return self._at.nexts[at] >= self._log.end(at)

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
        return self._watermark.advance(self._at_end)

    def lag(self) -> Sequence[Mapping[str, Json]]:
        """See :meth:`OpenTail.lag`."""
        return [
            {"topic": at.topic, "partition": at.partition, "next": offset, "end": offset + self._left(at)}
            for at, offset in self._at.nexts.items()
        ]

    def silent(self) -> Sequence[TopicPartition]:
        """See :meth:`OpenTail.silent`."""
        return self._watermark.silent(self._at_end)

    def close(self) -> None:
        """See :meth:`OpenTail.close`."""


def scripted_watermark(
    log: ScriptedLog,
    at: TailPosition,
    floor: int | None,
    clock: Clock,
    live: Collection[TopicPartition] | None = None,
) -> TailWatermark:
    """The watermark of a tail at a position."""
    return TailWatermark(
        clock,
        {place: state.max_event_time for place, state in at.partitions.items() if live is None or place in live},
        floor,
        out_of_orderness_us=log.event_time.out_of_orderness_us,
        idle_us=log.event_time.idle_us,
    )


def asked(rows: pl.DataFrame, request: ReadRequest) -> pl.DataFrame:
    """Rows as a request wants them."""
    if request.predicate is not None:
        rows = rows.filter(request.predicate)
    if request.columns is None:
        return rows
    missing = [pl.lit(None, system.SYSTEM[name]).alias(name) for name in request.columns if name not in rows.columns]
    return rows.with_columns(missing).select(request.columns)
