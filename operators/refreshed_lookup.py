"""Lookup joins with a table that changes while the job runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import polars as pl

from headrace.kernel.protocols import Determinism, Transform


@dataclass(slots=True, eq=False)
class RefreshedLookup:
    """A join with the table as it is when a batch is read; implements :class:`headrace.kernel.protocols.Transform`.

    Which version a row meets depends on when it is read, so the join is *not invariant*.

    Args:
        id: Stable id.
        rows: The table now; the same frame as long as it has not changed. May be called by several threads.
        make: The join with a table.
    """

    id: str
    rows: Callable[[], pl.DataFrame]
    make: Callable[[pl.DataFrame], Transform]
    _made: tuple[pl.DataFrame, Transform] | None = field(init=False, repr=False, default=None)

    @property
    def determinism(self) -> Determinism:
        """Not invariant."""
        return Determinism.NOT_INVARIANT

    def apply(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """The joined rows.

        Raises:
            HeadraceError: The table cannot be loaded, or does not fit the join.
        """
        now, made = self.rows(), self._made
        if made is None or made[0] is not now:
            made = self._made = (now, self.make(now))
        return made[1].apply(rows)
