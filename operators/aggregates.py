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
* ``var_pop``, ``var_samp``, ``stddev_pop``, ``stddev_samp``, ``covar_pop``, ``covar_samp`` and ``corr`` are those of
  exact sums and exact sums of products (:mod:`operators.moments`).
* ``bool_and`` and ``bool_or`` are ``min`` and ``max`` of booleans. ``any_value`` is ``min``: not up to order.
  ``string_agg(x, ', ')`` joins what ``list`` gives.
* ``approx_count_distinct`` is HyperLogLog (:mod:`operators.sketches`): exact under merging, so that it is the same
  however rows are cut.
* ``… filter (where c)`` counts only rows for which c is true: the others count as null.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

import polars as pl

from headrace.kernel.errors import SpecError
from headrace.kernel.protocols import Determinism
from operators.determinism import weakest
from operators.errors import EXPRESSION_INVALID
from operators.expressions import Expression, RowExpression, row_expression


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
    ALL = "bool_and"
    ANY = "bool_or"
    JOINED = "string_agg"
    APPROXIMATE = "approx_count_distinct"
    VAR_POP = "var_pop"
    VAR_SAMP = "var_samp"
    STDDEV_POP = "stddev_pop"
    STDDEV_SAMP = "stddev_samp"
    COVAR_POP = "covar_pop"
    COVAR_SAMP = "covar_samp"
    CORR = "corr"
    COMBINED = "combined"


ARGS: Final = frozenset({Kind.ARG_MIN, Kind.ARG_MAX})
COVARIANCES: Final = frozenset({Kind.COVAR_POP, Kind.COVAR_SAMP, Kind.CORR})
VARIANCES: Final = frozenset({Kind.VAR_POP, Kind.VAR_SAMP, Kind.STDDEV_POP, Kind.STDDEV_SAMP})
PAIRS: Final = ARGS | COVARIANCES
"""Kinds of two arguments."""


@dataclass(frozen=True, slots=True, eq=False)
class Aggregate:
    """One aggregate of a group's rows.

    Attributes:
        kind: What is computed.
        argument: Of which row expression; None for ``count(*)``.
        by: What decides which row's argument it is, for ``arg_min`` and ``arg_max``; the second variable of a
            covariance or correlation.
        fraction: Which quantile, from 0 to 1.
        separator: What stands between joined texts.
        parts: What a combined aggregate is made of, by name.
        finish: Its result, of the results of its parts.
    """

    kind: Kind
    argument: RowExpression | None = None
    by: RowExpression | None = None
    fraction: float | None = None
    separator: str | None = None
    parts: Mapping[str, Aggregate] = field(default_factory=dict)
    finish: Callable[[Mapping[str, pl.Expr]], pl.Expr] | None = None

    @property
    def text(self) -> str:
        """Its canonical text, e.g. ``sum(delay)``."""
        if self.kind is Kind.DISTINCT and self.argument:
            return f"count(distinct {self.argument.source.strip()})"
        if self.kind is Kind.COMBINED:
            return f"combined({', '.join(f'{name} = {part.text}' for name, part in self.parts.items())})"
        given = [expr.source.strip() for expr in (self.argument, self.by) if expr]
        if self.fraction is not None:
            given.append(str(self.fraction))
        if self.separator is not None:
            given.append("'" + self.separator.replace("'", "''") + "'")
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
        own = [expr.determinism for expr in (self.argument, self.by) if expr]
        return weakest([*own, *(part.determinism for part in self.parts.values())])

    def leaves(self, output: str) -> Iterator[tuple[str, Aggregate]]:
        """What it is computed of, by name: itself, or the leaves of a combined aggregate's parts."""
        if self.kind is not Kind.COMBINED:
            yield output, self
        for name, part in self.parts.items():
            yield from part.leaves(f"{output}.{name}")

    def over(self, rows: pl.LazyFrame) -> Aggregate:
        """The same over rows whose columns have these types, see :meth:`operators.expressions.RowExpression.over`."""
        argument, by = (one and replace(one, expr=one.over(rows)) for one in (self.argument, self.by))
        return replace(self, argument=argument, by=by)

    def where(self, predicate: Expression) -> Aggregate:
        """The same of those rows only for which ``predicate`` is true: ``FILTER (WHERE predicate)``.

        Raises:
            SpecError: The predicate is no row expression.
        """
        if self.kind is Kind.COMBINED:
            return replace(self, parts={name: part.where(predicate) for name, part in self.parts.items()})
        wanted, argument = row_expression(predicate, f"aggregate {self.kind}"), self.argument
        if wanted.is_text and (argument is None or argument.is_text):
            value = argument.source.strip() if argument else "1"
            chosen = f"case when ({wanted.source.strip()}) then ({value}) end"
            return replace(self, argument=row_expression(chosen, f"aggregate {self.kind}"))
        kept = pl.when(wanted.expr).then(argument.expr if argument else 1)
        return replace(self, argument=row_expression(kept, f"aggregate {self.kind}"))


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
        Kind.QUANTILE, row_expression(argument, "aggregate quantile"), fraction=fraction_of(str(fraction), "aggregate")
    )


def all_true(argument: str | pl.Expr) -> Aggregate:
    """Whether it is true for every row in which it is not null. Boolean."""
    return Aggregate(Kind.ALL, row_expression(argument, "aggregate bool_and"))


def any_true(argument: str | pl.Expr) -> Aggregate:
    """Whether it is true for one row at least. Boolean."""
    return Aggregate(Kind.ANY, row_expression(argument, "aggregate bool_or"))


def joined(argument: str | pl.Expr, separator: str = ",") -> Aggregate:
    """The values as text in the order of their rows, with a separator between them; null when there is none."""
    return Aggregate(Kind.JOINED, row_expression(argument, "aggregate string_agg"), separator=separator)


def approx_count_distinct(argument: str | pl.Expr) -> Aggregate:
    """About how many different values there are (HyperLogLog, :mod:`operators.sketches`). Int64."""
    return Aggregate(Kind.APPROXIMATE, row_expression(argument, "aggregate approx_count_distinct"))


def variance(argument: str | pl.Expr, *, population: bool = False) -> Aggregate:
    """The variance of a sample (null for fewer than two values), or of a population. Float64."""
    return Aggregate(Kind.VAR_POP if population else Kind.VAR_SAMP, row_expression(argument, "aggregate variance"))


def stddev(argument: str | pl.Expr, *, population: bool = False) -> Aggregate:
    """The root of :func:`variance`. Float64."""
    kind = Kind.STDDEV_POP if population else Kind.STDDEV_SAMP
    return Aggregate(kind, row_expression(argument, "aggregate stddev"))


def covariance(argument: str | pl.Expr, other: str | pl.Expr, *, population: bool = False) -> Aggregate:
    """The covariance over rows in which both are known, of a sample or of a population. Float64."""
    kind, where = Kind.COVAR_POP if population else Kind.COVAR_SAMP, "aggregate covariance"
    return Aggregate(kind, row_expression(argument, where), row_expression(other, where))


def correlation(argument: str | pl.Expr, other: str | pl.Expr) -> Aggregate:
    """Pearson's correlation over rows in which both are known; null where one of them does not vary. Float64."""
    return Aggregate(Kind.CORR, row_expression(argument, "aggregate corr"), row_expression(other, "aggregate corr"))


def combined(parts: Mapping[str, Aggregate], finish: Callable[[Mapping[str, pl.Expr]], pl.Expr]) -> Aggregate:
    """Any aggregation that can be split: partial ones that can be merged, and a final expression over their results.

    For example a weighted mean: ``combined({"value": total("price * size"), "size": total("size")},
    lambda part: part["value"] / part["size"])``.

    Args:
        parts: Aggregates, by name.
        finish: Of the results of the parts, by name, the result: an expression over one row of them.

    Raises:
        SpecError: There is no part, or ``finish`` looks at more than one row.
    """
    if not parts:
        raise SpecError("a combined aggregate has no parts", hint="give at least one", code=EXPRESSION_INVALID)
    row_expression(finish({name: pl.col(name) for name in parts}), "aggregate combined")
    return Aggregate(Kind.COMBINED, parts=dict(parts), finish=finish)


def fraction_of(text: str, where: str) -> float:
    """A number from 0 to 1.

    Raises:
        SpecError: It is none.
    """
    try:
        fraction = float(text)
    except ValueError:
        fraction = -1.0
    if not 0 <= fraction <= 1:
        raise SpecError(
            f"{where}: {text!r} is no fraction", hint="a quantile is a number from 0 to 1", code=EXPRESSION_INVALID
        )
    return fraction
