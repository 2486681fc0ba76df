"""What operators with state say of themselves, so that less comes to them: which predicates pass, what they need.

A new operator says nothing, and then nothing is pushed below it. The rules, which :mod:`headrace.runtime.optimiser`
applies:

* A predicate on what an operator gives out may be tested on what it takes in if no row that fails it has a part in any
  row that passes: rows of other keys never meet, so predicates on the key pass.
* Keys that are floats are no such columns: 0.0 and -0.0 are one key, and a predicate can tell them apart.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import polars as pl

from headrace.kernel import columns
from headrace.kernel.protocols import StatefulOperator

CARRIED: frozenset[str] = frozenset({columns.ROW_WATERMARK, columns.WEIGHT})
"""Columns that say something of a row, and are never taken from it."""


@dataclass(frozen=True, slots=True)
class Passage:
    """Where a predicate may be tested earlier.

    Attributes:
        names: Columns of the output to columns of the rows that come in: a row that comes in and fails a predicate over
            these has no part in any row given out for which it is true.
        into: Of an operator with several inputs, the one whose rows these are: the graph has a node for it, whose id
            ends with a dot and this name.
    """

    names: Mapping[str, str]
    into: str = ""


@dataclass(frozen=True, slots=True)
class Narrowed:
    """An operator that gives out only what is wanted of it, and maybe more.

    Attributes:
        operator: The operator, whose other columns are the same, in the same order.
        reads: The columns that it needs of the rows that come in; None: it leaves out by itself what it does not need.
    """

    operator: StatefulOperator
    reads: Sequence[str] | None = None


@runtime_checkable
class PassesPredicates(Protocol):
    """An operator that says which predicates may be tested before it."""

    def passages(self, rows: pl.Schema) -> Sequence[Passage]:
        """The ways down.

        Args:
            rows: The columns of the rows that come in.
        """


@runtime_checkable
class NarrowsColumns(Protocol):
    """An operator that can do without columns that nobody wants of it."""

    def narrowed(self, wanted: Collection[str], rows: pl.Schema) -> Narrowed:
        """The operator for what is wanted.

        Args:
            wanted: Columns of the output that somebody behind it needs, at least one.
            rows: The columns of the rows that come in.
        """


def by_key(key: Iterable[str], rows: pl.Schema) -> Sequence[Passage]:
    """The way down of an operator that gives out its key columns as they are."""
    names = {name: name for name in key if name in rows and is_exact(rows[name])}
    return [Passage(names)] if names else []


def is_exact(dtype: pl.DataType) -> bool:
    """Whether values of a type that are equal as keys are the same to every predicate."""
    return not (dtype.is_float() or dtype.is_nested() or isinstance(dtype, pl.Object))


def reading(needed: Iterable[str], rows: pl.Schema) -> Sequence[str]:
    """The columns among ``rows`` that an operator needs to hold rows in the order of :mod:`operators.row_order`."""
    kept = {*needed, *CARRIED, columns.PARTITION, columns.OFFSET}
    return [name for name in rows if name in kept]
