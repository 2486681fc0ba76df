"""Keyed state as one frame: a row for each key, found, replaced and removed by whole batches of keys."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl


class KeyedFrame:
    """Rows by key, in memory. Null is a key value like others.

    Each call costs time in proportion to the rows held (a hash join in Polars), whatever the batch.

    Args:
        key: Columns of the key, unique together.
        schema: Columns of a row.
        rows: Where to resume, of these columns.
    """

    def __init__(self, key: Sequence[str], schema: pl.Schema, rows: pl.DataFrame | None) -> None:
        self._key = list(key)
        self._rows = pl.DataFrame(schema=schema) if rows is None else rows

    @property
    def height(self) -> int:
        """Number of keys."""
        return self._rows.height

    def find(self, keys: pl.DataFrame) -> pl.DataFrame:
        """The rows held for the keys of a frame, in any order."""
        return self._rows.join(keys.select(self._key), on=self._key, how="semi", nulls_equal=True)

    def put(self, rows: pl.DataFrame) -> None:
        """Insert or replace the rows of some keys; each key at most once."""
        self.remove(rows)
        self._rows = self._rows.vstack(rows.select(self._rows.columns))

    def remove(self, keys: pl.DataFrame) -> None:
        """Remove the rows of the keys of a frame, where there are any."""
        if self._rows.height:
            self._rows = self._rows.join(keys.select(self._key), on=self._key, how="anti", nulls_equal=True)

    def frame(self) -> pl.DataFrame:
        """All rows; later changes do not touch it."""
        return self._rows
