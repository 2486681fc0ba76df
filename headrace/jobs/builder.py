# ruff: noqa: A002 - id and bytes are the words of the spec
"""``headrace.Job``: jobs in Python, with SQL strings or Polars expressions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.jobs.builder_steps import DurationLike, Section, Steps, from_section, given
from headrace.jobs.parse import parse_job
from headrace.jobs.spec import JobSpec


@dataclass(frozen=True, slots=True)
class Job(Steps):
    """A job under construction. Immutable: every method gives a new job, as Polars does with frames.

    The sections have the keys of the YAML form (docs/job-spec.md). Nothing is checked before :meth:`spec`.

    Example:
        >>> import headrace, polars as pl
        >>> job = (
        ...     headrace.Job("counts")
        ...     .source("clicks", tail={"topic": "clicks", "schema": {"page": "string", "at": "timestamptz"}},
        ...             event_time={"column": "at", "out_of_orderness": "1m"})
        ...     .filter(pl.col("page") != "/health")
        ...     .window("1h", by=["page"], aggregate={"clicks": "count(*)"})
        ...     .sink_kafka("clicks-hourly", key="page")
        ... )
        >>> job.spec().name
        'counts'
    """

    name: str
    uid: str | None = None
    description: str = ""
    _sources: Mapping[str, Section] = field(default_factory=dict, init=False)
    _tables: Mapping[str, Section] = field(default_factory=dict, init=False)
    _steps: Sequence[Section] = field(default=(), init=False)
    _sinks: Sequence[Section] = field(default=(), init=False)
    _checkpoint: Section = field(default_factory=dict, init=False)
    _state: Section = field(default_factory=dict, init=False)
    _parallelism: int | None = field(default=None, init=False)
    _sql: str | None = field(default=None, init=False)

    def source(
        self,
        name: str,
        *,
        history: Section | None = None,
        tail: Section | None = None,
        boundary: str | Section | None = None,
        event_time: Section | None = None,
        metadata: bool | None = None,
        on_error: str | None = None,
        late: Section | None = None,
        changelog: Section | bool | None = None,
        handover: Section | None = None,
    ) -> Job:
        """Add a source; the next step reads it."""
        section = given(
            history=history,
            tail=tail,
            boundary=boundary,
            event_time=event_time,
            metadata=metadata,
            on_error=on_error,
            late=late,
            changelog=changelog,
            handover=handover,
        )
        return self._with(_sources={**self._sources, name: section})

    def table(
        self,
        name: str,
        *,
        table: str | None = None,
        parquet: str | None = None,
        snapshot: int | None = None,
        postgres: Section | None = None,
        refresh: DurationLike | None = None,
        lease: str | None = None,
    ) -> Job:
        """Add a table for lookups: an Iceberg table, Parquet files, or a table or query in PostgreSQL."""
        wanted = given(table=table, parquet=parquet, snapshot=snapshot, postgres=postgres, refresh=refresh, lease=lease)
        return self._with(_tables={**self._tables, name: wanted})

    def sql(self, text: str) -> Job:
        """Views and queries, in place of steps."""
        return self._with(_sql=text)

    def sink_iceberg(
        self,
        table: str,
        *,
        create: bool | None = None,
        partition_by: str | Sequence[str] | None = None,
        marker: DurationLike | None = None,
        changes: str | None = None,
        id: str | None = None,
        from_: str | None = None,
    ) -> Job:
        """Append to an Iceberg table; ``changes="append"`` takes a changelog, and keeps its ``_weight``."""
        target = given(table=table, create=create, partition_by=partition_by, marker=marker, changes=changes)
        return self._with(_sinks=(*self._sinks, given(iceberg=target, id=id) | from_section(from_)))

    def sink_kafka(
        self,
        topic: str,
        *,
        cluster: str | None = None,
        key: str | Sequence[str] | None = None,
        create: bool | None = None,
        partitions: int | None = None,
        options: Section | None = None,
        id: str | None = None,
        from_: str | None = None,
    ) -> Job:
        """Produce to a Kafka topic."""
        target = given(topic=topic, cluster=cluster, key=key, create=create, partitions=partitions, options=options)
        return self._with(_sinks=(*self._sinks, given(kafka=target, id=id) | from_section(from_)))

    def checkpoint(
        self,
        *,
        interval: DurationLike | None = None,
        rows: int | None = None,
        bytes: int | str | None = None,
        store: str | None = None,
        retain: int | None = None,
        timeout: DurationLike | None = None,
        tolerated_failures: int | None = None,
    ) -> Job:
        """Say when epochs end and where checkpoints are kept."""
        section = given(
            interval=interval,
            rows=rows,
            bytes=bytes,
            store=store,
            retain=retain,
            timeout=timeout,
            tolerated_failures=tolerated_failures,
        )
        return self._with(_checkpoint={**self._checkpoint, **section})

    def state(self, *, memory: int | str | None = None, dir: str | None = None) -> Job:
        """Say how much memory keyed state may take, and in which folder of a local disk the rest is kept."""
        return self._with(_state={**self._state, **given(memory=memory, dir=dir)})

    def parallelism(self, instances: int) -> Job:
        """Say in how many instances steps with state and a key run."""
        return self._with(_parallelism=instances)

    def spec(self) -> JobSpec:
        """The checked spec.

        Raises:
            SpecError: The job is wrong; the message names the path in the job.
        """
        section = given(name=self.name, uid=self.uid, description=self.description or None, sql=self._sql)
        return parse_job(
            section
            | {"sources": dict(self._sources), "tables": dict(self._tables)}
            | {"steps": list(self._steps), "sinks": list(self._sinks), "checkpoint": dict(self._checkpoint)}
            | ({"state": dict(self._state)} if self._state else {})
            | given(parallelism=self._parallelism)
        )

    def _step(self, section: dict[str, Any], step_id: str | None, from_: str | None) -> Job:
        return self._with(_steps=(*self._steps, section | given(id=step_id) | from_section(from_)))

    def _with(self, **changes: Any) -> Job:
        job = replace(self)
        for name in ("_sources", "_tables", "_steps", "_sinks", "_checkpoint", "_state", "_parallelism", "_sql"):
            object.__setattr__(job, name, changes.get(name, getattr(self, name)))
        return job
