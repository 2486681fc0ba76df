"""Window joins: rows of two streams with equal keys that lie in the same window.

A pair is given out for each window that both rows lie in, a row without a match for each window in which it has none
(``left``, ``right``, ``full``, ``anti``), when the window closes: when the watermark has reached its end, and passed
the allowed lateness. So what is given out is a function of the rows that are not late, and the join is exact.

As with window aggregates (:mod:`operators.window`), a row counts in those of its windows that were open at its own
watermark, and is late when none was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import polars as pl

from headrace.kernel import columns
from headrace.kernel.errors import SpecError
from headrace.kernel.held import HeldLayout, HeldState
from headrace.kernel.protocols import MAIN, Emission, OperatorContext, OperatorState
from operators import event_time as times
from operators.closed_time import ClosedTime
from operators.join_pairs import ROW, pairs, right_name
from operators.join_sides import SIDE, TIME, JoinSides, Side
from operators.slices import Slices
from operators.timed_join import TimedJoin
from operators.windowed import WINDOW_END, WINDOW_START

VERSION: Final = 2
_MARK: Final = "_mark"
"""The row's watermark, less the allowed lateness; null: it counts in all of its windows."""
_END: Final = "_end"
_LAST: Final = "_last"
"""When the last window of a row ends, microseconds."""


@dataclass(frozen=True, slots=True, eq=False)
class WindowJoin(TimedJoin):
    """Join rows of one window; implements :class:`headrace.kernel.protocols.StatefulOperator`.

    Output: the columns of :meth:`operators.join_sides.JoinSides.output`, then ``window_start`` and ``window_end``
    (Datetime in microseconds, in the zone of the left side's event time). The watermark behind it holds for
    ``window_start``.

    Args:
        id: Stable id; the state is bound to it.
        sides: The sides, with event times.
        slices: The windows.
        allowed_lateness_us: How much later windows close.

    Raises:
        SpecError: Something in it cannot be.
    """

    id: str
    sides: JoinSides
    slices: Slices
    allowed_lateness_us: int = 0

    def __post_init__(self) -> None:
        self.prepare()
        taken = [name for name in (WINDOW_START, WINDOW_END) if name in self.sides.output()]
        if taken:
            raise SpecError(
                f"{self.sides.label} would add {', '.join(map(repr, taken))}, which a side already has",
                hint="rename it before the join, or set left_prefix or right_prefix; windowed rows are joined with "
                "within: 0s, over their window_start",
                code="COLUMN_CLASH",
            )

    @property
    def fingerprint(self) -> str:
        """What the state depends on, as text that people can compare; types are checked when the state is opened."""
        return f"window join, {self.sides.describe()}, in windows of {self.slices}{self.lateness}"

    def partial(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """The tagged rows that are not late, with their marks."""
        mark: pl.Expr = pl.lit(None, pl.Int64)
        if columns.ROW_WATERMARK in rows.collect_schema():
            mark = pl.col(columns.ROW_WATERMARK) - self.allowed_lateness_us
        return TimedJoin.partial(self, rows.with_columns(mark.alias(_MARK)))

    def is_late(self) -> pl.Expr:
        """See :class:`operators.timed_join.TimedJoin`: all windows of a row were closed at its own watermark."""
        slices = self.slices
        mark = pl.col(columns.ROW_WATERMARK) - self.allowed_lateness_us
        return slices.scale.instant(slices.last_end(slices.pane_of(pl.col(TIME)))) <= mark

    def output_schema(self, schema: pl.Schema) -> pl.Schema:  # noqa: ARG002 - the protocol's signature
        """See :class:`headrace.kernel.protocols.StatefulOperator`."""
        return pl.Schema({**self.sides.output(), WINDOW_START: self.time_type, WINDOW_END: self.time_type})

    @property
    def time_type(self) -> pl.Datetime:
        """The type that windows are shown in."""
        left = self.sides.left
        return pl.Datetime("us", None if left.time is None else times.time_zone(left.schema[left.time]))

    def open(self, schema: pl.Schema, context: OperatorContext) -> WindowJoinInstance:
        """An instance over tagged rows of ``schema``.

        Raises:
            GraphChangedError: The state was made over other types, or by a newer release.
        """
        return WindowJoinInstance(self, schema, context)


class WindowJoinInstance:
    """Implements :class:`headrace.kernel.protocols.OperatorInstance`. State: the rows of windows that are open."""

    def __init__(self, operator: WindowJoin, schema: pl.Schema, context: OperatorContext) -> None:
        self._operator = operator
        self._sides = operator.sides
        self._slices = operator.slices
        self._time = ClosedTime(operator.allowed_lateness_us, None, context.state)
        self._held: dict[Side, HeldState] = {}
        sides: tuple[Side, Side] = ("left", "right")
        for side in sides:
            names = [*self._sides.keys, TIME, _MARK, *self._sides.own(side)]
            rows = pl.Schema({**{name: schema[name] for name in names}, _LAST: pl.Int64()})
            self._held[side] = context.held(HeldLayout(side, rows, self._sides.keys, _LAST, VERSION))

    @property
    def counts(self) -> Mapping[str, int]:
        """Rows since the job began that came for closed windows (after a drain), and those without event time."""
        return self._time.counts

    def process(self, partials: pl.DataFrame) -> Emission:
        """Take in rows; pairs are only given out by :meth:`advance` and :meth:`drain`."""
        slices, closed = self._slices, self._time.at
        last = slices.scale.instant(slices.last_end(slices.pane_of(pl.col(TIME))))
        ending = partials.with_columns(last.alias(_LAST))
        rows = self._time.accepted(ending, TIME, None if closed is None else pl.col(_LAST) <= closed)
        for side, held in self._held.items():
            mine = pl.col(SIDE) if side == "right" else ~pl.col(SIDE)
            held.add(rows.filter(mine).select(held.schema.names()))
        return {}

    def advance(self, watermark: int) -> Emission:
        """Give out the windows that are closed with ``watermark``."""
        before = self._time.at
        closed = self._time.close(watermark)
        slices = self._slices
        if before is not None and slices.ended_at(before) == slices.ended_at(closed):
            return {}
        left, right = (self._closing(side, before, closed) for side in self._held)
        for held in self._held.values():
            held.drop(closed + 1)
        given = [frame for frame in self._given(left, right) if frame.height]
        return {MAIN: pl.concat(given)} if given else {}

    def drain(self) -> Emission:
        """Give out all windows. Time up to the end of the last one is closed then."""
        ends = [end for held in self._held.values() if (end := held.latest) is not None]
        return self.advance(max(ends) + self._operator.allowed_lateness_us) if ends else {}

    def outgoing_watermark(self, watermark: int) -> int:
        """The earliest start of the windows that are still open."""
        ended = self._slices.ended_at(self._time.reached(watermark))
        return self._slices.scale.instant_at(self._slices.earliest_start(ended))

    def rows_held(self) -> int:
        """Rows of both sides."""
        return sum(held.height for held in self._held.values())

    def snapshot(self) -> OperatorState:
        """See :class:`headrace.kernel.protocols.OperatorInstance`."""
        held = {str(side): rows.snapshot() for side, rows in self._held.items()}
        return OperatorState(VERSION, self._time.values, held=held)

    # ------------------------------------------------------------------------------------------------------ inside

    def _closing(self, side: Side, before: int | None, closed: int) -> pl.DataFrame:
        """The rows of windows that close now, once for each such window, with its end as a mark."""
        slices, instant = self._slices, self._slices.scale.instant
        pane = slices.pane_of(pl.col(TIME))
        due = pl.concat(self._held[side].frames()).lazy().filter(instant(slices.first_end(pane)) <= closed)
        ends = pl.int_ranges(slices.first_end(pane), slices.last_end(pane) + 1, slices.every)
        rows = due.with_columns(ends.alias(_END)).explode(_END, empty_as_null=False)
        end = instant(pl.col(_END))
        wanted = (end <= closed) & (end > pl.col(_MARK)).fill_null(value=True)
        if before is not None:
            wanted &= end > before
        return rows.filter(wanted).drop(_MARK, _LAST).with_row_index(ROW).collect()

    def _given(self, left: pl.DataFrame, right: pl.DataFrame) -> list[pl.DataFrame]:
        sides = self._sides
        found = pairs(sides, left.lazy(), right.lazy(), None, left.height + right.height, [_END])
        if sides.half:
            matched = left[ROW].is_in(found[ROW].implode())
            return [self._shown(left.filter(matched if sides.how == "semi" else ~matched), TIME, None)]
        out = [self._shown(found, TIME, right_name(TIME))]
        if sides.keeps("left"):
            out.append(self._shown(left.filter(~left[ROW].is_in(found[ROW].implode())), TIME, None))
        if sides.keeps("right"):
            out.append(self._shown(right.filter(~right[ROW].is_in(found[right_name(ROW)].implode())), None, TIME))
        return out

    def _shown(self, rows: pl.DataFrame, left: str | None, right: str | None) -> pl.DataFrame:
        instant, kind, end = self._slices.scale.instant, self._operator.time_type, pl.col(_END)
        return rows.select(
            *self._sides.outputs(left, right),
            instant(self._slices.start(end)).cast(kind).alias(WINDOW_START),
            instant(end).cast(kind).alias(WINDOW_END),
        )
