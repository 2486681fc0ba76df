"""Rows sorted by hash: looked up by binary search, merged by a stable sort that finds what is sorted already.

A *stored* row has the columns of its layout (:mod:`headrace.state.run_columns`), its hash, and whether it is a removal.
Of rows with one identity the newest holds, removals included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from headrace.kernel.keyed import Hashes, KeyedLayout, KeyedRun, RunFile, key_hash
from headrace.state.run_columns import decoded, encoded
from headrace.state.runs import mapped_rows

HASH: Final = "__hash"
GONE: Final = "__gone"
_KEY_BITS: Final = 40
Places: TypeAlias = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class SortedRows:
    """Stored rows, sorted by hash.

    Attributes:
        rows: In memory, or mapped.
        hashes: Their hashes.
        gone: How many of them are removals.
        nbytes: What they take on the heap, 0 where they are mapped.
        run: Where they lie on disk; None: only in memory.
    """

    rows: pl.DataFrame
    hashes: Hashes
    gone: int
    nbytes: int
    run: KeyedRun | None = None

    @classmethod
    def of(cls, rows: pl.DataFrame, run: KeyedRun | None = None) -> SortedRows:
        """Of rows that are sorted."""
        nbytes = 0 if run else int(rows.estimated_size())
        return cls(rows, rows[HASH].to_numpy(), int(rows[GONE].sum()), nbytes, run)

    @classmethod
    def mapped(cls, file: RunFile, schema: pl.Schema) -> SortedRows:
        """Of a whole run file; ``schema`` is that of stored rows."""
        return cls.of(mapped_rows(file.path, schema), KeyedRun(file, 0, file.rows))

    @property
    def height(self) -> int:
        """Number of rows, removals among them."""
        return self.hashes.size

    def slice(self, start: int, stop: int) -> SortedRows:
        """Some of the rows."""
        if start == 0 and stop == self.height:
            return self
        rows = self.rows.slice(start, stop - start)
        run = self.run and KeyedRun(self.run.file, self.run.start + start, self.run.start + stop)
        return SortedRows.of(rows, run)

    def below(self, end: np.uint64 | None) -> int:
        """How many rows have a hash below ``end``; None: all."""
        return self.height if end is None else int(np.searchsorted(self.hashes, end))


@dataclass(frozen=True, slots=True)
class Hashing:
    """How rows of a layout are hashed and stored.

    Where a key has several rows, the first :data:`_KEY_BITS` bits are of the key and the others of what tells its rows
    apart, so that the rows of a key stand together and those of one identity side by side.

    Attributes:
        layout: The layout.
        kept: Only these bits of hashes are used; fewer than all of them make keys collide, for tests.
    """

    layout: KeyedLayout
    kept: int = 2**64 - 1

    @property
    def stored(self) -> pl.Schema:
        """Columns of stored rows."""
        columns = encoded(pl.DataFrame(schema=self.layout.schema)).schema
        return pl.Schema({**columns, HASH: pl.UInt64(), GONE: pl.Boolean()})

    def of_keys(self, keys: pl.DataFrame) -> tuple[Hashes, Hashes]:
        """For each key, the least and the greatest hash that its rows can have."""
        low = key_hash(keys, self.layout.key) & np.uint64(self.kept)
        if not self.layout.within:
            return low, low
        low &= ~np.uint64(2 ** (64 - _KEY_BITS) - 1)
        return low, low | np.uint64(2 ** (64 - _KEY_BITS) - 1)

    def of_rows(self, rows: pl.DataFrame) -> Hashes:
        """The hash of each row."""
        low, _ = self.of_keys(rows)
        if not self.layout.within:
            return low
        return low | ((key_hash(rows, self.layout.within) & np.uint64(self.kept)) >> np.uint64(_KEY_BITS))

    def put(self, rows: pl.DataFrame) -> SortedRows:
        """Rows of the layout, to be stored."""
        return self._sorted(encoded(rows.select(self.layout.schema.names())), self.of_rows(rows), gone=False)

    def removed(self, rows: pl.DataFrame) -> SortedRows:
        """The removal of rows, of which only the identity matters."""
        identity = self.layout.identity
        empty = (pl.lit(None, dtype).alias(name) for name, dtype in self.layout.schema.items() if name not in identity)
        whole = rows.select(identity).with_columns(empty).select(self.layout.schema.names())
        return self._sorted(encoded(whole), self.of_rows(rows), gone=True)

    def read(self, stored: pl.DataFrame) -> pl.DataFrame:
        """Rows of the layout, of stored ones."""
        return decoded(stored, self.layout.schema)

    def _sorted(self, rows: pl.DataFrame, hashes: Hashes, *, gone: bool) -> SortedRows:
        order = np.argsort(hashes)
        hashes = hashes[order]
        stored = rows[order].with_columns(pl.Series(HASH, hashes), pl.lit(gone).alias(GONE))
        return SortedRows(stored, hashes, stored.height if gone else 0, int(stored.estimated_size()))


def matches(held: Hashes, low: Hashes, high: Hashes) -> tuple[Places, Places]:
    """Pairs of a place in the queries and a place in ``held``, whose hash lies from ``low`` to ``high`` (inclusive).

    Args:
        held: Sorted.
        low: Sorted, one for each query.
        high: As ``low``; the same array, where one hash is asked for.
    """
    first = np.searchsorted(held, low)
    least = held[np.minimum(first, held.size - 1)]
    near = np.flatnonzero((least >= low) & (least <= high))
    first = first[near]
    following = np.minimum(first + 1, held.size - 1)
    if not (held[following] <= high[near])[following > first].any():
        return near, first
    counts = np.searchsorted(held, high[near], side="right") - first
    starts = np.repeat(first - np.concatenate(([0], np.cumsum(counts)[:-1])), counts)
    return np.repeat(near, counts), starts + np.arange(starts.size)


def same(rows: pl.DataFrame, others: pl.DataFrame, columns: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Whether rows that stand side by side in two frames are equal in these columns; null equals null."""
    equal = np.ones(rows.height, np.bool_)
    for name in columns:
        equal &= rows[name].eq_missing(others[name]).to_numpy()
    return equal


def merged(frames: Sequence[SortedRows], identity: Sequence[str]) -> pl.DataFrame:
    """The newest row of each identity, sorted by hash; removals stay.

    Args:
        frames: Newest first.
        identity: Names one row.
    """
    return frames[0].rows if len(frames) == 1 else newest(pl.concat([frame.rows for frame in frames]), identity)


def newest(rows: pl.DataFrame, identity: Sequence[str]) -> pl.DataFrame:
    """The first row of each identity, sorted by hash.

    Args:
        rows: Stored rows, newest first.
        identity: Names one row.
    """
    hashes = rows[HASH].to_numpy()
    order = np.argsort(hashes, kind="stable")
    hashes = hashes[order]
    again = np.flatnonzero(hashes[1:] == hashes[:-1]) + 1
    if not again.size:
        return rows[order]
    names = rows.select(identity)
    equal = same(names[order[again]], names[order[again - 1]], identity)
    keep = np.ones(order.size, np.bool_)
    keep[again[equal]] = False
    if not equal.all():
        _settle_collisions(names, order, hashes, keep, again[~equal])
    return rows[order[keep]]


def _settle_collisions(
    names: pl.DataFrame, order: Places, hashes: Hashes, keep: npt.NDArray[np.bool_], differing: Places
) -> None:
    """Rows of different identities have one hash: look at all rows of these hashes."""
    places = np.flatnonzero(np.isin(hashes, np.unique(hashes[differing])))
    newest = names[order[places]].with_row_index("__place").unique(names.columns, keep="first")["__place"].to_numpy()
    keep[places] = False
    keep[places[newest]] = True
