"""Aggregates that can be split in two: a partial over any piece of the input, and a merge of partials.

Every aggregate here is *exact*: merging is associative and commutative bit for bit, so the result depends neither on
the order of rows nor on how they are cut into batches. How they are split stands in :mod:`operators.partials`.

* Sums of integers and booleans are kept in 128 bits and given out as Int64; a sum that does not fit is an error, never
  a wrapped number. Sums of decimals are kept and given out with 38 digits and the argument's scale.
* Sums of floats are kept as two 128-bit fixed-point numbers (units 2^-20 and 2^-116), which add without rounding: each
  value below 2^77 (1.5e23) counts exactly down to 2^-116 (1.2e-35). Infinities and NaN spread as in IEEE arithmetic.
  Only where a group holds several *finite* values of 2^77 or more does their sum depend on order, in its last bits.
* Means are the exact sum divided by the count, as Float64, also for decimals.
* ``count(x)`` counts non-null values; the others leave nulls out and give null when nothing is left (``list`` an empty
  list, ``count(distinct x)`` 0).
* NaN: ``min`` and ``max`` leave NaN out unless there is nothing else. -0.0 counts as 0.0.
* ``first``, ``last`` and ``list`` order rows by (event time, partition, offset), then by value
  (:mod:`operators.row_order`), and need an operator that has an event time. ``arg_min(x, y)`` is x where y is smallest,
  of several such rows the first; ``arg_max`` takes the last. Rows in which x or y is null, or y NaN, are left out.
* ``count(distinct x)``, ``list``, ``median`` and ``quantile(x, q)`` hold every (distinct) value of a group in the
  state. Quantiles are those of all values, linear between two of them (``percentile_cont``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import polars as pl

from headrace.kernel.errors import SpecError
from headrace.kernel.protocols import Determinism
from operators.determinism import weakest
from operators.errors import EXPRESSION_INVALID
from operators.expressions import RowExpression, row_expression, split_arguments

_CALL: Final = re.compile(r"\s*([A-Za-z_]\w*)\s*\((.*)\)\s*", re.DOTALL)


class Kind(StrEnum):
    """What is computed of a group's values."""

    COUNT = "count"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    MEAN = "avg"
    DISTINCT = "distinct"
    FIRST = "first"
    LAST = "last"
    ARG_MIN = "arg_min"
    ARG_MAX = "arg_max"
    LIST = "list"
    QUANTILE = "quantile"


_NAMES: Final[Mapping[str, Kind]] = {
    **{kind.value: kind for kind in Kind if kind is not Kind.DISTINCT},
    "mean": Kind.MEAN,
    "array_agg": Kind.LIST,
}
_PAIRS: Final = frozenset({Kind.ARG_MIN, Kind.ARG_MAX})
_SUPPORTED: Final = (
    "count(*), count(x), count(distinct x), sum(x), min(x), max(x), avg(x), median(x), quantile(x, 0.9), "
    "first(x), last(x), list(x), arg_min(x, y), arg_max(x, y)"
)


@dataclass(frozen=True, slots=True, eq=False)
class Aggregate:
    """One aggregate of a group's rows.

    Attributes:
        kind: What is computed.
        argument: Of which row expression; None for ``count(*)``.
        by: What decides which row's argument it is, for ``arg_min`` and ``arg_max``.
        fraction: Which quantile, from 0 to 1.
    """

    kind: Kind
    argument: RowExpression | None = None
    by: RowExpression | None = None
    fraction: float | None = None

    @property
    def text(self) -> str:
        """Its canonical text, e.g. ``sum(delay)``."""
        if self.kind is Kind.DISTINCT and self.argument:
            return f"count(distinct {self.argument.source.strip()})"
        given = [expr.source.strip() for expr in (self.argument, self.by) if expr]
        if self.fraction is not None:
            given.append(str(self.fraction))
        return f"{self.kind}({', '.join(given) or '*'})"

    def key(self, output: str) -> str:
        """Names the arguments in the state; aggregates over equal SQL text share state columns.

        Args:
            output: The aggregate's own name: that of the state too, where an argument is a Polars expression.
        """
        given = [expr for expr in (self.argument, self.by) if expr]
        return ", ".join(expr.source.strip() for expr in given) if all(e.is_text for e in given) else f"[{output}]"

    @property
    def determinism(self) -> Determinism:
        """``EXACT``, unless an argument is not."""
        return weakest(expr.determinism for expr in (self.argument, self.by) if expr)


def count(argument: str | pl.Expr | None = None) -> Aggregate:
    """Rows of the group, or its non-null values of ``argument``. Int64."""
    return Aggregate(Kind.COUNT, None if argument is None else row_expression(argument, "aggregate count"))


def total(argument: str | pl.Expr) -> Aggregate:
    """The sum. Int64 for integers and booleans, Decimal(38, scale) for decimals, Float64 for floats."""
    return Aggregate(Kind.SUM, row_expression(argument, "aggregate sum"))


def minimum(argument: str | pl.Expr) -> Aggregate:
    """The smallest value, in the argument's type."""
    return Aggregate(Kind.MIN, row_expression(argument, "aggregate min"))


def maximum(argument: str | pl.Expr) -> Aggregate:
    """The largest value, in the argument's type."""
    return Aggregate(Kind.MAX, row_expression(argument, "aggregate max"))


def mean(argument: str | pl.Expr) -> Aggregate:
    """The arithmetic mean, Float64."""
    return Aggregate(Kind.MEAN, row_expression(argument, "aggregate avg"))


def count_distinct(argument: str | pl.Expr) -> Aggregate:
    """How many different values there are. Int64. Holds each of them in the state."""
    return Aggregate(Kind.DISTINCT, row_expression(argument, "aggregate count distinct"))


def first(argument: str | pl.Expr) -> Aggregate:
    """The value of the first row by event time that has one, in the argument's type."""
    return Aggregate(Kind.FIRST, row_expression(argument, "aggregate first"))


def last(argument: str | pl.Expr) -> Aggregate:
    """The value of the last row by event time that has one, in the argument's type."""
    return Aggregate(Kind.LAST, row_expression(argument, "aggregate last"))


def arg_min(argument: str | pl.Expr, by: str | pl.Expr) -> Aggregate:
    """The value of the row where ``by`` is smallest; the first of several such rows."""
    return Aggregate(
        Kind.ARG_MIN, row_expression(argument, "aggregate arg_min"), row_expression(by, "aggregate arg_min")
    )


def arg_max(argument: str | pl.Expr, by: str | pl.Expr) -> Aggregate:
    """The value of the row where ``by`` is largest; the last of several such rows."""
    return Aggregate(
        Kind.ARG_MAX, row_expression(argument, "aggregate arg_max"), row_expression(by, "aggregate arg_max")
    )


def collected(argument: str | pl.Expr) -> Aggregate:
    """All values in the order of their rows, as a list."""
    return Aggregate(Kind.LIST, row_expression(argument, "aggregate list"))


def quantile(argument: str | pl.Expr, fraction: float) -> Aggregate:
    """The value below which this fraction (0 to 1) of all values lies, linear between two of them. Float64.

    Raises:
        SpecError: The fraction lies outside.
    """
    return Aggregate(
        Kind.QUANTILE, row_expression(argument, "aggregate quantile"), fraction=_fraction(str(fraction), "aggregate")
    )


def aggregate(written: str | Aggregate, where: str) -> Aggregate:
    """Read an aggregate from SQL text; the arguments are any row expressions.

    Raises:
        SpecError: It is none of the supported ones, or its argument is no row expression.
    """
    if isinstance(written, Aggregate):
        return written
    match = _CALL.fullmatch(written)
    name = match[1].lower() if match else ""
    kind = Kind.QUANTILE if name == "median" else _NAMES.get(name)
    given = split_arguments(match[2]) if match else None
    if kind is None or not given:
        raise _unsupported(written, where)
    if kind is Kind.COUNT and given in (["*"], [""]):
        return Aggregate(Kind.COUNT)
    wanted = 2 if kind in _PAIRS or name == "quantile" else 1
    word, _, rest = given[0].partition(" ")
    if kind is Kind.COUNT and word.lower() == "distinct":
        kind, given, word = Kind.DISTINCT, [rest.strip(), *given[1:]], ""
    if len(given) != wanted or not all(given) or word.lower() in {"distinct", "all"}:
        raise _unsupported(written, where)
    argument = row_expression(given[0], where)
    if kind is Kind.QUANTILE:
        return Aggregate(kind, argument, fraction=0.5 if name == "median" else _fraction(given[1], where))
    return Aggregate(kind, argument, row_expression(given[1], where) if kind in _PAIRS else None)


def _fraction(text: str, where: str) -> float:
    try:
        fraction = float(text)
    except ValueError:
        fraction = -1.0
    if not 0 <= fraction <= 1:
        raise SpecError(
            f"{where}: {text!r} is no fraction", hint="a quantile is a number from 0 to 1", code=EXPRESSION_INVALID
        )
    return fraction


def _unsupported(written: str, where: str) -> SpecError:
    return SpecError(
        f"{where}: {written!r} is not an aggregate that is supported",
        detail=f"supported: {_SUPPORTED}; x is any expression over one row",
        hint="compute with results in a with_columns step behind the window",
        code=EXPRESSION_INVALID,
    )
