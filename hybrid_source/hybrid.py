"""The hybrid source: history, then the tail, handed over at a recorded boundary.

Everything that is decided once (pinned version, boundary, start offsets, identities) is in the position from the
first checkpoint on; restoring never decides it again, and a source that has handed over opens no history file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import polars as pl

from headrace.kernel.boundary import Boundary, PartitionRange
from headrace.kernel.clock import Clock, SystemClock
from headrace.kernel.errors import GapError, SpecError
from headrace.kernel.protocols import Json, Position, ReadRequest
from headrace.kernel.until import until_text
from hybrid_source.gaps import looked_for
from hybrid_source.handover_policy import HandoverPolicy
from hybrid_source.history_protocols import LakeStage
from hybrid_source.history_sequence import HistorySequence, last_stage, starts
from hybrid_source.hybrid_position import HybridPosition, LakeRead
from hybrid_source.hybrid_reader import HybridReader
from hybrid_source.identity import check_identities, recorded_identities
from hybrid_source.lake_versions import LakeVersions
from hybrid_source.offset_rows import check_placed
from hybrid_source.resolution import TAIL_ALONE, Resolution, naming
from hybrid_source.run_ends import Offsets, RunEnds
from hybrid_source.source_values import EventTime, TopicIdentity
from hybrid_source.tail_protocols import TailStage


@dataclass(frozen=True, slots=True)
class HybridSource:
    """A source with a history, a tail, or both.

    Attributes:
        name: Its name in the job.
        schema: All columns it can give.
        history: The bounded stage, or several in a row.
        tail: The unbounded stage.
        event_time: None: no watermarks.
        fail_on_error: A record that cannot be decoded ends the job; else it leaves through the port ``errors``.
        clock: For idleness.
        policy: What happens at the seam beyond the single switch.
        concurrency: Splits of the history that are read at once, if the request says how they are computed. 0: each is
            computed when it has been handed out.
    """

    name: str
    schema: pl.Schema
    history: LakeStage | HistorySequence | None = None
    tail: TailStage | None = None
    event_time: EventTime | None = None
    fail_on_error: bool = True
    clock: Clock = field(default_factory=SystemClock)
    policy: HandoverPolicy = field(default_factory=HandoverPolicy)
    concurrency: int = 0

    def begin(self) -> Position:
        """See :meth:`headrace.kernel.protocols.Source.begin`."""
        return self.plan().to_json()

    def open(self, request: ReadRequest, position: Position | None) -> HybridReader:
        """See :meth:`headrace.kernel.protocols.Source.open`."""
        at = HybridPosition.from_json(position) if position is not None else self.plan()
        if position is not None:
            self.check(at)
        with naming(lambda: at.decided):
            bounded = self._bounded(at, request)
            return HybridReader(self, replace(request, goes_on=bounded is at and at.bound is not None), bounded)

    def check(self, at: HybridPosition) -> None:
        """Refuse a position of another definition, or of topics that are no longer the same.

        Raises:
            SpecError: The source is defined otherwise.
            IdentityError: A topic was created again, is on another cluster, or is not read any more.
        """
        if self.tail is not None:
            if at.tail is None:
                raise SpecError(
                    f"source {self.name!r} was started without a tail, and has one now",
                    hint="restore the job without the tail, or give the job another uid",
                )
            with naming(lambda: at.decided):
                check_identities(at.identities or {}, self.tail.identities())
        if at.phase == "history" and at.cursor is not None and at.event_time != self._time_column:
            raise SpecError(
                f"source {self.name!r} has read part of its history in the order of {at.event_time!r}, "
                f"and is to go on in that of {self._time_column!r}",
                hint="restore event_time.column until the history has been read, or give the job another uid",
            )

    def _bounded(self, at: HybridPosition, request: ReadRequest) -> HybridPosition:
        """A position with the ends of the run: its own, where it is of a run to the same end that was interrupted.

        A history is read whole, so the run ends no earlier than it.
        """
        if request.until is None or self.tail is None:
            return replace(at, bound=None)
        asked = until_text(request.until) or ""
        if request.goes_on and at.bound is not None and at.bound.until == asked:
            return at
        held = at.resolution.boundary.nexts if at.resolution is not None else {}
        found = self.tail.ends(request.until)
        return replace(at, bound=RunEnds(asked, {place: max(end, held.get(place, 0)) for place, end in found.items()}))

    @property
    def lake(self) -> LakeStage | None:
        """The stage of the history that meets the tail, and whose table may grow."""
        return self.history.last if isinstance(self.history, HistorySequence) else self.history

    @property
    def may_look_back(self) -> bool:
        """What the topic has lost is looked for in the lake."""
        return self.lake is not None and self.policy.looks_back

    @property
    def _time_column(self) -> str | None:
        return self.event_time.column if self.event_time else None

    def pins(self, position: Position) -> Sequence[Json]:
        """The pinned versions that a restart at a position would open; none once the topic is read."""
        at = HybridPosition.from_json(position)
        if at.lake is not None:
            return (at.lake.pin,)
        if at.phase != "history" or at.pin is None:
            return ()
        stages = at.pin["stages"] if isinstance(self.history, HistorySequence) else [at.pin]
        return [pin for pin in stages if pin is not None]

    def plan(self) -> HybridPosition:
        """Decide afresh where to start: pin, boundary, start offsets, identity.

        Raises:
            HeadraceError: The history, the boundary or the wanted offsets are not there; nothing has been read.
        """
        if self.history is None and self.tail is None:
            raise SpecError(f"source {self.name!r} has neither history nor tail", hint="give it one of them, or both")
        pin = self.history.pin() if self.history else None
        if self.tail is None:
            return HybridPosition("history", pin, event_time=self._time_column)
        identities = self.tail.identities()
        resolution = None
        if self.history is not None:
            resolution = self.history.resolve(pin, tuple(identities))
            with naming(lambda: resolution):
                check_identities(recorded_identities(resolution.boundary), identities)
                if self.policy.as_live and resolution.boundary.ranges:
                    return self._planned_as_live(self.tail, pin, resolution, identities)
        with naming(lambda: resolution or TAIL_ALONE):
            tail = self._tail_start(self.tail, pin, resolution, identities)
        return HybridPosition(
            "history" if self.history else "tail",
            pin,
            tail=tail,
            resolution=resolution,
            identities=identities,
            start=self._covered_from(tail, resolution),
            event_time=self._time_column,
        )

    def _tail_start(
        self, tail: TailStage, pin: Json, resolution: Resolution | None, identities: Mapping[str, TopicIdentity]
    ) -> Json:
        if resolution is None or self.history is None:
            return tail.start(None)
        if self.lake is None or not self.policy.looks_back:
            return tail.start(resolution.boundary)
        start, strict = tail.start(resolution.boundary, check=False), tail.strict()
        since = last_stage(self.history, pin)[1]
        while True:
            try:
                strict.verify(start)
            except GapError as gap:
                versions = LakeVersions(self.lake, identities, resolution)
                newer = versions.beyond(since, tail.offsets(start))
                left = gap if newer is None else newer.leaves(gap)
                if left is None:
                    return start
                start = tail.skip(start, looked_for(left, versions.found))
            else:
                return start

    def _planned_as_live(
        self, tail: TailStage, pin: Json, resolution: Resolution, identities: Mapping[str, TopicIdentity]
    ) -> HybridPosition:
        """The history in the order of its offsets, from the lowest one on."""
        if self.lake is None or isinstance(self.history, HistorySequence):
            raise SpecError(
                f"source {self.name!r} has several history stages, and late: {{history: as_live}}",
                hint="lateness as in the topic needs one table whose rows carry their offsets; use late: "
                "{history: include}",
            )
        refusal = self.lake.refuses_replay(resolution, whole=True)
        if refusal:
            raise SpecError(
                f"source {self.name!r} cannot read its history as_live: {refusal}",
                hint="use late: {history: include}, or a table whose rows carry partition and offset",
            )
        if resolution.columns is not None:
            check_placed(self.lake.unplaced(pin, resolution.columns), resolution.columns, tuple(identities))
        held = self.lake.extents(pin, tuple(identities), resolution.columns) or Boundary()
        covered = _covering(resolution, starts(held))
        start = tail.start(starts(covered.boundary), check=False)
        return HybridPosition(
            "tail",
            pin,
            tail=start,
            resolution=resolution,
            identities=identities,
            start=tail.offsets(start),
            event_time=self._time_column,
            lake=LakeRead(pin, covered, "history"),
        )

    def _covered_from(self, tail: Json, resolution: Resolution | None) -> Offsets:
        if self.tail is None:
            return {}
        known = resolution.boundary.ranges if resolution is not None else {}
        return {at: known[at].start if at in known else offset for at, offset in self.tail.offsets(tail).items()}


def _covering(resolution: Resolution, begins: Boundary) -> Resolution:
    """A resolution whose ranges begin with the rows that are there."""
    topics: dict[str, dict[int, PartitionRange]] = {name: {} for name in resolution.boundary.topics}
    for at, covered in resolution.boundary.ranges.items():
        start = min(begins.nexts.get(at, covered.next), covered.next)
        topics[at.topic][at.partition] = replace(covered, start=start)
    known = resolution.boundary.topics
    boundary = replace(
        resolution.boundary, topics={name: replace(known[name], partitions=found) for name, found in topics.items()}
    )
    return replace(resolution, boundary=boundary)


__all__ = ["EventTime", "HandoverPolicy", "HybridPosition", "HybridReader", "HybridSource", "check_identities"]
