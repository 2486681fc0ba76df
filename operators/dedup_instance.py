"""Deduplication at work: candidates in, the rows to keep out.

*Open* are stretches of rows of one key that are not decided; they hold the row to keep, and are held by time. *Known*
are the stretches whose first row has been given out: only keys and times, as keyed state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from headrace.kernel.held import HeldLayout
from headrace.kernel.keyed import KeyedLayout
from headrace.kernel.protocols import MAIN, Emission, OperatorContext, OperatorState
from operators.closed_time import ClosedTime
from operators.dedup_rows import COUNT, FIRST, LAST, ROW, Keep, joined
from operators.row_order import ORDER
from operators.stretches import RUN, ended, numbered

VERSION: Final = 2
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
    keep: Keep
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
        self._at = FIRST if layout.keep == "first" else LAST
        names = schema.names()
        self._open = context.held(
            HeldLayout(_OPEN, schema, self._by, self._at, VERSION, lambda rows: self._stretches(rows, names))
        )
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
        self._next = self._decided(self._open.earliest)

    @property
    def counts(self) -> Mapping[str, int]:
        """Rows since the job began that came for closed time (after a drain), and those without event time."""
        return self._time.counts

    def process(self, partials: pl.DataFrame) -> Emission:
        """Take in candidates; rows are only given out by :meth:`advance` and :meth:`drain`."""
        accepted = self._accept(partials)
        if accepted.height:
            self._open.add(accepted)
            earliest = accepted[self._at].min()
            decided = self._decided(earliest if isinstance(earliest, int) else None)
            self._next = decided if self._next is None or decided is None else min(self._next, decided)
        return {}

    def advance(self, watermark: int) -> Emission:
        """Give out the rows that are decided with ``watermark``."""
        closed = self._time.close(watermark)
        if self._next is None or self._next > closed:
            return {}
        if self._layout.keep == "first":
            kept = self._firsts(closed)
        else:
            over = closed - self._ahead + 1
            kept = ended(self._open, over, self._by, pl.col(FIRST), LAST, self._layout.ttl or 0)
        self._next = self._decided(self._open.earliest)
        if not kept.height:
            return {}
        rows = kept.sort([self._at, *self._by], nulls_last=False).select(ROW).unnest(ROW)
        return {MAIN: rows.select(name for name in rows.columns if not name.startswith(ORDER))}

    def drain(self) -> Emission:
        """Decide everything that is open. Time up to then is closed: nothing is given out for it again."""
        lasts = [last for frame in self._open.frames() if isinstance(last := frame[LAST].max(), int)]
        return self.advance(max(lasts) + self._ahead + self._layout.lateness) if lasts else {}

    def outgoing_watermark(self, watermark: int) -> int:
        """The earliest event time of the rows that may still be given out."""
        reached, waiting = self._time.reached(watermark), self._open.earliest
        return reached if waiting is None else min(reached, waiting)

    def rows_held(self) -> int:
        """Stretches in the state."""
        return self._open.height + self._known.height

    def snapshot(self) -> OperatorState:
        """See :class:`headrace.kernel.protocols.OperatorInstance`."""
        keyed, held = {_KNOWN: self._known.snapshot()}, {_OPEN: self._open.snapshot()}
        return OperatorState(VERSION, self._time.values, keyed=keyed, held=held)

    # ------------------------------------------------------------------------------------------------------ inside

    def _accept(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Leaves out what has no time, and what lies in time that is closed."""
        closed = self._time.at
        return self._time.accepted(rows, FIRST, None if closed is None else pl.col(FIRST) < closed)

    @property
    def _ahead(self) -> int:
        """How far behind the time by which a stretch is held it is decided."""
        return 1 if self._layout.keep == "first" else self._layout.ttl or 0

    def _decided(self, time: int | None) -> int | None:
        """When the stretch with that time is decided."""
        return None if time is None else time + self._ahead

    def _firsts(self, closed: int) -> pl.DataFrame:
        self._open.settle()
        due = self._open.take(closed)
        if self._layout.ttl is None:
            fresh = due.join(self._known.find(due), on=self._by, how="anti", nulls_equal=True)
            self._remember(fresh)
            return fresh
        lasting = pl.col(LAST) + self._layout.ttl > closed
        near = self._known.find(due)
        self._known.remove(near)
        self._known.expire(closed)
        given = near.with_columns(pl.lit(value=True).alias(_GIVEN))
        # What is known has no row, and so comes first: the row that is kept says whether its stretch has been given.
        both = pl.concat([given, due.with_columns(pl.lit(value=False).alias(_GIVEN))], how="diagonal")
        joined = self._stretches(both.lazy(), both.columns).collect()
        self._remember(joined.filter(lasting))
        return joined.filter(~pl.col(_GIVEN))

    def _remember(self, stretches: pl.DataFrame) -> None:
        self._known.put(stretches.select(*self._by, FIRST, LAST))

    def _stretches(self, rows: pl.LazyFrame, names: Sequence[str]) -> pl.LazyFrame:
        """Stretches of one key that are less than the ttl apart become one."""
        keys = self._by
        if self._layout.ttl is not None:
            rows = numbered(rows, self._by, pl.col(FIRST), pl.col(LAST), self._layout.ttl)
            keys = [*self._by, RUN]
        schema = rows.collect_schema()
        return rows.map_batches(
            lambda some: joined(some, keys, self._layout.keep).select(names),
            schema={name: schema[name] for name in names},
        )
