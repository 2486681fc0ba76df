"""Deduplication at work: candidates in, the rows to keep out.

*Open* are stretches of rows of one key that are not decided; they hold the row to keep, and are a frame. *Known* are
the stretches whose first row has been given out: only keys and times, as keyed state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import polars as pl

from headrace.kernel.keyed import KeyedLayout
from headrace.kernel.protocols import MAIN, Emission, OperatorContext, OperatorState
from operators.closed_time import ClosedTime
from operators.merged import Merged, fitting
from operators.row_order import ORDER
from operators.stretches import RUN, numbered

FIRST: Final = "_first"
"""Event time of a stretch's first row, microseconds."""

LAST: Final = "_last"
"""Event time of a stretch's last row, microseconds."""

COUNT: Final = "_count"
"""How many rows it stands for."""

ROW: Final = "_row"
"""The row to keep, a struct that begins with its place (:func:`operators.row_order.total_order`)."""

VERSION: Final = 1
_OPEN: Final = "open"
_KNOWN: Final = "known"
_GIVEN: Final = "_given"


@dataclass(frozen=True, slots=True)
class DedupLayout:
    """What an instance needs to know of its operator.

    Attributes:
        where: Names the operator in error messages.
        by: Key columns.
        keep: Which row of a stretch.
        ttl: Rows of one key at least this far apart are two stretches, microseconds; None: never.
        lateness: How much later than the watermark rows are decided, microseconds.
    """

    where: str
    by: Sequence[str]
    keep: Literal["first", "last"]
    ttl: int | None
    lateness: int


class DedupInstance:
    """Implements :class:`headrace.kernel.protocols.OperatorInstance`.

    Args:
        layout: The operator's definition.
        schema: Types of the partials.
        context: Where to resume, and keyed state.

    Raises:
        GraphChangedError: The state was made by another definition, over other types, or by a newer release.
    """

    def __init__(self, layout: DedupLayout, schema: pl.Schema, context: OperatorContext) -> None:
        self._layout = layout
        self._by = list(layout.by)
        known = pl.Schema({name: schema[name] for name in (*self._by, FIRST, LAST)})
        state = context.state
        self._open = Merged(schema, lambda rows: self._stretches(rows, schema.names()))
        self._known = context.keyed(
            KeyedLayout(
                _KNOWN,
                known,
                self._by,
                () if layout.ttl is None else (FIRST,),
                version=VERSION,
                time=LAST,
                ttl_us=layout.ttl,
            )
        )
        self._time = ClosedTime(layout.lateness, COUNT, state)
        if state is not None:
            self._open.put(fitting(state, _OPEN, schema, VERSION, layout.where))
        self._next = self._earliest()

    @property
    def counts(self) -> Mapping[str, int]:
        """Rows since the job began that came for closed time (after a drain), and those without event time."""
        return self._time.counts

    def process(self, partials: pl.DataFrame) -> Emission:
        """Take in candidates; rows are only given out by :meth:`advance` and :meth:`drain`."""
        accepted = self._accept(partials)
        if accepted.height:
            self._open.add(accepted)
            decided = self._decided(accepted)
            self._next = decided if self._next is None or decided is None else min(self._next, decided)
        return {}

    def advance(self, watermark: int) -> Emission:
        """Give out the rows that are decided with ``watermark``."""
        closed = self._time.close(watermark)
        if self._next is None or self._next > closed:
            return {}
        kept = self._firsts(closed) if self._layout.keep == "first" else self._lasts(closed)
        self._next = self._earliest()
        if not kept.height:
            return {}
        at = FIRST if self._layout.keep == "first" else LAST
        rows = kept.sort([at, *self._by], nulls_last=False).select(ROW).unnest(ROW)
        return {MAIN: rows.select(name for name in rows.columns if not name.startswith(ORDER))}

    def drain(self) -> Emission:
        """Decide everything that is open. Time up to then is closed: nothing is given out for it again."""
        lasts = [last for frame in self._open.frames() if isinstance(last := frame[LAST].max(), int)]
        ahead = 1 if self._layout.keep == "first" else self._layout.ttl or 0
        return self.advance(max(lasts) + ahead + self._layout.lateness) if lasts else {}

    def outgoing_watermark(self, watermark: int) -> int:
        """The earliest event time of the rows that may still be given out."""
        at = FIRST if self._layout.keep == "first" else LAST
        waiting = [time for frame in self._open.frames() if isinstance(time := frame[at].min(), int)]
        return min([self._time.reached(watermark), *waiting])

    def rows_held(self) -> int:
        """Stretches in the state."""
        return self._open.height + self._known.height

    def snapshot(self) -> OperatorState:
        """See :class:`headrace.kernel.protocols.OperatorInstance`."""
        keyed = {_KNOWN: self._known.snapshot()}
        return OperatorState(VERSION, self._time.values, {_OPEN: self._open.merged()}, keyed)

    # ------------------------------------------------------------------------------------------------------ inside

    def _accept(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Leaves out what has no time, and what lies in time that is closed."""
        closed = self._time.at
        return self._time.accepted(rows, FIRST, None if closed is None else pl.col(FIRST) < closed)

    def _decided(self, frame: pl.DataFrame) -> int | None:
        """When the first of some stretches is decided."""
        time = frame[FIRST if self._layout.keep == "first" else LAST].min()
        ahead = 1 if self._layout.keep == "first" else self._layout.ttl or 0
        return time + ahead if isinstance(time, int) else None

    def _earliest(self) -> int | None:
        return min((at for frame in self._open.frames() if (at := self._decided(frame)) is not None), default=None)

    def _firsts(self, closed: int) -> pl.DataFrame:
        merged = self._open.merged()
        due = merged.filter(pl.col(FIRST) < closed)
        self._open.put(merged.filter(pl.col(FIRST) >= closed))
        if self._layout.ttl is None:
            fresh = due.join(self._known.find(due), on=self._by, how="anti", nulls_equal=True)
            self._remember(fresh)
            return fresh
        lasting = pl.col(LAST) + self._layout.ttl > closed
        near = self._known.find(due)
        self._known.remove(near)
        self._known.expire(closed)
        given = near.with_columns(pl.lit(value=True).alias(_GIVEN))
        both = pl.concat([given, due.with_columns(pl.lit(value=False).alias(_GIVEN))], how="diagonal")
        joined = self._stretches(both.lazy(), both.columns).collect()
        self._remember(joined.filter(lasting))
        return joined.filter(~pl.col(_GIVEN))

    def _remember(self, stretches: pl.DataFrame) -> None:
        self._known.put(stretches.select(*self._by, FIRST, LAST))

    def _lasts(self, closed: int) -> pl.DataFrame:
        merged = self._open.merged()
        over = pl.col(LAST) + (self._layout.ttl or 0) <= closed
        self._open.put(merged.filter(~over))
        return merged.filter(over)

    def _stretches(self, rows: pl.LazyFrame, names: Sequence[str]) -> pl.LazyFrame:
        """Stretches of one key that are less than the ttl apart become one."""
        keys = self._by
        if self._layout.ttl is not None:
            rows = numbered(rows, self._by, pl.col(FIRST), pl.col(LAST), self._layout.ttl)
            keys = [*self._by, RUN]
        row = pl.col(ROW)
        picked = row.min_by(ROW) if self._layout.keep == "first" else row.max_by(ROW)
        given = [pl.col(_GIVEN).any()] if _GIVEN in names else []
        merged = rows.group_by(keys).agg(pl.col(FIRST).min(), pl.col(LAST).max(), pl.col(COUNT).sum(), picked, *given)
        return merged.select(names)
