"""Regular joins at work: inner joins of streams that only grow, and joins that take rows back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import polars as pl

from headrace.kernel import columns
from headrace.kernel.protocols import MAIN, Emission, OperatorState
from operators.closed_time import ClosedTime
from operators.join_pairs import pairs, right_name
from operators.join_sides import SIDE, TIME, JoinSides, Side
from operators.merged import fitting
from operators.untimed import UntimedInstance

VERSION: Final = 1
_SIDES: Final[Sequence[Side]] = ("left", "right")
_MAX_CHUNKS: Final = 32
_ROW: Final = "_row"
_MATCHES: Final = "_matches"
"""By how many rows of the other side a row is matched, by weight."""
_BEFORE: Final = "_before"
_AFTER: Final = "_after"


class AppendingJoinInstance(UntimedInstance):
    """An inner join of streams without changes; implements :class:`headrace.kernel.protocols.OperatorInstance`.

    State: the rows of both sides.

    Args:
        sides: The sides.
        schema: Types of the tagged rows.
        state: Where to resume.

    Raises:
        GraphChangedError: The state was made over other types, or by a newer release.
    """

    def __init__(self, sides: JoinSides, schema: pl.Schema, state: OperatorState | None) -> None:
        self._sides = sides
        self._held: dict[str, pl.DataFrame] = {}
        for side in _SIDES:
            empty = _of(sides, side, pl.DataFrame(schema=schema))
            self._held[side] = empty if state is None else fitting(state, side, empty.schema, VERSION, sides.label)

    def process(self, partials: pl.DataFrame) -> Emission:
        """Take in rows; gives out the pairs that they complete."""
        left, right = (_of(self._sides, side, partials) for side in _SIDES)
        out = []
        if left.height:
            out.append(self._pairs(left, self._held["right"]))
            self._held["left"] = _grown(self._held["left"], left)
        if right.height:
            out.append(self._pairs(self._held["left"], right))
            self._held["right"] = _grown(self._held["right"], right)
        given = [frame for frame in out if frame.height]
        return {MAIN: pl.concat(given)} if given else {}

    def rows_held(self) -> int:
        """Rows of both sides."""
        return sum(held.height for held in self._held.values())

    def snapshot(self) -> OperatorState:
        """See :class:`headrace.kernel.protocols.OperatorInstance`."""
        return OperatorState(VERSION, {}, {**self._held})

    def _pairs(self, left: pl.DataFrame, right: pl.DataFrame) -> pl.DataFrame:
        found = pairs(self._sides, left.lazy(), right.lazy(), None, left.height + right.height)
        return found.select(self._sides.outputs("", ""))


class UpdatingJoinInstance:
    """A join that counts matches; implements :class:`headrace.kernel.protocols.OperatorInstance`.

    State: the rows of both sides, equal ones as one with their weight; and where a row's fate depends on having a
    match, by how many it is matched.

    Args:
        sides: The sides.
        ttl: How far apart in event time rows may be, microseconds; None: any distance.
        lateness: How much later than the watermark rows are forgotten, microseconds.
        schema: Types of the tagged rows.
        state: Where to resume.
        gives_weight: The output has ``_weight``; without, all weights are 1.

    Raises:
        GraphChangedError: The state was made over other types, or by a newer release.
    """

    def __init__(
        self,
        sides: JoinSides,
        ttl: int | None,
        lateness: int,
        schema: pl.Schema,
        state: OperatorState | None,
        *,
        gives_weight: bool,
    ) -> None:
        self._sides = sides
        self._ttl = ttl
        self._gives_weight = gives_weight
        self._time = ClosedTime(lateness, None, state)
        self._held: dict[str, pl.DataFrame] = {}
        self._names: dict[Side, list[str]] = {}
        for side in _SIDES:
            own = _of(sides, side, pl.DataFrame(schema=schema))
            self._names[side] = own.columns
            layout = pl.Schema({**own.schema, columns.WEIGHT: columns.WEIGHT_TYPE, _MATCHES: columns.WEIGHT_TYPE})
            held = pl.DataFrame(schema=layout)
            self._held[side] = held if state is None else fitting(state, side, layout, VERSION, sides.label)

    @property
    def counts(self) -> Mapping[str, int]:
        """Rows since the job began that came for forgotten time, and those without event time."""
        return self._time.counts

    def process(self, partials: pl.DataFrame) -> Emission:
        """Take in rows; gives out what they change."""
        rows = self._accepted(partials)
        if not rows.height:
            return {}
        touched = self._touched(rows)
        found = self._changed_pairs(touched)
        out = [self._pair_changes(found)]
        for side in _SIDES:
            counted = self._counted(side, touched[side], found)
            out += self._alone(side, counted)
            rest = counted.filter(pl.col(_AFTER) != 0).rename({_AFTER: columns.WEIGHT})
            self._held[side] = _grown(self._held[side], rest.select(self._held[side].columns))
        return self._emission([frame for frame in out if frame.height])

    def advance(self, watermark: int) -> Emission:
        """Forget what is a ``ttl`` older than the watermark; nothing is given out."""
        closed = self._time.close(watermark)
        if self._ttl is not None:
            for side in _SIDES:
                self._held[side] = self._held[side].filter(pl.col(TIME) >= closed - self._ttl)
        return {}

    def drain(self) -> Emission:
        """Everything has been given out already."""
        return {}

    def outgoing_watermark(self, watermark: int) -> int:
        """Rows pass at once. What is given out has no event time."""
        return watermark

    def rows_held(self) -> int:
        """Rows of both sides."""
        return sum(held.height for held in self._held.values())

    def snapshot(self) -> OperatorState:
        """See :class:`headrace.kernel.protocols.OperatorInstance`."""
        return OperatorState(VERSION, self._time.values, {**self._held})

    # ------------------------------------------------------------------------------------------------------ inside

    def _accepted(self, partials: pl.DataFrame) -> pl.DataFrame:
        if self._ttl is None:
            return partials
        closed = self._time.at
        if closed is not None and self._sides.weighted:
            closed -= self._ttl  # what is taken back may be older than the watermark
        return self._time.accepted(partials, TIME, None if closed is None else pl.col(TIME) < closed)

    def _touched(self, rows: pl.DataFrame) -> dict[Side, pl.DataFrame]:
        """Takes the rows of all keys that rows are about out of the state; with their weights before and after."""
        keys = rows.select(self._sides.keys).unique()
        touched: dict[Side, pl.DataFrame] = {}
        for side in _SIDES:
            held = self._held[side]
            old = held.join(keys, on=self._sides.keys, how="semi", nulls_equal=True)
            if old.height:
                self._held[side] = held.join(keys, on=self._sides.keys, how="anti", nulls_equal=True)
            weight = pl.col(columns.WEIGHT)
            fresh = rows.filter(_is(side)).select(*self._names[side], weight if self._sides.weighted else _one())
            both = pl.concat(
                [
                    old.with_columns(weight.alias(_BEFORE)),
                    fresh.with_columns(_zero(_BEFORE), _zero(_MATCHES)).select(*old.columns, _BEFORE),
                ]
            )
            touched[side] = (
                both.group_by(self._names[side])
                .agg(pl.col(_BEFORE, _MATCHES).sum(), weight.sum().alias(_AFTER))
                .with_row_index(_ROW)
            )
        return touched

    def _changed_pairs(self, touched: Mapping[Side, pl.DataFrame]) -> pl.DataFrame:
        """The pairs of which a row has another weight than before."""
        left, right = touched["left"], touched["right"]
        changed = pl.col(_BEFORE) != pl.col(_AFTER)
        bounds = None if self._ttl is None else (-self._ttl, self._ttl)
        size = left.height + right.height
        return pl.concat(
            [
                pairs(self._sides, left.lazy().filter(changed), right.lazy(), bounds, size),
                pairs(self._sides, left.lazy().filter(~changed), right.lazy().filter(changed), bounds, size),
            ]
        )

    def _pair_changes(self, found: pl.DataFrame) -> pl.DataFrame:
        if self._sides.half:
            return pl.DataFrame()
        before = pl.col(_BEFORE) * pl.col(right_name(_BEFORE))
        after = pl.col(_AFTER) * pl.col(right_name(_AFTER))
        return found.select(*self._sides.outputs("", ""), (after - before).alias(columns.WEIGHT))

    def _counted(self, side: Side, touched: pl.DataFrame, found: pl.DataFrame) -> pl.DataFrame:
        """Touched rows with their matches before (:data:`_BEFORE` counts rows, this counts matches) and after."""
        if not self._counts_matches(side):
            return touched.with_columns(pl.col(_MATCHES).alias(_was(_MATCHES)))
        mine, other = (_ROW, right_name) if side == "left" else (right_name(_ROW), str)
        changes = found.group_by(pl.col(mine).alias(_ROW)).agg(
            pl.col(other(_BEFORE)).sum().alias("_matched_before"), pl.col(other(_AFTER)).sum().alias("_matched_after")
        )
        before, after = (pl.col(name).fill_null(0) for name in ("_matched_before", "_matched_after"))
        now = pl.when(pl.col(_BEFORE) == 0).then(after).otherwise(pl.col(_MATCHES) + after - before)
        return touched.join(changes, on=_ROW, how="left").with_columns(
            pl.col(_MATCHES).alias(_was(_MATCHES)), now.alias(_MATCHES)
        )

    def _counts_matches(self, side: Side) -> bool:
        return self._sides.keeps(side) or (self._sides.half and side == "left")

    def _alone(self, side: Side, counted: pl.DataFrame) -> list[pl.DataFrame]:
        """What changes of the rows that are given out for having no match; for ``semi``, for having one."""
        if not self._counts_matches(side):
            return []
        matched = self._sides.how == "semi"
        before = pl.when((pl.col(_was(_MATCHES)) > 0) == matched).then(pl.col(_BEFORE)).otherwise(0)
        after = pl.when((pl.col(_MATCHES) > 0) == matched).then(pl.col(_AFTER)).otherwise(0)
        left, right = ("", None) if side == "left" else (None, "")
        return [counted.select(*self._sides.outputs(left, right), (after - before).alias(columns.WEIGHT))]

    def _emission(self, frames: list[pl.DataFrame]) -> Emission:
        if not frames:
            return {}
        both = pl.concat(frames)
        names = [name for name in both.columns if name != columns.WEIGHT]
        if self._gives_weight:
            both = both.group_by(names).agg(pl.col(columns.WEIGHT).sum()).filter(pl.col(columns.WEIGHT) != 0)
            return {MAIN: both.sort(columns.WEIGHT)} if both.height else {}
        places = both.select(pl.int_range(pl.len()).repeat_by(columns.WEIGHT).explode(empty_as_null=False)).to_series()
        return {MAIN: both[places].select(names)} if places.len() else {}


def _of(sides: JoinSides, side: Side, rows: pl.DataFrame) -> pl.DataFrame:
    """The rows of one side with its own columns, without weights."""
    time = [TIME] if sides.timed else []
    return rows.filter(_is(side)).select(*sides.keys, *time, *sides.own(side))


def _is(side: Side) -> pl.Expr:
    return pl.col(SIDE) if side == "right" else ~pl.col(SIDE)


def _grown(held: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    grown = held.vstack(rows)
    return grown.rechunk() if grown.n_chunks() > _MAX_CHUNKS else grown


def _zero(name: str) -> pl.Expr:
    return pl.lit(0, columns.WEIGHT_TYPE).alias(name)


def _one() -> pl.Expr:
    return pl.lit(1, columns.WEIGHT_TYPE).alias(columns.WEIGHT)


def _was(name: str) -> str:
    return f"{name}:before"
