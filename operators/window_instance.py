"""Tumbling, hopping and cumulating windows at work: panes in, finished windows out.

State are merged panes, held by their start (:mod:`headrace.kernel.held`). A pane leaves the state when the last window
that holds it has been given out; while windows cumulate, the panes of one window that have been given out are merged
into one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from headrace.kernel.held import HeldLayout, HeldState, Merge
from headrace.kernel.merged import engine_for
from headrace.kernel.protocols import MAIN, Emission, OperatorContext, OperatorState
from operators import partials
from operators.closed_time import ClosedTime
from operators.errors import computing
from operators.slices import Slices
from operators.windowed import WINDOW_END, WINDOW_START

OPENS: Final = "_opens"
"""Where windows overlap: the end of the first window that a pane's rows count in; null: all that hold the pane."""

VERSION: Final = 3
_HELD: Final = "windows"
_JOINS: Final = "_joins"
_PLACE: Final = "_place"
_WINDOW: Final = (WINDOW_START, WINDOW_END)
_FEW: Final = 16
"""So many windows per pane are put together one by one; more of them by halves."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What an instance needs to know of its operator.

    Attributes:
        where: Names the operator in error messages.
        by: What partials are grouped by.
        key: The operator's ``key_columns``.
        slices: Where panes and windows begin and end.
        lateness: How much later than the watermark windows close, in microseconds.
        finish: Rows of the main port, computed of merged partials whose ``window_start`` holds the window's end.
        merge: How partials are merged.
        sorted_by: What rows that are given out together are sorted by; none: ``finish`` sorts them.
    """

    where: str
    by: Sequence[str]
    key: Sequence[str]
    slices: Slices
    lateness: int
    finish: Callable[[pl.LazyFrame], pl.LazyFrame]
    merge: Merge
    sorted_by: Sequence[str] = ()


class SlicedInstance:
    """Implements :class:`headrace.kernel.protocols.OperatorInstance`.

    Args:
        layout: The operator's definition.
        schema: Types of the partials.
        context: Where to resume, and held state.

    Raises:
        GraphChangedError: The state was made by another definition, over other types, or by a newer release.
    """

    def __init__(self, layout: Layout, schema: pl.Schema, context: OperatorContext) -> None:
        self._layout = layout
        self._slices = layout.slices
        self._states = [name for name in schema if name not in {*layout.by, WINDOW_START, OPENS}]
        self._held = context.held(HeldLayout(_HELD, schema, layout.key, WINDOW_START, VERSION, layout.merge))
        self._time = ClosedTime(layout.lateness, partials.ROWS, context.state)
        self._ended = None if self._time.at is None else self._slices.ended_at(self._time.at)
        self._next = self._next_end(self._held.earliest)

    @property
    def counts(self) -> Mapping[str, int]:
        """Rows since the job began: ``dropped_late`` and ``null_event_time`` (see :mod:`operators.windowed`)."""
        return self._time.counts

    def process(self, partials: pl.DataFrame) -> Emission:
        """Take in partials; windows are only given out by :meth:`advance` and :meth:`drain`."""
        accepted = self._accept(partials)
        if accepted.height:
            self._held.add(accepted)
            ends = [end for end in (self._next, self._next_end(_first(accepted))) if end is not None]
            self._next = min(ends, default=None)
        return {}

    def advance(self, watermark: int) -> Emission:
        """Give out the windows that close with ``watermark``."""
        return self._close(self._time.reached(watermark))

    def drain(self) -> Emission:
        """Give out all windows. Those up to the last one are closed then: nothing is given out for them again."""
        last = self._held.latest
        return {} if last is None else self._close(self._slices.scale.instant_at(self._slices.last_end(last)))

    def results(self, keys: pl.DataFrame) -> pl.DataFrame:
        """See :class:`operators.windowed.OpenWindows`."""
        slices, panes = self._slices, of_keys(self._held, keys, self._layout.merge)
        last = self._held.latest
        if last is None or not slices.overlapping:
            whole = [name for name in panes.columns if name != OPENS]
            return self._finished(panes.select(whole).with_columns(self._typed(slices.last_end(_pane))))
        windows = self._one_by_one(panes.lazy(), self._ended, slices.last_end(last))
        return self._finished(self._grouped(windows, panes.height * slices.most))

    def outgoing_watermark(self, watermark: int) -> int:
        """The earliest start of the windows that are still open: those given out later do not start before it."""
        ended = self._slices.ended_at(self._time.reached(watermark))
        return self._slices.scale.instant_at(self._slices.earliest_start(ended))

    def rows_held(self) -> int:
        """Groups in the state; counted more than once while they wait to be merged."""
        return self._held.height

    def snapshot(self) -> OperatorState:
        """See :class:`headrace.kernel.protocols.OperatorInstance`."""
        return OperatorState(VERSION, self._time.values, held={_HELD: self._held.snapshot()})

    # ------------------------------------------------------------------------------------------------------ inside

    def _accept(self, rows: pl.DataFrame) -> pl.DataFrame:
        ended, first = self._ended, _first(rows)
        if ended is None or first is None or self._slices.last_end(first) > ended:
            return self._time.accepted(rows, WINDOW_START, None)
        return self._time.accepted(rows, WINDOW_START, self._slices.last_end(_pane) <= ended)

    def _next_end(self, first: int | None) -> int | None:
        """The end of the next window to be given out, of panes from ``first`` on."""
        if first is None:
            return None
        end = self._slices.first_end(first)
        return end if self._ended is None else max(end, self._ended + self._slices.every)

    def _close(self, closed: int) -> Emission:
        if self._time.at is not None and closed <= self._time.at:
            return {}
        before, self._time.at = self._ended, closed
        self._ended = self._slices.ended_at(closed)
        if self._next is None or self._next > self._ended:
            return {}
        windows = self._due(before, self._ended)
        self._next = self._next_end(self._held.earliest)
        finished = self._finished(windows)
        return {MAIN: finished} if finished.height else {}

    def _finished(self, windows: pl.DataFrame) -> pl.DataFrame:
        with computing(self._layout.where):
            finished = self._layout.finish(windows.lazy()).collect()
        by = [name for name in self._layout.sorted_by if name not in _WINDOW or not _is_constant(finished[name])]
        # Polars sorts numbers best alone, and texts beside another column.
        if len(by) == 1 and not finished.schema[by[0]].is_numeric():
            by = [WINDOW_START, *by]
        return finished.sort(by, nulls_last=False) if by else finished

    def _due(self, before: int | None, ended: int) -> pl.DataFrame:
        """The windows that end behind ``before``, up to ``ended``; their panes leave the state when they can.

        Returns:
            Merged partials; ``window_start`` is the window's *end*, as a mark.
        """
        slices = self._slices
        if not slices.overlapping:
            return self._held.take(ended).with_columns(self._typed(slices.last_end(_pane)))
        if slices.cumulating:
            return self._cumulated(before, ended)
        panes = self._held.peek(ended)
        self._held.take(slices.gone_before(ended))
        few = slices.most <= _FEW or (before is not None and ended - before <= _FEW * slices.every)
        if few:
            return self._grouped(self._one_by_one(panes.lazy(), before, ended), panes.height * slices.most)
        whole = pl.col(OPENS).is_null()
        halves = self._by_halves(panes.filter(whole).drop(OPENS), before, ended)
        late = self._one_by_one(panes.filter(~whole).lazy(), before, ended)
        return self._grouped(pl.concat([halves, late]), panes.height * slices.most.bit_length())

    def _one_by_one(self, panes: pl.LazyFrame, before: int | None, ended: int) -> pl.LazyFrame:
        """A row for each pane and each due window that it counts in."""
        every = self._slices.every
        first = pl.max_horizontal(self._slices.first_end(_pane), OPENS, pl.lit(before, pl.Int64) + every)
        last = pl.min_horizontal(self._slices.last_end(_pane), pl.lit(ended))
        ends = pl.int_ranges(first, last + 1, every).alias(WINDOW_START)
        held = panes.filter(first <= last).select(*self._layout.by, ends, *self._states)
        return held.explode(WINDOW_START).with_columns(self._typed(pl.col(WINDOW_START)))

    def _by_halves(self, panes: pl.DataFrame, before: int | None, ended: int) -> pl.LazyFrame:
        """Every due window, put together from blocks of 1, 2, 4, 8 ... panes: the binary digits of its length."""
        slices = self._slices
        left, offset, span = slices.size // slices.pane, 0, slices.pane
        block, parts = panes, []
        while left:
            if left % 2:
                parts.append(block.with_columns(self._typed(_pane - offset + slices.size)))
                offset += span
            left //= 2
            if left:
                both = pl.concat([block, block.with_columns(self._typed(_pane - span))])
                block = self._grouped(both.lazy(), both.height)
                span *= 2
        due = ((_pane - slices.phase) % slices.every == 0) & (_pane <= ended)
        if before is not None:
            due &= _pane > before
        return pl.concat([part.lazy().filter(due) for part in parts])

    def _cumulated(self, before: int | None, ended: int) -> pl.DataFrame:
        """Every due window: the one before it, and the panes that join it."""
        slices = self._slices
        joins = pl.max_horizontal(slices.first_end(_pane), OPENS, pl.lit(before, pl.Int64))
        panes = self._held.take(ended).with_columns(joins.alias(_JOINS))
        later = panes.filter(pl.col(_JOINS) > ended).drop(_JOINS)
        begins = self._typed(slices.last_end(_pane) - slices.size)
        joining = panes.filter(pl.col(_JOINS) <= ended).drop(OPENS).with_columns(begins)
        running = pl.DataFrame(schema=joining.drop(_JOINS).schema)
        by_end = joining.partition_by(_JOINS, as_dict=True, include_key=False)
        if before is not None and (before,) in by_end:
            running = self._grouped(by_end[before,].lazy(), by_end[before,].height)
        windows = [running.clear()]
        for end in self._due_ends(joining, before, ended):
            open_still = running.filter(_pane + slices.size >= end)
            both = pl.concat([open_still, by_end.get((end,), open_still.clear())])
            running = self._grouped(both.lazy(), both.height)
            windows.append(running.with_columns(self._typed(pl.lit(end))))
        going_on = running.filter(_pane + slices.size > ended).with_columns(pl.lit(None, pl.Int64).alias(OPENS))
        self._held.add(pl.concat([later, going_on.select(later.columns)]))
        return pl.concat(windows)

    def _due_ends(self, joining: pl.DataFrame, before: int | None, ended: int) -> list[int]:
        every = self._slices.every
        first = pl.max_horizontal(pl.col(_JOINS), pl.lit(before, pl.Int64) + every)
        spans = joining.select(first.alias("first"), (_pane + self._slices.size).clip(upper_bound=ended).alias("last"))
        spans = spans.group_by("first").agg(pl.col("last").max()).filter(pl.col("first") <= pl.col("last"))
        ends = spans.select(pl.int_ranges("first", pl.col("last") + 1, every).explode().alias("end"))
        return ends["end"].unique().sort().to_list()

    def _grouped(self, rows: pl.LazyFrame, height: int) -> pl.DataFrame:
        """Rows of windows merged; ``height`` is about how many there are."""
        grouped = rows.group_by(*self._layout.by, WINDOW_START).agg(partials.reductions(self._states))
        return grouped.select(*self._layout.by, WINDOW_START, *self._states).collect(engine=engine_for(height))

    def _typed(self, mark: pl.Expr) -> pl.Expr:
        return mark.cast(self._held.schema[WINDOW_START]).alias(WINDOW_START)


def of_keys(held: HeldState, keys: pl.DataFrame, merge: Merge) -> pl.DataFrame:
    """What is held of some keys, merged; of all where keys have no column."""
    if not keys.width:
        return held.merged()
    near = held.numbered(_PLACE, keys).join(keys.lazy(), on=keys.columns, how="semi", nulls_equal=True)
    found = near.drop(_PLACE).collect(engine=engine_for(held.height))
    return merge(found.lazy()).collect(engine=engine_for(found.height))


_pane: Final = pl.col(WINDOW_START).to_physical()


def _first(rows: pl.DataFrame) -> int | None:
    first = rows[WINDOW_START].to_physical().min()
    return first if isinstance(first, int) else None


def merging(by: Sequence[str], schema: pl.Schema) -> Merge:
    """How partials of one key and pane are merged.

    Args:
        by: What partials are grouped by.
        schema: Their columns.
    """
    keys = [*by, WINDOW_START, *([OPENS] if OPENS in schema else [])]
    reduced = partials.reductions([name for name in schema if name not in keys])
    return lambda rows: rows.group_by(keys).agg(reduced).select(pl.col(schema.names()))


def _is_constant(times: pl.Series) -> bool:
    """Whether all of them are one; compared as numbers, for Python has no times after the year 9999."""
    marks = times.to_physical()
    return bool(marks.min() == marks.max())
