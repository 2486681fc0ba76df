"""Counts what a run does and tells the observer about once a second."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from headrace.kernel.clock import Clock
from headrace.runtime.dataflow import Counters, Dataflow
from headrace.runtime.observer import (
    Event,
    KeptOffsets,
    Level,
    LostOffsets,
    Observer,
    PartitionLag,
    Phase,
    Progress,
    SilentPartition,
)
from headrace.runtime.pump import Pump

EVERY_S: Final = 0.5
WINDOW_S: Final = 5.0


class Meter:
    """Counters of one run, over all its attempts. Used by the engine's thread only."""

    def __init__(self) -> None:
        self.records = 0
        self.nbytes = 0
        self.epoch_records = 0
        self.epoch_bytes = 0
        self.rows_out: dict[str, int] = {}
        self.late_rows = 0
        self.error_rows = 0
        self._warned: set[tuple[str, str, str]] = set()
        self._before = Counters()
        self._reported = float("-inf")
        self._samples: deque[tuple[float, int]] = deque()

    def begin_epoch(self, flow: Dataflow) -> None:
        """An epoch begins: what has been written so far is committed."""
        self._settle(flow)
        self.epoch_records = 0
        self.epoch_bytes = 0

    def _settle(self, flow: Dataflow) -> None:
        for sink, rows in self.epoch_rows_out(flow).items():
            self.rows_out[sink] = self.rows_out.get(sink, 0) + rows
        now = flow.counters
        if now.late_rows >= self._before.late_rows and now.error_rows >= self._before.error_rows:
            self.late_rows += now.late_rows - self._before.late_rows
            self.error_rows += now.error_rows - self._before.error_rows
        self._before = Counters(now.rows_out.copy(), now.late_rows, now.error_rows)

    def begin_attempt(self) -> None:
        """A fresh dataflow counts from zero."""
        self._before = Counters()

    def count(self, records: int, nbytes: int) -> None:
        """Input that has been processed."""
        self.records += records
        self.nbytes += nbytes
        self.epoch_records += records
        self.epoch_bytes += nbytes

    def epoch_rows_out(self, flow: Dataflow) -> dict[str, int]:
        """Rows handed to sinks in the running epoch."""
        return dict(flow.counters.rows_out - self._before.rows_out)

    def report(
        self,
        observer: Observer,
        pumps: Mapping[str, Pump],
        flow: Dataflow,
        epoch: int,
        watermarks: Mapping[str, int],
        clock: Clock,
        phase: Phase | None = None,
    ) -> None:
        """Tell the observer, if the last time is long enough ago, or if the run has come to a ``phase`` of its own."""
        now = clock.monotonic()
        if phase is None and now - self._reported < EVERY_S:
            return
        self._reported = now
        facts = [pump.progress for pump in pumps.values()]
        self._warn(observer, {source: pump.progress.get("warnings", ()) for source, pump in pumps.items()})
        in_history = [fact for fact in facts if fact.get("phase") == "history"]
        lag = [
            PartitionLag(at["topic"], at["partition"], at["next"], at["end"])
            for fact in facts
            for at in fact.get("lag", ())
        ]
        fractions = [fact["history_fraction"] for fact in in_history if fact.get("history_fraction") is not None]
        etas = [fact["history_eta_s"] for fact in in_history if fact.get("history_eta_s") is not None]
        pending = flow.counters
        observer.on_progress(
            Progress(
                phase or (Phase.HISTORY if in_history else Phase.TAIL),
                epoch,
                self.records,
                self._rate(now),
                self.nbytes,
                {**self.rows_out},
                min(fractions, default=None),
                max(etas, default=None),
                lag,
                min(watermarks.values(), default=None),
                self.late_rows + pending.late_rows - self._before.late_rows,
                self.error_rows + pending.error_rows - self._before.error_rows,
                flow.state_rows(),
                [LostOffsets(**gap) for fact in facts for gap in fact.get("lost", ())],
                [KeptOffsets(**kept) for fact in facts for kept in fact.get("retention", ())],
                [SilentPartition(**at) for fact in facts for at in fact.get("silent", ())],
            )
        )

    def _warn(self, observer: Observer, warnings: Mapping[str, Sequence[Mapping[str, str]]]) -> None:
        """Tell what threatens, once for as long as it does."""
        now = {(source, found["code"], found["message"]) for source, told in warnings.items() for found in told}
        for source, code, message in sorted(now - self._warned):
            observer.on_event(Event(Level.WARNING, code, message, {"source": source}))
        self._warned = now

    def _rate(self, now: float) -> float:
        self._samples.append((now, self.records))
        while now - self._samples[0][0] > WINDOW_S:
            self._samples.popleft()
        first_at, first_records = self._samples[0]
        return (self.records - first_records) / (now - first_at) if now > first_at else 0.0
