"""The hybrid source: history, then the tail, handed over at a recorded boundary.

Everything that is decided once (pinned version, boundary, start offsets, identities) is in the position from the
first checkpoint on; restoring never decides it again, and a source that has handed over opens no history file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import polars as pl

from headrace.kernel.boundary import Boundary, PartitionRange, TopicBoundary, TopicPartition, flat, nested, timestamp
from headrace.kernel.clock import Clock, SystemClock
from headrace.kernel.errors import DecodeError, IdentityError, InternalError, SpecError
from headrace.kernel.protocols import Batch, Json, Position, ReadRequest
from hybrid_source.resolution import Resolution, naming
from hybrid_source.stages import (
    END_OF_HISTORY,
    HistoryBatch,
    HistoryStage,
    OpenHistory,
    OpenTail,
    TailStage,
    TopicIdentity,
)

POSITION_VERSION: Final = 1
PEEK_EVERY_S: Final = 1.0

Phase = Literal["history", "tail", "done"]


@dataclass(frozen=True, slots=True)
class HybridPosition:
    """Where a hybrid source stands.

    Attributes:
        phase: ``history``, ``tail``, or ``done`` (a history without a tail that was read to its end).
        pin: The pinned version of the history; None without one.
        cursor: Next split of the history; meaningless after it.
        tail: The tail's own position; its start while the history is read.
        resolution: The boundary and the rule that gave it; None without history or tail.
        identities: The topics that all offsets refer to, by name.
        start: Offsets at which the tail's coverage begins, by partition (inclusive).
        watermark: Event time in microseconds, or None.
        event_time: The column that orders the history's splits; the cursor means nothing in another order.
        handover: Where the tail stood when it took over from the history (next offsets by partition), for the seam
            proof; None before that, and without a history.
    """

    phase: Phase
    pin: Json = None
    cursor: Json = None
    tail: Json = None
    resolution: Resolution | None = None
    identities: Mapping[str, TopicIdentity] | None = None
    start: Mapping[TopicPartition, int] | None = None
    watermark: int | None = None
    handover: Mapping[TopicPartition, int] | None = None
    event_time: str | None = None

    def to_json(self) -> Position:
        """The versioned JSON form."""
        out: dict[str, Any] = {"version": POSITION_VERSION, "phase": self.phase}
        for name in ("pin", "cursor", "tail", "watermark", "event_time"):
            if getattr(self, name) is not None:
                out[name] = getattr(self, name)
        if self.resolution is not None:
            out["boundary"] = self.resolution.to_json()
        if self.identities is not None:
            out["topics"] = {
                name: {"id": topic.topic_id, "cluster": topic.cluster_id} for name, topic in self.identities.items()
            }
        for name, offsets in (("start", self.start), ("handover", self.handover)):
            if offsets is not None:
                out[name] = nested(offsets)
        return out

    @classmethod
    def from_json(cls, value: Position) -> HybridPosition:
        """Read the JSON form.

        Raises:
            InternalError: Written by a later release.
        """
        if value.get("version") != POSITION_VERSION:
            raise InternalError(
                f"a source position has version {value.get('version')!r}; this release reads {POSITION_VERSION}",
                hint="run the release that wrote the checkpoint, or a later one",
            )
        found = value.get("boundary")
        topics = value.get("topics")
        return cls(
            phase=value["phase"],
            pin=value.get("pin"),
            cursor=value.get("cursor"),
            tail=value.get("tail"),
            resolution=Resolution.from_json(found) if found else None,
            identities=None
            if topics is None
            else {name: TopicIdentity(name, topic["id"], topic["cluster"]) for name, topic in topics.items()},
            start=_by_partition(value.get("start")),
            watermark=value.get("watermark"),
            handover=_by_partition(value.get("handover")),
            event_time=value.get("event_time"),
        )


def _by_partition(offsets: Mapping[str, Mapping[str, int]] | None) -> Mapping[TopicPartition, int] | None:
    return None if offsets is None else flat(offsets)


@dataclass(frozen=True, slots=True)
class EventTime:
    """How a source keeps time.

    Attributes:
        column: The event-time column.
        out_of_orderness_us: How far a row may lie behind an earlier one of its partition.
        idle_us: A partition at its end that has been silent this long no longer holds the watermark; None: never.
        max_drift_us: A partition of the tail waits while its largest event time is further ahead of that of the slowest
            one that is not at its end; None: no limit.
    """

    column: str
    out_of_orderness_us: int = 0
    idle_us: int | None = None
    max_drift_us: int | None = None


@dataclass(frozen=True, slots=True)
class HybridSource:
    """A source with a history, a tail, or both.

    Attributes:
        name: Its name in the job.
        schema: All columns it can give.
        history: The bounded stage.
        tail: The unbounded stage.
        event_time: None: no watermarks.
        fail_on_error: A record that cannot be decoded ends the job; else it leaves through the port ``errors``.
        clock: For idleness.
    """

    name: str
    schema: pl.Schema
    history: HistoryStage | None = None
    tail: TailStage | None = None
    event_time: EventTime | None = None
    fail_on_error: bool = True
    clock: Clock = field(default_factory=SystemClock)

    def open(self, request: ReadRequest, position: Position | None) -> HybridReader:
        """See :meth:`headrace.kernel.protocols.Source.open`."""
        at = HybridPosition.from_json(position) if position is not None else self.plan()
        if position is not None and self.tail is not None:
            if at.tail is None:
                raise SpecError(
                    f"source {self.name!r} was started without a tail, and has one now",
                    hint="restore the job without the tail, or give the job another uid",
                )
            check_identities(at.identities or {}, self.tail.identities())
        if at.phase == "history" and at.cursor is not None and at.event_time != self._time_column:
            raise SpecError(
                f"source {self.name!r} has read part of its history in the order of {at.event_time!r}, "
                f"and is to go on in that of {self._time_column!r}",
                hint="restore event_time.column until the history has been read, or give the job another uid",
            )
        return HybridReader(self, request, at)

    @property
    def _time_column(self) -> str | None:
        return self.event_time.column if self.event_time else None

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
        with naming(resolution):
            if resolution is not None:
                check_identities(_recorded(resolution.boundary), identities)
            tail = self.tail.start(resolution.boundary if resolution else None)
        return HybridPosition(
            "history" if self.history else "tail",
            pin,
            tail=tail,
            resolution=resolution,
            identities=identities,
            start=self._covered_from(tail, resolution),
            event_time=self._time_column,
        )

    def _covered_from(self, tail: Json, resolution: Resolution | None) -> Mapping[TopicPartition, int]:
        if self.tail is None:
            return {}
        known = resolution.boundary.ranges if resolution is not None else {}
        return {at: known[at].start if at in known else offset for at, offset in self.tail.offsets(tail).items()}


def _recorded(boundary: Boundary) -> Mapping[str, TopicIdentity]:
    return {name: TopicIdentity(name, topic.topic_id, boundary.cluster) for name, topic in boundary.topics.items()}


def check_identities(recorded: Mapping[str, TopicIdentity], now: Mapping[str, TopicIdentity]) -> None:
    """Compare the topics that recorded offsets refer to with those that are there; what is not known is not compared.

    Raises:
        IdentityError: The job does not read one of them any more, it was deleted and created again, or it is in
            another cluster.
    """
    for name, topic in recorded.items():
        if name not in now:
            raise IdentityError(
                f"recorded offsets are of topic {name!r}, the job reads {', '.join(map(repr, now))}",
                hint="restore the job's topic, or give the job another uid to read the others from their start",
                code="TOPIC_CHANGED",
                context={"recorded": name, "found": list(now)},
            )
        _check_identity(topic, now[name])


def _check_identity(recorded: TopicIdentity, now: TopicIdentity) -> None:
    for what, then, found in (
        ("cluster id", recorded.cluster_id, now.cluster_id),
        ("topic id", recorded.topic_id, now.topic_id),
    ):
        if then is not None and found is not None and then != found:
            raise IdentityError(
                f"topic {now.topic!r} is not the one that was recorded: its {what} has changed",
                detail=f"recorded {what} {then}, found {found}",
                hint="recorded offsets mean nothing in a recreated topic or another cluster; start the job under a new "
                "uid, and reset the table's boundary with `headrace boundary reset`",
                code="TOPIC_RECREATED",
                context={"topic": now.topic, "recorded": then, "found": found},
            )


def undecodable(errors: pl.DataFrame) -> DecodeError:
    """The error for the first of a batch's dead letters (``columns.ERRORS``)."""
    first = errors.row(0, named=True)
    return DecodeError(
        f"record {first['topic']}[{first['partition']}]@{first['offset']} cannot be decoded",
        detail=f"{first['reason']}; value begins {(first['value'] or b'')[:80]!r}",
        hint="set on_error: skip for the source, or give its port `errors` a sink, to go on without such records",
        context={name: first[name] for name in ("topic", "partition", "offset", "reason")},
    )


class HybridReader:
    """See :class:`headrace.kernel.protocols.SourceReader`."""

    def __init__(self, source: HybridSource, request: ReadRequest, at: HybridPosition) -> None:
        self._source = source
        self._request = request
        self._at = at
        self._clock = source.clock
        self._opened = self._clock.monotonic()
        self._first_times: dict[TopicPartition, int] = {}
        self._peeked = float("-inf")
        self._tail: OpenTail | None = None
        self._history: OpenHistory | None = None
        self._splits: Iterator[HistoryBatch] = iter(())
        if at.phase == "history":
            self._open_history()
        elif at.phase == "tail":
            self._open_tail()

    # ------------------------------------------------------------------------------------------------------ protocol

    def poll(self, timeout: float) -> Batch | None:
        """See :meth:`headrace.kernel.protocols.SourceReader.poll`."""
        if self._at.phase == "history":
            split = next(self._splits, None)
            if split is not None:
                return self._history_batch(split)
            self._hand_over()
            # The switch itself is worth a position: a restart then opens no history file.
            return Batch(self._no_rows(), self.position, self._at.watermark, "history")
        if self._tail is None:
            return None
        return self._tail_batch(self._tail, timeout)

    @property
    def finished(self) -> bool:
        """See :attr:`headrace.kernel.protocols.SourceReader.finished`."""
        return self._at.phase == "done" or (self._tail is not None and self._tail.finished)

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
        start = at.start or {}
        ranges: dict[str, dict[int, PartitionRange]] = {}
        for (topic, partition), offset in self._source.tail.offsets(at.tail).items():
            begin = min(start.get(TopicPartition(topic, partition), 0), offset)
            ranges.setdefault(topic, {})[partition] = PartitionRange(begin, offset)
        topics = {name: TopicBoundary(found, at.identities[name].topic_id) for name, found in ranges.items()}
        cluster = next((topic.cluster_id for topic in at.identities.values()), None)
        return Boundary(topics, cluster, None if at.watermark is None else timestamp(at.watermark))

    def progress(self) -> Mapping[str, Json]:
        """See :meth:`headrace.kernel.protocols.SourceReader.progress`."""
        facts: dict[str, Json] = {"phase": self._at.phase, "watermark": self._at.watermark}
        if self._at.phase == "history" and self._history is not None:
            facts["history_fraction"] = self._history.fraction(self._at.cursor)
            facts["history_eta_s"] = self._eta(facts["history_fraction"])
        if self._tail is not None:
            facts["lag"] = self._tail.lag()
        return facts

    def close(self) -> None:
        """See :meth:`headrace.kernel.protocols.SourceReader.close`."""
        if self._tail is not None:
            self._tail.close()

    # ------------------------------------------------------------------------------------------------------- history

    def _open_history(self) -> None:
        if self._source.history is None:
            raise SpecError(
                f"source {self._source.name!r} is in its history by the checkpoint, but the job names no history",
                hint="restore the job's history, or give the job another uid",
            )
        self._history = self._source.history.open(self._request, self._at.pin, self._at.resolution)
        self._fraction_at_start = self._history.fraction(self._at.cursor)
        self._splits = self._history.read(self._at.cursor)

    def _history_batch(self, split: HistoryBatch) -> Batch:
        self._at = replace(self._at, cursor=split.cursor, watermark=self._history_watermark(split.watermark))
        return Batch(
            split.rows,
            self.position,
            self._at.watermark,
            "history",
            records=split.records,
            nbytes=split.nbytes,
            files=split.files,
        )

    def _history_watermark(self, unread: int | None) -> int | None:
        """The history's watermark, capped by what the tail is known to begin with; never goes back."""
        if self._source.event_time is None or unread is None:
            return self._at.watermark
        watermark = unread
        if self._source.tail is None:
            if unread >= END_OF_HISTORY:
                # The end of the input is not a time: it is for the engine to drain, or to suspend.
                return self._at.watermark
        else:
            cap = self._cap(self._source.tail, self._source.event_time)
            if cap is None:
                return self._at.watermark
            watermark = min(watermark, cap)
        return watermark if self._at.watermark is None else max(watermark, self._at.watermark)

    def _cap(self, tail: TailStage, time: EventTime) -> int | None:
        """Smallest first event time of the tail's partitions, minus the out-of-orderness; None while one is unknown.

        A partition without a record holds the watermark, as it would in the tail, until it counts as idle.
        """
        partitions = tail.offsets(self._at.tail).keys()
        unknown = [partition for partition in partitions if partition not in self._first_times]
        now = self._clock.monotonic()
        if unknown and now - self._peeked >= PEEK_EVERY_S:
            self._peeked = now
            self._first_times.update(tail.first_event_times(self._at.tail, unknown))
            unknown = [partition for partition in unknown if partition not in self._first_times]
        silent_us = (now - self._opened) * 1e6
        if unknown and (time.idle_us is None or silent_us < time.idle_us):
            return None
        if not self._first_times:
            return None
        return min(self._first_times.values()) - time.out_of_orderness_us

    def _eta(self, fraction: float) -> float | None:
        done = fraction - self._fraction_at_start
        elapsed = self._clock.monotonic() - self._opened
        return elapsed / done * (1 - fraction) if done > 0 else None

    # ------------------------------------------------------------------------------------------------------ handover

    def _hand_over(self) -> None:
        self._history = None
        if self._source.tail is None:
            self._at = replace(self._at, phase="done", cursor=None)
            return
        handover = self._source.tail.offsets(self._at.tail)
        self._at = replace(self._at, phase="tail", cursor=None, handover=handover)
        self._open_tail()

    def _no_rows(self) -> pl.LazyFrame:
        columns = self._request.columns
        schema = self._source.schema
        return pl.LazyFrame(schema=schema if columns is None else {name: schema[name] for name in columns})

    # ---------------------------------------------------------------------------------------------------------- tail

    def _open_tail(self) -> None:
        if self._source.tail is None:
            raise SpecError(
                f"source {self._source.name!r} is in its tail by the checkpoint, but the job names no tail",
                hint="restore the job's tail, or give the job another uid",
            )
        self._tail = self._source.tail.open(self._request, self._at.tail, self._at.watermark)

    def _tail_batch(self, tail: OpenTail, timeout: float) -> Batch | None:
        got = tail.poll(timeout)
        if got is None:
            return None
        if got.errors is not None and self._source.fail_on_error:
            raise undecodable(got.errors)
        self._at = replace(self._at, tail=got.position, watermark=got.watermark, identities=tail.identities)
        return Batch(
            got.rows.lazy(),
            self.position,
            got.watermark,
            "tail",
            got.maybe_late,
            got.errors,
            got.records,
            got.nbytes,
        )
