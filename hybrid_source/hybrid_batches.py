"""What a hybrid source hands out, and what it says of itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import polars as pl

from headrace.kernel.boundary import TopicPartition, places_text
from headrace.kernel.clock import Clock
from headrace.kernel.protocols import Batch, Json, Note, ReadRequest
from hybrid_source.history_protocols import HistoryBatch, OpenHistory
from hybrid_source.hybrid_position import HybridPosition
from hybrid_source.read_ahead import Taken
from hybrid_source.retention_watch import RetentionWatch
from hybrid_source.tail_position import TailPosition
from hybrid_source.tail_protocols import OpenTail, Replay, TailBatch


class Batches:
    """Makes batches; what happened before one goes with it.

    Args:
        name: The source's.
        schema: All its columns.
        request: What is read of it.
    """

    def __init__(self, name: str, schema: pl.Schema, request: ReadRequest) -> None:
        self._name: Final = name
        columns = schema.names() if request.columns is None else request.columns
        self._empty = pl.LazyFrame(schema={column: schema[column] for column in columns})
        self._notes: list[Note] = []

    def note(self, code: str, text: str) -> None:
        """Tell what happened, with the next batch."""
        self._notes.append(Note(code, f"source {self._name} {text}"))

    def of_history(self, taken: Taken[HistoryBatch], at: HybridPosition, *, maybe_late: bool = False) -> Batch:
        """A split, and what was computed of it ahead."""
        split = taken.split
        return Batch(
            taken.rows,
            at.to_json(),
            at.watermark,
            "history",
            maybe_late,
            records=split.records,
            nbytes=split.nbytes,
            files=split.files,
            notes=self._told(),
            computed=taken.computed,
        )

    def of_tail(self, got: TailBatch, at: HybridPosition) -> Batch:
        """A batch of the tail, or of what stands for it."""
        return Batch(
            got.rows.lazy(),
            at.to_json(),
            got.watermark,
            "tail",
            got.maybe_late,
            got.errors,
            got.records,
            got.nbytes,
            notes=self._told(),
        )

    def of_passage(self, at: HybridPosition) -> Batch:
        """No rows, for a position that has changed."""
        return Batch(self._empty, at.to_json(), at.watermark, "tail", notes=self._told())

    def _told(self) -> list[Note]:
        notes, self._notes = self._notes, []
        return notes


class Pace:
    """How fast a history is read.

    Args:
        history: It.
        cursor: Where the reading begins.
        clock: For the time it takes.
    """

    def __init__(self, history: OpenHistory, cursor: Json, clock: Clock) -> None:
        self._history = history
        self._clock = clock
        self._began = clock.monotonic()
        self._fraction_at_start = history.fraction(cursor)

    def left(self, cursor: Json) -> float | None:
        """Estimated seconds to its end; None: unknown."""
        fraction = self._history.fraction(cursor)
        done = fraction - self._fraction_at_start
        return (self._clock.monotonic() - self._began) / done * (1 - fraction) if done > 0 else None

    def facts(self, at: HybridPosition) -> dict[str, Json]:
        """For :func:`progress`."""
        return {
            "history_fraction": self._history.fraction(at.cursor),
            "history_eta_s": self.left(at.cursor),
            "live_partitions": len(at.live),
        }


def progress(
    at: HybridPosition,
    pace: Pace | None,
    replay: Replay | None,
    tail: OpenTail | None,
    watch: RetentionWatch | None,
    silent: Sequence[TopicPartition] = (),
) -> Mapping[str, Json]:
    """See :meth:`headrace.kernel.protocols.SourceReader.progress`."""
    facts: dict[str, Json] = {"phase": at.phase, "watermark": at.watermark, "warnings": []}
    facts["silent"] = [place._asdict() for place in silent]
    if at.phase == "history" and pace is not None:
        facts |= pace.facts(at)
    if replay is not None:
        facts["lag"], facts["reads"] = replay.lag(), "lake"
    elif tail is not None:
        facts["lag"], facts["reads"] = tail.lag(), "topic"
    if watch is not None:
        lost = TailPosition.from_json(at.tail).lost
        facts |= watch.facts() | {"lost": [gap.to_json() for gap in lost]}
        facts["warnings"] += [{"code": "gap", "message": str(gap)} for gap in lost]
    if silent:
        facts["warnings"].append({"code": "silent", "message": _waits(silent)})
    return facts


def _waits(silent: Sequence[TopicPartition]) -> str:
    """What the watermark waits for, in words."""
    return (
        f"the watermark waits for {places_text(silent)}, read to the end and silent, and with it what closes by event "
        "time: set event_time.idle to pass such partitions over, or write to them"
    )
