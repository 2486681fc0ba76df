"""Supervisor and real worker processes (their jobs are doubles): adoption, restart, stop, recycled pids."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.jobs.launcher import Launcher
from headrace.jobs.processes import ProcessId, find, find_with_argument, is_alive, machine, send, this_process
from headrace.jobs.records import Draft, Job
from headrace.jobs.states import TERMINAL, JobKind, JobState, StopMode
from headrace.jobs.store import JobStore
from headrace.jobs.supervisor import Policy, Supervisor

DOUBLE = Path(__file__).parents[1] / "double_worker.py"
POLICY = Policy(poll_s=0.05, stop_timeout_s=2.0, backoff_s=0.05, max_failures=3)


class Bench:
    """A store, and supervisors over it that may be thrown away as a kill would."""

    def __init__(self, folder: Path) -> None:
        url = f"sqlite:///{folder}/jobs.db"
        self.store = JobStore.connect(url)
        self.launcher = Launcher(url, folder / "logs", state=folder, command=(sys.executable, str(DOUBLE)))
        self.supervisors: list[Supervisor] = []

    def supervise(self, policy: Policy = POLICY, launcher: Launcher | None = None) -> Supervisor:
        """A new supervisor, as in a new process."""
        supervisor = Supervisor(self.store, launcher or self.launcher, policy)
        self.supervisors.append(supervisor)
        supervisor.start()
        return supervisor

    def submit(self, words: str) -> Job:
        return self.store.create(Draft(JobKind.JOB, "double", None, {"description": words})).job

    def wait(self, job_id: str, what: Callable[[Job], bool], timeout: float = 60) -> Job:
        deadline = time.monotonic() + timeout
        while True:
            job = self.store.get(job_id)
            if what(job):
                return job
            if time.monotonic() > deadline:
                raise AssertionError(f"{job} {self.store.history(job_id)} {self.launcher.log_end(job_id, job.attempt)}")
            time.sleep(0.05)

    def until(self, job_id: str, *states: JobState) -> Job:
        return self.wait(job_id, lambda job: job.state in states)

    def running(self, job_id: str) -> Job:
        return self.wait(job_id, lambda job: job.state is JobState.RUNNING and job.progress is not None)

    def states(self, job_id: str) -> list[JobState]:
        return [step.state for step in self.store.history(job_id)]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    for supervisor in made.supervisors:
        supervisor.close()
    for job in made.store.page(limit=100, after=None).jobs:
        if job.worker is not None:
            send(job.worker, signal.SIGKILL)
    for supervisor in made.supervisors:
        for child in supervisor._children:
            child.wait(60)
    made.store.database.close()


def test_a_job_runs_to_its_end(bench: Bench) -> None:
    job = bench.submit("end")
    bench.supervise()
    done = bench.until(job.id, JobState.FINISHED)
    assert bench.states(job.id) == [JobState.CREATED, JobState.STARTING, JobState.RUNNING, JobState.FINISHED]
    assert done.progress is not None
    assert (done.progress["epoch"], done.progress["records"]) == (3, 2**62)
    assert done.progress["committed"]["epoch"] == 3


def test_an_error_that_a_retry_cannot_help_fails_the_job(bench: Bench) -> None:
    job = bench.submit("fail")
    bench.supervise()
    failed = bench.until(job.id, *TERMINAL)
    assert failed.state is JobState.FAILED
    assert failed.error is not None
    assert failed.error["code"] == "TABLE_NOT_FOUND"
    assert failed.attempt == 1


@pytest.mark.parametrize(("word", "code"), [("die", "WORKER_LOST"), ("retry", "UNAVAILABLE")])
def test_restarts_are_bounded(bench: Bench, word: str, code: str) -> None:
    job = bench.submit(word)
    bench.supervise()
    failed = bench.until(job.id, *TERMINAL)
    assert failed.state is JobState.FAILED
    assert failed.error is not None
    assert failed.error["code"] == code
    assert failed.attempt == POLICY.max_failures
    delays = [POLICY.backoff_us(n) for n in range(1, 20)]
    assert delays == sorted(delays)
    assert delays[-1] == POLICY.backoff_limit_s * 1e6


def test_a_fenced_job_stays_fenced(bench: Bench) -> None:
    job = bench.submit("fence")
    bench.supervise()
    assert bench.until(job.id, *TERMINAL).state is JobState.FENCED


def test_a_killed_worker_is_restarted(bench: Bench) -> None:
    job = bench.submit("forever")
    bench.supervise()
    first = bench.running(job.id)
    assert first.worker is not None
    os.kill(first.worker.pid, signal.SIGKILL)
    second = bench.wait(job.id, lambda now: now.attempt == 2 and now.state is JobState.RUNNING)
    assert second.worker != first.worker
    assert second.nonce != first.nonce
    assert JobState.RETRYING in bench.states(job.id)
    bench.wait(job.id, lambda now: now.failures == 0)


def test_a_worker_outlives_its_supervisor_and_is_adopted(bench: Bench) -> None:
    job = bench.submit("forever")
    bench.supervise().close()
    bench.supervise().close()
    bench.supervise()
    first = bench.running(job.id)
    bench.supervisors[-1].close()
    bench.supervise()
    deadline = time.monotonic() + 1
    while time.monotonic() < deadline:
        now = bench.store.get(job.id)
        assert (now.worker, now.state, now.attempt) == (first.worker, JobState.RUNNING, 1)
        time.sleep(0.1)


def test_a_worker_that_was_never_started_is_started_by_the_next_supervisor(bench: Bench) -> None:
    """The service died between the compare-and-set and the start of the process."""
    job = bench.submit("end")
    assert bench.store.transition(job, JobState.STARTING, "attempt 1", nonce="lost", attempt=1) is not None
    bench.supervise()
    assert bench.until(job.id, *TERMINAL).state is JobState.FINISHED


def test_a_late_worker_of_an_earlier_attempt_is_turned_away(bench: Bench) -> None:
    job = bench.submit("forever")
    assert bench.store.transition(job, JobState.STARTING, "attempt 1", nonce="old", attempt=1) is not None
    bench.supervise()
    bench.running(job.id)
    late = bench.launcher.start(job.id, 1, "old")
    assert late.wait(60) == 5
    assert bench.store.get(job.id).state is JobState.RUNNING


@pytest.mark.parametrize("mode", list(StopMode))
def test_a_stop_is_graceful(bench: Bench, mode: StopMode) -> None:
    job = bench.submit("forever")
    supervisor = bench.supervise()
    bench.running(job.id)
    bench.store.request_stop(job.id, mode)
    supervisor.wake()
    stopped = bench.until(job.id, *TERMINAL)
    assert stopped.state is JobState.STOPPED
    assert not stopped.killed
    last = bench.store.history(job.id)[-1]
    assert ("drained" if mode is StopMode.DRAIN else "suspended") in last.reason


def test_a_deaf_worker_is_killed_after_the_timeout(bench: Bench) -> None:
    job = bench.submit("forever deaf")
    bench.supervise()
    running = bench.running(job.id)
    bench.store.request_stop(job.id, StopMode.SUSPEND)
    stopped = bench.until(job.id, *TERMINAL)
    assert stopped.state is JobState.STOPPED
    assert stopped.killed
    assert running.worker is not None
    assert not is_alive(running.worker)


@pytest.mark.parametrize("state", [JobState.CREATED, JobState.STARTING, JobState.RUNNING, JobState.RETRYING])
def test_a_job_that_is_to_stop_is_never_started_again(bench: Bench, state: JobState) -> None:
    job = bench.submit("forever")
    gone = ProcessId(machine(), this_process().pid, "1")
    if state is not JobState.CREATED:
        moved = bench.store.transition(job, JobState.STARTING, "attempt 1", nonce="lost", attempt=1)
        assert moved is not None
        if state is not JobState.STARTING:
            running = bench.store.register(job.id, "lost", gone)
            assert running is not None
            if state is JobState.RETRYING:
                assert bench.store.transition(running, JobState.RETRYING, "lost") is not None
    bench.store.request_stop(job.id, StopMode.SUSPEND)
    before = bench.store.get(job.id).attempt
    bench.supervise()
    stopped = bench.until(job.id, *TERMINAL)
    assert stopped.state is JobState.STOPPED
    assert stopped.attempt == before


def test_a_recycled_pid_is_not_taken_for_the_worker(bench: Bench) -> None:
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    try:
        there = find(bystander.pid)
        assert there is not None
        job = bench.submit("forever")
        assert bench.store.transition(job, JobState.STARTING, "attempt 1", nonce="old", attempt=1) is not None
        recycled = ProcessId(there.machine, there.pid, str(int(there.started) - 1))
        assert bench.store.register(job.id, "old", recycled) is not None
        bench.store.request_stop(job.id, StopMode.SUSPEND)
        bench.supervise()
        assert bench.until(job.id, *TERMINAL).state is JobState.STOPPED
        assert not send(recycled, signal.SIGKILL)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_worker_stopped_from_outside_goes_on(bench: Bench) -> None:
    job = bench.submit("forever")
    bench.supervise()
    first = bench.running(job.id)
    assert first.worker is not None
    send(first.worker, signal.SIGTERM)
    second = bench.wait(job.id, lambda now: now.attempt == 2 and now.state is JobState.RUNNING)
    assert second.failures == 0


def test_only_one_supervisor_acts(bench: Bench) -> None:
    first, second = bench.supervise(), bench.supervise()
    jobs = [bench.submit("end") for _ in range(3)]
    for job in jobs:
        assert bench.until(job.id, *TERMINAL).attempt == 1
    assert [first.active, second.active].count(True) == 1


def test_a_program_that_cannot_start_fails_the_job(bench: Bench, tmp_path: Path) -> None:
    launcher = Launcher("sqlite:///x.db", tmp_path / "logs", command=("/nowhere/python",))
    job = bench.submit("end")
    bench.supervise(launcher=launcher)
    failed = bench.until(job.id, *TERMINAL)
    assert failed.state is JobState.FAILED
    assert failed.error is not None
    assert failed.error["code"] == "DEPENDENCY_MISSING"


def test_zombies_are_dead() -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    named = find(child.pid)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert find(child.pid) is None
    assert named is None or is_alive(named) is False
    child.wait()
    assert find_with_argument("no such argument anywhere") is None
    assert is_alive(ProcessId("elsewhere", 1, "1")) is None
    with contextlib.suppress(ProcessLookupError):
        assert not send(ProcessId(machine(), child.pid, "1"), signal.SIGTERM)
