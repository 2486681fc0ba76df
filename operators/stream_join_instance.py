"""Regular joins at work: inner joins of streams that only grow, and joins that take rows back.

State is keyed: the rows of each side by their join key, told apart by a number that means nothing else.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Final

import polars as pl

from headrace.kernel import columns
from headrace.kernel.keyed import KeyedLayout, KeyedState
from headrace.kernel.protocols import MAIN, Emission, OperatorContext, OperatorState
from operators.closed_time import ClosedTime
from operators.join_pairs import pairs, right_name
from operators.join_sides import SIDE, TIME, JoinSides, Side
from operators.selection import selected

VERSION: Final = 1
_SIDES: Final[Sequence[Side]] = ("left", "right")
_NUMBER: Final = "_number"
_ROW: Final = "_row"
_MATCHES: Final = "_matches"
"""By how many rows of the other side a row is matched, by weight."""
_BEFORE: Final = "_before"
_AFTER: Final = "_after"


class StreamJoinInstance(ABC):
    """What both kinds share; implements :class:`headrace.kernel.protocols.OperatorInstance`.

    Args:
        sides: The sides.
        ttl: How far apart in event time rows may be, microseconds; None: any distance.
        lateness: How much later than the watermark rows are forgotten, microseconds.
        schema: Types of the tagged rows.
        context: Where to resume, and who keeps the state.

    Raises:
        GraphChangedError: The state was made over other types, or by a newer release.
    """

    def __init__(
        self, sides: JoinSides, ttl: int | None, lateness: int, schema: pl.Schema, context: OperatorContext
    ) -> None:
        self._sides = sides
        self._ttl = ttl
        self._bounds = None if ttl is None else (-ttl, ttl)
        self._time = ClosedTime(lateness, None, context.state)
        time = [TIME] if sides.timed else []
        self._names: dict[Side, list[str]] = {side: [*sides.keys, *time, *sides.own(side)] for side in _SIDES}
        self._held: dict[Side, KeyedState] = {}
        for side in _SIDES:
            stored = {name: schema[name] for name in self._names[side]} | dict(self._kept()) | {_NUMBER: pl.Int64()}
            layout = KeyedLayout(
                side, pl.Schema(stored), sides.keys, [_NUMBER], VERSION, TIME if sides.timed else None, ttl
            )
            self._held[side] = context.keyed(layout)
        # Numbers of different instances must differ, and instances share no state.
        self._next = secrets.randbelow(2**62)

    @abstractmethod
    def _kept(self) -> pl.Schema:
        """What is kept of a row besides its columns."""

    @abstractmethod
    def _joined(self, rows: pl.DataFrame) -> list[pl.DataFrame]:
        """Takes rows in; what they change: the columns of the output and ``_weight``."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Rows since the job began that came for forgotten time, and those without event time."""
        return self._time.counts

    def process(self, partials: pl.DataFrame) -> Emission:
        """Take in rows; gives out what they change."""
        rows = self._accepted(partials)
        given = [frame for frame in self._joined(rows) if frame.height] if rows.height else []
        return self._emission(pl.concat(given)) if given else {}

    def advance(self, watermark: int) -> Emission:
        """Forget what is a ``ttl`` older than the watermark; nothing is given out."""
        closed = self._time.close(watermark)
        if self._ttl is not None:
            for held in self._held.values():
                held.expire(closed - 1)  # one that is exactly a ttl older may still match
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
        keyed = {str(side): held.snapshot() for side, held in self._held.items()}
        return OperatorState(VERSION, self._time.values, keyed=keyed)

    def _emission(self, changes: pl.DataFrame) -> Emission:
        return {MAIN: changes}

    def _accepted(self, partials: pl.DataFrame) -> pl.DataFrame:
        if self._ttl is None:
            return partials
        closed = self._time.at
        if closed is not None and self._sides.weighted:
            closed -= self._ttl  # what is taken back may be older than the watermark
        return self._time.accepted(partials, TIME, None if closed is None else pl.col(TIME) < closed)

    def _of(self, side: Side, rows: pl.DataFrame, *more: pl.Expr) -> pl.DataFrame:
        """The rows of one side with its own columns."""
        mine = pl.col(SIDE) if side == "right" else ~pl.col(SIDE)
        return rows.filter(mine).select(*self._names[side], *more)

    def _numbers(self, count: int) -> pl.Series:
        first, self._next = self._next, self._next + count
        return pl.int_range(first, self._next, dtype=pl.Int64, eager=True).alias(_NUMBER)

    def _pairs(self, left: pl.LazyFrame, right: pl.LazyFrame, size: int) -> pl.DataFrame:
        return pairs(self._sides, left, right, self._bounds, size)


class AppendingJoinInstance(StreamJoinInstance):
    """An inner join of streams without changes."""

    def _kept(self) -> pl.Schema:
        return pl.Schema()

    def _joined(self, rows: pl.DataFrame) -> list[pl.DataFrame]:
        left, right = (self._of(side, rows) for side in _SIDES)
        out = []
        if left.height:
            out.append(self._given(left, self._held["right"].find(left)))
            self._put("left", left)
        if right.height:
            out.append(self._given(self._held["left"].find(right), right))
            self._put("right", right)
        return out

    def _put(self, side: Side, rows: pl.DataFrame) -> None:
        self._held[side].put(rows.with_columns(self._numbers(rows.height)))

    def _given(self, left: pl.DataFrame, right: pl.DataFrame) -> pl.DataFrame:
        found = self._pairs(left.lazy(), right.lazy(), left.height + right.height)
        return selected(found, self._sides.outputs("", ""))


class UpdatingJoinInstance(StreamJoinInstance):
    """A join that counts matches.

    Equal rows are kept as one, with their weight; and where a row's fate depends on having a match, with the number of
    its matches. Rows without a key need no state: they match nothing, so they pass as they weigh.

    Args:
        sides: The sides.
        ttl: See :class:`StreamJoinInstance`.
        lateness: See :class:`StreamJoinInstance`.
        schema: See :class:`StreamJoinInstance`.
        context: See :class:`StreamJoinInstance`.
        gives_weight: The output has ``_weight``; without, rows are only ever given out once more.
    """

    def __init__(
        self,
        sides: JoinSides,
        ttl: int | None,
        lateness: int,
        schema: pl.Schema,
        context: OperatorContext,
        *,
        gives_weight: bool,
    ) -> None:
        super().__init__(sides, ttl, lateness, schema, context)
        self._gives_weight = gives_weight

    def _kept(self) -> pl.Schema:
        return pl.Schema({columns.WEIGHT: columns.WEIGHT_TYPE, _MATCHES: columns.WEIGHT_TYPE})

    def _joined(self, rows: pl.DataFrame) -> list[pl.DataFrame]:
        keyless = pl.any_horizontal(pl.col(self._sides.keys).is_null())
        out = self._keyless(rows.filter(keyless))
        rows = rows.filter(~keyless)
        if not rows.height:
            return out
        touched = {side: self._touched(side, rows) for side in _SIDES}
        found = self._changed_pairs(touched["left"], touched["right"])
        if not self._sides.half:
            out.append(self._pair_changes(found))
        for side in _SIDES:
            counted = self._counted(side, touched[side], found) if self._counts(side) else touched[side]
            if self._counts(side):
                out.append(self._alone(side, counted))
            self._keep(side, counted)
        return out

    def _emission(self, changes: pl.DataFrame) -> Emission:
        names = [name for name in changes.columns if name != columns.WEIGHT]
        if self._gives_weight:
            changes = changes.group_by(names).agg(pl.col(columns.WEIGHT).sum()).filter(pl.col(columns.WEIGHT) != 0)
            return {MAIN: changes.sort(columns.WEIGHT)} if changes.height else {}
        often = pl.int_range(pl.len()).repeat_by(columns.WEIGHT).explode(empty_as_null=False)
        places = changes.select(often).to_series()
        return {MAIN: changes[places].select(names)} if places.len() else {}

    def _weight(self) -> pl.Expr:
        one = pl.lit(1, columns.WEIGHT_TYPE).alias(columns.WEIGHT)
        return pl.col(columns.WEIGHT) if self._sides.weighted else one

    def _keyless(self, rows: pl.DataFrame) -> list[pl.DataFrame]:
        out = []
        for side in _SIDES:
            if self._sides.keeps(side):
                left, right = ("", None) if side == "left" else (None, "")
                given = self._of(side, rows, self._weight())
                out.append(given.select(*self._sides.outputs(left, right), columns.WEIGHT))
        return out

    def _touched(self, side: Side, rows: pl.DataFrame) -> pl.DataFrame:
        """The rows of all keys that rows are about, with their weights before and after."""
        names, weight = self._names[side], pl.col(columns.WEIGHT)
        old = self._held[side].find(rows.select(self._sides.keys).unique())
        fresh = self._of(side, rows, self._weight())
        none = [pl.lit(0, columns.WEIGHT_TYPE).alias(name) for name in (_BEFORE, _MATCHES)]
        fresh = fresh.with_columns(*none, pl.lit(None, pl.Int64).alias(_NUMBER))
        both = pl.concat([old.with_columns(weight.alias(_BEFORE)), fresh], how="diagonal")
        return (
            both.group_by(names)
            .agg(pl.col(_BEFORE, _MATCHES).sum(), weight.sum().alias(_AFTER), pl.col(_NUMBER).max())
            .with_row_index(_ROW)
        )

    def _changed_pairs(self, left: pl.DataFrame, right: pl.DataFrame) -> pl.DataFrame:
        """The pairs of which a row has another weight than before."""
        changed, size = pl.col(_BEFORE) != pl.col(_AFTER), left.height + right.height
        return pl.concat(
            [
                self._pairs(left.lazy().filter(changed), right.lazy(), size),
                self._pairs(left.lazy().filter(~changed), right.lazy().filter(changed), size),
            ]
        )

    def _pair_changes(self, found: pl.DataFrame) -> pl.DataFrame:
        before = pl.col(_BEFORE) * pl.col(right_name(_BEFORE))
        after = pl.col(_AFTER) * pl.col(right_name(_AFTER))
        return found.select(*self._sides.outputs("", ""), (after - before).alias(columns.WEIGHT))

    def _counts(self, side: Side) -> bool:
        """Whether what is given out of a side depends on the number of matches."""
        return self._sides.keeps(side) or (self._sides.half and side == "left")

    def _counted(self, side: Side, touched: pl.DataFrame, found: pl.DataFrame) -> pl.DataFrame:
        """Touched rows with the number of matches that they have had, and now have."""
        row, other = (_ROW, right_name) if side == "left" else (right_name(_ROW), str)
        changes = found.group_by(pl.col(row).alias(_ROW)).agg(
            pl.col(other(_BEFORE)).sum().alias("_less"), pl.col(other(_AFTER)).sum().alias("_more")
        )
        less, more = pl.col("_less").fill_null(0), pl.col("_more").fill_null(0)
        now = pl.when(pl.col(_BEFORE) == 0).then(more).otherwise(pl.col(_MATCHES) + more - less)
        return touched.join(changes, on=_ROW, how="left").with_columns(
            pl.col(_MATCHES).alias(_had(_MATCHES)), now.alias(_MATCHES)
        )

    def _alone(self, side: Side, counted: pl.DataFrame) -> pl.DataFrame:
        """What changes of the rows that are given out for having no match; for ``semi``, for having one."""
        wanted = self._sides.how == "semi"
        before = pl.when((pl.col(_had(_MATCHES)) > 0) == wanted).then(pl.col(_BEFORE)).otherwise(0)
        after = pl.when((pl.col(_MATCHES) > 0) == wanted).then(pl.col(_AFTER)).otherwise(0)
        left, right = ("", None) if side == "left" else (None, "")
        return counted.select(*self._sides.outputs(left, right), (after - before).alias(columns.WEIGHT))

    def _keep(self, side: Side, counted: pl.DataFrame) -> None:
        """Brings the state to what touched rows are now."""
        changed = pl.col(_BEFORE) != pl.col(_AFTER)
        if self._counts(side):
            changed |= pl.col(_MATCHES) != pl.col(_had(_MATCHES))
        now = counted.filter(changed)
        held = self._held[side]
        held.remove(now.filter((pl.col(_AFTER) == 0) & pl.col(_NUMBER).is_not_null()))
        rest = now.filter(pl.col(_AFTER) != 0)
        rest = rest.with_columns(pl.col(_NUMBER).fill_null(self._numbers(rest.height)))
        held.put(rest.select(*self._names[side], pl.col(_AFTER).alias(columns.WEIGHT), _MATCHES, _NUMBER))


def _had(name: str) -> str:
    return f"{name}:before"
