"""Runs a job as it stands in the store. Imported by a worker after it has reported."""

from __future__ import annotations

from headrace.jobs.backfill import restrict
from headrace.jobs.config import Config
from headrace.jobs.parse import parse_job
from headrace.jobs.records import Job
from headrace.jobs.run import run_job
from headrace.kernel.until import parse_until
from headrace.runtime.job import RunOptions, RunResult
from headrace.runtime.observer import Observer, StopSignal


def run_stored(job: Job, config: Config, observer: Observer, stop: StopSignal) -> RunResult:
    """Run a stored job, or what is left of it.

    Raises:
        HeadraceError: As :func:`headrace.jobs.run.run_job`.
    """
    spec = parse_job(job.spec)
    if job.backfill is not None:
        spec = restrict(spec, job.backfill["restriction"])
    options = RunOptions(parse_until(job.until), job.on_end.value)
    return run_job(spec, config, options, observer, stop)
