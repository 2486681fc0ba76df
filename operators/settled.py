"""Changelogs before operators that give rows out once: rows are held until no change of them can be in time.

A row is held until the watermark has passed its event time (and the allowed lateness); what has been taken back by then
was never there, and the operator behind gets what is left, as plain rows. That is when deduplication, sessions, the
first rows of windows and frames over rows hold a row for decided in any case, so they give what they would of those.

* A change is *late* when the operator says so of a row: below its own watermark, less the allowed lateness. It leaves
  through the port ``late`` with its ``_weight``, and what it was about stays as it is. ``revised`` says that this
  happens to changes that came as early as they could, as with a changelog whose rows are taken back by rows of other
  times: results then depend on which has come first.
* Rows that hold the same are one row that is there several times. One that is taken back more often than it came in
  time is not there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import polars as pl

from headrace.kernel import columns
from headrace.kernel.held import HeldLayout
from headrace.kernel.protocols import (
    COUNTS,
    Determinism,
    Emission,
    OperatorContext,
    OperatorInstance,
    OperatorState,
    ShowsState,
    StatefulOperator,
    Ticks,
)
from operators import event_time as times
from operators import partials
from operators.closed_time import ClosedTime
from operators.determinism import weakest
from operators.errors import computing
from operators.passage import Passage, PassesPredicates
from operators.plan_cache import plan_for

TIME: Final = "_settles"
"""The row's event time, or the last instant of its window, microseconds."""

VERSION: Final = 1
_UNSETTLED: Final = "unsettled"
_CLOSED: Final = "settled"


@dataclass(frozen=True, slots=True)
class Settled:
    """An operator over what a changelog comes to; implements :class:`headrace.kernel.protocols.StatefulOperator`.

    Output: that of the operator.

    Args:
        operator: One whose rows are late below their own watermark, less the allowed lateness, and whose state is by
            event time.
        event_time: Column with the event time: Datetime or Date, or microseconds (of rows on their way into a join).
        by: The columns of the rows that its key columns are made of, in their order.
        lateness_us: Its allowed lateness.
        size_us: Length of its windows, rows of which are late together; 1: rows are late by themselves.
        revised: The rows are a changelog that takes rows back whose time may have passed.
    """

    operator: StatefulOperator
    event_time: str
    by: Sequence[str]
    lateness_us: int = 0
    size_us: int = 1
    revised: bool = False
    _plans: dict[tuple[Any, ...], _Plan] = field(init=False, repr=False, compare=False, default_factory=dict)

    @property
    def id(self) -> str:
        """The operator's."""
        return self.operator.id

    @property
    def where(self) -> str:
        """Names the operator in error messages."""
        return f"step {self.id!r}"

    @property
    def determinism(self) -> Determinism:
        """The operator's, as long as all changes can come in time."""
        return weakest([self.operator.determinism, *([Determinism.NOT_INVARIANT] if self.revised else [])])

    @property
    def fingerprint(self) -> str:
        """What the state depends on, as text that people can compare; types are checked when the state is opened."""
        return f"{self.operator.fingerprint}, over a changelog"

    @property
    def ports(self) -> Sequence[str]:
        """The operator's."""
        return self.operator.ports

    @property
    def key_columns(self) -> Sequence[str]:
        """The operator's."""
        return self.operator.key_columns

    def partial(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """Equal rows that are not late once, with their weight and event time.

        Raises:
            SpecError: The rows lack a column (``COLUMN_NOT_FOUND``) or have types that do not fit.
        """
        plan = plan_for(self._plans, rows.collect_schema(), self._planned)
        return _net(times.kept(rows, plan.late).select(**plan.rows))

    def passages(self, rows: pl.Schema) -> Sequence[Passage]:
        """The operator's (:class:`operators.passage.PassesPredicates`): a row is taken back with all its values."""
        return self.operator.passages(self.rows_of(rows)) if isinstance(self.operator, PassesPredicates) else []

    def late(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """The operator's: late rows and rows without event time, with their weights."""
        return self.operator.late(rows)

    def leaves_out(self, partials: pl.DataFrame) -> bool:
        """See :class:`headrace.kernel.protocols.StatefulOperator`: rows without event time never settle."""
        return bool(partials[TIME].has_nulls())

    def output_schema(self, schema: pl.Schema) -> pl.Schema:
        """See :class:`headrace.kernel.protocols.StatefulOperator`."""
        return self.operator.output_schema(self._partials_of(self.rows_of(schema)))

    def open(self, schema: pl.Schema, context: OperatorContext) -> SettledInstance:
        """An instance over partials of ``schema``.

        Raises:
            GraphChangedError: The state was made by another definition, or over other types.
        """
        return SettledInstance(
            self, schema, self.operator.open(self._partials_of(self.rows_of(schema)), context), context
        )

    def shown(self, table: str, rows: pl.LazyFrame) -> pl.LazyFrame:
        """See :class:`headrace.kernel.protocols.ShowsState`."""
        if table == _UNSETTLED:
            return rows.drop(TIME, *self._added(rows.collect_schema()))
        return self.operator.shown(table, rows) if isinstance(self.operator, ShowsState) else rows

    def partials(self, settled: pl.DataFrame) -> pl.DataFrame:
        """The operator's partials of rows that have settled."""
        there = settled.filter(pl.col(columns.WEIGHT) > 0)
        copies = pl.int_range(pl.len()).repeat_by(columns.WEIGHT).explode(empty_as_null=False)
        rows = there[there.select(copies).to_series()].select(pl.col(list(self.rows_of(settled.schema))))
        with computing(self.where):
            return self.operator.partial(rows.lazy()).collect()

    def rows_of(self, schema: pl.Schema) -> pl.Schema:
        """The columns of the rows that partials of ``schema`` stand for, as the operator gets them."""
        left_out = {*_ABOUT_ROWS, *self._added(schema)}
        return pl.Schema({name: dtype for name, dtype in schema.items() if name not in left_out})

    def _added(self, partials: pl.Schema) -> list[str]:
        """Columns of partials that rows do not have: keys under the operator's names."""
        return [name for name in self.key_columns if name not in self.by and name in partials]

    def _partials_of(self, rows: pl.Schema) -> pl.Schema:
        return self.operator.partial(pl.LazyFrame(schema=rows)).collect_schema()

    def _planned(self, schema: pl.Schema) -> _Plan:
        rows = pl.Schema({name: dtype for name, dtype in schema.items() if name not in _ABOUT_ROWS})
        self._partials_of(rows)  # what it says of columns that do not fit comes first
        time = (
            pl.col(self.event_time)
            if rows[self.event_time] == pl.Int64
            else times.microseconds(self.event_time, rows[self.event_time], self.where)
        )
        time = time.floordiv(self.size_us) * self.size_us + (self.size_us - 1)
        keys = {
            key: partials.one_zero(pl.col(name), rows[name])
            for key, name in zip(self.key_columns, self.by, strict=True)
        }
        return _Plan(
            times.lateness(time, schema, self.lateness_us),
            {**{name: pl.col(name) for name in rows}, **keys, TIME: time, columns.WEIGHT: pl.col(columns.WEIGHT)},
        )


class SettledInstance:
    """Implements :class:`headrace.kernel.protocols.OperatorInstance` and :class:`headrace.kernel.protocols.Ticks`.

    State: the operator's, and the rows that have not settled.

    Args:
        settled: The operator's definition.
        schema: Types of the partials.
        inner: The operator at work.
        context: Where to resume.

    Raises:
        GraphChangedError: The state was made over other types.
    """

    def __init__(self, settled: Settled, schema: pl.Schema, inner: OperatorInstance, context: OperatorContext) -> None:
        state = context.state
        self._settled = settled
        self._inner = inner
        self._held = context.held(HeldLayout(_UNSETTLED, schema, settled.key_columns, TIME, VERSION, _net))
        self._time = ClosedTime(settled.lateness_us, columns.WEIGHT, None if state is None else _own(state))

    @property
    def counts(self) -> Mapping[str, int]:
        """Changes since the job began that came for closed time (after a drain), and those without event time."""
        return self._time.counts

    def tick(self, now_us: int) -> Emission:
        """See :class:`headrace.kernel.protocols.Ticks`."""
        return self._inner.tick(now_us) if isinstance(self._inner, Ticks) else {}

    def process(self, partials: pl.DataFrame) -> Emission:
        """Take in changes; they go to the operator by :meth:`advance` and :meth:`drain`."""
        closed = self._time.at
        accepted = self._time.accepted(partials, TIME, None if closed is None else pl.col(TIME) < closed)
        if accepted.height:
            self._held.add(accepted)
        return {}

    def advance(self, watermark: int) -> Emission:
        """Give the operator the rows that have settled, and then the watermark."""
        closed, earliest = self._time.close(watermark), self._held.earliest
        if earliest is None or earliest >= closed:
            return self._inner.advance(watermark)
        due = self._settled.partials(self._held.take(closed))
        return _together([self._inner.process(due), self._inner.advance(watermark)])

    def drain(self) -> Emission:
        """Give out everything. Time up to the last row is closed then."""
        latest = self._held.latest
        settled = {} if latest is None else self.advance(latest + self._settled.lateness_us + 1)
        return _together([settled, self._inner.drain()])

    def outgoing_watermark(self, watermark: int) -> int:
        """The operator's."""
        return self._inner.outgoing_watermark(watermark)

    def rows_held(self) -> int:
        """Rows that have not settled, and what the operator holds."""
        return self._held.height + self._inner.rows_held()

    def snapshot(self) -> OperatorState:
        """See :class:`headrace.kernel.protocols.OperatorInstance`."""
        state, own = self._inner.snapshot(), self._time.values
        counts = {**state.values[COUNTS], **{f"{_UNSETTLED}:{name}": count for name, count in own[COUNTS].items()}}
        return replace(
            state,
            values={**state.values, _CLOSED: own["closed"], COUNTS: counts},
            held={**state.held, _UNSETTLED: self._held.snapshot()},
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """Expressions over the rows of one schema."""

    late: pl.Expr | None
    rows: Mapping[str, pl.Expr]


_ABOUT_ROWS: Final = frozenset({columns.ROW_WATERMARK, columns.WEIGHT, TIME})


def _net(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Equal rows once, with their weight; without those that weigh nothing."""
    names = rows.collect_schema().names()
    weight = pl.col(columns.WEIGHT)
    held = [pl.col(name) for name in names if name != columns.WEIGHT]
    return rows.group_by(held).agg(weight.sum()).filter(weight != 0).select(map(pl.col, names))


def _own(state: OperatorState) -> OperatorState:
    """Of a state, the part that is about rows that have not settled, as :class:`ClosedTime` reads it."""
    prefix = f"{_UNSETTLED}:"
    counts = {
        name.removeprefix(prefix): count for name, count in state.values[COUNTS].items() if name.startswith(prefix)
    }
    return OperatorState(state.version, {"closed": state.values[_CLOSED], COUNTS: counts})


def _together(emissions: Sequence[Emission]) -> Emission:
    ports = dict.fromkeys(port for emission in emissions for port in emission)
    return {port: pl.concat([emission[port] for emission in emissions if port in emission]) for port in ports}
