"""Temporal joins: for each left row, the version of its key on the right side that held at the row's event time.

The right side's rows are *versions*: each holds from its event time on, until the next one of its key. ``backward``
takes the latest version at or before the left row's time (``FOR SYSTEM_TIME AS OF``), ``forward`` the next one at or
after it, ``nearest`` the closer one (of two as close, the later). ``within`` says how far away in time it may be.

A left row waits until the watermark says that no version can come any more that it would take, so the join is exact.
Of versions of one key and time the last one holds, by partition and offset where rows have them, then by content. Where
the right side has ``_kafka_deleted``, a version with it ends what held before it; deletions without event time have
that of their record (``_kafka_timestamp``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import polars as pl

from headrace.kernel import columns
from headrace.kernel.durations import format_duration_us
from headrace.kernel.errors import SpecError
from headrace.kernel.held import HeldLayout
from headrace.kernel.keyed import KeyedLayout
from headrace.kernel.protocols import MAIN, Emission, OperatorContext, OperatorState
from operators.aggregate_set import check_keys
from operators.closed_time import ClosedTime
from operators.join_sides import SIDE, TIME, JoinSides
from operators.passage import Passage
from operators.selection import selected
from operators.timed_join import TimedJoin

VERSION: Final = 2
_WAITING: Final = "waiting"
_VERSIONS: Final = "versions"
_ROW: Final = "_version"
_FOUND: Final = "_found"

Direction = Literal["backward", "forward", "nearest"]


@dataclass(frozen=True, slots=True, eq=False)
class VersionJoin(TimedJoin):
    """Join rows with the version that held; implements :class:`headrace.kernel.protocols.StatefulOperator`.

    Output: the columns of :meth:`operators.join_sides.JoinSides.output`. The watermark behind it holds for the left
    side's event-time column.

    Args:
        id: Stable id; the state is bound to it.
        sides: The sides, with event times, without a condition; ``left`` or ``inner``.
        direction: Which version.
        within_us: How far away in time a version may be, microseconds; None: any distance, only ``backward``.
        allowed_lateness_us: How much later than the watermark passes rows are given out, and are late.

    Raises:
        SpecError: Something in it cannot be.
    """

    id: str
    sides: JoinSides
    direction: Direction = "backward"
    within_us: int | None = None
    allowed_lateness_us: int = 0

    def __post_init__(self) -> None:
        self.prepare()
        if self.sides.how not in {"left", "inner"}:
            raise SpecError(f"{self.sides.label}: as_of joins are left or inner, not {self.sides.how}")
        if self.sides.condition is not None:
            raise SpecError(
                f"{self.sides.label} takes one version by its time, and then has no choice",
                hint="put the condition into a filter step",
            )
        check_keys(self.sides.left.on, self.sides.left.schema, self.sides.label)
        right = self.sides.right
        if columns.DELETED in right.schema and right.instead is None:
            raise SpecError(
                f"{self.sides.label}: deletions of the right side have no time",
                hint=f"set metadata: true on its source: {columns.TIMESTAMP} then says when",
            )
        if self.within_us is None and self.direction != "backward":
            raise SpecError(
                f"{self.sides.label}: without within, a {self.direction} version may come at any time",
                hint="add within: 1h (or another duration)",
            )

    @property
    def fingerprint(self) -> str:
        """What the state depends on, as text that people can compare; types are checked when the state is opened."""
        within = "" if self.within_us is None else f" within {format_duration_us(self.within_us)}"
        return f"temporal join, {self.sides.describe()}, {self.direction}{within}{self.lateness}"

    @property
    def held(self) -> Sequence[str]:
        """See :class:`operators.timed_join.TimedJoin`: what says which version holds, and whether one ends."""
        return (columns.PARTITION, columns.OFFSET, columns.DELETED)

    def passages(self, rows: pl.Schema) -> Sequence[Passage]:  # noqa: ARG002 - the protocol's signature
        """See :class:`operators.passage.PassesPredicates`: of versions, only those on the key.

        A version that fails another predicate still ends the one before it.
        """
        left, right = self.sides.passages()
        keys = {out: name for out, name in right.names.items() if name in self.sides.right.on}
        return [left, *([replace(right, names=keys)] if keys else [])]

    @property
    def ahead_us(self) -> int:
        """How far behind a left row's time the versions lie that it may take."""
        return 0 if self.direction == "backward" or self.within_us is None else self.within_us

    def output_schema(self, schema: pl.Schema) -> pl.Schema:  # noqa: ARG002 - the protocol's signature
        """See :class:`headrace.kernel.protocols.StatefulOperator`."""
        return self.sides.output()

    def open(self, schema: pl.Schema, context: OperatorContext) -> VersionJoinInstance:
        """An instance over tagged rows of ``schema``.

        Raises:
            GraphChangedError: The state was made over other types, or by a newer release.
        """
        return VersionJoinInstance(self, schema, context)


class VersionJoinInstance:
    """Implements :class:`headrace.kernel.protocols.OperatorInstance`.

    State: the left rows that wait, and by key the versions that a row may still take.
    """

    def __init__(self, operator: VersionJoin, schema: pl.Schema, context: OperatorContext) -> None:
        self._operator = operator
        self._sides = sides = operator.sides
        self._time = ClosedTime(operator.allowed_lateness_us, None, context.state)
        self._left = [*sides.keys, TIME, *sides.own("left")]
        waiting = pl.Schema({name: schema[name] for name in self._left})
        self._waiting = context.held(HeldLayout(_WAITING, waiting, sides.keys, TIME, VERSION))
        self._right = [*sides.keys, TIME, *sides.own("right")]
        versions = pl.Schema({name: schema[name] for name in self._right})
        within = operator.within_us
        ttl = within if within is None or operator.direction != "nearest" else 2 * within
        self._versions = context.keyed(KeyedLayout(_VERSIONS, versions, sides.keys, [TIME], VERSION, TIME, ttl))
        names = {own: out for own, out in sides.names["right"].items() if own in {columns.PARTITION, columns.OFFSET}}
        self._order = [names[name] for name in (columns.PARTITION, columns.OFFSET) if name in names]
        self._deleted = sides.names["right"].get(columns.DELETED)

    @property
    def counts(self) -> Mapping[str, int]:
        """Rows since the job began that came for closed time (after a drain), and those without event time."""
        return self._time.counts

    def process(self, partials: pl.DataFrame) -> Emission:
        """Take in rows and versions; rows are only given out by :meth:`advance` and :meth:`drain`."""
        closed = self._time.at
        rows = self._time.accepted(partials, TIME, None if closed is None else pl.col(TIME) < closed)
        self._waiting.add(rows.filter(~pl.col(SIDE)).select(self._left))
        fresh = rows.filter(pl.col(SIDE)).select(self._right)
        if fresh.height:
            self._learn(fresh)
        return {}

    def advance(self, watermark: int) -> Emission:
        """Give out the rows that no later version can change."""
        closed = self._time.close(watermark)
        due = self._waiting.take(closed - self._operator.ahead_us)
        given = self._joined(due) if due.height else due
        self._versions.expire(closed - 1)
        return {MAIN: given} if given.height else {}

    def drain(self) -> Emission:
        """Give out all rows. Time up to then is closed."""
        last = self._waiting.latest
        behind = self._operator.ahead_us + self._operator.allowed_lateness_us + 1
        return {} if last is None else self.advance(last + behind)

    def outgoing_watermark(self, watermark: int) -> int:
        """The earliest event time of the rows that wait."""
        waiting = self._waiting.earliest
        closed = self._time.reached(watermark)
        return closed if waiting is None else min(closed, waiting)

    def rows_held(self) -> int:
        """Rows that wait, and versions."""
        return self._waiting.height + self._versions.height

    def snapshot(self) -> OperatorState:
        """See :class:`headrace.kernel.protocols.OperatorInstance`."""
        keyed, held = {_VERSIONS: self._versions.snapshot()}, {_WAITING: self._waiting.snapshot()}
        return OperatorState(VERSION, self._time.values, keyed=keyed, held=held)

    # ------------------------------------------------------------------------------------------------------ inside

    def _learn(self, fresh: pl.DataFrame) -> None:
        """Takes versions in, and lets go of those of the same keys that no row will take any more."""
        keys = self._sides.keys
        known = self._versions.find(fresh.select(keys).unique())
        both = pl.concat([known.select(self._right), fresh])
        version, row = [*keys, TIME], pl.col(_ROW)
        if both.select(version).is_duplicated().any():
            others = [name for name in both.columns if name not in {*version, *self._order}]
            held = pl.struct(*self._order, *others).alias(_ROW)
            both = both.select(*version, held).group_by(version).agg(row.max_by(_ROW)).unnest(_ROW)
        closed = self._time.at
        if self._operator.direction == "backward" and closed is not None:
            past = pl.col(TIME).filter(pl.col(TIME) < closed).max().over(keys)
            old = (pl.col(TIME) < past).fill_null(value=False)
            self._versions.remove(both.filter(old))
            both = both.filter(~old)
        self._versions.put(both.select(self._right))

    def _joined(self, due: pl.DataFrame) -> pl.DataFrame:
        """Due rows with the versions that they take."""
        operator, sides = self._operator, self._sides
        versions = self._versions.find(due.select(sides.keys).unique()).drop(sides.shared)
        joined = (
            due.lazy()
            .sort(TIME)
            .join_asof(
                versions.lazy().with_columns(pl.lit(value=True).alias(_FOUND)).sort(TIME),
                on=TIME,
                by=sides.keys,
                strategy=operator.direction,
                tolerance=operator.within_us,
                check_sortedness=False,  # sorted above, whatever the groups
            )
        )
        found = pl.col(_FOUND).fill_null(value=False)
        if self._deleted is not None:
            found &= ~pl.col(self._deleted).fill_null(value=False)
            gone = [name for name in sides.own("right") if name not in sides.shared]
            joined = joined.with_columns(found.alias(_FOUND)).with_columns(pl.when(pl.col(_FOUND)).then(pl.col(gone)))
        if sides.how == "inner":
            joined = joined.filter(found if self._deleted is None else pl.col(_FOUND))
        return selected(joined, sides.outputs(TIME, TIME)).collect()
