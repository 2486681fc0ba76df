"""The worker process: runs one stored job under the eyes of the supervisor.

``python -m headrace.jobs.worker --job-id ID --nonce NONCE [--config PATH] [--state PATH] [--store URL]``

It takes the job up (a compare-and-set on its nonce), reports about once a second, stops gracefully when the store or a
SIGTERM says so, writes the outcome and ends with its exit code.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final, TypeAlias

from headrace.jobs.config import Config, load_config
from headrace.jobs.launcher import STORE_VARIABLE
from headrace.jobs.processes import this_process
from headrace.jobs.records import Job, Orders
from headrace.jobs.states import JobState, StopMode
from headrace.jobs.store import JobStore
from headrace.kernel.doorbell import Doorbell
from headrace.kernel.errors import (
    ConfigError,
    ExitCode,
    ExternalError,
    FencedError,
    HeadraceError,
    InternalError,
)
from headrace.kernel.protocols import Json
from headrace.runtime.observer import EpochReport, Event, Level, Observer, Phase, Progress, StopSignal

if TYPE_CHECKING:
    # Not at run time: a worker reports to the supervisor before it loads the engine.
    from headrace.runtime.job import RunResult

_log: Final = logging.getLogger(__name__)
HEARTBEAT_S: Final = 1.0
LAST_WORD_S: Final = 60.0
_LEVELS: Final = {Level.INFO: logging.INFO, Level.WARNING: logging.WARNING, Level.ERROR: logging.ERROR}

RunStored: TypeAlias = Callable[[Job, Config, Observer, StopSignal], "RunResult"]
"""Runs a stored job."""


class Reporter:
    """An observer that keeps the newest facts for the next heartbeat.

    Args:
        wake: Makes the next heartbeat come at once. A committed epoch is told without delay: a worker that dies after
            each one still moves its job on, and must not be counted as one that moves nothing.
    """

    def __init__(self, wake: Doorbell) -> None:
        self._wake = wake
        self._lock = threading.Lock()
        self._facts: dict[str, Json] = {}
        self._changed = False
        self._advanced = False

    def on_progress(self, progress: Progress) -> None:
        """See :meth:`Observer.on_progress`."""
        with self._lock:
            self._facts.update(progress.to_json())
            self._changed = True

    def on_epoch(self, report: EpochReport) -> None:
        """See :meth:`Observer.on_epoch`."""
        with self._lock:
            self._facts["committed"] = report.to_json()
            self._changed = self._advanced = True
        self._wake.ring()

    def on_event(self, event: Event) -> None:
        """See :meth:`Observer.on_event`."""
        _log.log(_LEVELS[event.level], "%s: %s %s", event.code, event.message, dict(event.context))

    def on_result(self, result: RunResult) -> None:
        """The run's own count at its end; the last progress may be a second old."""
        with self._lock:
            self._facts |= {
                "phase": Phase.FINISHED.value if result.status == "finished" else self._facts.get("phase"),
                "epoch": result.epoch,
                "records": result.records,
                "rows_out": dict(result.rows_out),
                "late_rows": result.late_rows,
                "error_rows": result.error_rows,
            }
            self._changed = True

    def take(self) -> tuple[Mapping[str, Json] | None, bool]:
        """What is new since the last call: progress (None: nothing), and whether an epoch was committed."""
        with self._lock:
            facts = dict(self._facts) if self._changed else None
            advanced, self._changed, self._advanced = self._advanced, False, False
            return facts, advanced


class Heart:
    """Reports to the store from a thread of its own, and turns its orders into the stop signal."""

    def __init__(
        self, store: JobStore, job_id: str, nonce: str, reporter: Reporter, stop: StopSignal, wake: Doorbell
    ) -> None:
        self._store = store
        self._job_id = job_id
        self._nonce = nonce
        self._reporter = reporter
        self._stop = stop
        self._wake = wake
        self._closing = False
        self._terminated = False
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self.orders: Orders | None = Orders(stop=False, mode=None)
        """The last orders; None once the job belongs to somebody else."""

    def start(self) -> None:
        """Begin, and listen to SIGTERM."""
        signal.signal(signal.SIGTERM, self._on_term)
        self._thread.start()

    def close(self) -> None:
        """Report a last time, and end."""
        self._closing = True
        self._wake.ring()
        self._thread.join()

    def _on_term(self, _signum: int, _frame: FrameType | None) -> None:
        self._terminated = True
        self._wake.ring()

    def _run(self) -> None:
        while True:
            closing = self._closing
            self._beat()
            if closing:
                return
            self._wake.wait(HEARTBEAT_S)

    def _beat(self) -> None:
        terminated = self._terminated
        facts, advanced = self._reporter.take()
        try:
            self.orders = self._store.heartbeat(self._job_id, self._nonce, facts, advanced=advanced)
        except ExternalError as error:
            # The job itself needs no store: it goes on, and what was not told now is told later.
            _log.warning("heartbeat failed: %s", error)
        if self.orders is None or self.orders.stop or terminated:
            drain = self.orders is not None and self.orders.mode is StopMode.DRAIN
            self._stop.set(drain=drain)


def work(store: JobStore, job: Job, nonce: str, load: Callable[[], Config], run: RunStored) -> ExitCode:
    """Run a job that this process has taken up, and write the outcome."""
    stop, wake = StopSignal(), Doorbell()
    reporter = Reporter(wake)
    heart = Heart(store, job.id, nonce, reporter, stop, wake)
    heart.start()
    try:
        result = run(job, load(), reporter, stop)
    except HeadraceError as error:
        outcome = _error_outcome(error)
    except Exception as error:  # noqa: BLE001 - the process ends here: mapped, logged and stored
        _log.exception("job %s failed", job.id)
        outcome = _error_outcome(InternalError(f"worker failed: {error!r}", hint="see the worker's log"))
    else:
        outcome = _run_outcome(result, stop, heart.orders)
        reporter.on_result(result)
    heart.close()
    state, reason, error_json, code = outcome
    _log.info("job %s: %s, %s", job.id, state, reason)
    if not _conclude(store, job.id, nonce, state, reason, error_json):
        _log.warning("the outcome was not taken: job %s is over or belongs to another worker", job.id)
    return code


Outcome: TypeAlias = tuple[JobState, str, Mapping[str, Json] | None, ExitCode]


def _run_outcome(result: RunResult, stop: StopSignal, orders: Orders | None) -> Outcome:
    drained = stop.is_set and stop.drain
    if not stop.is_set or (result.status == "finished" and not drained):
        return JobState.FINISHED, f"input ended at epoch {result.epoch}", None, ExitCode.OK
    if orders is not None and orders.stop:
        how = "drained" if drained else "suspended"
        return JobState.STOPPED, f"{how} at epoch {result.epoch}", None, ExitCode.OK
    return JobState.RETRYING, f"worker was stopped from outside at epoch {result.epoch}", None, ExitCode.OK


def _error_outcome(error: HeadraceError) -> Outcome:
    if isinstance(error, FencedError):
        state = JobState.FENCED
    else:
        state = JobState.RETRYING if error.retryable else JobState.FAILED
    return state, error.message, error.to_dict(), error.exit_code


def _conclude(
    store: JobStore, job_id: str, nonce: str, state: JobState, reason: str, error: Mapping[str, Json] | None
) -> bool:
    """Write the outcome, through short outages. Without it the job runs again, which commits nothing twice."""
    pause = threading.Event()
    tries = int(LAST_WORD_S / HEARTBEAT_S)
    for attempt in range(1, tries + 1):
        try:
            return store.conclude(job_id, nonce, state, reason, error=error)
        except ExternalError:
            if attempt == tries:
                raise
            pause.wait(HEARTBEAT_S)
    return False


def main(arguments: Sequence[str] | None = None, run: RunStored | None = None) -> int:
    """The program. ``run`` replaces what runs the job (for tests)."""
    parser = argparse.ArgumentParser(prog="headrace.jobs.worker")
    parser.add_argument("--job-id", required=True)
    parser.add_argument("--nonce", required=True)
    parser.add_argument("--config", type=Path)
    parser.add_argument("--state", type=Path)
    parser.add_argument("--store", help=f"URL of the job store; {STORE_VARIABLE} if not given")
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("pyiceberg").setLevel(logging.WARNING)
    try:
        store = _open(given.store or os.environ.get(STORE_VARIABLE))
        job = store.register(given.job_id, given.nonce, this_process())
        if job is None:
            raise FencedError(f"job {given.job_id} does not wait for this worker", detail="it was stopped or restarted")
        load = partial(load_config, given.config, state_path=given.state)
        return work(store, job, given.nonce, load, run or _run_stored())
    except HeadraceError as error:
        _log.error("%s", error)
        return error.exit_code


def _open(url: str | None) -> JobStore:
    if not url:
        raise ConfigError("no job store is named", hint=f"set {STORE_VARIABLE} or give --store")
    return JobStore.connect(url)


def _run_stored() -> RunStored:
    from headrace.jobs.stored import run_stored

    return run_stored


if __name__ == "__main__":
    sys.exit(main())
