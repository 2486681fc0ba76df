"""Tumbling, hopping and cumulating windows in event time.

A window holds the rows with ``start <= event time < end`` and is given out once, when the watermark has reached its
end (and passed the allowed lateness), with one row for each combination of the ``by`` columns that occurs in it; null
is a value like others. Windows stand in UTC, from ``offset`` after midnight of 1970-01-01; in another ``time_zone``
they are whole days by its wall clock, of 23 or 25 hours where the clock is changed.

Where windows overlap, a row counts only in those that were open at its own watermark, and is late when none was.
Lateness and everything else that windows share: :mod:`operators.windowed`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import polars as pl

from headrace.kernel.errors import SpecError
from headrace.kernel.held import Merge
from headrace.kernel.protocols import OperatorContext
from operators import partials
from operators.aggregates import Aggregate
from operators.slices import Slices
from operators.time_scales import time_scale
from operators.weighted import value_columns
from operators.window_instance import OPENS, Layout, SlicedInstance, merging
from operators.windowed import WINDOW_END, WINDOW_START, Placement, WindowOperator


class SlicedWindow(WindowOperator):
    """Windows of fixed lengths, put together from panes."""

    __slots__ = ()

    slices: Slices

    def placement(self, time: pl.Expr, mark: pl.Expr | None, time_type: pl.DataType) -> Placement:
        """See :class:`operators.windowed.WindowOperator`. The key is the pane: a mark, typed as an instant."""
        slices = self.slices
        pane = slices.pane_of(time)
        keys = {WINDOW_START: pane.cast(time_type)}
        late = None if mark is None else slices.scale.instant(slices.last_end(pane)) <= mark
        if not slices.overlapping:
            return Placement(late, keys)
        if mark is None:
            return Placement(late, keys, partials.Build(state={OPENS: pl.lit(None, pl.Int64).first()}))
        shut = slices.scale.instant(slices.first_end(pane)) <= mark
        return Placement(late, {**keys, OPENS: pl.when(shut).then(slices.ended(mark) + slices.every)})

    def definition(self) -> str:
        """See :class:`operators.windowed.WindowOperator`."""
        return str(self.slices)

    def window(self, merged: pl.Schema) -> Sequence[pl.Expr]:
        """See :class:`operators.windowed.WindowOperator`: of rows with the window's end as a mark."""
        instant, end = self.slices.scale.instant, pl.col(WINDOW_START).to_physical()
        time_type = merged[WINDOW_START]
        return [
            instant(self.slices.start(end)).cast(time_type).alias(WINDOW_START),
            instant(end).cast(time_type).alias(WINDOW_END),
        ]

    def open(self, schema: pl.Schema, context: OperatorContext) -> SlicedInstance:
        """An instance over partials of ``schema``.

        Raises:
            GraphChangedError: The state was made by another definition, or over other types.
        """
        layout = Layout(
            self.where,
            (*self.by, *value_columns(schema.names())),
            self.by,
            self.slices,
            self.allowed_lateness_us,
            self.finish,
            self.merging(schema),
            sorted_by=[WINDOW_START, WINDOW_END, *self.by],
        )
        return SlicedInstance(layout, schema, context)

    def merging(self, schema: pl.Schema) -> Merge:
        """See :class:`operators.windowed.WindowOperator`."""
        return merging((*self.by, *value_columns(schema.names())), schema)


@dataclass(frozen=True, slots=True)
class TumblingWindow(SlicedWindow):
    """Windows side by side.

    Args:
        id: Stable id; the state is bound to it.
        event_time: Column with the event time: Datetime or Date.
        size_us: Length of a window in microseconds, positive.
        aggregates: From the output's name to SQL text (``"sum(delay)"``) or an ``Aggregate``
            (:mod:`operators.aggregates`).
        by: Key columns.
        offset_us: Where windows begin, relative to the epoch.
        time_zone: Zone that windows stand in; None: UTC.
        allowed_lateness_us: How much later windows close.
        revised: The rows are a changelog that takes rows back whose time may have passed.

    Raises:
        SpecError: Something in it cannot be.
    """

    id: str
    event_time: str
    size_us: int
    aggregates: Mapping[str, str | Aggregate]
    by: Sequence[str] = ()
    offset_us: int = 0
    time_zone: str | None = None
    allowed_lateness_us: int = 0
    revised: bool = False
    slices: Slices = field(init=False, repr=False, compare=False)
    _wanted: Mapping[str, Aggregate] = field(init=False, repr=False, compare=False)
    _plans: dict[tuple[Any, ...], Any] = field(init=False, repr=False, compare=False, default_factory=dict)

    kind: ClassVar[str] = "tumbling window"

    def __post_init__(self) -> None:
        _check_spans(self.where, {"size": self.size_us})
        scale = time_scale(self.time_zone, {"size": self.size_us}, self.where)
        object.__setattr__(self, "slices", Slices(self.size_us, self.size_us, self.offset_us, scale))
        self.prepare()


@dataclass(frozen=True, slots=True)
class HoppingWindow(SlicedWindow):
    """Windows of one length that begin every ``hop_us``; a row lies in several of them.

    Args:
        id: Stable id; the state is bound to it.
        event_time: Column with the event time: Datetime or Date.
        size_us: Length of a window in microseconds, positive.
        hop_us: How far apart windows begin; positive, at most ``size_us``.
        aggregates: See :class:`TumblingWindow`.
        by: Key columns.
        offset_us: Where windows begin, relative to the epoch.
        time_zone: Zone that windows stand in; None: UTC.
        allowed_lateness_us: How much later windows close.
        revised: The rows are a changelog that takes rows back whose time may have passed.

    Raises:
        SpecError: Something in it cannot be.
    """

    id: str
    event_time: str
    size_us: int
    hop_us: int
    aggregates: Mapping[str, str | Aggregate]
    by: Sequence[str] = ()
    offset_us: int = 0
    time_zone: str | None = None
    allowed_lateness_us: int = 0
    revised: bool = False
    slices: Slices = field(init=False, repr=False, compare=False)
    _wanted: Mapping[str, Aggregate] = field(init=False, repr=False, compare=False)
    _plans: dict[tuple[Any, ...], Any] = field(init=False, repr=False, compare=False, default_factory=dict)

    kind: ClassVar[str] = "hopping window"

    def __post_init__(self) -> None:
        spans = {"size": self.size_us, "hop": self.hop_us}
        _check_spans(self.where, spans)
        if self.hop_us > self.size_us:
            raise SpecError(
                f"{self.where} has a hop longer than its size, so rows between windows would be lost",
                hint="make the hop at most the size, or filter those rows out and use a tumbling window",
            )
        scale = time_scale(self.time_zone, spans, self.where)
        object.__setattr__(self, "slices", Slices(self.size_us, self.hop_us, self.offset_us, scale))
        self.prepare()


@dataclass(frozen=True, slots=True)
class CumulatingWindow(SlicedWindow):
    """Windows that begin together every ``size_us`` and end ``step_us`` after one another, up to that length.

    Args:
        id: Stable id; the state is bound to it.
        event_time: Column with the event time: Datetime or Date.
        size_us: Length of the longest window in microseconds, positive; a multiple of ``step_us``.
        step_us: By how much each window is longer than the one before it, positive.
        aggregates: See :class:`TumblingWindow`.
        by: Key columns.
        offset_us: Where windows begin, relative to the epoch.
        time_zone: Zone that windows stand in; None: UTC.
        allowed_lateness_us: How much later windows close.
        revised: The rows are a changelog that takes rows back whose time may have passed.

    Raises:
        SpecError: Something in it cannot be.
    """

    id: str
    event_time: str
    size_us: int
    step_us: int
    aggregates: Mapping[str, str | Aggregate]
    by: Sequence[str] = ()
    offset_us: int = 0
    time_zone: str | None = None
    allowed_lateness_us: int = 0
    revised: bool = False
    slices: Slices = field(init=False, repr=False, compare=False)
    _wanted: Mapping[str, Aggregate] = field(init=False, repr=False, compare=False)
    _plans: dict[tuple[Any, ...], Any] = field(init=False, repr=False, compare=False, default_factory=dict)

    kind: ClassVar[str] = "cumulating window"

    def __post_init__(self) -> None:
        spans = {"size": self.size_us, "step": self.step_us}
        _check_spans(self.where, spans)
        if self.size_us % self.step_us:
            raise SpecError(
                f"{self.where} has a size that is no multiple of its step", hint="e.g. a size of 1d with a step of 1h"
            )
        scale = time_scale(self.time_zone, spans, self.where)
        slices = Slices(self.size_us, self.step_us, self.offset_us, scale, cumulating=True)
        object.__setattr__(self, "slices", slices)
        self.prepare()


def _check_spans(where: str, spans: Mapping[str, int]) -> None:
    for name, span in spans.items():
        if span <= 0:
            raise SpecError(f"{where} has {name} {span} us", hint="give a positive duration, e.g. 1h")
