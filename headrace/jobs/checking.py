"""Checks and plans of jobs that are to be stored: metadata only, no rows, nothing taken over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import polars as pl

from headrace.jobs.compile import CompiledJob, compile_job
from headrace.jobs.config import Config
from headrace.jobs.planning import plan_job
from headrace.jobs.seam import prove_seam
from headrace.jobs.spec import IcebergSink, JobSpec
from headrace.kernel.protocols import Json


@dataclass(frozen=True, slots=True)
class CompilingPlanner:
    """Asks the catalogs of a configuration."""

    config: Config

    def check(self, spec: JobSpec) -> None:
        """See :meth:`headrace.jobs.service.Planner.check`."""
        with self._compiled(spec):
            pass

    def columns(self, spec: JobSpec, source: str) -> Mapping[str, pl.DataType]:
        """See :meth:`headrace.jobs.service.Planner.columns`."""
        with self._compiled(spec) as job:
            return job.sources[source].schema

    def plan(self, spec: JobSpec) -> dict[str, Json]:
        """See :meth:`headrace.jobs.service.Planner.plan`."""
        with self._compiled(spec) as job:
            return plan_job(job).to_json()

    def seam(self, spec: JobSpec) -> dict[str, Json]:
        """See :meth:`headrace.jobs.service.Planner.seam`."""
        with self._compiled(spec) as job:
            return prove_seam(job).to_json()

    @contextmanager
    def _compiled(self, spec: JobSpec) -> Iterator[CompiledJob]:
        """A compiled job whose targets are there (or may be created), with its catalogs open."""
        job = compile_job(spec, self.config)
        try:
            for sink in spec.sinks:
                if not isinstance(sink, IcebergSink):
                    self.config.kafka_cluster(sink.kafka.cluster)
                elif sink.iceberg.create:
                    job.catalogs.catalog(sink.iceberg.table.split(".", 1)[0])
                else:
                    job.catalogs.load(sink.iceberg.table)
            yield job
        finally:
            job.catalogs.close()
