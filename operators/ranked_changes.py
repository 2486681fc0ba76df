"""What rows that come do to the first N of each group, as numbers of rows in one order (:mod:`operators.ranked_order`).

A row that is there several times takes as many places. One that is there less than no time takes none: what takes it
back has come before it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from operators.ranked_order import Flags, Ordered, Places, within

Counts: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Given:
    """Rows to give out: by group, those that are taken back first, then by place.

    Attributes:
        rows: Their numbers.
        ranks: Their place, from 0; without meaning where places are not told.
        weights: How often, negative where they are taken back.
    """

    rows: Places
    ranks: Counts
    weights: Counts


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """Different rows, by group and place, with how often they were there and are.

    Attributes:
        rows: Their numbers.
        begins: Of each, whether it is the first one of its group.
        before: How often it was there.
        after: How often it is.
    """

    rows: Places
    begins: Flags
    before: Counts
    after: Counts

    @classmethod
    def of(cls, order: Ordered, counts: Counts, held: int) -> Change:
        """Of ordered rows, each ``counts`` times: those with a number below ``held`` were there, the others come."""
        first = np.flatnonzero(~order.again)
        if not first.size:
            return cls(order.rows, order.begins, counts, counts)
        each = counts[order.rows]
        before = np.add.reduceat(np.where(order.rows < held, each, 0), first)
        return cls(order.rows[first], order.begins[first], before, np.add.reduceat(each, first))

    @property
    def removed(self) -> Flags:
        """What was held, and is not any more."""
        gone: Flags = (self.before != 0) & (self.after == 0)
        return gone

    @property
    def put(self) -> Flags:
        """What is held from now on, or another number of times."""
        held: Flags = (self.after != 0) & (self.after != self.before)
        return held

    def only(self, n: int) -> Change:
        """Of appended rows only those that can ever be among the first N."""
        preceding = within(self.begins, np.cumsum(self.after) - self.after)
        return replace(self, after=np.where(preceding < n, self.after, 0))

    def given(self, n: int, *, ranked: bool) -> Given:
        """What changes among the first N.

        Args:
            n: How many.
            ranked: Whether rows are given out with their place, and so anew where only that changes.
        """
        old, new = self._taken(self.before, n), self._taken(self.after, n)
        if ranked:
            rows, ranks, weights = _moved(old, new)
        else:
            more = (new[1] - new[0]) - (old[1] - old[0])
            rows = np.flatnonzero(more)
            rows = np.concatenate([rows[more[rows] < 0], rows[more[rows] > 0]])
            ranks, weights = np.zeros(rows.size, np.int64), more[rows]
        order = np.argsort(2 * np.cumsum(self.begins)[rows] + (weights > 0), kind="stable")
        return Given(self.rows[rows[order]], ranks[order], weights[order])

    def _taken(self, counts: Counts, n: int) -> tuple[Counts, Counts]:
        """The places that each row takes, from (inclusive) and to (exclusive)."""
        there = np.maximum(counts, 0)
        first = within(self.begins, np.cumsum(there) - there)
        return np.minimum(first, n), np.minimum(first + there, n)


def _moved(old: tuple[Counts, Counts], new: tuple[Counts, Counts]) -> tuple[Places, Counts, Counts]:
    """Rows and places that are only in the old ones (weight -1), then those that are only in the new ones (+1)."""
    moved = np.flatnonzero((old[0] != new[0]) | (old[1] != new[1]))
    gone, came = _each(moved, *old), _each(moved, *new)
    kept, known = (
        (ranks >= first[rows]) & (ranks < stop[rows]) for (rows, ranks), (first, stop) in ((gone, new), (came, old))
    )
    (old_rows, old_ranks), (new_rows, new_ranks) = (
        (rows[~both], ranks[~both]) for (rows, ranks), both in ((gone, kept), (came, known))
    )
    weights = np.repeat(np.array([-1, 1]), [old_rows.size, new_rows.size])
    return np.concatenate([old_rows, new_rows]), np.concatenate([old_ranks, new_ranks]), weights


def _each(rows: Places, first: Counts, stop: Counts) -> tuple[Places, Counts]:
    """Each place from ``first`` to ``stop`` of rows, with its row."""
    counts = (stop - first)[rows]
    starts = np.repeat(first[rows] - (np.cumsum(counts) - counts), counts)
    return np.repeat(rows, counts), starts + np.arange(starts.size)
