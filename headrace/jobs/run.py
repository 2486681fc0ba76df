"""Runs a job: what CLI, workers and the demo share."""

from __future__ import annotations

from headrace.jobs.compile import compile_job
from headrace.jobs.config import Config
from headrace.jobs.leases import JobLeases
from headrace.jobs.spec import JobSpec
from headrace.kernel.clock import Clock
from headrace.runtime import restarts
from headrace.runtime.job import RunOptions, RunResult
from headrace.runtime.observer import Observer, StopSignal
from headrace.state.stores import open_store


def run_job(
    spec: JobSpec,
    config: Config,
    options: RunOptions,
    observer: Observer,
    stop: StopSignal,
    clock: Clock | None = None,
) -> RunResult:
    """Compile a job and run it until it ends, is stopped, or fails; goes on from its last checkpoint.

    Raises:
        HeadraceError: As :func:`headrace.jobs.compile.compile_job` and :func:`headrace.runtime.restarts.run`.
    """
    job = compile_job(spec, config)
    store = open_store(job.store, config.object_stores)
    return restarts.run(job, store, job.policy, options, observer, stop, clock, JobLeases(job, clock))
