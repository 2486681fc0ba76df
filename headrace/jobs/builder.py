# ruff: noqa: A002 - id and bytes are the words of the spec
"""``headrace.Job``: jobs in Python, with SQL strings or Polars expressions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, TypeAlias

import polars as pl

from headrace.jobs.parse import parse_job
from headrace.jobs.spec import JobSpec
from operators.aggregates import Aggregate
from operators.custom import CustomOperator

Expr: TypeAlias = str | pl.Expr
DurationLike: TypeAlias = str | timedelta
Section: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Job:
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
    ) -> Job:
        """Add a source; the next step reads it."""
        section = _given(
            history=history,
            tail=tail,
            boundary=boundary,
            event_time=event_time,
            metadata=metadata,
            on_error=on_error,
            late=late,
            changelog=changelog,
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
    ) -> Job:
        """Add a table for lookups: an Iceberg table, Parquet files, or a table or query in PostgreSQL."""
        wanted = _given(table=table, parquet=parquet, snapshot=snapshot, postgres=postgres, refresh=refresh)
        return self._with(_tables={**self._tables, name: wanted})

    def sql(self, text: str) -> Job:
        """Views and queries, in place of steps."""
        return self._with(_sql=text)

    def filter(self, predicate: Expr, *, id: str | None = None, from_: str | None = None) -> Job:
        """Keep the rows for which ``predicate`` is true."""
        return self._step({"filter": predicate}, id, from_)

    def with_columns(
        self,
        columns: Mapping[str, Expr] | None = None,
        *,
        id: str | None = None,
        from_: str | None = None,
        **named: Expr,
    ) -> Job:
        """Add or replace columns."""
        return self._step({"with_columns": {**(columns or {}), **named}}, id, from_)

    def select(
        self,
        columns: Sequence[str] | Mapping[str, Expr],
        *,
        id: str | None = None,
        from_: str | None = None,
    ) -> Job:
        """Keep columns (a list), or compute exactly these (a mapping)."""
        return self._step({"select": dict(columns) if isinstance(columns, Mapping) else columns}, id, from_)

    def drop(self, *columns: str, id: str | None = None, from_: str | None = None) -> Job:
        """Leave columns out."""
        return self._step({"drop": list(columns)}, id, from_)

    def explode(
        self,
        columns: str | Sequence[str],
        *,
        keep_empty: bool | None = None,
        id: str | None = None,
        from_: str | None = None,
    ) -> Job:
        """A row for each element of a list."""
        return self._step({"explode": _given(columns=columns, keep_empty=keep_empty)}, id, from_)

    def unnest(
        self,
        columns: str | Sequence[str],
        *,
        prefix: str | None = None,
        id: str | None = None,
        from_: str | None = None,
    ) -> Job:
        """A column for each field of a struct."""
        return self._step({"unnest": _given(columns=columns, prefix=prefix)}, id, from_)

    def union(self, *streams: str, id: str | None = None) -> Job:
        """The rows of several streams as one: nodes, or ports of nodes (``NODE.PORT``)."""
        return self._step({"union": list(streams)}, id, None)

    def dedup(
        self,
        by: str | Sequence[str],
        *,
        keep: str | None = None,
        ttl: DurationLike | None = None,
        allowed_lateness: DurationLike | None = None,
        id: str | None = None,
        from_: str | None = None,
    ) -> Job:
        """Keep the first or last row of each key by event time."""
        wanted = _given(by=by, keep=keep, ttl=ttl, allowed_lateness=allowed_lateness)
        return self._step({"dedup": wanted}, id, from_)

    def top(
        self,
        n: int,
        *,
        order_by: str | Sequence[str],
        by: str | Sequence[str] | None = None,
        tumbling: DurationLike | None = None,
        rank: str | None = None,
        allowed_lateness: DurationLike | None = None,
        id: str | None = None,
        from_: str | None = None,
    ) -> Job:
        """Keep the first ``n`` rows of each window and key in an order, e.g. ``"price desc"``."""
        wanted = _given(n=n, order_by=order_by, by=by, tumbling=tumbling, rank=rank, allowed_lateness=allowed_lateness)
        return self._step({"top": wanted}, id, from_)

    def running_top(
        self,
        n: int,
        *,
        order_by: str | Sequence[str],
        by: str | Sequence[str] | None = None,
        rank: str | None = None,
        id: str | None = None,
        from_: str | None = None,
    ) -> Job:
        """Keep the first ``n`` rows of each key so far, as a changelog."""
        return self._step({"running_top": _given(n=n, order_by=order_by, by=by, rank=rank)}, id, from_)

    def over(
        self,
        compute: Mapping[str, str | Aggregate],
        *,
        by: str | Sequence[str] | None = None,
        rows: int | str | None = None,
        range: DurationLike | None = None,
        ttl: DurationLike | None = None,
        allowed_lateness: DurationLike | None = None,
        id: str | None = None,
        from_: str | None = None,
    ) -> Job:
        """Add what is computed of the rows of a key up to each row, e.g. ``{"total": "sum(x)"}``."""
        wanted = _given(
            compute=dict(compute), by=by, rows=rows, range=range, ttl=ttl, allowed_lateness=allowed_lateness
        )
        return self._step({"over": wanted}, id, from_)

    def lookup(
        self,
        table: str,
        *,
        on: str | Sequence[str],
        columns: Sequence[str] | None = None,
        how: str | None = None,
        prefix: str | None = None,
        many: bool | None = None,
        as_of: str | Section | None = None,
        id: str | None = None,
        from_: str | None = None,
    ) -> Job:
        """Join with a static table."""
        wanted = _given(table=table, on=on, columns=columns, how=how, prefix=prefix, many=many, as_of=as_of)
        return self._step({"lookup": wanted}, id, from_)

    def join(
        self,
        left: str,
        right: str,
        *,
        on: str | Sequence[str] | Mapping[str, str],
        how: str | None = None,
        within: DurationLike | Section | None = None,
        window: Section | None = None,
        as_of: str | Section | None = None,
        ttl: DurationLike | None = None,
        where: Expr | None = None,
        left_prefix: str | None = None,
        right_prefix: str | None = None,
        event_time: str | None = None,
        allowed_lateness: DurationLike | None = None,
        id: str | None = None,
    ) -> Job:
        """Join two streams: nodes, or ports of nodes (``NODE.PORT``)."""
        wanted = _given(
            left=left,
            right=right,
            on=dict(on) if isinstance(on, Mapping) else on,
            how=how,
            within=within,
            window=window,
            as_of=as_of,
            ttl=ttl,
            where=where,
            left_prefix=left_prefix,
            right_prefix=right_prefix,
            event_time=event_time,
            allowed_lateness=allowed_lateness,
        )
        return self._step({"join": wanted}, id, None)

    def aggregate(
        self,
        aggregate: Mapping[str, str | Aggregate],
        *,
        by: str | Sequence[str] | None = None,
        id: str | None = None,
        from_: str | None = None,
    ) -> Job:
        """Aggregate by key without windows; gives out a changelog."""
        return self._step({"aggregate": _given(by=by, aggregate=dict(aggregate))}, id, from_)

    def custom(
        self,
        operator: str | type[CustomOperator],
        *,
        by: str | Sequence[str] | None = None,
        order_by: str | None = None,
        args: Mapping[str, Any] | None = None,
        allowed_lateness: DurationLike | None = None,
        event_time: str | None = None,
        id: str | None = None,
        from_: str | None = None,
    ) -> Job:
        """Give rows to an operator in Python: a registered name, ``MODULE:CLASS``, or the class."""
        wanted = _given(
            operator=operator,
            by=by,
            order_by=order_by,
            args=args,
            allowed_lateness=allowed_lateness,
            event_time=event_time,
        )
        return self._step({"custom": wanted}, id, from_)

    def window(
        self,
        tumbling: DurationLike | None = None,
        *,
        aggregate: Mapping[str, str | Aggregate],
        hopping: DurationLike | None = None,
        cumulating: DurationLike | None = None,
        every: DurationLike | None = None,
        session: DurationLike | None = None,
        by: str | Sequence[str] | None = None,
        offset: DurationLike | None = None,
        time_zone: str | None = None,
        time: str | None = None,
        allowed_lateness: DurationLike | None = None,
        early: DurationLike | Section | None = None,
        id: str | None = None,
        from_: str | None = None,
    ) -> Job:
        """Aggregate by key over windows of event (or processing) time: tumbling, hopping, cumulating or session."""
        wanted = _given(
            tumbling=tumbling,
            hopping=hopping,
            cumulating=cumulating,
            every=every,
            session=session,
            offset=offset,
            time_zone=time_zone,
            time=time,
            allowed_lateness=allowed_lateness,
            early=early,
            by=by,
            aggregate=dict(aggregate),
        )
        return self._step({"window": wanted}, id, from_)

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
        target = _given(table=table, create=create, partition_by=partition_by, marker=marker, changes=changes)
        return self._with(_sinks=(*self._sinks, _given(iceberg=target, id=id) | _given_from(from_)))

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
        target = _given(topic=topic, cluster=cluster, key=key, create=create, partitions=partitions, options=options)
        return self._with(_sinks=(*self._sinks, _given(kafka=target, id=id) | _given_from(from_)))

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
        section = _given(
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
        return self._with(_state={**self._state, **_given(memory=memory, dir=dir)})

    def parallelism(self, instances: int) -> Job:
        """Say in how many instances steps with state and a key run."""
        return self._with(_parallelism=instances)

    def spec(self) -> JobSpec:
        """The checked spec.

        Raises:
            SpecError: The job is wrong; the message names the path in the job.
        """
        section = _given(name=self.name, uid=self.uid, description=self.description or None, sql=self._sql)
        return parse_job(
            section
            | {"sources": dict(self._sources), "tables": dict(self._tables)}
            | {"steps": list(self._steps), "sinks": list(self._sinks), "checkpoint": dict(self._checkpoint)}
            | ({"state": dict(self._state)} if self._state else {})
            | _given(parallelism=self._parallelism)
        )

    def _step(self, section: dict[str, Any], step_id: str | None, from_: str | None) -> Job:
        return self._with(_steps=(*self._steps, section | _given(id=step_id) | _given_from(from_)))

    def _with(self, **changes: Any) -> Job:
        job = replace(self)
        for name in ("_sources", "_tables", "_steps", "_sinks", "_checkpoint", "_state", "_parallelism", "_sql"):
            object.__setattr__(job, name, changes.get(name, getattr(self, name)))
        return job


def _given(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _given_from(from_: str | None) -> dict[str, Any]:
    return {} if from_ is None else {"from": from_}
