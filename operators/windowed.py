"""What windows of every kind share: aggregates by key, and lateness as a fact about a row.

* A row is *late* when every window that could hold it was closed at the row's own watermark (``_row_watermark``; null:
  never). Late rows leave through the port ``late`` as they are.
* ``allowed_lateness`` closes windows that much later than the watermark passes their end, and rows are late that much
  later. A window is given out once, when it closes; there is no early or repeated result.
* Rows without event time belong to no window. They leave through ``late`` too, where that port is evaluated, and are
  counted as ``null_event_time``.
* Over a changelog rows count as often as they weigh. What is taken back before a window closes is taken back exactly;
  later it is left out like other rows for closed time. ``revised`` says that this can happen, as with a changelog whose
  rows are taken back by rows of other times: results then depend on which has come first.
* Partials of a window that was given out already can only come after a drain, which closes windows early on request, or
  after a step in between has lost ``_row_watermark``. Giving such a window out again would make two results of it, so
  their rows are left out and counted as ``dropped_late``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, Protocol, Self

import polars as pl

from headrace.kernel import columns
from headrace.kernel.durations import format_duration_us
from headrace.kernel.errors import SpecError
from headrace.kernel.held import Merge
from headrace.kernel.protocols import LATE, MAIN, Determinism, OperatorContext, OperatorInstance
from operators import event_time as times
from operators import partials
from operators.aggregate_set import build_all, check_keys, read_aggregates, state_of, wanted_of
from operators.aggregates import Aggregate
from operators.determinism import weakest
from operators.errors import column_not_found
from operators.passage import Narrowed, Passage, by_key, reading
from operators.plan_cache import plan_for
from operators.row_order import order
from operators.weighted import of_values, value_columns, weighted

WINDOW_START: Final = "window_start"
WINDOW_END: Final = "window_end"


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """Where rows belong, as expressions over the rows of one schema.

    Attributes:
        late: Whether a row is late; None: it cannot be.
        keys: What partials are grouped by besides the ``by`` columns; null where a row has no event time.
        build: Further columns of the partials.
        carried: Which of the keys partials carry on; None: all.
    """

    late: pl.Expr | None
    keys: Mapping[str, pl.Expr]
    build: partials.Build = field(default_factory=partials.Build)
    carried: Sequence[str] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """Expressions over the rows of one schema.

    Attributes:
        late: Whether a row is late; needs the column ``_row_watermark``.
        timeless: Whether a row has no event time.
        rows: Keys and what aggregates need of each row.
        keys: The names of all keys.
        state: The state columns, reduced of ``rows`` by group.
        drop: Keys that partials do not carry on.
    """

    late: pl.Expr | None
    timeless: pl.Expr
    rows: Sequence[pl.Expr]
    keys: Sequence[str]
    state: Sequence[pl.Expr]
    drop: Sequence[str]


class OpenWindows(OperatorInstance, Protocol):
    """A window operator at work that can be asked before windows close."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Rows that were left out."""

    def results(self, keys: pl.DataFrame) -> pl.DataFrame:
        """Rows of the windows of some keys that are open, as they would be given out now.

        Args:
            keys: The ``by`` columns, each key once; without a column (there is one key for all) it is not looked at.
        """


class WindowOperator(ABC):
    """Aggregates rows by window and key; implements :class:`headrace.kernel.protocols.StatefulOperator`.

    Output: the ``by`` columns, ``window_start``, ``window_end`` (Datetime in microseconds, in the zone of the event
    time column; naive when that is naive or a date), then the aggregates. Rows that are given out together are sorted
    by ``window_start``, ``window_end`` and the ``by`` columns, nulls first.

    Subclasses are frozen dataclasses with these fields.
    """

    __slots__ = ()

    id: str
    event_time: str
    aggregates: Mapping[str, str | Aggregate]
    by: Sequence[str]
    allowed_lateness_us: int
    revised: bool
    _wanted: Mapping[str, Aggregate]
    _plans: dict[tuple[Any, ...], _Plan]

    kind: ClassVar[str]
    """The kind in words, e.g. ``tumbling window``."""

    @abstractmethod
    def placement(self, time: pl.Expr, mark: pl.Expr | None, time_type: pl.DataType) -> Placement:
        """Where rows belong.

        Args:
            time: Event time in microseconds.
            mark: The row's watermark less the allowed lateness; null, or None for all rows: not late.
            time_type: The type that instants are given out in.
        """

    @abstractmethod
    def definition(self) -> str:
        """What windows there are, in words; part of the fingerprint."""

    @abstractmethod
    def window(self, merged: pl.Schema) -> Sequence[pl.Expr]:
        """``window_start`` and ``window_end`` of merged partials that are given out."""

    @abstractmethod
    def merging(self, schema: pl.Schema) -> Merge:
        """How partials that belong together are merged."""

    @abstractmethod
    def open(self, schema: pl.Schema, context: OperatorContext) -> OpenWindows:
        """See :class:`headrace.kernel.protocols.StatefulOperator`."""

    def prepare(self) -> None:
        """Check the definition and read the aggregates; called once by the constructors.

        Raises:
            SpecError: Something in it cannot be.
        """
        others = [*self.by, WINDOW_START, WINDOW_END]
        object.__setattr__(self, "_wanted", read_aggregates(self.aggregates, others, self.where))
        if self.allowed_lateness_us < 0:
            raise SpecError(f"{self.where} has a negative allowed lateness", hint="give 0s or more")

    @property
    def where(self) -> str:
        """Names the operator in error messages."""
        return f"window {self.id!r}"

    @property
    def determinism(self) -> Determinism:
        """See :class:`headrace.kernel.protocols.StatefulOperator`."""
        own = [wanted.determinism for wanted in self._wanted.values()]
        return weakest([*own, Determinism.NOT_INVARIANT] if self.revised else own)

    @property
    def fingerprint(self) -> str:
        """What the state depends on, as text that people can compare; types are checked when the state is opened."""
        late = f", allowed lateness {format_duration_us(self.allowed_lateness_us)}" if self.allowed_lateness_us else ""
        return (
            f"{self.kind} of {self.definition()}{late}, "
            f"over {self.event_time}, by {', '.join(self.by) or 'nothing'}, state {state_of(self._wanted)}"
        )

    def describe(self) -> str:
        """The definition in words, for plans and for telling two definitions apart."""
        outputs = ", ".join(f"{name} = {wanted.text}" for name, wanted in self._wanted.items())
        return f"{self.fingerprint}; gives {outputs}"

    @property
    def ports(self) -> Sequence[str]:
        """See :class:`headrace.kernel.protocols.StatefulOperator`."""
        return (MAIN, LATE)

    @property
    def key_columns(self) -> Sequence[str]:
        """See :class:`headrace.kernel.protocols.StatefulOperator`."""
        return self.by

    def partial(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """Partials: key columns, columns of the window, state columns. Rows without event time have a null window.

        Raises:
            SpecError: The rows lack a column (``COLUMN_NOT_FOUND``) or have types that do not fit.
        """
        plan = self._plan(rows.collect_schema())
        if plan.late is not None:
            rows = rows.filter(plan.late.not_())
        grouped = rows.select(plan.rows).group_by(plan.keys).agg(plan.state)
        return grouped.drop(plan.drop) if plan.drop else grouped

    def passages(self, rows: pl.Schema) -> Sequence[Passage]:
        """See :class:`operators.passage.PassesPredicates`: rows of different keys never meet."""
        return by_key(self.by, rows)

    def narrowed(self, wanted: Collection[str], rows: pl.Schema) -> Narrowed:  # noqa: ARG002 - the protocol's signature
        """See :class:`operators.passage.NarrowsColumns`: without the aggregates that nobody needs, but one."""
        return Narrowed(self.computing(wanted))

    def reads(self, rows: pl.Schema) -> Sequence[str] | None:
        """The columns of rows that partials are made of; None: they cannot be told apart."""
        leaves = [leaf for name, one in self._wanted.items() for _, leaf in one.leaves(name)]
        given = [row.expr for leaf in leaves for row in (leaf.argument, leaf.by) if row]
        names = {name for expr in given for name in expr.meta.root_names()}
        return reading({*names, *self.by, self.event_time}, rows) if names <= {*rows} else None

    def computing(self, wanted: Collection[str]) -> Self:
        """The same windows with the aggregates that are wanted, or one if none is."""
        # Subclasses are frozen dataclasses, which this class cannot say.
        return replace(self, aggregates=wanted_of(self.aggregates, wanted))  # type: ignore[type-var]

    def late(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """Late rows and rows without event time, with all their columns.

        Raises:
            SpecError: The rows lack a column (``COLUMN_NOT_FOUND``) or have types that do not fit.
        """
        plan = self._plan(rows.collect_schema())
        return times.left_out(rows, plan.late, plan.timeless)

    def leaves_out(self, partials: pl.DataFrame) -> bool:
        """See :class:`headrace.kernel.protocols.StatefulOperator`: rows without event time have no window."""
        return bool(partials[WINDOW_START].has_nulls())

    def output_schema(self, schema: pl.Schema) -> pl.Schema:
        """See :class:`headrace.kernel.protocols.StatefulOperator`."""
        return self.finish(pl.LazyFrame(schema=schema)).collect_schema()

    def finish(self, merged: pl.LazyFrame) -> pl.LazyFrame:
        """Rows of the main port, computed of merged partials."""
        there = self._there(merged)
        schema = there.collect_schema()
        return there.select(*self.by, *self.window(schema), *self._finals(schema))

    def _there(self, merged: pl.LazyFrame) -> pl.LazyFrame:
        """Merged partials by key and window; over a changelog without those of which all rows have been taken back."""
        if value_columns(merged.collect_schema().names()):
            merged = of_values(merged.collect(), [*self.by, WINDOW_START]).lazy()
        return merged.filter(pl.col(partials.ROWS) != 0)

    def _finals(self, schema: pl.Schema) -> list[pl.Expr]:
        return [partials.final(wanted, name, schema) for name, wanted in self._wanted.items()]

    def shown(self, table: str, rows: pl.LazyFrame) -> pl.LazyFrame:  # noqa: ARG002 - there is one
        """See :class:`headrace.kernel.protocols.ShowsState`: results so far, by the pane's start (or the session's)."""
        there = self._there(self.merging(rows.collect_schema())(rows))
        return there.select(*self.by, pl.col(WINDOW_START), *self._finals(there.collect_schema()))

    def _plan(self, schema: pl.Schema) -> _Plan:
        return plan_for(self._plans, schema, self._planned)

    def _planned(self, schema: pl.Schema) -> _Plan:
        if self.event_time not in schema:
            raise column_not_found(self.event_time, schema.names(), self.where)
        check_keys(self.by, schema, self.where)
        dtype = schema[self.event_time]
        time = times.microseconds(self.event_time, dtype, self.where)
        bar = times.bar(schema, self.allowed_lateness_us)
        place = self.placement(time, bar, pl.Datetime("us", times.time_zone(dtype)))
        over = weighted(place.build | build_all(self._wanted, schema, self.where, order(time, schema)), schema)
        build = over.build
        keys = {name: partials.one_zero(pl.col(name), schema[name]) for name in self.by}
        weight = {columns.WEIGHT: pl.col(columns.WEIGHT)} if columns.WEIGHT in schema else {}
        return _Plan(
            late=None if place.late is None else place.late.fill_null(value=False),
            timeless=time.is_null(),
            rows=[
                expr.alias(name) for name, expr in {**keys, **place.keys, **build.rows, **over.values, **weight}.items()
            ],
            keys=[*self.by, *over.values, *place.keys],
            state=[expr.alias(name) for name, expr in build.state.items()],
            drop=[] if place.carried is None else [name for name in place.keys if name not in place.carried],
        )
