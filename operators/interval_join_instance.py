"""An interval join at work. State: the rows of each side that may still find a match."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import polars as pl

from headrace.kernel.held import HeldLayout, HeldState
from headrace.kernel.protocols import MAIN, Emission, OperatorContext, OperatorState
from operators.closed_time import ClosedTime
from operators.join_pairs import ROW, pairs, right_name
from operators.join_sides import SIDE, TIME, UNTIL, JoinSides, Side
from operators.selection import selected

VERSION: Final = 2
MATCHED: Final = "_matched"
"""Whether a row has been given out with a match."""


class IntervalJoinInstance:
    """Implements :class:`headrace.kernel.protocols.OperatorInstance`.

    Args:
        sides: The sides.
        bounds: How much later a left row is than the right one, at least and at most, microseconds; None: right rows
            say until when.
        lateness: How much later than the watermark rows are given up, microseconds.
        schema: Types of the tagged rows.
        context: Where to resume, and held state.

    Raises:
        GraphChangedError: The state was made over other types, or by a newer release.
    """

    def __init__(
        self,
        sides: JoinSides,
        bounds: tuple[int, int | None],
        lateness: int,
        schema: pl.Schema,
        context: OperatorContext,
    ) -> None:
        self._sides = sides
        self._lower, self._upper = bounds
        self._lateness = lateness
        self._time = ClosedTime(lateness, None, context.state)
        self._left = self._opened("left", schema, context)
        self._right = self._opened("right", schema, context)

    @property
    def counts(self) -> Mapping[str, int]:
        """Rows since the job began that came for closed time (after a drain), and those without event time."""
        return self._time.counts

    def process(self, partials: pl.DataFrame) -> Emission:
        """Take in rows; gives out the pairs that they complete."""
        closed = self._time.at
        rows = self._time.accepted(partials, TIME, None if closed is None else pl.col(TIME) < closed)
        if not rows.height:
            return {}
        out: list[pl.DataFrame] = []
        for side in ("left", "right"):
            fresh = self._of(side, rows)
            if fresh.height:
                out += self._matched(side, fresh)
        return _emission(out)

    def advance(self, watermark: int) -> Emission:
        """Give out, and let go of, what can find no match any more."""
        return self._expire(self._time.close(watermark))

    def drain(self) -> Emission:
        """Give out everything that has found no match. Time up to then is closed."""
        last = [
            time - ahead + 1
            for held, ahead in ((self._left, self._lower), (self._right, -(self._upper or 0)))
            if (time := held.latest) is not None
        ]
        return self.advance(max(last) + self._lateness) if last else {}

    def outgoing_watermark(self, watermark: int) -> int:
        """The earliest event time of what may still be given out."""
        closed = self._time.reached(watermark)
        waiting = [closed]
        if self._sides.later is not None:
            kept: list[Side] = [side for side in ("left", "right") if self._sides.keeps(side)]
        else:
            kept = ["right"] if self._sides.how == "right" else ["left"]
        for side in kept:
            earliest = self._earliest(side)
            if earliest is not None:
                is_bound = side == "left" or self._upper is not None
                waiting.append(max(earliest, self._bound(side, closed)) if is_bound else earliest)
        return min(waiting)

    def rows_held(self) -> int:
        """Rows of both sides."""
        return self._left.height + self._right.height

    def snapshot(self) -> OperatorState:
        """See :class:`headrace.kernel.protocols.OperatorInstance`."""
        held = {"left": self._left.snapshot(), "right": self._right.snapshot()}
        return OperatorState(VERSION, self._time.values, held=held)

    # ------------------------------------------------------------------------------------------------------ inside

    def _opened(self, side: Side, schema: pl.Schema, context: OperatorContext) -> HeldState:
        rows = self._of(side, pl.DataFrame(schema=schema)).schema
        time, flag = UNTIL if UNTIL in rows else TIME, MATCHED if MATCHED in rows else None
        return context.held(HeldLayout(side, rows, self._sides.keys, time, VERSION, flag=flag))

    def _held(self, side: Side) -> HeldState:
        return self._left if side == "left" else self._right

    def _earliest(self, side: Side) -> int | None:
        held = self._held(side)
        if UNTIL not in held.schema:
            return held.earliest
        times = [frame[TIME].min() for frame in held.frames()]
        return min((time for time in times if isinstance(time, int)), default=None)

    def _of(self, side: Side, rows: pl.DataFrame) -> pl.DataFrame:
        """The rows of one side with its own columns."""
        mine = pl.col(SIDE) if side == "right" else ~pl.col(SIDE)
        matched = [pl.lit(value=False).alias(MATCHED)] if self._notes_matches(side) else []
        until = [UNTIL] if side == "right" and self._upper is None else []
        return rows.filter(mine).select(*self._sides.keys, TIME, *until, *self._sides.own(side), *matched)

    def _notes_matches(self, side: Side) -> bool:
        return self._sides.keeps(side) and not self._sides.half

    def _matched(self, side: Side, fresh: pl.DataFrame) -> list[pl.DataFrame]:
        """Takes in fresh rows of one side; the pairs they make with all of the other side's."""
        other = self._held("right" if side == "left" else "left")
        near = other.numbered(ROW, fresh).filter(self._reachable(side, fresh))
        own = fresh.lazy().with_columns(pl.int_range(pl.len()).alias(ROW))
        left, right = (own, near) if side == "left" else (near, own)
        found = self._pairs(left, right, fresh.height + other.height)
        for each in self._notes:
            places = found[ROW if each == "left" else right_name(ROW)]
            if each == side:
                fresh = self._noted(fresh, places)
            elif found.height:
                self._held(each).mark(places)
        self._held(side).add(fresh)
        if not found.height:
            return []
        if not self._sides.half:
            return [selected(found, self._sides.outputs(TIME, right_name(TIME)))]
        once = selected(found.unique(ROW), self._sides.outputs(TIME, None))
        return [once] if self._sides.how == "semi" else []

    @property
    def _notes(self) -> list[Side]:
        """The sides whose rows change with their first match."""
        if self._sides.half:
            return ["left"]
        sides: tuple[Side, Side] = ("left", "right")
        return [side for side in sides if self._sides.keeps(side)]

    def _noted(self, rows: pl.DataFrame, places: pl.Series) -> pl.DataFrame:
        """Rows of which those at some places have found their match."""
        matched = pl.repeat(value=False, n=rows.height, dtype=pl.Boolean(), eager=True)
        matched = matched.scatter(places, pl.repeat(value=True, n=places.len(), dtype=pl.Boolean(), eager=True))
        return rows.filter(~matched) if self._sides.half else rows.with_columns(matched.alias(MATCHED))

    def _reachable(self, side: Side, fresh: pl.DataFrame) -> pl.Expr:
        """Which of the other side's rows fresh rows may match, by event time: what is surely out of reach is not."""
        first, last = fresh[TIME].min(), fresh[TIME].max()
        if not isinstance(first, int) or not isinstance(last, int):
            return pl.lit(value=False)
        if side == "right":
            until = fresh[UNTIL].max() if self._upper is None else last + self._upper
            return pl.col(TIME).is_between(first + self._lower, until)
        if self._upper is None:
            return (pl.col(TIME) <= last - self._lower) & (pl.col(UNTIL) >= first)
        return pl.col(TIME).is_between(first - self._upper, last - self._lower)

    def _pairs(self, left: pl.LazyFrame, right: pl.LazyFrame, rows: int) -> pl.DataFrame:
        if self._upper is not None:
            return pairs(self._sides, left, right, (self._lower, self._upper), rows)
        after = pl.col(TIME) - pl.col(right_name(TIME)) >= self._lower
        return pairs(self._sides, left, right, None, rows, near=after & (pl.col(TIME) <= pl.col(right_name(UNTIL))))

    def _bound(self, side: Side, closed: int) -> int:
        """Rows of a side whose time is up before this can find no match any more."""
        return closed + self._lower if side == "left" else closed - (self._upper or 0)

    def _expire(self, closed: int) -> Emission:
        out = []
        for side in ("left", "right"):
            held, bound = self._held(side), self._bound(side, closed)
            if not self._sides.keeps(side):
                held.drop(bound)
                continue
            gone = held.take(bound)
            if self._notes_matches(side):
                gone = gone.filter(~pl.col(MATCHED))
            left, right = (TIME, None) if side == "left" else (None, TIME)
            out.append(selected(gone, self._sides.outputs(left, right)))
        return _emission(out)


def _emission(frames: list[pl.DataFrame]) -> Emission:
    given = [frame for frame in frames if frame.height]
    return {MAIN: pl.concat(given)} if given else {}
