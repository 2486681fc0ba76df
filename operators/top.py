"""Top-N: of the rows of each window and key, the first N in a given order.

Windows are those of :class:`operators.window.TumblingWindow`, or, behind a window step, the windows that its rows name:
then rows of one ``window_start`` belong together. Ties are broken by (event time, partition, offset) and then by what
rows hold (:mod:`operators.row_order`), so that which rows are kept never depends on the order in which they come. The
rows of a window are given out together, when it closes; lateness is that of windows (:mod:`operators.windowed`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import polars as pl

from headrace.kernel import columns
from headrace.kernel.durations import format_duration_us
from headrace.kernel.errors import SpecError
from headrace.kernel.protocols import LATE, MAIN, Determinism, OperatorContext
from operators import event_time as times
from operators import partials
from operators.errors import column_not_found
from operators.plan_cache import plan_for
from operators.row_order import total_order
from operators.slices import Slices
from operators.time_scales import Utc
from operators.window_instance import Layout, SlicedInstance
from operators.windowed import WINDOW_START

_ROW: Final = "_row"
_KEY: Final = "_key_"
_PLACE: Final = "_place_"


@dataclass(frozen=True, slots=True)
class TopN:
    """Keep the first N rows of each window and key; implements :class:`headrace.kernel.protocols.StatefulOperator`.

    Output: the rows that are kept, with all their columns and their ``rank`` (Int64, from 1) if that has a name; sorted
    by window, key and rank.

    Args:
        id: Stable id; the state is bound to it.
        event_time: Column with the event time: Datetime or Date.
        n: How many rows, positive.
        order_by: Columns to order by, each with whether it is descending; nulls come last. At least one.
        by: Key columns.
        size_us: Length of a window in microseconds, positive; None: rows of one event time are a window.
        rank: Name of the column that holds a row's place; empty: none.
        allowed_lateness_us: How much later windows close.

    Raises:
        SpecError: Something in it cannot be.
    """

    id: str
    event_time: str
    n: int
    order_by: Sequence[tuple[str, bool]]
    by: Sequence[str] = ()
    size_us: int | None = None
    rank: str = ""
    allowed_lateness_us: int = 0
    _plans: dict[tuple[Any, ...], _Plan] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        if self.n < 1:
            raise SpecError(f"{self.where} keeps {self.n} rows", hint="give a number from 1 on")
        if not self.order_by:
            raise SpecError(f"{self.where} has no order", hint="name the columns to order by, e.g. price desc")
        if self.size_us is not None and self.size_us <= 0:
            raise SpecError(f"{self.where} has size {self.size_us} us", hint="give a positive duration, e.g. 1h")

    @property
    def where(self) -> str:
        """Names the operator in error messages."""
        return f"top {self.id!r}"

    @property
    def determinism(self) -> Determinism:
        """Exact: what is kept does not depend on how rows come."""
        return Determinism.EXACT

    @property
    def fingerprint(self) -> str:
        """What the state depends on, as text that people can compare; types are checked when the state is opened."""
        order = ", ".join(f"{name} desc" if descending else name for name, descending in self.order_by)
        window = "one event time" if self.size_us is None else format_duration_us(self.size_us)
        late = f", allowed lateness {format_duration_us(self.allowed_lateness_us)}" if self.allowed_lateness_us else ""
        return f"top {self.n} of {window}{late}, over {self.event_time}, by {', '.join(self.by) or 'nothing'}, {order}"

    @property
    def ports(self) -> Sequence[str]:
        """See :class:`headrace.kernel.protocols.StatefulOperator`."""
        return (MAIN, LATE)

    @property
    def _slices(self) -> Slices:
        size = self.size_us or 1
        return Slices(size, size, 0, Utc())

    @property
    def key_columns(self) -> Sequence[str]:
        """See :class:`headrace.kernel.protocols.StatefulOperator`."""
        return self._keys

    def partial(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """The first N rows of each window and key in a batch; rows without event time have a null window.

        Raises:
            SpecError: The rows lack a column (``COLUMN_NOT_FOUND``) or have types that do not fit.
        """
        plan = self._plan(rows.collect_schema())
        if plan.late is not None:
            rows = rows.filter(~plan.late.fill_null(value=False))
        return self._first(rows.select(plan.rows))

    def late(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """Late rows and rows without event time, with all their columns.

        Raises:
            SpecError: The rows lack a column (``COLUMN_NOT_FOUND``) or have types that do not fit.
        """
        plan = self._plan(rows.collect_schema())
        return rows.filter(plan.timeless if plan.late is None else plan.late.fill_null(value=False) | plan.timeless)

    def leaves_out(self, partials: pl.DataFrame) -> bool:
        """See :class:`headrace.kernel.protocols.StatefulOperator`: rows without event time have no window."""
        return bool(partials[WINDOW_START].has_nulls())

    def output_schema(self, schema: pl.Schema) -> pl.Schema:
        """See :class:`headrace.kernel.protocols.StatefulOperator`."""
        return self._finish(pl.LazyFrame(schema=schema)).collect_schema()

    def open(self, schema: pl.Schema, context: OperatorContext) -> SlicedInstance:
        """An instance over partials of ``schema``.

        Raises:
            GraphChangedError: The state was made by another definition, or over other types.
        """
        layout = Layout(self.where, self._keys, self._slices, self.allowed_lateness_us, self._finish, merge=self._first)
        return SlicedInstance(layout, schema, context.state)

    @property
    def _keys(self) -> list[str]:
        return [f"{_KEY}{index}" for index in range(len(self.by))]

    def _first(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """The first N rows of each window and key, sorted; all of those without a window."""
        groups = [WINDOW_START, *self._keys]
        place = pl.int_range(pl.len()).over(groups)
        return self._sorted(rows).filter((place < self.n) | pl.col(WINDOW_START).is_null())

    def _sorted(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        places = sorted((name for name in rows.collect_schema() if name.startswith(_PLACE)), key=_number)
        falling = [descending for _, descending in self.order_by] + [False] * (len(places) - len(self.order_by))
        groups = [WINDOW_START, *self._keys]
        return rows.sort(
            [*groups, *places],
            descending=[False] * len(groups) + falling,
            nulls_last=[False] * len(groups) + [True] * len(places),
        )

    def _finish(self, merged: pl.LazyFrame) -> pl.LazyFrame:
        ordered = self._sorted(merged)
        if not self.rank:
            return ordered.select(_ROW).unnest(_ROW)
        place = (pl.int_range(pl.len(), dtype=pl.Int64) + 1).over([WINDOW_START, *self._keys]).alias(self.rank)
        return ordered.select(_ROW, place).unnest(_ROW)

    def _plan(self, schema: pl.Schema) -> _Plan:
        return plan_for(self._plans, schema, self._planned)

    def _planned(self, schema: pl.Schema) -> _Plan:
        self._check(schema)
        dtype, slices = schema[self.event_time], self._slices
        time = times.microseconds(self.event_time, dtype, self.where)
        pane = slices.pane_of(time)
        mark = pl.col(columns.ROW_WATERMARK) - self.allowed_lateness_us
        ties = total_order(time, schema)
        wanted = [partials.one_zero(pl.col(name), schema[name]) for name, _ in self.order_by]
        named: Mapping[str, pl.Expr] = {
            **{
                key: partials.one_zero(pl.col(name), schema[name])
                for key, name in zip(self._keys, self.by, strict=True)
            },
            WINDOW_START: pane.cast(pl.Datetime("us", times.time_zone(dtype))),
            partials.ROWS: pl.lit(1, pl.Int64),
            **{f"{_PLACE}{index}": expr for index, expr in enumerate([*wanted, *ties])},
            _ROW: pl.struct(pl.col(name) for name in schema if name != columns.ROW_WATERMARK),
        }
        return _Plan(
            late=slices.last_end(pane) <= mark if columns.ROW_WATERMARK in schema else None,
            timeless=time.is_null(),
            rows=[expr.alias(name) for name, expr in named.items()],
        )

    def _check(self, schema: pl.Schema) -> None:
        ordered = [name for name, _ in self.order_by]
        for name in (self.event_time, *self.by, *ordered):
            if name not in schema:
                raise column_not_found(name, schema.names(), self.where)
        for name in (*self.by, *ordered):
            if schema[name].is_nested() or isinstance(schema[name], pl.Object):
                raise SpecError(f"{self.where}: {name!r} has type {schema[name]}", hint="take scalars of it")
        if self.rank in schema:
            raise SpecError(
                f"{self.where} would add {self.rank!r}, which the stream already has",
                hint="give the rank another name",
                code="COLUMN_CLASH",
            )


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """Expressions over the rows of one schema."""

    late: pl.Expr | None
    timeless: pl.Expr
    rows: Sequence[pl.Expr]


def _number(name: str) -> int:
    return int(name.removeprefix(_PLACE))
