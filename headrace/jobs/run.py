"""Runs a job: what CLI, workers and the demo share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headrace.jobs.compile import compile_job
from headrace.jobs.config import Config
from headrace.jobs.leases import JobLeases
from headrace.jobs.spec import JobSpec
from headrace.kernel.clock import Clock
from headrace.runtime import restarts, state_fit
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
    drop_state: Sequence[str] = (),
) -> RunResult:
    """Compile a job and run it until it ends, is stopped, or fails; goes on from its last checkpoint.

    Args:
        spec: The job.
        config: Connections.
        options: How the run ends.
        observer: Told of progress, epochs and events.
        stop: Asks for a graceful stop.
        clock: Paces epochs.
        drop_state: Operators that are to begin empty, though the job has a checkpoint.

    Raises:
        HeadraceError: As :func:`headrace.jobs.compile.compile_job`, :func:`headrace.runtime.state_fit.drop_state` and
            :func:`headrace.runtime.restarts.run`.
    """
    job = compile_job(spec, config)
    try:
        store = open_store(job.store, config.object_stores)
        if drop_state:
            state_fit.drop_state(job, store, drop_state)
        options = replace(options, parallelism=options.parallelism or job.spec.parallelism)
        return restarts.run(job, store, job.policy, options, observer, stop, clock, JobLeases(job, clock), job.state)
    finally:
        job.catalogs.close()  # a process may run many jobs, and a database has few connections
