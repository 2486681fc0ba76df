"""Keeps stored jobs and worker processes in step.

One loop compares what the store wants with what lives, job by job, and takes the one step that is due. It holds no
state that it needs: killed at any line, the next supervisor reads the store, adopts the workers that live, restarts
those that do not from their checkpoints, and ends the jobs that were to stop. Doing a step twice is harmless: each is a
compare-and-set in the store, and a worker that was replaced is fenced by its job's head.
"""

from __future__ import annotations

import logging
import secrets
import signal
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headrace.jobs.launcher import Launcher
from headrace.jobs.lease import Lease
from headrace.jobs.processes import find_with_argument, is_alive, send
from headrace.jobs.records import Job
from headrace.jobs.states import Desired, JobState
from headrace.jobs.store import JobStore
from headrace.kernel.clock import Clock, SystemClock
from headrace.kernel.errors import ExternalError, HeadraceError, UnavailableError
from headrace.kernel.protocols import Json

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Policy:
    """When a supervisor loses patience. Seconds.

    Attributes:
        poll_s: Between two looks at the store.
        start_timeout_s: Until a started worker must have reported.
        heartbeat_timeout_s: Until a worker that cannot be seen (another machine, an earlier boot) counts as dead.
        stop_timeout_s: Until a worker that was asked to stop is killed, which is safe: its last epoch stands.
        backoff_s: Before the first restart; doubled with each further failure.
        backoff_limit_s: At most.
        max_failures: So many failures without one committed epoch between them fail the job.
    """

    poll_s: float = 0.5
    start_timeout_s: float = 120.0
    heartbeat_timeout_s: float = 60.0
    stop_timeout_s: float = 120.0
    backoff_s: float = 1.0
    backoff_limit_s: float = 60.0
    max_failures: int = 8

    def backoff_us(self, failures: int) -> int:
        """The delay before the next start, after so many failures in a row."""
        return int(min(self.backoff_s * 2 ** (failures - 1), self.backoff_limit_s) * 1e6) if failures else 0


class Supervisor:
    """Supervises all jobs of a store, while this process holds the lease.

    Args:
        store: The jobs.
        launcher: Starts workers.
        policy: Timeouts and restarts.
        clock: Time.
    """

    def __init__(
        self, store: JobStore, launcher: Launcher, policy: Policy | None = None, clock: Clock | None = None
    ) -> None:
        self._store = store
        self._launcher = launcher
        self._policy = policy or Policy()
        self._clock = clock or SystemClock()
        self._lease = Lease(store.database, self._clock)
        self._children: list[subprocess.Popen[bytes]] = []
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def active(self) -> bool:
        """Whether this process supervises; False: another one does, this one stands by."""
        return self._lease.held

    @property
    def working(self) -> bool:
        """Whether the supervising thread lives, active or standing by."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Supervise in a thread, from now on."""
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Something has changed: look at once."""
        self._wake.set()

    def close(self) -> None:
        """Stop supervising. The workers go on; whoever supervises next adopts them."""
        self._closing.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        try:
            self._lease.release()
        except ExternalError as error:
            _log.warning("lease not given up, it runs out by itself: %s", error)

    def step(self) -> None:
        """Renew the lease; if it is held, bring every active job one step on.

        Raises:
            HeadraceError: The store does not answer.
        """
        if self._lease.renew():
            for job in self._store.active():
                if not self._lease.held:
                    break
                self._reconcile_alone(job)
        self._reap()

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self.step()
            except HeadraceError:
                _log.exception("supervision step failed, next try in %s s", self._policy.poll_s)
            self._wake.wait(self._policy.poll_s)
            self._wake.clear()

    def _reap(self) -> None:
        """Children that have ended must not stay zombies."""
        self._children = [child for child in self._children if child.poll() is None]

    def _reconcile_alone(self, job: Job) -> None:
        """One job's trouble is not the others'."""
        try:
            self._reconcile(job)
        except HeadraceError:
            _log.exception("job %s was not looked after, next try in %s s", job.id, self._policy.poll_s)

    def _reconcile(self, job: Job) -> None:
        match job.state:
            case JobState.CREATED | JobState.PLANNED:
                if not self._stopped_without_worker(job):
                    self._launch(job)
            case JobState.STARTING:
                self._await_report(job)
            case JobState.RUNNING:
                self._watch(job)
            case JobState.RETRYING:
                self._retry(job)
            case _:
                self._finish_stop(job)

    # ------------------------------------------------------------------------------------------------- starting

    def _launch(self, job: Job) -> None:
        """The store is told first: a worker that it does not expect cannot register."""
        nonce = secrets.token_hex(8)
        started = self._store.transition(
            job,
            JobState.STARTING,
            f"attempt {job.attempt + 1}",
            nonce=nonce,
            attempt=job.attempt + 1,
            start_after_us=None,
            worker_machine=None,
            worker_pid=None,
            worker_started=None,
        )
        if started is None:
            return
        try:
            self._children.append(self._launcher.start(job.id, started.attempt, nonce))
        except HeadraceError as error:
            self._failed(started, error.to_dict())

    def _await_report(self, job: Job) -> None:
        """A worker that is not there was never started (the service died first), or ended before it could report."""
        self._reap()
        worker = find_with_argument(job.nonce or "")
        if job.desired is Desired.STOP:
            if self._stopped_without_worker(job) and worker is not None:
                send(worker, signal.SIGKILL)
        elif worker is None:
            self._failed(job, self._lost(job, "worker ended before it reported"))
        elif self._elapsed_s(job.state_since_us) > self._policy.start_timeout_s:
            send(worker, signal.SIGKILL)
            self._failed(job, self._lost(job, "worker did not report in time"))

    def _retry(self, job: Job) -> None:
        if self._stopped_without_worker(job):
            return
        if job.start_after_us is None:
            self._schedule(job, job.error)
        elif self._clock.now_us() >= job.start_after_us:
            self._launch(job)

    # -------------------------------------------------------------------------------------------------- running

    def _watch(self, job: Job) -> None:
        if not self._alive(job):
            if not self._stopped_without_worker(job):
                self._failed(job, self._lost(job, "worker ended without a word"))
        elif job.desired is Desired.STOP:
            stopping = self._store.transition(job, JobState.STOPPING, f"stop requested: {job.stop_mode}")
            if stopping is not None and job.worker is not None:
                send(job.worker, signal.SIGTERM)

    def _finish_stop(self, job: Job) -> None:
        if not self._alive(job):
            how = "worker killed after the stop timeout" if job.killed else "worker ended before it had stopped"
            self._store.transition(job, JobState.STOPPED, f"{how}; the last checkpoint stands")
        elif self._elapsed_s(job.state_since_us) > self._policy.stop_timeout_s and job.worker is not None:
            self._store.annotate(job, killed=True)
            send(job.worker, signal.SIGKILL)

    def _alive(self, job: Job) -> bool:
        if job.worker is None:
            return False
        seen = is_alive(job.worker)
        if seen is None:
            return self._elapsed_s(job.heartbeat_us or 0) < self._policy.heartbeat_timeout_s
        return seen

    # --------------------------------------------------------------------------------------------------- endings

    def _stopped_without_worker(self, job: Job) -> bool:
        """A job that is to stop and has no worker stops here, and is never started again."""
        if job.desired is not Desired.STOP:
            return False
        self._store.transition(job, JobState.STOPPED, "stopped without a worker; the last checkpoint stands")
        return True

    def _failed(self, job: Job, error: Mapping[str, Json]) -> None:
        retrying = self._store.transition(job, JobState.RETRYING, str(error["message"]), error=error)
        if retrying is not None:
            self._schedule(retrying, error)

    def _schedule(self, job: Job, error: Mapping[str, Json] | None) -> None:
        """The next start, or the end of patience. A worker that was stopped from outside (no error) costs none."""
        failures = job.failures + (error is not None)
        if error is not None and failures >= self._policy.max_failures:
            reason = f"gave up after {failures} failures without a committed epoch"
            self._store.transition(job, JobState.FAILED, reason, failures=failures)
            return
        after = self._clock.now_us() + (self._policy.backoff_us(failures) if error is not None else 0)
        self._store.annotate(job, failures=failures, start_after_us=after)

    def _lost(self, job: Job, what: str) -> dict[str, Json]:
        return UnavailableError(
            what,
            detail=self._launcher.log_end(job.id, job.attempt),
            hint=f"see {self._launcher.log_path(job.id, job.attempt)}",
            code="WORKER_LOST",
            context={"job_id": job.id, "attempt": job.attempt},
        ).to_dict()

    def _elapsed_s(self, since_us: int) -> float:
        return (self._clock.now_us() - since_us) / 1e6
