"""Runs a job: takes the head, runs attempts, recovers from what a retry can help, stops for good when fenced."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Final, Literal
from uuid import uuid4

from headrace.kernel.clock import Clock, SystemClock
from headrace.kernel.errors import (
    ExternalError,
    FencedError,
    HeadraceError,
    SupersededError,
    TransactionAbortedError,
    UnavailableError,
)
from headrace.runtime.collector import quiet_collector
from headrace.runtime.engine import Attempt
from headrace.runtime.job import CheckpointPolicy, Leases, NoLeases, Program, RunOptions, RunResult
from headrace.runtime.observer import Event, GuardedObserver, Level, Observer, StopSignal
from headrace.runtime.progress import Meter
from headrace.state.backend import StateOptions
from headrace.state.checkpoint import CheckpointStore
from headrace.state.stores import JobStore

FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0


@quiet_collector()
def run(
    program: Program,
    store: JobStore,
    policy: CheckpointPolicy,
    options: RunOptions,
    observer: Observer,
    stop: StopSignal,
    clock: Clock | None = None,
    leases: Leases | None = None,
    state: StateOptions | None = None,
) -> RunResult:
    """Run a job until it ends, is stopped, or fails.

    Exactly-once: whatever the outcome, and wherever the process dies, the sinks show each committed epoch once, and
    the next run goes on from the head.

    Raises:
        FencedError: Another instance has taken the job over; nothing more was committed.
        HeadraceError: The job failed; what was decided is committed by the next run.
    """
    clock = clock or SystemClock()
    owner = uuid4().hex
    observer = GuardedObserver(observer)
    checkpoints = CheckpointStore(store, program.uid)
    meter = Meter()
    restarts = failures = epoch = 0
    while True:
        attempt: Attempt | None = None
        try:
            head, record = checkpoints.acquire(owner, expected=owner if restarts else None)
            epoch = record.epoch if record else 0
            meter.begin_attempt()
            attempt = Attempt(
                program,
                checkpoints,
                head,
                record,
                blobs=store.blobs,
                policy=policy,
                options=options,
                observer=observer,
                stop=stop,
                clock=clock,
                meter=meter,
                leases=leases or NoLeases(),
                state=state or StateOptions(),
            )
            finished = attempt.run()
        except HeadraceError as error:
            if attempt is None and not restarts:
                raise
            with suppress(ExternalError):  # a store that does not answer is asked again before the next attempt
                checkpoints.check_owner(owner)
            failures = 1 if attempt is not None and attempt.epochs_done else failures + 1
            # What does not answer when a run begins is for the user, or a supervisor, to know at once.
            opened = attempt is not None and attempt.opened
            never_ran = not restarts and not opened and isinstance(error, UnavailableError)
            if never_ran or not _recoverable(error) or failures > policy.tolerated_failures:
                raise
            epoch = attempt.epoch if attempt else epoch
            pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (failures - 1)) * random.uniform(0.5, 1.0)  # noqa: S311
            if _stopped(stop, pause, error, observer):
                return _result("suspended", epoch, meter, restarts)
            restarts += 1
        else:
            return _result("finished" if finished else "suspended", attempt.epoch, meter, restarts)


def _stopped(stop: StopSignal, pause: float, error: HeadraceError, observer: Observer) -> bool:
    """Wait before the next attempt; True when a stop is asked for before or meanwhile."""
    if not stop.is_set:
        text = f"recovering from the last checkpoint in {pause:.1f} s"
        observer.on_event(Event(Level.WARNING, "restart", text, error.to_dict()))
    if not stop.wait(pause):
        return False
    text = f"stopped at the last checkpoint after a failure: {error.message}"
    observer.on_event(Event(Level.WARNING, "stopped-after-failure", text, error.to_dict()))
    return True


def _result(status: Literal["finished", "suspended"], epoch: int, meter: Meter, restarts: int) -> RunResult:
    return RunResult(status, epoch, meter.records, dict(meter.rows_out), meter.late_rows, meter.error_rows, restarts)


def _recoverable(error: HeadraceError) -> bool:
    # The head is still ours, so what looked like a fence was a transaction that the broker timed out; but a target that
    # belongs to another lineage is not decided by our head.
    if isinstance(error, SupersededError):
        return False
    return error.retryable or isinstance(error, FencedError | TransactionAbortedError)
