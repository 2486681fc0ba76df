"""Reads one source and runs the first segments, in a thread of its own, ahead of the rest of the job.

Polars releases the GIL while it reads, decodes and computes, so the next batch is made while the last one is merged
into state and written. What a pump holds is bounded: ``DEPTH`` collected batches and the one it works on.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import polars as pl

from headrace.kernel.clock import Clock
from headrace.kernel.protocols import Batch, Json, Note, Origin, Position, SourceReader
from headrace.runtime.dataflow import LegResult
from headrace.runtime.first_segment import GraphSegment

DEPTH: Final = 2
POLL_S: Final = 0.1
PROGRESS_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Computed:
    """A batch behind the first segments."""

    source: str
    results: list[LegResult]
    errors: pl.DataFrame | None
    position: Position
    watermark: int | None
    origin: Origin
    records: int
    nbytes: int
    notes: Sequence[Note] = ()


@dataclass(frozen=True, slots=True)
class Ended:
    """A bounded source has given everything."""

    source: str


@dataclass(frozen=True, slots=True)
class Failed:
    """A source or a first segment failed."""

    source: str
    error: BaseException


Item: TypeAlias = Computed | Ended | Failed


class Pump:
    """A source's thread.

    Args:
        source: The source's id.
        reader: The open source; the pump is its only user until :meth:`close` has returned.
        segment: The first segments behind the source.
        out: Where the items go; shared by all pumps of a job, bounded.
        clock: Paces the progress reports.
    """

    def __init__(
        self, source: str, reader: SourceReader, segment: GraphSegment, out: queue.Queue[Item], clock: Clock
    ) -> None:
        self._source = source
        self._reader = reader
        self._segment = segment
        self._out = out
        self._clock = clock
        self._stopping = threading.Event()
        self._reported = clock.monotonic()
        self.progress: Mapping[str, Json] = reader.progress()
        self._thread = threading.Thread(target=self._run, name=f"pump-{source}", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def close(self) -> None:
        """Stop, wait for the thread, close the reader. What was read ahead is dropped."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._reader.close()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                batch = self._reader.poll(POLL_S)
                self._report()
                if batch is not None:
                    self._put(self._compute(batch))
                elif self._reader.finished:
                    self.progress = self._reader.progress()
                    self._put(Ended(self._source))
                    return
        except BaseException as error:  # noqa: BLE001 - carried to the engine's thread, which raises it
            self._put(Failed(self._source, error))

    def _compute(self, batch: Batch) -> Computed:
        return Computed(
            self._source,
            self._results(batch),
            batch.errors,
            batch.position,
            batch.watermark,
            batch.origin,
            batch.records,
            batch.nbytes,
            batch.notes,
        )

    def _results(self, batch: Batch) -> list[LegResult]:
        if batch.computed is not None:
            return self._segment.given(batch.computed)
        if not batch.records:
            return []
        return self._segment(batch.rows, batch.origin, maybe_late=batch.maybe_late, files=batch.files)

    def _report(self) -> None:
        now = self._clock.monotonic()
        if now - self._reported >= PROGRESS_S:
            self._reported = now
            self.progress = self._reader.progress()

    def _put(self, item: Item) -> None:
        while not self._stopping.is_set():
            try:
                self._out.put(item, timeout=POLL_S)
            except queue.Full:
                continue
            return
