"""An open hybrid source: the state machine from the history to the topic, and back to the lake.

::

    history ──(partitions go live one by one)──> end ──> topic <──> lake
                                                  └──> lake ──> topic

What is decided at a passage is in the position of the batch that carries it, before the first row behind it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from headrace.kernel.boundary import Boundary, TopicPartition, places_text
from headrace.kernel.errors import GapError
from headrace.kernel.protocols import Batch, Json, Position, ReadRequest
from hybrid_source.coverage import coverage
from hybrid_source.dead_letters import undecodable
from hybrid_source.handover_policy import HandoverPolicy
from hybrid_source.history_protocols import HistoryBatch, OpenHistory
from hybrid_source.hybrid_batches import Batches, Pace, progress
from hybrid_source.hybrid_opening import open_history, open_lake, open_tail, wanted_tail
from hybrid_source.hybrid_passages import into_increment, into_lake, into_topic
from hybrid_source.hybrid_position import HybridPosition, LakeRead, SwitchKind
from hybrid_source.hybrid_watermark import TailStartTimes, raised, silent_partitions
from hybrid_source.lag_watch import LagWatch
from hybrid_source.lake_versions import NewerVersion, reach
from hybrid_source.read_ahead import ReadAhead, Taken, read_ahead
from hybrid_source.resolution import naming
from hybrid_source.retention_watch import EVERY_S, RetentionWatch
from hybrid_source.run_ends import Offsets
from hybrid_source.source_values import BEFORE_ALL, END_OF_HISTORY
from hybrid_source.tail_position import TailPosition
from hybrid_source.tail_protocols import OpenTail, Replay, TailStage
from hybrid_source.ways_on import Way, WaysOn

if TYPE_CHECKING:
    from hybrid_source.hybrid import HybridSource

TAIL_TURNS: Final = 4
"""Polls of live partitions, at most, between two splits of the history that have been read."""

LIVE_WAIT_S: Final = 0.02
"""How long a split that is being read is waited for before the live partitions are looked at again."""


class HybridReader:
    """See :class:`headrace.kernel.protocols.SourceReader`."""

    def __init__(self, source: HybridSource, request: ReadRequest, at: HybridPosition) -> None:
        self._source = source
        self._request = request
        self._at = at
        self._clock = source.clock
        # Where the lake may have what is gone, it is asked before the tail's own policy applies.
        self._stage = source.tail.strict() if source.tail is not None and source.may_look_back else source.tail
        self._starts = self._start_times(raises=not source.may_look_back)
        self._watch = RetentionWatch(source.tail, source.clock) if source.tail is not None else None
        self._batches = Batches(source.name, source.schema, request)
        self._tail: OpenTail | None = None
        self._replay: Replay | None = None
        self._history: OpenHistory | None = None
        self._pace: Pace | None = None
        self._splits: ReadAhead[HistoryBatch] = ReadAhead(iter(()))
        self._late_below: int | None = None
        self._turns = 0
        self._gap = False
        self._ways = WaysOn(source, self._stage, request)
        self._lag = LagWatch(source.policy.lag, source.policy.lag_every_s, source.clock)
        if request.goes_on and at.bound is not None:
            self._batches.note("until", f"goes on to the ends of the run to {at.bound.until} that was interrupted")
        if at.phase == "history":
            self._open_history()
        elif at.phase == "tail":
            self._open_behind_history()

    # ------------------------------------------------------------------------------------------------------ protocol

    def poll(self, timeout: float) -> Batch | None:
        """See :meth:`headrace.kernel.protocols.SourceReader.poll`."""
        with naming(lambda: self._at.decided):
            return self._poll(timeout)

    def _poll(self, timeout: float) -> Batch | None:
        if self._watch is not None:
            self._look_at_retention(self._watch)
        if self._at.phase == "history":
            return self._poll_history(timeout)
        if self._replay is not None:
            return self._poll_lake(self._replay)
        if self._tail is not None:
            return self._poll_tail(self._tail, timeout)
        return None

    @property
    def finished(self) -> bool:
        """See :attr:`headrace.kernel.protocols.SourceReader.finished`."""
        if self._at.phase != "tail":
            return self._at.phase == "done"
        if self._tail is not None:
            return self._tail.finished
        lake, bound = self._at.lake, self._at.bound
        # Where a bounded run ends within what the lake has, the next one goes on there.
        return bool(lake and bound and bound.reached(self._nexts) and reach(lake.resolution, self._nexts))

    @property
    def position(self) -> Position:
        """See :attr:`headrace.kernel.protocols.SourceReader.position`."""
        return self._at.to_json()

    def coverage(self, position: Position) -> Boundary | None:
        """See :meth:`headrace.kernel.protocols.SourceReader.coverage`.

        None while the history is read: a prefix of the splits covers no prefix of the topic.
        """
        at = HybridPosition.from_json(position)
        if at.phase != "tail" or self._source.tail is None or at.identities is None:
            return None
        return coverage(at.start or {}, TailPosition.from_json(at.tail), at.identities, at.watermark)

    def progress(self) -> Mapping[str, Json]:
        """See :meth:`headrace.kernel.protocols.SourceReader.progress`."""
        silent = self._silent() if self._source.event_time is not None and self._at.bound is None else ()
        return progress(self._at, self._pace, self._replay, self._tail, self._watch, silent)

    def _silent(self) -> Sequence[TopicPartition]:
        if self._replay is not None:
            return silent_partitions(None, self._starts, self._replay.arrived)
        waiting = self._nexts.keys() - self._at.live if self._at.phase == "history" else ()
        return silent_partitions(self._tail, self._starts, waiting)

    def close(self) -> None:
        """See :meth:`headrace.kernel.protocols.SourceReader.close`."""
        self._splits.close()
        self._close_tail()
        self._ways.close()

    # ------------------------------------------------------------------------------------------------------- history

    def _open_history(self) -> None:
        self._history = open_history(self._source, self._request, self._at)
        self._pace = Pace(self._history, self._at.cursor, self._clock)
        self._splits.close()
        self._late_below = self._passed(self._history)
        splits = self._history.read(self._at.cursor)
        self._splits = read_ahead(splits, self._request, self._source.concurrency, late_below=self._late_below)
        self._go_live(self._history)

    def _passed(self, history: OpenHistory) -> int | None:
        """The watermark, if unread rows may lie below it: late ones of an increment that came after it was decided."""
        unread, known = history.watermark(self._at.cursor), self._at.watermark
        return None if known is None or (unread is not None and unread + 1 >= known) else known

    def _poll_history(self, timeout: float) -> Batch | None:
        if self._at.live and self._tail is not None:
            timeout = min(timeout, LIVE_WAIT_S)
            if self._turns < TAIL_TURNS or not self._splits.ready(0):
                self._turns += 1
                try:
                    batch = self._tail_batch(self._tail, 0)
                except GapError as gap:
                    self._stop_tail(gap)
                    batch = None
                if batch is not None:
                    return batch
        if not self._splits.ready(timeout):
            return None
        self._turns = 0
        taken = self._splits.take()
        return self._history_batch(taken) if taken is not None else self._end_of_history()

    def _history_batch(self, taken: Taken[HistoryBatch]) -> Batch:
        split = taken.split
        self._at = replace(self._at, cursor=split.cursor)
        if self._history is not None:
            self._go_live(self._history)
        self._at = replace(self._at, watermark=self._history_watermark(split.watermark))
        if self._history is not None and self._history.pending(split.cursor) == frozenset():
            self._ways.prepare(self._at, self._tail)
        return self._batches.of_history(taken, self._at, maybe_late=self._late_below is not None)

    def _history_watermark(self, unread: int | None) -> int | None:
        """What is unread, capped by what the partitions that are not live begin with; never goes back."""
        before = self._at.watermark
        if self._source.event_time is None:
            return before
        if self._source.tail is None or self._starts is None:
            # The end of the input is not a time: it is for the engine to drain, or to suspend.
            return before if unread is None or unread >= END_OF_HISTORY else raised(before, unread)
        limit = self._starts.limit(unread, self._at.tail, self._nexts.keys() - self._at.live)
        if self._at.live:
            limit = self._held if limit is None else None if limit >= END_OF_HISTORY else limit
            return before if self._tail is None else raised(before, self._tail.hold(limit))
        return before if limit is None or limit >= END_OF_HISTORY else raised(before, limit)

    def _look_at_retention(self, watch: RetentionWatch) -> None:
        """Say what threatens; what is gone already is not read on for, unless a newer version of the table may have it.

        Raises:
            GapError: What the tail needs has been deleted while the history was read, under ``on_gap: fail``.
        """
        left = EVERY_S if self._history is None or self._pace is None else self._pace.left(self._at.cursor)
        passed = watch.look(self._at.tail, left) and watch.passed
        if passed and self._history is not None and not self._source.may_look_back:
            wanted_tail(self._source, self._stage).verify(self._at.tail)

    # ---------------------------------------------------------------------------------------------------- going live

    def _go_live(self, history: OpenHistory) -> None:
        """Read from the topic the partitions that no unread split has rows of."""
        pending = history.pending(self._at.cursor) if self._policy.per_partition else None
        done = frozenset(self._nexts.keys() - pending) if pending else frozenset()
        live, new = self._at.live | done, done - self._at.live
        tail = self._stage
        if tail is None or not live or self._gap:
            return
        if self._tail is None:
            try:
                self._tail = open_tail(tail, self._request, self._at, live)
            except GapError as gap:
                self._stop_tail(gap)
                return
            self._tail.hold(self._held)
        elif new:
            self._tail.go_live(new)
        if new:
            nexts = self._nexts
            handover = {**(self._at.handover or {}), **{at: nexts[at] for at in new}}
            self._at = replace(self._at, live=live, handover=handover)
            self._batches.note(
                "partition-live", f"partition {places_text(new)} went over to the topic, as their history is done"
            )

    def _stop_tail(self, gap: GapError) -> None:
        """Read the history alone to its end, where a newer version of the table may have what the topic has lost."""
        if not self._source.may_look_back:
            raise gap
        self._gap = True
        self._ways.forget()  # it may hold this tail
        self._close_tail()

    @property
    def _held(self) -> int:
        """A limit at which the watermark stays where it is."""
        return BEFORE_ALL if self._at.watermark is None else self._at.watermark

    # ---------------------------------------------------------------------------------------------- end of the history

    def _end_of_history(self) -> Batch:
        if self._source.tail is None:
            self._at = replace(self._at, phase="done", cursor=None)
            self._history = None
            return self._passage()
        way, self._at = self._ways.take(self._at, self._tail)
        self._history = None
        if way.newer is None:
            self._enter_topic(way)
        elif way.newer.increment:
            self._read_increment(self._source.tail, way.newer)
        else:
            self._enter_lake(way.newer, "chase")
        # The passage itself is worth a position: a restart then opens no file that has been read.
        return self._passage()

    def _read_increment(self, tail: TailStage, newer: NewerVersion) -> None:
        history = self._source.history
        if history is None or self._at.resolution is None:
            return
        start = tail.start(newer.resolution.boundary, check=False)
        self._at = into_increment(self._at, self._nexts, newer, history, start)
        self._batches.note("chase", f"reads {newer.ahead} offsets that the table has got since")
        self._starts = self._start_times(raises=not self._source.may_look_back)
        self._open_history()

    def _start_times(self, *, raises: bool) -> TailStartTimes | None:
        tail, time = self._stage, self._source.event_time
        return None if tail is None or time is None else TailStartTimes(tail, time, self._clock, raises=raises)

    def _enter_topic(self, way: Way) -> None:
        """The topic takes over: from the history, or from the lake."""
        self._tail, nexts = way.tail, self._nexts
        if self._tail is not None:
            self._tail.go_live(nexts.keys() - self._at.live)
            self._tail.hold(None)
        self._at = into_topic(self._at, nexts, self._source.history)
        self._replay = None
        self._batches.note("handover", "handed over to the tail")

    # ---------------------------------------------------------------------------------------------------------- tail

    def _open_behind_history(self) -> None:
        if self._at.lake is not None:
            self._open_lake(self._at.lake)
        elif (gap := self._open_topic()) is not None:
            self._look_back(gap)

    def _open_topic(self) -> GapError | None:
        """Open the tail at the position; gives what it lacks where it cannot be."""
        self._close_tail()
        try:
            self._tail = open_tail(wanted_tail(self._source, self._stage), self._request, self._at)
        except GapError as gap:
            return gap
        return None

    def _close_tail(self) -> None:
        if self._tail is not None:
            self._tail.close()
            self._tail = None

    def _poll_tail(self, tail: OpenTail, timeout: float) -> Batch | None:
        if self._lag.is_behind(tail):
            newer = self._ways.newer_if_reachable(self._at)
            if newer is not None and newer.ahead >= min(self._policy.worthwhile, self._policy.lag or 0):
                self._enter_lake(newer, "switch-back")
                return self._passage()
        try:
            return self._tail_batch(tail, timeout)
        except GapError as gap:
            self._look_back(gap)
            return self._passage()

    def _look_back(self, gap: GapError) -> None:
        """Read what the topic has lost from the lake; what the lake does not have is left to the tail's policy.

        Raises:
            GapError: Under ``on_gap: fail``: the lake does not have it, or is not to be asked.
        """
        lacks: GapError | None = gap
        while lacks is not None:
            newer = None
            if self._policy.on_truncation:
                newer, self._at = self._ways.closing(self._at, lacks)
            left = lacks if newer is None else newer.leaves(lacks)
            if newer is not None and left is None:
                self._enter_lake(newer, "switch-back")
                return
            self._at = self._ways.skip(self._at, left or lacks)
            lacks = self._open_topic()

    def _tail_batch(self, tail: OpenTail, timeout: float) -> Batch | None:
        got = tail.poll(timeout)
        if got is None:
            return None
        if got.errors is not None and self._source.fail_on_error:
            raise undecodable(got.errors)
        self._at = replace(self._at, tail=got.position, watermark=got.watermark, identities=tail.identities)
        return self._batches.of_tail(got, self._at)

    # ---------------------------------------------------------------------------------------------------------- lake

    def _enter_lake(self, newer: NewerVersion, kind: SwitchKind) -> None:
        self._close_tail()
        self._at = into_lake(self._at, self._nexts, newer, kind)
        self._batches.note(kind, f"reads {newer.ahead} offsets from the table before the topic goes on")
        self._open_lake(LakeRead(newer.pin, newer.resolution, kind))

    def _open_lake(self, read: LakeRead) -> None:
        self._starts = self._start_times(raises=False)
        self._replay = open_lake(self._source, self._request, self._at, read)

    def _poll_lake(self, replay: Replay) -> Batch | None:
        if self._starts is not None:
            replay.rest(self._starts.begins(self._at.tail, replay.arrived))
        got = replay.poll()
        if got is not None:
            self._at = replace(self._at, tail=got.position, watermark=got.watermark)
            if replay.finished and not self.finished:
                self._ways.prepare(self._at, self._tail)
            return self._batches.of_tail(got, self._at)
        if self.finished:
            return None
        way, self._at = self._ways.take(self._at, self._tail)
        if way.newer is None:
            self._enter_topic(way)
        else:
            goes_back = self._at.lake is not None and self._at.lake.kind == "switch-back"
            self._enter_lake(way.newer, "switch-back" if goes_back else "chase")
        return self._passage()

    # ------------------------------------------------------------------------------------------------------- helpers

    @property
    def _policy(self) -> HandoverPolicy:
        return self._source.policy

    @property
    def _nexts(self) -> Offsets:
        return self._source.tail.offsets(self._at.tail) if self._source.tail is not None else {}

    def _passage(self) -> Batch:
        return self._batches.of_passage(self._at)
