"""Checks and plans of jobs that are to be stored: metadata only, no rows, nothing taken over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from headrace.jobs.compile import compile_job
from headrace.jobs.config import Config
from headrace.jobs.planning import plan_job
from headrace.jobs.spec import JobSpec
from headrace.kernel.protocols import Json


@dataclass(frozen=True, slots=True)
class CompilingPlanner:
    """Asks the catalogs of a configuration."""

    config: Config

    def check(self, spec: JobSpec) -> None:
        """See :meth:`headrace.jobs.service.Planner.check`."""
        compile_job(spec, self.config)

    def columns(self, spec: JobSpec, source: str) -> Mapping[str, pl.DataType]:
        """See :meth:`headrace.jobs.service.Planner.columns`."""
        return compile_job(spec, self.config).sources[source].schema

    def plan(self, spec: JobSpec) -> dict[str, Json]:
        """See :meth:`headrace.jobs.service.Planner.plan`."""
        return plan_job(compile_job(spec, self.config)).to_json()
