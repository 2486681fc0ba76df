"""Up to where an operator has closed time, and the rows that it has left out for it; part of its state."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from headrace.kernel.protocols import COUNTS, Json, OperatorState
from operators.event_time import passed


class ClosedTime:
    """What lies before :attr:`at` has been given out; it never goes back.

    Args:
        lateness: How much later than the watermark time is closed, microseconds.
        rows: Column of the partials that says how many rows one stands for; None: each for itself.
        state: Where to resume.

    Attributes:
        at: Event time in microseconds; None: nothing is closed.
    """

    def __init__(self, lateness: int, rows: str | None, state: OperatorState | None) -> None:
        self._lateness = lateness
        self._rows = rows
        self.at: int | None = None
        self._counts = {"dropped_late": 0, "null_event_time": 0}
        if state is not None:
            self.at = state.values["closed"]
            self._counts = {name: int(state.values[COUNTS][name]) for name in self._counts}

    @property
    def counts(self) -> Mapping[str, int]:
        """Rows since the job began: ``dropped_late`` and ``null_event_time`` (see :mod:`operators.windowed`)."""
        return dict(self._counts)

    @property
    def values(self) -> Mapping[str, Json]:
        """The values to keep in the operator's state."""
        return {"closed": self.at, COUNTS: dict(self._counts)}

    def reached(self, watermark: int) -> int:
        """Where time would be closed with a watermark."""
        reached = passed(watermark, self._lateness)
        return reached if self.at is None else max(self.at, reached)

    def close(self, watermark: int) -> int:
        """Close time with a watermark; gives where."""
        self.at = self.reached(watermark)
        return self.at

    def accepted(self, partials: pl.DataFrame, time: str, gone: pl.Expr | None) -> pl.DataFrame:
        """Partials that have a time, and do not lie in time that is closed; the others are counted.

        Args:
            partials: Partials.
            time: Their column that is null without event time.
            gone: Whether one lies in closed time; None: none does.
        """
        if partials[time].null_count():
            partials = self._without("null_event_time", partials, pl.col(time).is_null())
        return partials if gone is None else self._without("dropped_late", partials, gone)

    def _without(self, name: str, partials: pl.DataFrame, out: pl.Expr) -> pl.DataFrame:
        left = partials.filter(out)
        if not left.height:
            return partials
        self._counts[name] += left.height if self._rows is None else int(left[self._rows].abs().sum())
        return partials.filter(~out)
