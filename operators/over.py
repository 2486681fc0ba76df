"""Frames over rows: each row with what is computed of the rows of its key before it (``OVER``, append-only).

A row's result is that of its frame (:class:`operators.over_frames.Frame`), rows ordered by event time and then by
:mod:`operators.row_order`, not by how they come. It is given out when the watermark has passed the row's event time, so
that no row of the frame can still come (Apache Flink: "Over Aggregation" over event time).

* A row is *late* when its event time lies below its own watermark (less the allowed lateness); it leaves through the
  port ``late``, and so do rows without event time, where that port is evaluated. Late rows are in no frame.
* Of a frame with a bound the rows within it are held for each key, of one without a bound one row of sums for each key.
  With a ``ttl`` a key of which no row has come for so long, in event time, is forgotten: its frames begin anew.

Null keys are keys like others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import polars as pl

from headrace.kernel.durations import format_duration_us
from headrace.kernel.errors import SpecError
from headrace.kernel.protocols import LATE, MAIN, Determinism, OperatorContext
from operators import event_time as times
from operators import partials
from operators.aggregate_set import check_keys
from operators.aggregates import Aggregate
from operators.determinism import weakest
from operators.errors import check_names, column_not_found
from operators.join_sides import TIME
from operators.over_frames import Frame
from operators.over_functions import OverFunction, determinism_of, holds_all, over_function
from operators.over_instance import ALL, ROW, OverInstance, OverLayout, parts_of
from operators.over_sections import Section, sections_of
from operators.passage import Passage, by_key
from operators.plan_cache import plan_for
from operators.row_order import total_order

_UNBOUNDED: Final = Frame()


@dataclass(frozen=True, slots=True)
class Over:
    """Compute columns of frames; implements :class:`headrace.kernel.protocols.StatefulOperator`.

    Output: the rows with all their columns, then the computed ones. Rows that are given out together are sorted by
    event time, key, and :mod:`operators.row_order`.

    Args:
        id: Stable id; the state is bound to it.
        event_time: Column with the event time: Datetime or Date.
        columns: From the output's name to SQL text (``"sum(delay)"``, ``"lag(delay, 1, 0)"``, ``"row_number()"``), or
            an ``Aggregate``. At least one.
        by: Key columns; none: all rows are of one key.
        frame: What aggregates, ``first_value`` and ``last_value`` look at.
        ttl_us: When a key is forgotten, microseconds; None: never.
        allowed_lateness_us: How much later than the watermark passes rows are given out, and are late.

    Raises:
        SpecError: Something in it cannot be.
    """

    id: str
    event_time: str
    columns: Mapping[str, str | Aggregate]
    by: Sequence[str] = ()
    frame: Frame = _UNBOUNDED
    ttl_us: int | None = None
    allowed_lateness_us: int = 0
    _wanted: Mapping[str, OverFunction] = field(init=False, repr=False, compare=False)
    _plans: dict[tuple[Any, ...], _Plan] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        if not self.columns:
            raise SpecError(f"{self.where} computes nothing", hint='add a column, e.g. {total: "sum(x)"}')
        check_names(self.columns, self.where)
        wanted = {name: over_function(text, f"{self.where}, {name!r}") for name, text in self.columns.items()}
        object.__setattr__(self, "_wanted", wanted)
        all_held = next((name for name, one in wanted.items() if holds_all(one)), None)
        if self.frame.preceding is None and all_held is not None:
            raise SpecError(
                f"{self.where}, {all_held!r}: this aggregate would hold every value of a key for ever",
                hint="give the frame a bound: rows or range; or use a step aggregate",
            )
        if self.ttl_us is not None and self.ttl_us <= 0:
            raise SpecError(f"{self.where} has ttl {self.ttl_us} us", hint="give a positive duration, e.g. 1h")

    @property
    def where(self) -> str:
        """Names the operator in error messages."""
        return f"over {self.id!r}"

    @property
    def _sections(self) -> Sequence[Section]:
        return sections_of(self._wanted, self.frame)

    @property
    def determinism(self) -> Determinism:
        """Exact, unless an expression is not."""
        return weakest([Determinism.EXACT, *map(determinism_of, self._wanted.values())])

    @property
    def fingerprint(self) -> str:
        """What the state depends on, as text that people can compare; types are checked when the state is opened."""
        held = "; ".join(sorted(map(str, self._sections)))
        ttl = "" if self.ttl_us is None else f", forgotten after {format_duration_us(self.ttl_us)}"
        late = f", allowed lateness {format_duration_us(self.allowed_lateness_us)}" if self.allowed_lateness_us else ""
        by = ", ".join(self.by) or "nothing"
        return f"over {self.frame} by {by}, over {self.event_time}, state {held}{ttl}{late}"

    @property
    def ports(self) -> Sequence[str]:
        """See :class:`headrace.kernel.protocols.StatefulOperator`."""
        return (MAIN, LATE)

    @property
    def key_columns(self) -> Sequence[str]:
        """See :class:`headrace.kernel.protocols.StatefulOperator`."""
        return self.by

    def partial(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """The rows that are not late, with their keys and event time.

        Raises:
            SpecError: The rows lack a column (``COLUMN_NOT_FOUND``) or have types that do not fit.
        """
        plan = self._plan(rows.collect_schema())
        return times.kept(rows, plan.late).select(
            *(expr.alias(name) for name, expr in plan.keys.items()),
            plan.time.alias(TIME),
            pl.struct(plan.order).alias(ROW),
        )

    def passages(self, rows: pl.Schema) -> Sequence[Passage]:
        """See :class:`operators.passage.PassesPredicates`: rows of different keys are in different frames."""
        return by_key(self.by, rows)

    def late(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """Late rows and rows without event time, with all their columns.

        Raises:
            SpecError: The rows lack a column (``COLUMN_NOT_FOUND``) or have types that do not fit.
        """
        plan = self._plan(rows.collect_schema())
        return times.left_out(rows, plan.late, plan.time.is_null())

    def leaves_out(self, partials: pl.DataFrame) -> bool:
        """See :class:`headrace.kernel.protocols.StatefulOperator`: rows without event time are in no frame."""
        return bool(partials[TIME].has_nulls())

    def output_schema(self, schema: pl.Schema) -> pl.Schema:
        """See :class:`headrace.kernel.protocols.StatefulOperator`."""
        return self._layout(schema).output()

    def open(self, schema: pl.Schema, context: OperatorContext) -> OverInstance:
        """An instance over partials of ``schema``.

        Raises:
            GraphChangedError: The state was made by another definition, or over other types.
        """
        return OverInstance(self._layout(schema), context)

    def _layout(self, schema: pl.Schema) -> OverLayout:
        keys = list(self.by) or [ALL]
        parts = parts_of(self._sections, schema, keys, self.ttl_us, self.where)
        return OverLayout(self.where, schema, keys, parts, list(self._wanted), self.ttl_us, self.allowed_lateness_us)

    def _plan(self, schema: pl.Schema) -> _Plan:
        return plan_for(self._plans, schema, self._planned)

    def _planned(self, schema: pl.Schema) -> _Plan:
        if self.event_time not in schema:
            raise column_not_found(self.event_time, schema.names(), self.where)
        check_keys(self.by, schema, self.where)
        clash = sorted(set(self._wanted) & set(schema))
        if clash:
            raise SpecError(
                f"{self.where} would add {clash[0]!r}, which the stream already has",
                hint="give the computed column another name",
                code="COLUMN_CLASH",
                context={"columns": clash},
            )
        time = times.microseconds(self.event_time, schema[self.event_time], self.where)
        keys = {name: partials.one_zero(pl.col(name), schema[name]) for name in self.by}
        return _Plan(
            late=times.lateness(time, schema, self.allowed_lateness_us),
            time=time,
            keys=keys or {ALL: pl.lit(0, pl.Int8)},
            order=total_order(time, schema),
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """Expressions over the rows of one schema."""

    late: pl.Expr | None
    time: pl.Expr
    keys: Mapping[str, pl.Expr]
    order: Sequence[pl.Expr]
