"""Rows that are merged of partials: one merged frame, and a few that wait.

Merging is put off until it pays, so that a small batch costs little however large the state is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal

import polars as pl

_MAX_PENDING: Final = 16
_MAX_CHUNKS: Final = 32
_MANY_ROWS: Final = 20_000
"""From here on the streaming engine merges faster than the in-memory one."""


class Merged:
    """Partials, merged now and then.

    Args:
        schema: Their columns.
        merge: The plan that merges rows of several frames, associative and commutative; None: rows stay as they are.
    """

    def __init__(self, schema: pl.Schema, merge: Callable[[pl.LazyFrame], pl.LazyFrame] | None) -> None:
        self._merge = merge
        self._held = pl.DataFrame(schema=schema)
        self._pending: list[pl.DataFrame] = []
        self._pending_rows = 0

    @property
    def height(self) -> int:
        """Rows held; those of one group are counted more than once while they wait to be merged."""
        return self._held.height + self._pending_rows

    @property
    def schema(self) -> pl.Schema:
        """The columns."""
        return self._held.schema

    def add(self, frame: pl.DataFrame) -> None:
        """Take rows in."""
        if not frame.height:
            return
        if self._merge is None:
            held = self._held.vstack(frame)
            self._held = held.rechunk() if held.n_chunks() > _MAX_CHUNKS else held
            return
        self._pending.append(frame)
        self._pending_rows += frame.height
        if len(self._pending) < _MAX_PENDING:
            return
        if self._pending_rows * 2 >= self._held.height:
            self.merged()
        else:
            self._pending = [self.merge(self._pending)]
            self._pending_rows = self._pending[0].height

    def merged(self) -> pl.DataFrame:
        """Everything, merged."""
        if self._pending:
            self._replace(self.merge(self.frames()), [])
        return self._held

    def put(self, held: pl.DataFrame) -> None:
        """Replace everything by rows that are merged already."""
        self._replace(held, [])

    def take(self, leaves: pl.Expr) -> pl.DataFrame:
        """Take out the rows for which ``leaves`` is true, merged."""
        taken = self.merge([frame.filter(leaves) for frame in self.frames()])
        self.drop(leaves)
        return taken

    def drop(self, leaves: pl.Expr) -> None:
        """Drop the rows for which ``leaves`` is true. What stays is not touched further."""
        kept = [rest for frame in self._pending if (rest := frame.filter(~leaves)).height]
        self._replace(self._held.filter(~leaves), kept)

    def replace(self, frames: Sequence[pl.DataFrame]) -> None:
        """Replace each of :meth:`frames`."""
        self._replace(frames[0], [frame for frame in frames[1:] if frame.height])

    def frames(self) -> list[pl.DataFrame]:
        """Everything, as it stands."""
        return [self._held, *self._pending]

    def merge(self, frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
        """Frames of these columns, merged."""
        if self._merge is None:
            return pl.concat(frames, rechunk=True)
        return self._merge(pl.concat(frames).lazy()).collect(engine=engine_for(sum(frame.height for frame in frames)))

    def _replace(self, held: pl.DataFrame, pending: list[pl.DataFrame]) -> None:
        self._held = held
        self._pending = pending
        self._pending_rows = sum(frame.height for frame in pending)


def engine_for(rows: int) -> Literal["streaming", "in-memory"]:
    """The Polars engine that merges so many rows faster."""
    return "streaming" if rows > _MANY_ROWS else "in-memory"
