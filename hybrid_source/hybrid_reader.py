"""An open hybrid source: the state machine from the history to the topic, and back to the lake.

::

    history ──(partitions go live one by one)──> end ──> topic <──> lake
                                                  └──> lake ──> topic

What is decided at a passage is in the position of the batch that carries it, before the first row behind it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import polars as pl

from headrace.kernel.boundary import Boundary, TopicPartition
from headrace.kernel.errors import GapError, HeadraceError, InternalError, SpecError
from headrace.kernel.protocols import Batch, Json, Note, Position, ReadRequest
from hybrid_source.coverage import coverage
from hybrid_source.dead_letters import undecodable
from hybrid_source.handover_policy import HandoverPolicy
from hybrid_source.history_sequence import increment_of, with_last
from hybrid_source.hybrid_position import HybridPosition, LakeRead, Offsets, Switch, SwitchKind
from hybrid_source.hybrid_watermark import TailStartTimes, raised
from hybrid_source.lake_versions import NewerVersion, reach
from hybrid_source.read_ahead import ReadAhead, Taken, read_ahead
from hybrid_source.retention_watch import EVERY_S, RetentionWatch
from hybrid_source.stages import (
    END_OF_HISTORY,
    HistoryBatch,
    OpenHistory,
    OpenTail,
    Replay,
    TailBatch,
    TailStage,
)
from hybrid_source.tail_position import TailPosition
from hybrid_source.ways_on import Way, WaysOn, wanted_tail

if TYPE_CHECKING:
    from hybrid_source.hybrid import HybridSource

logger: Final = logging.getLogger(__name__)

TAIL_TURNS: Final = 4
"""Polls of live partitions, at most, between two splits of the history that have been read."""

LIVE_WAIT_S: Final = 0.02
"""How long a split that is being read is waited for before the live partitions are looked at again."""

_HELD: Final = -(2**63)


class HybridReader:
    """See :class:`headrace.kernel.protocols.SourceReader`."""

    def __init__(self, source: HybridSource, request: ReadRequest, at: HybridPosition) -> None:
        self._source = source
        self._request = request
        self._at = at
        self._clock = source.clock
        self._opened = self._clock.monotonic()
        # Where the lake may have what is gone, it is asked before the tail's own policy applies.
        self._stage = source.tail.strict() if source.tail is not None and source.may_look_back else source.tail
        self._starts = self._start_times()
        self._watch = RetentionWatch(source.tail, source.clock) if source.tail is not None else None
        self._notes: list[Note] = []
        self._tail: OpenTail | None = None
        self._replay: Replay | None = None
        self._history: OpenHistory | None = None
        self._splits: ReadAhead[HistoryBatch] = ReadAhead(iter(()))
        self._turns = 0
        self._gap = False
        self._ways = WaysOn(source, self._stage, request)
        self._ahead: Way | None = None
        self._looked_at_lag = self._opened
        if at.phase == "history":
            self._open_history()
        elif at.phase == "tail":
            self._open_behind_history()

    # ------------------------------------------------------------------------------------------------------ protocol

    def poll(self, timeout: float) -> Batch | None:
        """See :meth:`headrace.kernel.protocols.SourceReader.poll`."""
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
        in_tail = self._at.phase == "tail" and self._tail is not None and self._tail.finished
        return self._at.phase == "done" or in_tail

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
        facts: dict[str, Json] = {"phase": self._at.phase, "watermark": self._at.watermark}
        if self._at.phase == "history" and self._history is not None:
            facts["history_fraction"] = self._history.fraction(self._at.cursor)
            facts["history_eta_s"] = self._eta(facts["history_fraction"])
            facts["live_partitions"] = len(self._at.live)
        if self._replay is not None:
            facts["lag"], facts["reads"] = self._replay.lag(), "lake"
        elif self._tail is not None:
            facts["lag"], facts["reads"] = self._tail.lag(), "topic"
        if self._watch is not None:
            lost = TailPosition.from_json(self._at.tail).lost
            facts |= self._watch.facts() | {"lost": [gap.to_json() for gap in lost]}
            facts["warnings"] += [{"code": "gap", "message": str(gap)} for gap in lost]
        return facts

    def close(self) -> None:
        """See :meth:`headrace.kernel.protocols.SourceReader.close`."""
        self._splits.close()
        for tail in (self._tail, self._ahead.tail if self._ahead else None):
            if tail is not None:
                tail.close()

    # ------------------------------------------------------------------------------------------------------- history

    def _open_history(self) -> None:
        if self._source.history is None:
            raise SpecError(
                f"source {self._source.name!r} is in its history by the checkpoint, but the job names no history",
                hint="restore the job's history, or give the job another uid",
            )
        self._history = self._source.history.open(self._request, self._at.pin, self._at.resolution)
        self._fraction_at_start = self._history.fraction(self._at.cursor)
        self._splits.close()
        self._splits = read_ahead(self._history.read(self._at.cursor), self._request, self._source.concurrency)
        self._go_live(self._history)

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
            self._look_ahead()
        return Batch(
            taken.rows,
            self.position,
            self._at.watermark,
            "history",
            records=split.records,
            nbytes=split.nbytes,
            files=split.files,
            notes=self._told(),
            computed=taken.computed,
        )

    def _history_watermark(self, unread: int | None) -> int | None:
        """What is unread, capped by what the partitions that are not live begin with; never goes back."""
        before = self._at.watermark
        if self._source.event_time is None:
            return before
        if self._source.tail is None or self._starts is None:
            # The end of the input is not a time: it is for the engine to drain, or to suspend.
            return before if unread is None or unread >= END_OF_HISTORY else raised(before, unread)
        limit = unread
        waiting = self._nexts.keys() - self._at.live
        if limit is not None and waiting:
            cap = self._cap(self._starts, waiting)
            limit = None if cap is None else min(limit, cap)
        if self._at.live:
            limit = self._held if limit is None else limit
            return before if self._tail is None else raised(before, self._tail.hold(limit))
        return before if limit is None or limit >= END_OF_HISTORY else raised(before, limit)

    def _cap(self, starts: TailStartTimes, waiting: set[TopicPartition]) -> int | None:
        try:
            return starts.cap(self._at.tail, waiting)
        except GapError:
            if not self._source.may_look_back:
                raise
            return None  # whether a newer version of the table has what is gone is asked at the end of this one

    def _eta(self, fraction: float) -> float | None:
        done = fraction - self._fraction_at_start
        elapsed = self._clock.monotonic() - self._opened
        return elapsed / done * (1 - fraction) if done > 0 else None

    def _look_at_retention(self, watch: RetentionWatch) -> None:
        """Say what threatens; what is gone already is not read on for, unless a newer version of the table may have it.

        Raises:
            GapError: What the tail needs has been deleted while the history was read, under ``on_gap: fail``.
        """
        left = EVERY_S if self._history is None else self._eta(self._history.fraction(self._at.cursor))
        if (
            watch.look(self._at.tail, left)
            and watch.passed
            and self._history is not None
            and not self._source.may_look_back
        ):
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
                self._tail = tail.open(self._request, self._at.tail, self._at.watermark, live)
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
            self._note("partition-live", f"{_named(new)} went over to the topic, as their history is done")

    def _stop_tail(self, gap: GapError) -> None:
        """Read the history alone to its end, where a newer version of the table may have what the topic has lost."""
        if not self._source.may_look_back:
            raise gap
        self._gap = True
        self._ahead = None  # it may hold this tail
        self._close_tail()

    @property
    def _held(self) -> int:
        """A limit at which the watermark stays where it is."""
        return _HELD if self._at.watermark is None else self._at.watermark

    # ---------------------------------------------------------------------------------------------- end of the history

    def _look_ahead(self) -> None:
        """Prepare the way on while the last rows are still being processed."""
        try:
            self._ahead = self._ways.find(self._at, self._tail)
        except HeadraceError as error:
            # Not due yet, and tried again when it is.
            logger.debug("the way on could not be prepared: %s", error)

    def _taken_way(self) -> Way:
        way, self._ahead = self._ahead, None
        while way is None:
            try:
                way = self._ways.find(self._at, self._tail)
            except GapError as gap:
                self._skip(gap)
        return way

    def _skip(self, gap: GapError) -> None:
        """Go on behind a gap that the lake does not close.

        Raises:
            GapError: Under ``on_gap: fail``.
        """
        self._at = replace(self._at, tail=wanted_tail(self._source, self._source.tail).skip(self._at.tail, gap))

    def _end_of_history(self) -> Batch:
        if self._source.tail is None:
            self._at = replace(self._at, phase="done", cursor=None)
            self._history = None
            return self._passage()
        way = self._taken_way()
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
        self._at = replace(
            self._at,
            pin=increment_of(history, newer.pin),
            cursor=None,
            resolution=replace(newer.resolution, ends=self._at.resolution.ends),
            tail=tail.start(newer.resolution.boundary, check=False),
        ).switched(Switch("chase", self._nexts, newer.resolution.rule, newer.pin))
        self._note("chase", f"reads {newer.ahead} offsets that the table has got since")
        self._starts = self._start_times()
        self._open_history()

    def _start_times(self) -> TailStartTimes | None:
        time = self._source.event_time
        return None if self._stage is None or time is None else TailStartTimes(self._stage, time, self._clock)

    def _enter_topic(self, way: Way) -> None:
        """The topic takes over: from the history, or from the lake."""
        self._tail, at = way.tail, self._at
        nexts = self._nexts
        if self._tail is not None:
            self._tail.go_live(nexts.keys() - at.live)
            self._tail.hold(None)
        if (
            at.lake is not None
            and at.handover is None
            and at.resolution is not None
            and self._source.history is not None
        ):
            # The lake has been read further than the history went: there is the seam.
            resolution = replace(at.lake.resolution, ends=at.resolution.ends)
            at = replace(at, pin=with_last(self._source.history, at.pin, at.lake.pin), resolution=resolution)
        handover = {**nexts, **(at.handover or {})} if at.phase == "history" or at.handover is None else at.handover
        rule = at.lake.resolution.rule if at.lake else at.resolution.rule if at.resolution else ""
        self._at = replace(at, phase="tail", cursor=None, lake=None, live=frozenset(), handover=handover)
        self._at = self._at.switched(Switch("handover", nexts, rule))
        self._replay = None
        self._note("handover", "handed over to the tail")

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
            tail = wanted_tail(self._source, self._stage)
            self._tail = tail.open(self._request, self._at.tail, self._at.watermark)
        except GapError as gap:
            return gap
        return None

    def _close_tail(self) -> None:
        if self._tail is not None:
            self._tail.close()
            self._tail = None

    def _poll_tail(self, tail: OpenTail, timeout: float) -> Batch | None:
        if self._policy.lag is not None and self._is_behind(tail, self._policy.lag):
            newer = self._ways.newer_if_reachable(self._at)
            if newer is not None and newer.ahead >= min(self._policy.worthwhile, self._policy.lag):
                self._enter_lake(newer, "switch-back")
                return self._passage()
        try:
            return self._tail_batch(tail, timeout)
        except GapError as gap:
            self._look_back(gap)
            return self._passage()

    def _is_behind(self, tail: OpenTail, most: int) -> bool:
        now = self._clock.monotonic()
        if now - self._looked_at_lag < self._policy.lag_every_s:
            return False
        self._looked_at_lag = now
        return sum(int(at["end"] - at["next"]) for at in tail.lag()) > most

    def _look_back(self, gap: GapError) -> None:
        """Read what the topic has lost from the lake; what the lake does not have is left to the tail's policy.

        Raises:
            GapError: Under ``on_gap: fail``: the lake does not have it, or is not to be asked.
        """
        lacks: GapError | None = gap
        while lacks is not None:
            newer = self._ways.newer(self._at) if self._policy.on_truncation else None
            if newer is not None and newer.closes(lacks):
                self._enter_lake(newer, "switch-back")
                return
            self._skip(lacks)
            lacks = self._open_topic()

    def _tail_batch(self, tail: OpenTail, timeout: float) -> Batch | None:
        got = tail.poll(timeout)
        if got is None:
            return None
        if got.errors is not None and self._source.fail_on_error:
            raise undecodable(got.errors)
        self._at = replace(self._at, tail=got.position, watermark=got.watermark, identities=tail.identities)
        return self._batch(got)

    # ---------------------------------------------------------------------------------------------------------- lake

    def _enter_lake(self, newer: NewerVersion, kind: SwitchKind) -> None:
        self._close_tail()
        read, at = LakeRead(newer.pin, newer.resolution, kind), self._at
        if at.live:  # some partitions have met the topic: there is the seam of all
            at = replace(at, handover={**self._nexts, **(at.handover or {})})
        self._at = replace(at, phase="tail", cursor=None, live=frozenset(), lake=read)
        self._at = self._at.switched(Switch(kind, self._nexts, newer.resolution.rule, newer.pin))
        self._note(kind, f"reads {newer.ahead} offsets from the table before the topic goes on")
        self._open_lake(read)

    def _open_lake(self, read: LakeRead) -> None:
        lake = self._source.lake
        if lake is None:
            raise SpecError(
                f"source {self._source.name!r} reads from its table by the checkpoint, but the job names no history",
                hint="restore the job's history, or give the job another uid",
            )
        columns = read.resolution.columns
        if columns is None:
            raise InternalError(f"source {self._source.name!r} reads rows by offsets that they do not carry")
        self._replay = lake.replay(
            self._request,
            read.pin,
            columns,
            self._at.tail,
            reach(read.resolution, self._nexts),
            time=self._source.event_time,
            floor=self._at.watermark,
        )

    def _poll_lake(self, replay: Replay) -> Batch:
        got = replay.poll()
        if got is not None:
            self._at = replace(self._at, tail=got.position, watermark=got.watermark)
            if replay.finished:
                self._look_ahead()
            return self._batch(got)
        way = self._taken_way()
        if way.newer is None:
            self._enter_topic(way)
        else:
            self._enter_lake(way.newer, self._at.lake.kind if self._at.lake else "chase")
        return self._passage()

    # -------------------------------------------------------------------------------------------------------- batches

    @property
    def _policy(self) -> HandoverPolicy:
        return self._source.policy

    @property
    def _nexts(self) -> Offsets:
        return self._source.tail.offsets(self._at.tail) if self._source.tail is not None else {}

    def _note(self, code: str, text: str) -> None:
        self._notes.append(Note(code, f"source {self._source.name} {text}"))

    def _told(self) -> Sequence[Note]:
        notes, self._notes = self._notes, []
        return notes

    def _batch(self, got: TailBatch) -> Batch:
        return Batch(
            got.rows.lazy(),
            self.position,
            got.watermark,
            "tail",
            got.maybe_late,
            got.errors,
            got.records,
            got.nbytes,
            notes=self._told(),
        )

    def _passage(self) -> Batch:
        """A batch without rows, for a position that has changed."""
        names, schema = self._request.columns, self._source.schema
        rows = pl.LazyFrame(schema=schema if names is None else {name: schema[name] for name in names})
        return Batch(rows, self.position, self._at.watermark, "tail", notes=self._told())


def _named(partitions: frozenset[TopicPartition]) -> str:
    return "partition " + ", ".join(f"{topic}[{partition}]" for topic, partition in sorted(partitions))
