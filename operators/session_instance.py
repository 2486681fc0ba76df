"""Session windows at work: stretches of rows in, finished sessions out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from headrace.kernel.held import HeldLayout, Merge
from headrace.kernel.protocols import MAIN, Emission, OperatorContext, OperatorState
from operators import partials
from operators.closed_time import ClosedTime
from operators.errors import computing
from operators.stretches import RUN, ended, numbered
from operators.window_instance import of_keys
from operators.windowed import WINDOW_START

LAST: Final = "_last"
"""Event time of a stretch's last row, microseconds; its first one's is ``window_start``."""

VERSION: Final = 2
_HELD: Final = "sessions"
_first: Final = pl.col(WINDOW_START).to_physical()


@dataclass(frozen=True, slots=True)
class SessionLayout:
    """What an instance needs to know of its operator.

    Attributes:
        where: Names the operator in error messages.
        by: Key columns.
        gap: Stretches of one key that are at least this far apart are two sessions, microseconds.
        lateness: How much later than the watermark sessions close, microseconds.
        finish: Rows of the main port, computed of merged partials.
        merge: How partials are merged.
    """

    where: str
    by: Sequence[str]
    gap: int
    lateness: int
    finish: Callable[[pl.LazyFrame], pl.LazyFrame]
    merge: Merge


class SessionInstance:
    """Implements :class:`headrace.kernel.protocols.OperatorInstance`.

    Args:
        layout: The operator's definition.
        schema: Types of the partials.
        context: Where to resume, and held state.

    Raises:
        GraphChangedError: The state was made by another definition, over other types, or by a newer release.
    """

    def __init__(self, layout: SessionLayout, schema: pl.Schema, context: OperatorContext) -> None:
        self._layout = layout
        self._held = context.held(HeldLayout(_HELD, schema, layout.by, LAST, VERSION, layout.merge))
        self._time = ClosedTime(layout.lateness, partials.ROWS, context.state)
        self._next = self._earliest_end()

    @property
    def counts(self) -> Mapping[str, int]:
        """Rows since the job began: ``dropped_late`` and ``null_event_time`` (see :mod:`operators.windowed`)."""
        return self._time.counts

    def process(self, partials: pl.DataFrame) -> Emission:
        """Take in partials; sessions are only given out by :meth:`advance` and :meth:`drain`."""
        accepted = self._accept(partials)
        if accepted.height:
            self._held.add(accepted)
            earliest = accepted[LAST].min()
            if isinstance(earliest, int):
                end = earliest + self._layout.gap
                self._next = end if self._next is None else min(self._next, end)
        return {}

    def advance(self, watermark: int) -> Emission:
        """Give out the sessions that close with ``watermark``."""
        closed = self._time.close(watermark)
        if self._next is None or self._next > closed:
            return {}
        gap = self._layout.gap
        over = ended(self._held, closed - gap + 1, self._layout.by, _first, LAST, gap)
        self._next = self._earliest_end()
        finished = self._finished(over)
        return {MAIN: finished} if finished.height else {}

    def drain(self) -> Emission:
        """Give out all sessions. Time up to the last one's end is closed then: nothing is given out for it again."""
        last = self._held.latest
        return {} if last is None else self.advance(last + self._layout.gap + self._layout.lateness)

    def results(self, keys: pl.DataFrame) -> pl.DataFrame:
        """See :class:`operators.windowed.OpenWindows`."""
        return self._finished(of_keys(self._held, keys, self._layout.merge))

    def outgoing_watermark(self, watermark: int) -> int:
        """Where the earliest open session begins, or one to come: those given out later do not start before it."""
        firsts = [frame[WINDOW_START].to_physical().min() for frame in self._held.frames()]
        return min([self._time.reached(watermark), *(first for first in firsts if isinstance(first, int))])

    def rows_held(self) -> int:
        """Stretches in the state."""
        return self._held.height

    def snapshot(self) -> OperatorState:
        """See :class:`headrace.kernel.protocols.OperatorInstance`."""
        return OperatorState(VERSION, self._time.values, held={_HELD: self._held.snapshot()})

    # ------------------------------------------------------------------------------------------------------ inside

    def _accept(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Leaves out what has no time, and what lies in time that is closed."""
        closed = self._time.at
        return self._time.accepted(rows, WINDOW_START, None if closed is None else _first < closed)

    def _finished(self, sessions: pl.DataFrame) -> pl.DataFrame:
        with computing(self._layout.where):
            finished = self._layout.finish(sessions.lazy()).collect()
        return finished.sort(WINDOW_START, *self._layout.by, nulls_last=False)

    def _earliest_end(self) -> int | None:
        last = self._held.earliest
        return None if last is None else last + self._layout.gap


def merging(by: Sequence[str], gap: int, schema: pl.Schema) -> Merge:
    """How stretches of one key that are less than the gap apart become one.

    Args:
        by: What they are grouped by.
        gap: The gap, microseconds.
        schema: Their columns.
    """
    states = [name for name in schema if name not in {*by, WINDOW_START, LAST}]
    merged = [pl.col(WINDOW_START).min(), pl.col(LAST).max(), *partials.reductions(states)]
    names = [*by, WINDOW_START, LAST, *states]
    return lambda rows: numbered(rows, by, _first, pl.col(LAST), gap).group_by(*by, RUN).agg(merged).select(names)
