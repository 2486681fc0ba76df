"""What a running job tells the outside: small frozen values through one protocol.

An observer is called from the engine's threads. Its methods return at once. One that raises is logged, and the job goes
on: whatever goes wrong in showing or storing progress is no reason to stop it.
"""

from __future__ import annotations

import logging
import queue
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Final, Protocol

from headrace.kernel.protocols import Json

_log: Final = logging.getLogger(__name__)


class Phase(StrEnum):
    """Where a job stands."""

    STARTING = "starting"
    HISTORY = "history"
    TAIL = "tail"
    DRAINING = "draining"
    FINISHED = "finished"


class Level(StrEnum):
    """Of an event, by who must act: nobody, someone soon, someone now."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """How far one topic partition is behind. Offsets are *next* offsets (exclusive)."""

    topic: str
    partition: int
    next: int
    end: int

    @property
    def lag(self) -> int:
        """Offsets still to come, transaction markers and compacted holes included."""
        return max(0, self.end - self.next)


@dataclass(frozen=True, slots=True)
class SilentPartition:
    """A topic partition that is read to its end and silent, and for which the watermark waits."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class LostOffsets:
    """Offsets ``first`` (inclusive) to ``next`` (exclusive) that were gone when wanted, under ``on_gap: record``."""

    topic: str
    partition: int
    first: int
    next: int


@dataclass(frozen=True, slots=True)
class KeptOffsets:
    """For how long a topic keeps what is needed of a partition.

    Attributes:
        topic: The topic.
        partition: The partition.
        next: The next offset that is needed.
        log_start: The first offset that is still there.
        seconds: Estimated seconds, at the earliest, until retention passes ``next``; None: never, or unknown.
    """

    topic: str
    partition: int
    next: int
    log_start: int
    seconds: int | None


@dataclass(frozen=True, slots=True)
class Progress:
    """A job's counters at one moment. Counts run from the start of this process.

    Attributes:
        phase: Where the job stands.
        epoch: The epoch that is running.
        records: Input records processed.
        records_per_second: Over the last few seconds.
        nbytes: Input bytes read.
        rows_out: Rows handed to sinks, by sink id.
        history_fraction: Part of the history that is done, 0 to 1; None without a history or when not known yet.
        history_eta_s: Seconds until the history is done, estimated.
        lag: Per topic partition; empty before the tail is assigned.
        watermark: Event time in microseconds since the epoch (UTC), or None.
        late_rows: Rows that came too late for their window.
        error_rows: Records that could not be decoded and were skipped or routed.
        state_rows: Rows held in operator state.
        lost: The gap ledger: what the job has gone on without.
        kept: What retention leaves, by partition, as last looked at.
        silent: The partitions that the watermark waits for, though they are read to their ends.
    """

    phase: Phase
    epoch: int = 0
    records: int = 0
    records_per_second: float = 0.0
    nbytes: int = 0
    rows_out: Mapping[str, int] = field(default_factory=dict)
    history_fraction: float | None = None
    history_eta_s: float | None = None
    lag: Sequence[PartitionLag] = ()
    watermark: int | None = None
    late_rows: int = 0
    error_rows: int = 0
    state_rows: int = 0
    lost: Sequence[LostOffsets] = ()
    kept: Sequence[KeptOffsets] = ()
    silent: Sequence[SilentPartition] = ()

    def to_json(self) -> dict[str, Json]:
        """The same as JSON values, for logs, the job store and the API."""
        return {
            "phase": self.phase.value,
            "epoch": self.epoch,
            "records": self.records,
            "records_per_second": round(self.records_per_second, 1),
            "bytes": self.nbytes,
            "rows_out": dict(self.rows_out),
            "history_fraction": self.history_fraction,
            "history_eta_s": self.history_eta_s,
            "lag": [
                {"topic": at.topic, "partition": at.partition, "next": at.next, "end": at.end, "lag": at.lag}
                for at in self.lag
            ],
            "watermark": self.watermark,
            "late_rows": self.late_rows,
            "error_rows": self.error_rows,
            "state_rows": self.state_rows,
            "lost": [asdict(gap) for gap in self.lost],
            "retention": [asdict(kept) for kept in self.kept],
            "silent": [asdict(at) for at in self.silent],
        }


@dataclass(frozen=True, slots=True)
class EpochReport:
    """One committed epoch.

    Attributes:
        epoch: Its number.
        records: Input records in it.
        rows_out: Rows committed, by sink id.
        run_s: Seconds from its first batch to the barrier.
        checkpoint_s: Seconds from the barrier until the head was swapped.
        commit_s: Seconds the sinks took to commit.
        checkpoint_bytes: Bytes written for its record and state.
        watermark: At the barrier; microseconds, or None.
    """

    epoch: int
    records: int
    rows_out: Mapping[str, int]
    run_s: float
    checkpoint_s: float
    commit_s: float
    checkpoint_bytes: int = 0
    watermark: int | None = None

    def to_json(self) -> dict[str, Json]:
        """The same as JSON values."""
        return {
            "epoch": self.epoch,
            "records": self.records,
            "rows_out": dict(self.rows_out),
            "run_s": round(self.run_s, 6),
            "checkpoint_s": round(self.checkpoint_s, 6),
            "commit_s": round(self.commit_s, 6),
            "checkpoint_bytes": self.checkpoint_bytes,
            "watermark": self.watermark,
        }


@dataclass(frozen=True, slots=True)
class Event:
    """Something worth a line in the log: a handover, a recovery, a retry, a warning.

    ``code`` is stable and machine-readable (``handover``, ``recovered``, ``partition-added``); ``context`` is JSON.
    """

    level: Level
    code: str
    message: str
    context: Mapping[str, Json] = field(default_factory=dict)

    def to_json(self) -> dict[str, Json]:
        """The same as JSON values."""
        return {"level": self.level.value, "code": self.code, "message": self.message, "context": dict(self.context)}


class Observer(Protocol):
    """Takes what a running job has to say. Never blocks; what it raises is logged (:class:`GuardedObserver`)."""

    def on_progress(self, progress: Progress) -> None:
        """About once a second."""

    def on_epoch(self, report: EpochReport) -> None:
        """After each committed epoch."""

    def on_event(self, event: Event) -> None:
        """As it happens."""


class SilentObserver:
    """Says nothing."""

    def on_progress(self, progress: Progress) -> None:
        """See :meth:`Observer.on_progress`."""

    def on_epoch(self, report: EpochReport) -> None:
        """See :meth:`Observer.on_epoch`."""

    def on_event(self, event: Event) -> None:
        """See :meth:`Observer.on_event`."""


class GuardedObserver:
    """Passes everything on to another observer, and logs what that one raises instead of letting it end the job."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._last = ""

    def on_progress(self, progress: Progress) -> None:
        """See :meth:`Observer.on_progress`."""
        with self._guarded("progress"):
            self._observer.on_progress(progress)

    def on_epoch(self, report: EpochReport) -> None:
        """See :meth:`Observer.on_epoch`."""
        with self._guarded(f"the report of epoch {report.epoch}"):
            self._observer.on_epoch(report)

    def on_event(self, event: Event) -> None:
        """See :meth:`Observer.on_event`."""
        with self._guarded(f"event {event.code} ({event.message})"):
            self._observer.on_event(event)

    @contextmanager
    def _guarded(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever an observer raises, the job is not its business
            # Progress comes twice a second: the same failure is shown with its traceback once.
            again, self._last = repr(error) == self._last, repr(error)
            _log.warning("the observer failed to take %s: %r", what, error, exc_info=None if again else error)


class StopSignal:
    """A request to stop gracefully at the next epoch, from any thread or a signal handler; the first one counts.

    A signal may come at any line of :meth:`wait`, in the same thread: so no lock of Python's is in it, for which the
    signal's handler would wait for ever. What wakes is a queue that is reentrant by contract.
    """

    def __init__(self) -> None:
        self._asked = False
        self._drain = False
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()

    def set(self, *, drain: bool = False) -> None:
        """Ask for the stop; with ``drain`` the operators give out what they hold, as at the end of the input."""
        if not self._asked:
            self._drain = drain
            self._asked = True
            self._wake.put(None)

    @property
    def drain(self) -> bool:
        """Whether the stop is to drain."""
        return self._drain

    @property
    def is_set(self) -> bool:
        """Whether the stop has been asked for."""
        return self._asked

    def wait(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for the request; True when it has come."""
        with suppress(queue.Empty):
            self._wake.get(timeout=timeout)
            self._wake.put(None)  # for whoever else waits
        return self._asked
