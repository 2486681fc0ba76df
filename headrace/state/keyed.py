"""Keyed state that is larger than memory: a log-structured merge tree over Arrow files sorted by the hash of the key.

* *Changes* are what has been put and removed, newest last: small sorted frames in memory, which are merged with each
  other as they grow (each row a logarithmic number of times), and go to disk when the memory budget says so, or at a
  snapshot.
* The *base* is all the rest: files that cover the range of hashes side by side.
* When changes have come to a part of the base, a *sweep* merges them into it, segment by segment: a little with each
  further change, so that no single one waits for all of it.

Files are mapped, so what is read again and again stays in the page cache, and none of it on the heap. A snapshot names
files (and which of their rows): what it has named never changes, and what has not changed has been uploaded already.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import polars as pl

from headrace.kernel.errors import GraphChangedError
from headrace.kernel.keyed import (
    Hashes,
    KeyedLayout,
    KeyedPart,
    KeyedRun,
    KeyedSnapshot,
    KeyGroups,
    hash_probe,
    key_groups,
)
from headrace.kernel.layouts import check_layout
from headrace.state.run_columns import encoded
from headrace.state.runs import RunFolder
from headrace.state.sorted_rows import GONE, HASH, Hashing, Places, SortedRows, matches, merged, newest, same

_ALL: Final = 2**64


@dataclass(frozen=True, slots=True)
class Sizes:
    """When what is merged; smaller ones in tests.

    Attributes:
        small: Changes of so many rows are merged with the ones before at once.
        fan: So many changes of about one size are merged.
        segment: Rows of a base file.
        sweep: Changes are swept into the base from so many rows on ...
        share: ... and when the base has no more than so many times their rows.
        most: ... or when there are so many changes.
        whole: Rows held by time stay in memory, and are written whole, up to so many.
        searched: Rows held by time are written from so many on when they are looked up by key.
        few: A segment's rows are looked up one by one for keys of which it has at least so many times as many rows ...
        scans: ... and once it has been searched through for such ones so many times.
    """

    small: int = 4096
    fan: int = 4
    segment: int = 1 << 19
    sweep: int = 1 << 18
    share: int = 3
    most: int = 24
    whole: int = 1 << 13
    searched: int = 1 << 16
    few: int = 8
    scans: int = 4


@dataclass(slots=True)
class MemoryBudget:
    """Bytes that the changes of all keyed state of a job may take on the heap, in equal shares."""

    limit: int
    stores: int = field(default=0)

    @property
    def share(self) -> int:
        """What one store may take."""
        return self.limit // max(self.stores, 1)


class KeyedStore:
    """Implements :class:`headrace.kernel.keyed.KeyedState`.

    Args:
        hashing: The layout, and how its rows are hashed.
        runs: Where files lie.
        budget: Memory, shared with others.
        sizes: When what is merged.
    """

    def __init__(self, hashing: Hashing, runs: RunFolder, budget: MemoryBudget, sizes: Sizes | None = None) -> None:
        self._hashing = hashing
        self._layout = hashing.layout
        self._stored = hashing.stored
        self._runs = runs
        self._budget = budget
        self._sizes = sizes or Sizes()
        self._now: int | None = None
        self._base: list[SortedRows] = []
        self._swept: list[SortedRows] = []
        """Changes on their way into the base, oldest first: what is left of each."""
        self._cursor = 0
        """Hash up to which (exclusive) the sweep has come."""
        self._changes: list[SortedRows] = []
        budget.stores += 1

    # ----------------------------------------------------------------------------------------------- what operators see

    @property
    def height(self) -> int:
        """See :attr:`headrace.kernel.keyed.KeyedState.height`."""
        return max(0, sum(held.height - 2 * held.gone for held in self._all()))

    def find(self, keys: pl.DataFrame) -> pl.DataFrame:
        """See :meth:`headrace.kernel.keyed.KeyedState.find`."""
        key = list(self._layout.key)
        asked, low, high = self._asked(keys.select(key))
        found = self._matching(asked, low, high)
        if not found:
            return pl.DataFrame(schema=self._layout.schema)
        # Of one frame, and of several where a key has one row, each is there once.
        twice = self._layout.within and len(found) > 1
        rows = newest(pl.concat(found), self._layout.identity) if twice else pl.concat(found)
        return self._hashing.read(self._held(rows))

    def put(self, rows: pl.DataFrame) -> None:
        """See :meth:`headrace.kernel.keyed.KeyedState.put`."""
        if rows.height:
            self._add(self._hashing.put(rows))

    def remove(self, rows: pl.DataFrame) -> None:
        """See :meth:`headrace.kernel.keyed.KeyedState.remove`."""
        if rows.height and (self._changes or self._swept or self._base):
            self._add(self._hashing.removed(rows))

    def expire(self, now_us: int) -> None:
        """See :meth:`headrace.kernel.keyed.KeyedState.expire`."""
        self._now = now_us if self._now is None else max(self._now, now_us)

    def rows(self) -> Iterator[pl.DataFrame]:
        """See :meth:`headrace.kernel.keyed.KeyedState.rows`."""
        held = self._all()
        pieces = max(1, math.ceil(sum(frame.height for frame in held) / self._sizes.segment))
        ends: list[np.uint64 | None] = [np.uint64(_ALL * piece // pieces) for piece in range(1, pieces)]
        starts = [0] * len(held)
        for end in [*ends, None]:
            stops = [frame.below(end) for frame in held]
            slices = [frame.slice(a, b) for frame, a, b in zip(held, starts, stops, strict=True) if a < b]
            starts = stops
            if slices:
                yield self._hashing.read(self._held(merged(slices, self._layout.identity)))

    def snapshot(self) -> KeyedSnapshot:
        """See :meth:`headrace.kernel.keyed.KeyedState.snapshot`."""
        self._spill()
        layout = self._layout
        changes = [held.run for held in (*self._swept, *self._changes) if held.run]
        part = KeyedPart([held.run for held in self._base if held.run], changes)
        return KeyedSnapshot(
            layout.version, layout.schema, layout.key, layout.within, hash_probe(), [part], self.height
        )

    # -------------------------------------------------------------------------------------------------------- restoring

    def restore(self, snapshot: KeyedSnapshot, groups: KeyGroups, where: str) -> None:
        """Begin with the rows of a snapshot that are in ``groups``.

        Raises:
            GraphChangedError: The snapshot has another version, key or columns.
        """
        _check(snapshot, self._layout, where)
        if snapshot.probe != hash_probe():
            self._rehash(snapshot, groups)
            return
        for part in snapshot.parts:
            self._base += self._opened(part.base, groups)
            self._changes += self._opened(part.changes, groups)
        self._base.sort(key=lambda held: int(held.hashes[0]))

    def _opened(self, runs: Sequence[KeyedRun], groups: KeyGroups) -> list[SortedRows]:
        opened = []
        for run in runs:
            rows = SortedRows.mapped(run.file, self._stored).slice(run.start, run.stop)
            inside = groups.slice(rows.hashes)
            if inside.start < inside.stop:
                opened.append(rows.slice(inside.start, inside.stop))
        return opened

    def _rehash(self, snapshot: KeyedSnapshot, groups: KeyGroups) -> None:
        """Keys have other hashes now than when the snapshot was made: read it by the old ones, and put it anew."""
        for part in snapshot.parts:
            old = KeyedStore(self._hashing, self._runs, MemoryBudget(self._budget.limit), self._sizes)
            old._base = old._opened(part.base, KeyGroups())
            old._changes = old._opened(part.changes, KeyGroups())
            for rows in old.rows():
                group = key_groups(rows, self._layout.key)
                self.put(rows.filter(pl.Series((group >= groups.first) & (group < groups.end))))

    # ------------------------------------------------------------------------------------------------------- looking up

    def _all(self) -> list[SortedRows]:
        """Everything, newest first."""
        return [*reversed(self._changes), *reversed(self._swept), *self._base]

    def _held(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Of the newest rows, those that are held."""
        time, ttl = self._layout.time, self._layout.ttl_us
        if rows[GONE].any():
            rows = rows.filter(~pl.col(GONE))
        if time is None or ttl is None or self._now is None:
            return rows
        return rows.filter((pl.col(time) > self._now - ttl).fill_null(value=True))

    def _asked(self, keys: pl.DataFrame) -> tuple[pl.DataFrame, Hashes, Hashes]:
        """Each key once, as it is stored, sorted by hash."""
        low, high = self._hashing.of_keys(keys)
        order = np.argsort(low)
        sorted_low = low[order]
        if (sorted_low[1:] == sorted_low[:-1]).any() and (unique := keys.unique()).height < keys.height:
            return self._asked(unique)
        return encoded(keys[order]), sorted_low, high[order]

    def _matching(self, asked: pl.DataFrame, low: Hashes, high: Hashes) -> list[pl.DataFrame]:
        """Stored rows of the keys, newest first; without ``within`` only the newest of each."""
        found: list[pl.DataFrame] = []
        open_still = np.arange(low.size)
        for held in (*reversed(self._changes), *reversed(self._swept)):
            query, rows = self._matched(held, asked, low, high, open_still)
            if query.size:
                found.append(rows)
                if not self._layout.within:
                    undecided = np.ones(len(asked), np.bool_)
                    undecided[query] = False
                    left = undecided[open_still]
                    open_still, low, high = open_still[left], low[left], high[left]
        for held in self._base:
            query, rows = self._matched(held, asked, low, high, open_still)
            if query.size:
                found.append(rows)
        return found

    def _matched(
        self, held: SortedRows, asked: pl.DataFrame, low: Hashes, high: Hashes, places: Places
    ) -> tuple[Places, pl.DataFrame]:
        """The rows of a frame with the keys that stand at ``places``, and where each one's key stands."""
        first = int(np.searchsorted(high, held.hashes[0]))
        stop = max(first, int(np.searchsorted(low, held.hashes[-1], side="right")))
        query, at = matches(held.hashes, low[first:stop], high[first:stop])
        if not query.size:
            return query, held.rows.clear()
        query, rows = places[first:stop][query], held.rows[at]
        equal = same(rows, asked[query], self._layout.key)
        return (query, rows) if equal.all() else (query[equal], rows.filter(pl.Series(equal)))

    # --------------------------------------------------------------------------------------------------------- changing

    def _add(self, change: SortedRows) -> None:
        self._changes.append(change)
        self._merge_changes()
        if sum(held.nbytes for held in (*self._swept, *self._changes)) > self._budget.share:
            self._spill()
        self._sweep()

    def _merge_changes(self) -> None:
        """Merge the newest changes, where that is due."""
        sizes, changes = self._sizes, self._changes
        newest = tier(changes[-1].height, sizes.fan)
        count = 1
        while count < len(changes) and tier(changes[-count - 1].height, sizes.fan) <= newest:
            count += 1
        total = sum(held.height for held in changes[-count:])
        if count >= sizes.fan and total <= sizes.segment:
            self._merge_last(count)
        while len(self._changes) > 1 and sum(held.height for held in self._changes[-2:]) <= sizes.small:
            self._merge_last(2)

    def _merge_last(self, count: int) -> None:
        rows = merged(self._changes[: -count - 1 : -1], self._layout.identity)
        oldest = count == len(self._changes) and not self._swept and not self._base
        self._changes[-count:] = [SortedRows.of(self._held(rows) if oldest else rows)]
        if oldest and not self._changes[0].height:
            self._changes.clear()

    def _spill(self) -> None:
        """Write the changes that are only in memory; the newest ones as one file."""
        self._swept = [held if held.run else self._written(held.rows) for held in self._swept]
        in_memory = [held for held in self._changes if not held.run]
        if not in_memory:
            return
        written = self._written(merged(in_memory[::-1], self._layout.identity))
        # Those on disk are all older: what is written is always the newest.
        self._changes = [*(held for held in self._changes if held.run), written]

    def _written(self, rows: pl.DataFrame) -> SortedRows:
        return SortedRows.mapped(self._runs.write(rows), self._stored)

    # --------------------------------------------------------------------------------------------------------- sweeping

    def _sweep(self) -> None:
        """Go on with the sweep as far as it should be by now, or begin one when it is due."""
        base = sum(held.height for held in self._base)
        waiting = sum(held.height for held in self._changes)
        due = max(self._sizes.sweep, base // self._sizes.share)
        while self._swept and self._cursor / _ALL < waiting / due:
            self._sweep_piece()
        if not self._swept and (waiting >= due or len(self._changes) > self._sizes.most):
            self._swept, self._changes, self._cursor = self._changes, [], 0
            self._sweep_piece()

    def _sweep_piece(self) -> None:
        """Merge the next segments of the base with what there is to change in them."""
        at = next((at for at, held in enumerate(self._base) if int(held.hashes[0]) >= self._cursor), len(self._base))
        stop, rows = at, 0
        while stop < len(self._base) and (stop == at or rows + self._base[stop].height <= self._sizes.segment):
            rows += self._base[stop].height
            stop += 1
        end = self._base[stop].hashes[0] if stop < len(self._base) else None
        cuts = [held.below(end) for held in self._swept]
        changes = [held.slice(0, cut) for held, cut in zip(self._swept, cuts, strict=True) if cut]
        if changes:
            result = self._held(merged([*reversed(changes), *self._base[at:stop]], self._layout.identity))
            self._base[at:stop] = self._segments(result)
        left = [held.slice(cut, held.height) for held, cut in zip(self._swept, cuts, strict=True) if cut < held.height]
        self._swept = left
        self._cursor = _ALL if end is None else int(end)

    def _segments(self, rows: pl.DataFrame) -> list[SortedRows]:
        """Files of about one size; rows with one hash stay together."""
        hashes = rows[HASH].to_numpy()
        count = max(1, round(rows.height / self._sizes.segment))
        edges = [int(np.searchsorted(hashes, hashes[rows.height * at // count])) for at in range(count) if rows.height]
        return [self._written(rows.slice(a, b - a)) for a, b in itertools.pairwise([*edges, rows.height]) if a < b]


def tier(rows: int, fan: int) -> int:
    """About how often changes of this size have been merged."""
    return int(math.log(max(rows, 1), fan))


def _check(snapshot: KeyedSnapshot, layout: KeyedLayout, where: str) -> None:
    check_layout(snapshot.version, snapshot.schema, layout.version, layout.schema, where)
    then, now = [*snapshot.key, "/", *snapshot.within], [*layout.key, "/", *layout.within]
    if then != now:
        raise GraphChangedError(
            f"{where}: its state does not fit the job",
            detail=f"its rows were held by {' '.join(then)}, now by {' '.join(now)}",
            hint=f"undo the change, or give the {where.partition(' ')[0]} a new id to begin it with empty state",
        )
