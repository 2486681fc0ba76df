"""Top-N: of the rows of each window and key, the first N in a given order.

Windows are those of :class:`operators.window.TumblingWindow`, or, behind a window step, the windows that its rows name:
then rows of one ``window_start`` belong together. Ties are broken by (event time, partition, offset) and then by what
rows hold (:mod:`operators.row_order`), so that which rows are kept never depends on the order in which they come. The
rows of a window are given out together, when it closes; lateness is that of windows (:mod:`operators.windowed`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from headrace.kernel.durations import format_duration_us
from headrace.kernel.errors import SpecError
from headrace.kernel.protocols import LATE, MAIN, Determinism, OperatorContext
from operators import event_time as times
from operators import partials
from operators.errors import column_not_found
from operators.passage import Narrowed, Passage, by_key, reading
from operators.plan_cache import plan_for
from operators.ranked_order import Places
from operators.ranking import Ranking
from operators.slices import Slices
from operators.time_scales import Utc
from operators.window_instance import Layout, SlicedInstance
from operators.windowed import WINDOW_START


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
    _ranking: Ranking = field(init=False, repr=False, compare=False)
    _plans: dict[tuple[Any, ...], _Plan] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "_ranking", Ranking(self.where, self.n, self.order_by, self.by, self.rank, self.event_time)
        )
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
        window = "one event time" if self.size_us is None else format_duration_us(self.size_us)
        late = f", allowed lateness {format_duration_us(self.allowed_lateness_us)}" if self.allowed_lateness_us else ""
        return f"top {self.n} of {window}{late}, over {self.event_time}, {self._ranking}"

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
        return self._ranking.keys

    def partial(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """The first N rows of each window and key in a batch; rows without event time have a null window.

        Raises:
            SpecError: The rows lack a column (``COLUMN_NOT_FOUND``) or have types that do not fit.
        """
        plan = self._plan(rows.collect_schema())
        return self._first(times.kept(rows, plan.late).select(plan.rows))

    def passages(self, rows: pl.Schema) -> Sequence[Passage]:
        """See :class:`operators.passage.PassesPredicates`: rows of different keys, or windows, never meet."""
        time = rows[self.event_time]
        windowed = self.size_us is None and isinstance(time, pl.Datetime) and time.time_unit == "us"
        return by_key([*self.by, *([self.event_time] if windowed else [])], rows)

    def narrowed(self, wanted: Collection[str], rows: pl.Schema) -> Narrowed:
        """See :class:`operators.passage.NarrowsColumns`: rows are held without what nobody needs."""
        return Narrowed(self, reading([*wanted, *self._ranking.reads, self.event_time], rows))

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
        return self._finish(pl.LazyFrame(schema=schema)).collect_schema()

    def open(self, schema: pl.Schema, context: OperatorContext) -> SlicedInstance:
        """An instance over partials of ``schema``.

        Raises:
            GraphChangedError: The state was made by another definition, or over other types.
        """
        keys = self._ranking.keys
        layout = Layout(self.where, keys, keys, self._slices, self.allowed_lateness_us, self._finish, self._first)
        return SlicedInstance(layout, schema, context)

    def shown(self, table: str, rows: pl.LazyFrame) -> pl.LazyFrame:  # noqa: ARG002 - there is one
        """See :class:`headrace.kernel.protocols.ShowsState`: the first N rows so far."""
        return self._finish(self._first(rows))

    @property
    def _groups(self) -> list[str]:
        return [WINDOW_START, *self._ranking.keys]

    def _first(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """The first N rows of each window and key, sorted; all of those without a window."""
        return rows.map_batches(self._firsts, schema=rows.collect_schema())

    def _firsts(self, rows: pl.DataFrame) -> pl.DataFrame:
        order = self._ranking.ordered(rows, self._groups)
        windowless = rows[WINDOW_START].is_null().to_numpy()[order.rows]
        kept: Places = order.rows[(order.ranks < self.n) | windowless]
        return rows[kept]

    def _finish(self, merged: pl.LazyFrame) -> pl.LazyFrame:
        return self._ranking.finish(merged, self._groups)

    def _plan(self, schema: pl.Schema) -> _Plan:
        return plan_for(self._plans, schema, self._planned)

    def _planned(self, schema: pl.Schema) -> _Plan:
        if self.event_time not in schema:
            raise column_not_found(self.event_time, schema.names(), self.where)
        self._ranking.check(schema)
        dtype, slices = schema[self.event_time], self._slices
        time = times.microseconds(self.event_time, dtype, self.where)
        pane = slices.pane_of(time)
        bar = times.bar(schema, self.allowed_lateness_us)
        named: Mapping[str, pl.Expr] = {
            WINDOW_START: pane.cast(pl.Datetime("us", times.time_zone(dtype))),
            partials.ROWS: pl.lit(1, pl.Int64),
            **self._ranking.columns(schema),
        }
        return _Plan(
            late=None if bar is None else slices.last_end(pane) <= bar,
            timeless=time.is_null(),
            rows=[expr.alias(name) for name, expr in named.items()],
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """Expressions over the rows of one schema."""

    late: pl.Expr | None
    timeless: pl.Expr
    rows: Sequence[pl.Expr]
