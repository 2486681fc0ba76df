"""Steps of a spec as operators, and the static tables that they join with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from catalog.catalogs import Catalogs
from headrace.jobs.config import Config
from headrace.jobs.graph import StepNode
from headrace.jobs.spec import IcebergTable, ParquetTable
from headrace.jobs.spec_steps import (
    AggregateStep,
    CumulatingSpec,
    FilterStep,
    HoppingSpec,
    LookupStep,
    SelectStep,
    SessionSpec,
    WindowStep,
    WithColumnsStep,
)
from headrace.kernel.errors import InternalError
from headrace.kernel.protocols import LookupTable, StatefulOperator, Transform
from hybrid_source.lookup import IcebergLookup, ParquetLookup
from operators.keyed_aggregate import KeyedAggregate
from operators.lookup import LookupJoin
from operators.session import SessionWindow
from operators.stateless import Filter, Select, WithColumns
from operators.window import CumulatingWindow, HoppingWindow, TumblingWindow


def build_step(
    node: StepNode, event_time: str | None, tables: Mapping[str, pl.DataFrame]
) -> Transform | StatefulOperator:
    """The operator of a step: stateful for windows and aggregates, a transform for everything else.

    Args:
        node: The step, resolved.
        event_time: Event-time column of the rows that it reads.
        tables: Static tables by name.
    """
    step = node.step
    if isinstance(step, FilterStep):
        return Filter(node.id, step.filter)
    if isinstance(step, WithColumnsStep):
        return WithColumns(node.id, step.with_columns)
    if isinstance(step, SelectStep):
        return Select(node.id, step.select)
    if isinstance(step, LookupStep):
        wanted = step.lookup
        return LookupJoin(
            node.id,
            tables[wanted.table],
            wanted.on,
            columns=wanted.columns,
            how=wanted.how,
            prefix=wanted.prefix,
            many=wanted.many,
            name=wanted.table,
        )
    if isinstance(step, AggregateStep):
        return KeyedAggregate(node.id, step.aggregate.aggregate, step.aggregate.by)
    if event_time is None:
        raise InternalError(f"step {node.id!r} without event time passed the spec's checks")
    return _window(node.id, step, event_time)


def _window(node_id: str, step: WindowStep, event_time: str) -> StatefulOperator:
    spec = step.window
    shared: dict[str, Any] = {
        "aggregates": spec.aggregate,
        "by": spec.by,
        "allowed_lateness_us": spec.allowed_lateness,
    }
    if isinstance(spec, SessionSpec):
        return SessionWindow(node_id, event_time, spec.session, **shared)
    shared |= {"offset_us": spec.offset, "time_zone": spec.time_zone}
    if isinstance(spec, HoppingSpec):
        return HoppingWindow(node_id, event_time, spec.hopping, spec.every, **shared)
    if isinstance(spec, CumulatingSpec):
        return CumulatingWindow(node_id, event_time, spec.cumulating, spec.every, **shared)
    return TumblingWindow(node_id, event_time, spec.tumbling, **shared)


def build_lookup_table(table: IcebergTable | ParquetTable, config: Config, catalogs: Catalogs) -> LookupTable:
    """A static table of the spec."""
    if isinstance(table, IcebergTable):
        name = table.table
        return IcebergLookup(name, lambda: catalogs.load(name), table.snapshot)
    return ParquetLookup(table.parquet, config.object_store())
