"""A custom operator at work: rows in order and timers, taken to it in rounds.

A key's rows and timers have one order: rows before a timer's time, the timer, the rows from then on. In a round, every
key goes on by one step: the operator gets the rows that come before the next timer of their key (not more than
``timer_delay`` apart, as they may set timers themselves), or the timer. So the number of calls does not grow with the
number of keys, and what each key sees is the same however its rows are cut into batches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import polars as pl

from headrace.kernel.errors import UserError
from headrace.kernel.held import HeldLayout
from headrace.kernel.protocols import MAIN, Emission, OperatorContext, OperatorState
from operators import event_time as times
from operators.closed_time import ClosedTime
from operators.custom import CustomOperator, StateTable
from operators.custom_alarms import KeptTimers
from operators.custom_calls import OPERATOR_INVALID, checked, running
from operators.custom_state import ALL, EVENT_TIMERS, HELD, PROCESSING_TIMERS, State, Table
from operators.custom_timers import FLOOR, NAME, TIME, Timers, TimerSetter, firsts

VERSION: Final = 2
_FIRST: Final = "_first"
_DUE: Final = "_due"
_FOREVER: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class CustomLayout:
    """What an instance needs to know of its step.

    Attributes:
        where: Names the operator in error messages.
        key: The key columns.
        rows: The columns of rows, as the operator sees them.
        output: The columns that it has declared to give out.
        tables: Its tables.
        time: Column of partials with the event time, where rows come in its order; None: as they come.
        lateness: How much later than the watermark rows are given to it, microseconds.
        time_type: How it sees the times of event-time timers.
        event_time: Column of its output that is the output's event time.
    """

    where: str
    key: pl.Schema
    rows: pl.Schema
    output: pl.Schema
    tables: Mapping[str, StateTable]
    time: str | None
    lateness: int
    time_type: pl.DataType
    event_time: str | None


class CustomInstance:
    """Implements :class:`headrace.kernel.protocols.OperatorInstance` and :class:`headrace.kernel.protocols.Ticks`.

    Args:
        operator: The operator.
        layout: What stands around it.
        schema: Types of the partials.
        context: Where to resume, and keyed state.

    Raises:
        GraphChangedError: The state was made by another definition, over other types, or by a newer release.
    """

    def __init__(
        self, operator: CustomOperator, layout: CustomLayout, schema: pl.Schema, context: OperatorContext
    ) -> None:
        self._operator = operator
        self._layout = layout
        self._key = list(layout.key) or [ALL]
        self._delay = _microseconds(operator.timer_delay)
        self._timed = type(operator).on_event_time is not CustomOperator.on_event_time
        state = context.state
        self._nothing = pl.DataFrame(schema=schema)
        held = None if layout.time is None else HeldLayout(HELD, schema, list(layout.key), layout.time, VERSION)
        self._held = None if held is None else context.held(held)
        self._time = ClosedTime(layout.lateness, None, state)
        self._promised: int | None = None
        self._calls = 0
        key = layout.key or pl.Schema({ALL: pl.Int8()})
        event, processing = (KeptTimers(name, key, VERSION, context) for name in (EVENT_TIMERS, PROCESSING_TIMERS))
        if state is not None:
            self._promised, self._calls = state.values["promised"], int(state.values["calls"])
        self._event, self._processing = event, processing
        self._timers = Timers(event, processing, layout.where)
        self._timers.now_us = int(state.values["now"]) if state else 0
        self._tables = {
            name: Table(name, table, layout.key, operator.version, layout.where, context)
            for name, table in layout.tables.items()
        }
        self._state = State(self._tables, layout.where)

    @property
    def counts(self) -> Mapping[str, int]:
        """Rows since the job began: ``dropped_late`` and ``null_event_time`` (see :mod:`operators.windowed`)."""
        return self._time.counts

    def process(self, partials: pl.DataFrame) -> Emission:
        """Take in rows; in order of time they wait for :meth:`advance`."""
        if self._layout.time is None or self._held is None:
            given = [self._process(partials, self._event, None)]
            if self._time.at is not None:
                given += self._in_order(self._nothing, self._time.at)
            return self._given(given)
        closed = self._time.at
        gone = None if closed is None else pl.col(self._layout.time) < closed
        accepted = self._time.accepted(partials, self._layout.time, gone)
        self._held.add(accepted)
        return {}

    def advance(self, watermark: int) -> Emission:
        """Give the operator what has passed: rows in order, and timers."""
        closed = self._time.close(watermark)
        given = self._in_order(self._take(closed), closed)
        self._expire(closed)
        emission = self._given(given)
        self._promised = self.outgoing_watermark(watermark)
        return emission

    def tick(self, now_us: int) -> Emission:
        """See :class:`headrace.kernel.protocols.Ticks`: fires a timer of each key that has one due."""
        self._timers.now_us = max(self._timers.now_us, now_us)
        due = self._processing.due(self._timers.now_us)
        if not due.height:
            return {}
        self._processing.remove(due)
        return self._given([self._fire_processing(due)])

    def drain(self) -> Emission:
        """Give the operator all rows, then all timers that are set then, and not those that these set."""
        given: list[pl.DataFrame] = []
        last = None if self._held is None else self._held.latest
        if last is not None:
            closed = self._time.close(last + 1 + self._layout.lateness)
            given += self._in_order(self._take(closed), None)
        given += self._end(self._event, lambda due: self._fire(due, self._event))
        given += self._end(self._processing, self._fire_processing)
        return self._given(given)

    def outgoing_watermark(self, watermark: int) -> int:
        """Rows and timers from there on are still to come; less the operator's ``output_lag``."""
        return max(self._time.reached(watermark) - _microseconds(self._operator.output_lag), times.EARLIEST)

    def rows_held(self) -> int:
        """Rows that wait, rows of tables, and timers."""
        tables = sum(table.height for table in self._tables.values())
        held = 0 if self._held is None else self._held.height
        return held + tables + self._event.height + self._processing.height

    def snapshot(self) -> OperatorState:
        """See :class:`headrace.kernel.protocols.OperatorInstance`."""
        values = {
            **self._time.values,
            "promised": self._promised,
            "calls": self._calls,
            "now": self._timers.now_us,
        }
        timers = {EVENT_TIMERS: self._event.snapshot(), PROCESSING_TIMERS: self._processing.snapshot()}
        keyed = {**{name: table.snapshot() for name, table in self._tables.items()}, **timers}
        held = {} if self._held is None else {HELD: self._held.snapshot()}
        return OperatorState(VERSION, values, keyed=keyed, held=held)

    # ------------------------------------------------------------------------------------------------------ inside

    def _take(self, closed: int) -> pl.DataFrame:
        """The rows before ``closed``, in order."""
        earliest = None if self._held is None else self._held.earliest
        if self._held is None or earliest is None or earliest >= closed:
            return self._nothing
        return self._held.take(closed).sort(pl.all(), nulls_last=False)

    def _end(self, timers: KeptTimers, fire: Callable[[pl.DataFrame], pl.DataFrame]) -> list[pl.DataFrame]:
        """Fire the timers that are set, a key's in their order, if those before them have not removed them."""
        given: list[pl.DataFrame] = []
        pieces = list(timers.rows())
        waiting = pl.concat(pieces) if pieces else None
        while waiting is not None and waiting.height:
            due = firsts(waiting, self._key)
            waiting = waiting.join(due, on=[*self._key, NAME], how="anti", nulls_equal=True)
            due = timers.still(due)
            if due.height:
                timers.remove(due)
                given.append(fire(due))
        return given

    def _in_order(self, ready: pl.DataFrame, limit: int | None) -> list[pl.DataFrame]:
        """Rows, and timers up to and including ``limit``, in rounds; None: of a key, those before its last row."""
        if not self._timed:
            return [self._process(ready, self._event, None)] if ready.height else []
        upto = _FOREVER if limit is None else limit
        due = self._event.due(upto)
        if not ready.height and not due.height:
            return []
        near = self._event.near([ready, due])
        given = []
        while True:
            due = near.due(upto)
            if not ready.height and (limit is None or not due.height):
                break
            now, ready, fired = self._round(ready, due, alone=limit is not None)
            if now.height:
                given.append(self._process(now, near, self._floor_of_rows(now)))
            if fired.height:
                near.remove(fired)
                given.append(self._fire(fired, near))
        self._event.absorb(near)
        return given

    def _round(
        self, ready: pl.DataFrame, due: pl.DataFrame, *, alone: bool
    ) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
        """What comes next of each key.

        Args:
            ready: Rows, in order.
            due: The first timer of each key that has one.
            alone: Timers come, too, where no row of their key is left.

        Returns:
            Rows, the rows that are left, and timers, of other keys than the rows.
        """
        if self._layout.time is None or not ready.height:
            return ready.clear(), ready.clear(), due
        time = pl.col(self._layout.time)
        first = ready.group_by(self._key).agg(time.min().alias(_FIRST))
        timers = due.select(*self._key, pl.col(TIME).alias(_DUE))
        limits = first.join(timers, on=self._key, how="left", nulls_equal=True)
        marked = ready.join(limits, on=self._key, how="left", nulls_equal=True, maintain_order="left")
        near = time < pl.col(_FIRST) + max(self._delay, 1)
        taken = marked.select(near & (pl.col(_DUE).is_null() | (time < pl.col(_DUE)))).to_series()
        firsts = due.join(first, on=self._key, how="left", nulls_equal=True, maintain_order="left")
        fired = firsts.filter((pl.col(TIME) <= pl.col(_FIRST)).fill_null(alone)).drop(_FIRST)
        return ready.filter(taken), ready.filter(~taken), fired

    def _floor_of_rows(self, rows: pl.DataFrame) -> pl.DataFrame | None:
        """How early timers may be set for rows that came together though they are not of one time."""
        if self._layout.time is None or not self._delay:
            return None
        return rows.group_by(self._key).agg((pl.col(self._layout.time).min() + self._delay).alias(FLOOR))

    def _process(self, rows: pl.DataFrame, event: TimerSetter, floor: pl.DataFrame | None) -> pl.DataFrame:
        self._timers.using(event, floor)
        with running(self._layout.where, "process", self._facts(rows)):
            given = self._operator.process(rows.select(self._layout.rows.names()), self._state, self._timers)
        return checked(given, self._layout.output, self._layout.where, "process")

    def _fire(self, due: pl.DataFrame, event: TimerSetter) -> pl.DataFrame:
        floor = due.select(*self._key, (pl.col(TIME) + max(self._delay, 1)).alias(FLOOR))
        self._timers.using(event, floor)
        shown = self._shown(due, self._layout.time_type)
        with running(self._layout.where, "on_event_time", self._facts(due)):
            given = self._operator.on_event_time(shown, self._state, self._timers)
        return checked(given, self._layout.output, self._layout.where, "on_event_time")

    def _fire_processing(self, due: pl.DataFrame) -> pl.DataFrame:
        self._timers.using(self._event, None)
        shown = self._shown(due, pl.Datetime("us", "UTC"))
        with running(self._layout.where, "on_processing_time", self._facts(due)):
            given = self._operator.on_processing_time(shown, self._state, self._timers)
        return checked(given, self._layout.output, self._layout.where, "on_processing_time")

    def _shown(self, due: pl.DataFrame, time_type: pl.DataType) -> pl.DataFrame:
        return due.select(*self._layout.key, NAME, pl.col(TIME).cast(time_type))

    def _facts(self, rows: pl.DataFrame) -> Mapping[str, int]:
        self._calls += 1
        return {"call": self._calls, "rows": rows.height, "keys": rows.select(self._key).n_unique()}

    def _expire(self, closed: int) -> None:
        for name, table in self._tables.items():
            if self._layout.tables[name].ttl is not None:
                table.expire(closed)

    def _given(self, frames: Sequence[pl.DataFrame]) -> Emission:
        rows = [frame for frame in frames if frame.height]
        if not rows:
            return {}
        out = pl.concat(rows)
        if self._layout.event_time is not None and self._promised is not None:
            self._check_times(out, self._layout.event_time, self._promised)
        return {MAIN: out}

    def _check_times(self, out: pl.DataFrame, column: str, promised: int) -> None:
        time = times.microseconds(column, out.schema[column], self._layout.where)
        first = out.select(time.min()).item()
        if first is not None and first < promised:
            raise UserError(
                f"{self._layout.where} gives out rows whose event time lies too far back",
                detail=f"{column} is {first} us, and rows before {promised} us have been given out for good",
                hint="declare an output_lag, or give another column as event_time",
                code=OPERATOR_INVALID,
            )


def _microseconds(span: timedelta) -> int:
    return span // timedelta(microseconds=1)
