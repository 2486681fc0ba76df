"""Tumbling, hopping and cumulating windows as slices: short panes that windows are put together from.

A row is aggregated once, in its *pane*; a window is merged from the panes that it holds. All positions here are marks
of a :mod:`operators.time_scales` scale, in microseconds. The arithmetic works alike on integers and on expressions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

import polars as pl

from headrace.kernel.durations import format_duration_us
from operators.time_scales import TimeScale

Mark = TypeVar("Mark", int, pl.Expr)


@dataclass(frozen=True, slots=True)
class Slices:
    """Windows that end every ``every`` microseconds.

    Attributes:
        size: The length of a window; of the longest one where they cumulate.
        every: How far apart windows end, at most ``size``.
        offset: Where windows begin, relative to the scale's zero.
        scale: The time scale.
        cumulating: Windows begin every ``size`` and grow by ``every`` until they are that long, instead of beginning
            every ``every`` and all being that long.
    """

    size: int
    every: int
    offset: int
    scale: TimeScale
    cumulating: bool = False

    @property
    def pane(self) -> int:
        """The length of a pane: the longest one that every window is put together from."""
        return math.gcd(self.size, self.every)

    @property
    def overlapping(self) -> bool:
        """Whether a row may lie in several windows."""
        return self.size > self.every

    @property
    def most(self) -> int:
        """How many windows hold a row, at most."""
        return -(-self.size // self.every)

    @property
    def phase(self) -> int:
        """Windows end at ``phase + n * every``."""
        return self.offset if self.cumulating else self.offset + self.size

    def pane_of(self, time: pl.Expr) -> pl.Expr:
        """The pane that holds an instant, by its start."""
        return self.scale.floor(time, self.pane, self.offset)

    def ended(self, time: pl.Expr) -> pl.Expr:
        """The end of the last window that has ended at an instant."""
        return self.scale.floor(time, self.every, self.phase)

    def ended_at(self, time: int) -> int:
        """:meth:`ended` for one instant."""
        return self.scale.floor_at(time, self.every, self.phase)

    def first_end(self, pane: Mark) -> Mark:
        """The end (exclusive) of the first window that holds a pane."""
        return pane - (pane - self.phase) % self.every + self.every

    def last_end(self, pane: Mark) -> Mark:
        """The end (exclusive) of the last window that holds a pane."""
        return pane - (pane - self.offset) % self._apart + self.size

    def gone_before(self, ended: int) -> int:
        """Panes before this are held by no window that ends behind ``ended``, itself an end."""
        begun = ended - self.size - self.offset
        return begun - begun % self._apart + self._apart + self.offset

    def start(self, end: Mark) -> Mark:
        """The start of the window with this end."""
        if not self.cumulating:
            return end - self.size
        return end - self.every - (end - self.every - self.offset) % self.size

    def earliest_start(self, ended: int) -> int:
        """The earliest start of a window that ends behind ``ended``, itself an end."""
        return self.start(ended + self.every)

    @property
    def _apart(self) -> int:
        """How far apart windows begin."""
        return self.size if self.cumulating else self.every

    def __str__(self) -> str:
        by = "" if not self.overlapping else f" every {format_duration_us(self.every)}"
        zone = "" if str(self.scale) == "UTC" else f", time zone {self.scale}"
        return f"{format_duration_us(self.size)}{by}, offset {format_duration_us(self.offset % self._apart)}{zone}"
