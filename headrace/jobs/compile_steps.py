"""Steps of a spec as operators, and the static tables that they join with."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from catalog.catalogs import Catalogs
from headrace.jobs.config import Config
from headrace.jobs.graph import StepNode
from headrace.jobs.spec import (
    AggregateStep,
    FilterStep,
    IcebergTable,
    LookupStep,
    ParquetTable,
    SelectStep,
    WithColumnsStep,
)
from headrace.kernel.errors import InternalError
from headrace.kernel.protocols import LookupTable, StatefulOperator, Transform
from hybrid_source.lookup import IcebergLookup, ParquetLookup
from operators.keyed_aggregate import KeyedAggregate
from operators.lookup import LookupJoin
from operators.stateless import Filter, Select, WithColumns
from operators.window import TumblingWindow


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
        raise InternalError(f"window {node.id!r} without event time passed the spec's checks")
    window = step.window
    return TumblingWindow(
        node.id,
        event_time=event_time,
        size_us=window.tumbling,
        offset_us=window.offset,
        by=window.by,
        aggregates=window.aggregate,
    )


def build_lookup_table(table: IcebergTable | ParquetTable, config: Config, catalogs: Catalogs) -> LookupTable:
    """A static table of the spec."""
    if isinstance(table, IcebergTable):
        name = table.table
        return IcebergLookup(name, lambda: catalogs.load(name), table.snapshot)
    return ParquetLookup(table.parquet, config.object_store())
