"""A custom operator as a step of a job: what stands around a :class:`operators.custom.CustomOperator`.

With ``order_by``, which is the event time, rows are held until the watermark has passed them, and then come to the
operator in order. Rows that are late (event time below their own watermark, less the allowed lateness) leave through
the port ``late``, and so do rows without event time. Without ``order_by`` rows come to the operator as they are read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import polars as pl

from headrace.kernel import columns
from headrace.kernel.durations import format_duration_us
from headrace.kernel.errors import SpecError
from headrace.kernel.protocols import LATE, MAIN, Determinism, OperatorContext
from operators import event_time as times
from operators import partials
from operators.aggregate_set import check_keys
from operators.custom import CustomOperator
from operators.custom_calls import OPERATOR_INVALID, defining, schema_of
from operators.custom_instance import CustomInstance, CustomLayout
from operators.custom_state import ALL, EVENT_TIMERS, KEPT_SINCE, PROCESSING_TIMERS, table_of
from operators.custom_timers import TIME as FIRES
from operators.errors import column_not_found
from operators.plan_cache import plan_for
from operators.row_order import ORDER
from operators.row_order import order as row_order

TIME: Final = f"{ORDER}time"


@dataclass(frozen=True, slots=True)
class CustomStep:
    """Implements :class:`headrace.kernel.protocols.StatefulOperator`.

    Args:
        id: Stable id; the state is bound to it.
        operator: The operator, with its arguments.
        name: What the operator is called in the job.
        by: Key columns.
        order_by: The event-time column, to have rows in its order; None: rows as they come.
        arguments: The arguments as they stand in the job, JSON values; the state is bound to them.
        allowed_lateness_us: How much later than the watermark passes rows are given to the operator, and are late.
        event_time: Column of the output that is its event time; needs ``order_by``.

    Raises:
        SpecError: Something in it cannot be.
    """

    id: str
    operator: CustomOperator
    name: str
    by: Sequence[str] = ()
    order_by: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    allowed_lateness_us: int = 0
    event_time: str | None = None
    _plans: dict[tuple[Any, ...], _Plan] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        for what in ("timer_delay", "output_lag"):
            span = getattr(self.operator, what)
            if not isinstance(span, timedelta) or span < timedelta(0):
                raise SpecError(
                    f"{self.where} has {what} {span!r}", hint="give a timedelta, 0 or more", code=OPERATOR_INVALID
                )
        if not isinstance(self.operator.determinism, Determinism):
            raise SpecError(
                f"{self.where} has determinism {self.operator.determinism!r}",
                hint=f"give one of {', '.join(f'Determinism.{one.name}' for one in Determinism)}",
                code=OPERATOR_INVALID,
            )

    @property
    def where(self) -> str:
        """Names the operator in error messages."""
        return f"custom operator {self.name!r} of step {self.id!r}"

    @property
    def determinism(self) -> Determinism:
        """What the operator says of itself."""
        return self.operator.determinism

    @property
    def fingerprint(self) -> str:
        """What the state depends on, as text that people can compare; types are checked when the state is opened."""
        order = f", in order of {self.order_by}" if self.order_by else ""
        late = f", allowed lateness {format_duration_us(self.allowed_lateness_us)}" if self.allowed_lateness_us else ""
        arguments = json.dumps(self.arguments, sort_keys=True, default=str)
        by = ", ".join(self.by) or "nothing"
        return f"custom {self.name} version {self.operator.version} by {by}{order}{late}, arguments {arguments}"

    @property
    def ports(self) -> Sequence[str]:
        """See :class:`headrace.kernel.protocols.StatefulOperator`."""
        return (MAIN, LATE) if self.order_by else (MAIN,)

    @property
    def key_columns(self) -> Sequence[str]:
        """See :class:`headrace.kernel.protocols.StatefulOperator`."""
        return self.by

    def partial(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """The rows that are not late, with what they are ordered by.

        Raises:
            SpecError: The rows lack a column (``COLUMN_NOT_FOUND``) or have types that do not fit.
        """
        plan = self._plan(rows.collect_schema())
        return times.kept(rows, plan.late).select(plan.taken)

    def late(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """Late rows and rows without event time, with all their columns; none without ``order_by``.

        Raises:
            SpecError: The rows lack a column (``COLUMN_NOT_FOUND``) or have types that do not fit.
        """
        plan = self._plan(rows.collect_schema())
        return rows.clear() if plan.timeless is None else times.left_out(rows, plan.late, plan.timeless)

    def leaves_out(self, partials: pl.DataFrame) -> bool:
        """See :class:`headrace.kernel.protocols.StatefulOperator`: rows without event time have no place in order."""
        return self.order_by is not None and bool(partials[TIME].has_nulls())

    def output_schema(self, schema: pl.Schema) -> pl.Schema:
        """See :class:`headrace.kernel.protocols.StatefulOperator`.

        Raises:
            SpecError: The operator fails, or what it declares is no schema.
        """
        with defining(self.where, "output_schema"):
            given = self.operator.output_schema(_visible(schema))
        found = schema_of(given, self.where, "output")
        taken = [name for name in found if name in {columns.WEIGHT, columns.ROW_WATERMARK} or name.startswith(ORDER)]
        if taken or not found:
            raise SpecError(
                f"{self.where} gives out {f'column {taken[0]!r}, whose name is taken' if taken else 'no columns'}",
                code=OPERATOR_INVALID,
            )
        if self.event_time is not None:
            if self.event_time not in found:
                raise column_not_found(self.event_time, found.names(), f"{self.where}, event_time")
            times.microseconds(self.event_time, found[self.event_time], self.where)
        return found

    def open(self, schema: pl.Schema, context: OperatorContext) -> CustomInstance:
        """An instance over partials of ``schema``.

        Raises:
            GraphChangedError: The state was made by another definition, or over other types.
            SpecError: The operator's tables cannot be.
        """
        rows = _visible(schema)
        key = pl.Schema({name: schema[name] for name in self.by})
        with defining(self.where, "tables"):
            declared = self.operator.tables(rows)
        tables = {name: table_of(table, key, self.where, name) for name, table in declared.items()}
        zone = times.time_zone(rows[self.order_by]) if self.order_by else "UTC"
        layout = CustomLayout(
            self.where,
            key,
            rows,
            self.output_schema(schema),
            tables,
            TIME if self.order_by else None,
            self.allowed_lateness_us,
            pl.Datetime("us", zone),
            self.event_time,
        )
        return CustomInstance(self.operator, layout, schema, context)

    def shown(self, table: str, rows: pl.LazyFrame) -> pl.LazyFrame:
        """See :class:`headrace.kernel.protocols.ShowsState`: without the columns that the operator does not see."""
        names = [name for name in rows.collect_schema() if name not in {ALL, KEPT_SINCE} and not name.startswith(ORDER)]
        shown = rows.select(names)
        if table not in {EVENT_TIMERS, PROCESSING_TIMERS}:
            return shown
        return shown.with_columns(pl.col(FIRES).cast(pl.Datetime("us", "UTC")))

    def _plan(self, schema: pl.Schema) -> _Plan:
        return plan_for(self._plans, schema, self._planned)

    def _planned(self, schema: pl.Schema) -> _Plan:
        check_keys(self.by, schema, self.where)
        keys = {name: partials.one_zero(pl.col(name), schema[name]) for name in self.by}
        everything = [] if keys else [pl.lit(0, pl.Int8()).alias(ALL)]
        named = [keys.get(name, pl.col(name)) for name in schema if name != columns.ROW_WATERMARK]
        rows = [expr.alias(name) for expr, name in zip(named, _visible(schema), strict=True)]
        if self.order_by is None:
            return _Plan([*everything, *rows], None, None)
        if self.order_by not in schema:
            raise column_not_found(self.order_by, schema.names(), self.where)
        time = times.microseconds(self.order_by, schema[self.order_by], self.where)
        order = row_order(time, schema)
        late = times.lateness(time, schema, self.allowed_lateness_us)
        return _Plan([*order, *everything, *rows], late, time.is_null())


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """Expressions over the rows of one schema."""

    taken: Sequence[pl.Expr]
    late: pl.Expr | None
    timeless: pl.Expr | None


def _visible(schema: pl.Schema) -> pl.Schema:
    """The columns that the operator sees."""
    hidden = {columns.ROW_WATERMARK, ALL}
    return pl.Schema(
        {name: dtype for name, dtype in schema.items() if name not in hidden and not name.startswith(ORDER)}
    )
