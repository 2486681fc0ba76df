"""Tumbling windows in event time.

A window holds the rows with ``start <= event time < start + size``; windows stand at ``offset + n * size`` from the
Unix epoch in UTC. It is given out once, when the watermark reaches its end, with one row for each combination of the
``by`` columns that occurs in it (null is a value like others).

* A row is *late* when its window's end has been reached by the row's own watermark (``_row_watermark``; null: never).
  Late rows leave through the port ``late`` as they are.
* Rows without event time belong to no window. They leave through ``late`` too, where that port is evaluated, and are
  counted as ``null_event_time``.
* Partials of a window that was given out already can only come after a drain, which closes windows early on request, or
  after a step in between has lost ``_row_watermark``. Giving such a window out again would make two results of it, so
  their rows are left out and counted as ``dropped_late``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import polars as pl

from headrace.kernel import columns
from headrace.kernel.errors import SpecError
from headrace.kernel.protocols import LATE, MAIN, Determinism, OperatorState
from operators import event_time as times
from operators import partials
from operators.aggregates import Aggregate, Kind, aggregate
from operators.determinism import weakest
from operators.errors import column_not_found, planning
from operators.window_instance import WINDOW_END, WINDOW_START, Layout, WindowInstance

_ZONES: Final = (None, "UTC", "Etc/UTC")


@dataclass(frozen=True, slots=True)
class TumblingWindow:
    """Aggregate rows by window and key; implements :class:`headrace.kernel.protocols.StatefulOperator`.

    Output: the ``by`` columns, ``window_start``, ``window_end`` (Datetime in microseconds, in the zone of the event
    time column; naive when that is naive or a date), then the aggregates. Rows that are given out together are sorted
    by ``window_start`` and the ``by`` columns, nulls first.

    Args:
        id: Stable id; the state is bound to it.
        event_time: Column with the event time: Datetime or Date.
        size_us: Length of a window in microseconds, positive.
        aggregates: From the output's name to SQL text (``"sum(delay)"``) or an ``Aggregate``
            (:mod:`operators.aggregates`).
        by: Key columns.
        offset_us: Where windows begin, relative to the epoch.
        time_zone: Zone that windows stand in; only UTC.

    Raises:
        SpecError: Something in it cannot be.
    """

    id: str
    event_time: str
    size_us: int
    aggregates: Mapping[str, str | Aggregate]
    by: Sequence[str] = ()
    offset_us: int = 0
    time_zone: str | None = None
    _wanted: Mapping[str, Aggregate] = field(init=False, repr=False, compare=False)
    _plans: dict[tuple[Any, ...], _Plan] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        if self.size_us <= 0:
            raise SpecError(f"{self._where} has size {self.size_us} us", hint="give a positive duration, e.g. 1h")
        if self.time_zone not in _ZONES:
            raise SpecError(
                f"{self._where} has time zone {self.time_zone!r}, which is not supported",
                hint="windows stand in UTC; leave the zone out and shift them with offset where that is enough",
            )
        self._check_names()
        wanted = {name: aggregate(text, f"{self._where}, {name!r}") for name, text in self.aggregates.items()}
        object.__setattr__(self, "_wanted", wanted)

    @property
    def _where(self) -> str:
        return f"window {self.id!r}"

    @property
    def _windows(self) -> times.FixedWindows:
        return times.FixedWindows(self.size_us, self.offset_us)

    def _check_names(self) -> None:
        if not self.aggregates:
            raise SpecError(f"{self._where} has no aggregate", hint='add one, e.g. {rows: "count(*)"}')
        names = [*self.by, WINDOW_START, WINDOW_END, *self.aggregates]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise SpecError(
                f"{self._where} gives out {', '.join(map(repr, twice))} twice", hint="rename an aggregate or a key"
            )

    @property
    def determinism(self) -> Determinism:
        """See :class:`headrace.kernel.protocols.StatefulOperator`."""
        return weakest(wanted.determinism for wanted in self._wanted.values())

    @property
    def fingerprint(self) -> str:
        """What the state depends on, as text that people can compare; types are checked when the state is opened."""
        state = sorted(set().union(*(partials.needs(wanted, name) for name, wanted in self._wanted.items())))
        return (
            f"tumbling window of {self._windows}, "
            f"over {self.event_time}, by {', '.join(self.by) or 'nothing'}, state {', '.join(state)}"
        )

    def describe(self) -> str:
        """The definition in words, for plans and for telling two definitions apart."""
        outputs = ", ".join(f"{name} = {wanted.text}" for name, wanted in self._wanted.items())
        return f"{self.fingerprint}; gives {outputs}"

    @property
    def ports(self) -> Sequence[str]:
        """See :class:`headrace.kernel.protocols.StatefulOperator`."""
        return (MAIN, LATE)

    def partial(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """Partials: key columns, ``window_start``, state columns. Rows without event time have a null window.

        Raises:
            SpecError: The rows lack a column (``COLUMN_NOT_FOUND``) or have types that do not fit.
        """
        schema = rows.collect_schema()
        plan = self._plan(schema)
        if columns.ROW_WATERMARK in schema:
            rows = rows.filter(plan.late.not_())
        return rows.select(plan.rows).group_by(*self.by, WINDOW_START).agg(plan.state)

    def late(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """Late rows and rows without event time, with all their columns.

        Raises:
            SpecError: The rows lack a column (``COLUMN_NOT_FOUND``) or have types that do not fit.
        """
        schema = rows.collect_schema()
        plan = self._plan(schema)
        return rows.filter(plan.late | plan.timeless if columns.ROW_WATERMARK in schema else plan.timeless)

    def leaves_out(self, partials: pl.DataFrame) -> bool:
        """See :class:`headrace.kernel.protocols.StatefulOperator`: rows without event time have no window."""
        return bool(partials[WINDOW_START].has_nulls())

    def output_schema(self, schema: pl.Schema) -> pl.Schema:
        """See :class:`headrace.kernel.protocols.StatefulOperator`."""
        return self._finish(pl.LazyFrame(schema=schema)).collect_schema()

    def _finish(self, merged: pl.LazyFrame) -> pl.LazyFrame:
        schema = merged.collect_schema()
        start = pl.col(WINDOW_START)
        return merged.select(
            *self.by,
            start,
            self._windows.end(start.to_physical()).cast(schema[WINDOW_START]).alias(WINDOW_END),
            *(partials.final(wanted, name, schema) for name, wanted in self._wanted.items()),
        )

    def open(self, schema: pl.Schema, state: OperatorState | None) -> WindowInstance:
        """An instance over partials of ``schema``.

        Raises:
            GraphChangedError: The state was made by another definition, or over other types.
        """
        layout = Layout(self._where, tuple(self.by), self._windows, self._finish)
        return WindowInstance(layout, schema, state)

    def _plan(self, schema: pl.Schema) -> _Plan:
        """The expressions over rows of a schema; made once for each schema, since a batch may be small."""
        key = tuple(schema.items())
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = self._planned(schema)
        return plan

    def _planned(self, schema: pl.Schema) -> _Plan:
        self._check_keys(schema)
        dtype = schema[self.event_time]
        time = times.microseconds(self.event_time, dtype, self._where)
        start = self._windows.start(time)
        late = (self._windows.end(start) <= pl.col(columns.ROW_WATERMARK)).fill_null(value=False)
        build = self._build(schema)
        keys = [partials.one_zero(pl.col(name), schema[name]).alias(name) for name in self.by]
        window = start.cast(pl.Datetime("us", times.time_zone(dtype))).alias(WINDOW_START)
        return _Plan(
            late=late,
            timeless=time.is_null(),
            rows=[*keys, window, *(expr.alias(name) for name, expr in build.rows.items())],
            state=[expr.alias(name) for name, expr in build.state.items()],
        )

    def _check_keys(self, schema: pl.Schema) -> None:
        for name in (self.event_time, *self.by):
            if name not in schema:
                raise column_not_found(name, schema.names(), self._where)
        for name in self.by:
            if schema[name].is_nested() or isinstance(schema[name], pl.Object):
                raise SpecError(
                    f"{self._where}: key {name!r} has type {schema[name]}", hint="take scalars of it as keys"
                )

    def _build(self, schema: pl.Schema) -> partials.Build:
        arguments = {name: wanted.argument.expr for name, wanted in self._wanted.items() if wanted.argument}
        with planning(self._where, schema.names()):
            types = pl.LazyFrame(schema=schema).select(**arguments).collect_schema()
        build = partials.build(Aggregate(Kind.COUNT), "", None, self._where)
        for name, wanted in self._wanted.items():
            build |= partials.build(wanted, name, types.get(name), self._where)
        return build


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """Expressions over the rows of one schema.

    Attributes:
        late: Whether a row is late; needs the column ``_row_watermark``.
        timeless: Whether a row has no event time.
        rows: Keys, window and what aggregates need of each row.
        state: The state columns, reduced of ``rows`` by group.
    """

    late: pl.Expr
    timeless: pl.Expr
    rows: Sequence[pl.Expr]
    state: Sequence[pl.Expr]
