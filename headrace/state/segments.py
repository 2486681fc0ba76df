"""A segment of held rows: an immutable file sorted by time, of which rows leave from the front."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from headrace.kernel.keyed import RunFile
from headrace.state.key_index import KeyIndex

Times: TypeAlias = npt.NDArray[np.int64]
Marks: TypeAlias = npt.NDArray[np.bool_]


@dataclass(slots=True, eq=False)
class Segment:
    """Rows of a file.

    Attributes:
        file: The file.
        rows: All its rows as they are stored, mapped.
        times: Their times, ascending.
        start: The rows from there on are held.
        marks: Of all its rows, which ones have been marked; None: none.
        marked: Where the marks lie; None: nowhere, or they have changed since.
        index: All its rows by key; None: it was not worth while yet.
        scans: How often it has been searched through for few keys.
    """

    file: RunFile
    rows: pl.DataFrame
    times: Times
    start: int
    marks: Marks | None = None
    marked: RunFile | None = None
    index: KeyIndex | None = None
    scans: int = 0

    @property
    def height(self) -> int:
        """Rows held, marked ones among them."""
        return self.file.rows - self.start

    @property
    def earliest(self) -> int:
        """The earliest time of those."""
        return int(self.times[self.start])

    @property
    def unmarked(self) -> int:
        """Rows held without a mark."""
        return self.height if self.marks is None else self.height - int(self.marks[self.start :].sum())

    @property
    def last_unmarked(self) -> int:
        """The latest time of those."""
        if self.marks is None:
            return int(self.times[-1])
        return int(self.times[np.flatnonzero(~self.marks)[-1]])

    def mark(self, places: npt.NDArray[np.int64]) -> None:
        """Mark rows by their places behind ``start``."""
        if self.marks is None:
            self.marks = np.zeros(self.file.rows, np.bool_)
        self.marks[self.start + places] = True
        self.marked = None

    def skip(self) -> None:
        """Begin behind the marked rows in front."""
        if self.marks is not None and self.start < self.file.rows and self.marks[self.start]:
            unmarked = np.flatnonzero(~self.marks[self.start :])
            self.start = self.start + int(unmarked[0]) if unmarked.size else self.file.rows

    def until(self, before: int) -> int:
        """Where the rows end whose time lies before ``before``."""
        return int(np.searchsorted(self.times, before)) if self.earliest < before else self.start
