"""Steps of a spec as operators, and the static tables that they join with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias, assert_never

import polars as pl

from catalog.catalogs import Catalogs
from headrace.jobs.config import Config
from headrace.jobs.graph import StepNode
from headrace.jobs.spec_custom import CustomStep
from headrace.jobs.spec_joins import JoinStep
from headrace.jobs.spec_over import OverStep
from headrace.jobs.spec_steps import (
    AggregateStep,
    CumulatingSpec,
    DedupStep,
    DropStep,
    ExplodeStep,
    FilterStep,
    HoppingSpec,
    LookupSpec,
    LookupStep,
    RunningTopStep,
    SelectStep,
    SessionSpec,
    StatelessStep,
    TimedStep,
    TopStep,
    UnionStep,
    UnnestStep,
    WindowStep,
    WithColumnsStep,
)
from headrace.jobs.spec_tables import AnyTable, IcebergTable, PostgresTable
from headrace.jobs.values import pairs_of
from headrace.kernel.errors import InternalError
from headrace.kernel.protocols import LookupTable, StatefulOperator, Transform
from hybrid_source.lookup import IcebergLookup, ParquetLookup
from hybrid_source.postgres_lookup import PostgresLookup
from hybrid_source.refreshed_table import RefreshedTable
from operators.asof import AsofJoin
from operators.dedup import Dedup
from operators.early_window import EarlyWindow
from operators.keyed_aggregate import KeyedAggregate
from operators.lookup import LookupJoin
from operators.nested import Explode, Unnest
from operators.over import Over
from operators.processing_window import PROCESSING_TIME, ProcessingTimeWindow
from operators.refreshed_lookup import RefreshedLookup
from operators.running_top import RunningTop
from operators.session import SessionWindow
from operators.settled import Settled
from operators.stateless import Drop, Filter, Select, WithColumns
from operators.top import TopN
from operators.window import CumulatingWindow, HoppingWindow, TumblingWindow
from operators.windowed import WindowOperator

TableRows: TypeAlias = pl.DataFrame | RefreshedTable
"""A lookup table's rows: pinned, or as they are at the time."""


def build_step(
    node: StepNode, event_time: str | None, tables: Mapping[str, TableRows], *, changes: bool, revised: bool
) -> Transform | StatefulOperator:
    """The operator of a step: stateful for windows and aggregates, a transform for everything else.

    Args:
        node: The step, resolved.
        event_time: Event-time column of the rows that it reads.
        tables: The tables of lookups by name.
        changes: These rows are a changelog.
        revised: One that takes rows back whose time may have passed.
    """
    step = node.step
    if isinstance(step, AggregateStep):
        return KeyedAggregate(node.id, step.aggregate.aggregate, step.aggregate.by, event_time)
    if isinstance(step, RunningTopStep):
        first = step.running_top
        return RunningTop(node.id, first.n, first.order, first.by, first.rank, event_time)
    if isinstance(step, JoinStep | CustomStep):
        raise InternalError(f"{node.kind} {node.id!r} is built by the compiler, which knows schemas and configuration")
    if not isinstance(step, TimedStep):
        return _transform(node.id, step, event_time, tables)
    built = _timed(node.id, step, event_time, revised=revised)
    return _settled(built, step, event_time, revised=revised) if changes else built


def _timed(node_id: str, step: TimedStep, event_time: str | None, *, revised: bool) -> StatefulOperator:
    if isinstance(step, WindowStep) and step.window.time == "processing":
        return ProcessingTimeWindow(_window(node_id, step, PROCESSING_TIME, revised=False))
    if event_time is None:
        raise InternalError(f"step {node_id!r} without event time passed the spec's checks")
    if isinstance(step, DedupStep):
        spec = step.dedup
        return Dedup(node_id, event_time, spec.by, spec.keep, spec.ttl, spec.allowed_lateness)
    if isinstance(step, OverStep):
        over = step.over
        return Over(node_id, event_time, over.compute, over.by, over.frame, over.ttl, over.allowed_lateness)
    if isinstance(step, TopStep):
        top = step.top
        return TopN(node_id, event_time, top.n, top.order, top.by, top.tumbling, top.rank, top.allowed_lateness)
    window = _window(node_id, step, event_time, revised=revised)
    return window if step.window.early is None else EarlyWindow(window, step.window.early.every)


def _settled(built: StatefulOperator, step: TimedStep, event_time: str | None, *, revised: bool) -> StatefulOperator:
    """An operator over a changelog: one that gives rows out once waits until what it reads has settled."""
    size = 1
    match step:
        case DedupStep():
            by, lateness = step.dedup.by, step.dedup.allowed_lateness
        case OverStep():
            by, lateness = step.over.by, step.over.allowed_lateness
        case TopStep():
            by, lateness, size = step.top.by, step.top.allowed_lateness, step.top.tumbling or 1
        case WindowStep() if isinstance(step.window, SessionSpec):
            by, lateness = step.window.by, step.window.allowed_lateness
        case _:
            return built
    if event_time is None:
        raise InternalError(f"step {built.id!r} without event time passed the spec's checks")
    return Settled(built, event_time, by, lateness, size, revised)


def _transform(node_id: str, step: StatelessStep, event_time: str | None, tables: Mapping[str, TableRows]) -> Transform:
    built: Transform
    match step:
        case FilterStep():
            built = Filter(node_id, step.filter)
        case WithColumnsStep():
            built = WithColumns(node_id, step.with_columns)
        case SelectStep():
            built = Select(node_id, step.select)
        case DropStep():
            built = Drop(node_id, step.drop)
        case ExplodeStep():
            built = Explode(node_id, step.explode.columns, keep_empty=step.explode.keep_empty)
        case UnnestStep():
            built = Unnest(node_id, step.unnest.columns, step.unnest.prefix)
        case LookupStep():
            built = _lookup(node_id, step.lookup, event_time, tables[step.lookup.table])
        case UnionStep():
            raise InternalError(f"union {node_id!r} is built by the compiler, which knows its schema")
        case _:
            assert_never(step)
    return built


def _lookup(node_id: str, spec: LookupSpec, event_time: str | None, table: TableRows) -> Transform:
    if isinstance(table, RefreshedTable):
        return RefreshedLookup(node_id, table.rows, lambda rows: _static_lookup(node_id, spec, event_time, rows))
    return _static_lookup(node_id, spec, event_time, table)


def _static_lookup(node_id: str, spec: LookupSpec, event_time: str | None, table: pl.DataFrame) -> Transform:
    if spec.as_of is None:
        return LookupJoin(
            node_id,
            table,
            dict(pairs_of(spec.on)),
            columns=spec.columns,
            how=spec.how,
            prefix=spec.prefix,
            many=spec.many,
            name=spec.table,
        )
    time = spec.as_of.time or event_time
    if time is None or spec.how in {"semi", "anti"}:
        raise InternalError(f"lookup {node_id!r} passed the spec's checks, but not those of an as-of join")
    return AsofJoin(
        node_id,
        table,
        dict(pairs_of(spec.on)),
        time,
        spec.as_of.column,
        columns=spec.columns,
        how="left" if spec.how == "left" else "inner",
        direction=spec.as_of.direction,
        within_us=spec.as_of.within,
        prefix=spec.prefix,
        name=spec.table,
    )


def _window(node_id: str, step: WindowStep, event_time: str, *, revised: bool) -> WindowOperator:
    spec = step.window
    shared: dict[str, Any] = {
        "aggregates": spec.aggregate,
        "by": spec.by,
        "allowed_lateness_us": spec.allowed_lateness,
        "revised": revised,
    }
    if isinstance(spec, SessionSpec):
        return SessionWindow(node_id, event_time, spec.session, **shared)
    shared |= {"offset_us": spec.offset, "time_zone": spec.time_zone}
    if isinstance(spec, HoppingSpec):
        return HoppingWindow(node_id, event_time, spec.hopping, spec.every, **shared)
    if isinstance(spec, CumulatingSpec):
        return CumulatingWindow(node_id, event_time, spec.cumulating, spec.every, **shared)
    return TumblingWindow(node_id, event_time, spec.tumbling, **shared)


def build_lookup_table(name: str, table: AnyTable, config: Config, catalogs: Catalogs) -> LookupTable:
    """A table of the spec."""
    if isinstance(table, PostgresTable):
        return PostgresLookup(name, table.postgres.url, table.postgres.table, table.postgres.query)
    if isinstance(table, IcebergTable):
        location = table.table
        return IcebergLookup(location, lambda: catalogs.load(location), table.snapshot)
    return ParquetLookup(table.parquet, config.object_store())
