"""Rows in a total order by group: numbers of rows, and where groups and equal rows begin.

Rows are compared by a few columns first. What they hold as a whole is only looked at where these are equal: most
orders are decided by then, and sorting by everything would cost as much as there are columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from operators.row_order import ORDER

Places: TypeAlias = npt.NDArray[np.intp]
Flags: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Ordered:
    """An order of rows.

    Attributes:
        rows: The number of each row, sorted by group, by place, and as they came.
        begins: Of each of them, whether it is the first one of its group.
        again: Whether it holds the same as the one before it, in the same group.
    """

    rows: Places
    begins: Flags
    again: Flags

    @property
    def ranks(self) -> Places:
        """The place of each row within its group, from 0."""
        return within(self.begins, np.arange(self.rows.size))


def ordered(
    groups: pl.DataFrame, places: pl.DataFrame, held: pl.DataFrame, falling: list[bool], *, nulls_last: bool = True
) -> Ordered:
    """Order rows.

    Args:
        groups: What they are grouped by; nulls first.
        places: What they are ordered by within their group.
        held: What decides where all of that is equal, ascending; of as many rows.
        falling: Whether each column of ``places`` descends.
        nulls_last: Where nulls come within a group.
    """
    by = [pl.Series(f"{index}", column) for index, column in enumerate((*groups, *places))]
    head = pl.DataFrame(by)
    order = head.select(
        pl.arg_sort_by(
            head.columns,
            descending=[False] * groups.width + falling,
            nulls_last=[False] * groups.width + [nulls_last] * places.width,
            maintain_order=True,
        )
    ).to_series()
    head = head[order]
    same = _as_before(head.select(head.columns[: groups.width]))
    tied = same & _as_before(head.select(head.columns[groups.width :]))
    rows = order.to_numpy().astype(np.intp)
    again = np.zeros(rows.size, np.bool_)
    if tied.any():
        _untie(rows, again, tied, held, nulls_last=nulls_last)
    return Ordered(rows, ~same, again)


def by_row(rows: pl.DataFrame, groups: Sequence[str], row: str) -> Ordered:
    """Order rows by group and by what they hold, in the order of all rows (:mod:`operators.row_order`); nulls first.

    Args:
        rows: Rows.
        groups: Columns that they are grouped by.
        row: A column of structs, each of which begins with its place.
    """
    held = rows[row].struct.unnest()
    places = [name for name in held.columns if name.startswith(ORDER)]
    falling = [False] * len(places)
    return ordered(rows.select(groups), held.select(places), held.drop(places), falling, nulls_last=False)


def within(begins: Flags, counted: Places) -> Places:
    """Numbers that rise along sorted rows, counted from 0 in each group."""
    first = np.flatnonzero(begins)
    sizes = np.diff(np.append(first, begins.size))
    return counted - np.repeat(counted[first], sizes)


def _untie(rows: Places, again: Flags, tied: Flags, held: pl.DataFrame, *, nulls_last: bool) -> None:
    """Order what is equal so far by what it holds; says in ``again`` what is equal still."""
    concerned = tied | np.append(tied[1:], False)
    run = pl.Series("run", np.cumsum(~tied)[concerned])
    some = held[rows[concerned]]
    named = pl.DataFrame([run, *(pl.Series(f"{index}", column) for index, column in enumerate(some))])
    order = named.select(pl.arg_sort_by(named.columns, nulls_last=nulls_last, maintain_order=True)).to_series()
    rows[concerned] = rows[concerned][order.to_numpy()]
    again[concerned] = _as_before(named[order])


def _as_before(rows: pl.DataFrame) -> Flags:
    """Whether each row equals the one before it; null equals null, and the first one has none."""
    equal = np.ones(rows.height, np.bool_)
    equal[:1] = False
    for column in rows:
        equal[1:] &= column.slice(1).eq_missing(column.head(max(column.len() - 1, 0))).to_numpy()
    return equal
