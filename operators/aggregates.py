"""Aggregates that can be split in two: a partial over any piece of the input, and a merge of partials.

Every aggregate here is *exact*: merging is associative and commutative bit for bit, so the result depends neither on
the order of rows nor on how they are cut into batches. How they are split stands in :mod:`operators.partials`.

* Sums of integers and booleans are kept in 128 bits and given out as Int64; a sum that does not fit is an error, never
  a wrapped number. Sums of decimals are kept and given out with 38 digits and the argument's scale.
* Sums of floats are kept as two 128-bit fixed-point numbers (units 2^-20 and 2^-116), which add without rounding: each
  value below 2^77 (1.5e23) counts exactly down to 2^-116 (1.2e-35). Infinities and NaN spread as in IEEE arithmetic.
  Only where a group holds several *finite* values of 2^77 or more does their sum depend on order, in its last bits.
* Means are the exact sum divided by the count, as Float64, also for decimals.
* ``count(x)`` counts non-null values; the others leave nulls out and give null when nothing is left.
* NaN: ``min`` and ``max`` leave NaN out unless there is nothing else. -0.0 counts as 0.0.
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
from operators.errors import EXPRESSION_INVALID
from operators.expressions import RowExpression, row_expression, tokens

_CALL: Final = re.compile(r"\s*([A-Za-z_]\w*)\s*\((.*)\)\s*", re.DOTALL)


class Kind(StrEnum):
    """What is computed of a group's values."""

    COUNT = "count"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    MEAN = "avg"


_NAMES: Final[Mapping[str, Kind]] = {**{kind.value: kind for kind in Kind}, "mean": Kind.MEAN}
_SUPPORTED: Final = "count(*), count(x), sum(x), min(x), max(x), avg(x)"


@dataclass(frozen=True, slots=True, eq=False)
class Aggregate:
    """One aggregate of a group's rows.

    Attributes:
        kind: What is computed.
        argument: Of which row expression; None for ``count(*)``.
    """

    kind: Kind
    argument: RowExpression | None = None

    @property
    def text(self) -> str:
        """Its canonical text, e.g. ``sum(delay)``."""
        return f"{self.kind}({self.argument.source.strip() if self.argument else '*'})"

    def key(self, output: str) -> str:
        """Names the argument in the state; aggregates over equal SQL text share state columns.

        Args:
            output: The aggregate's own name: that of the state too, where the argument is a Polars expression.
        """
        if self.argument is None:
            return ""
        return self.argument.source.strip() if self.argument.is_text else f"[{output}]"

    @property
    def determinism(self) -> Determinism:
        """``EXACT``, unless the argument is not."""
        return self.argument.determinism if self.argument else Determinism.EXACT


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


def aggregate(written: str | Aggregate, where: str) -> Aggregate:
    """Read an aggregate from SQL text; the argument is any row expression.

    Raises:
        SpecError: It is none of the supported ones, or its argument is no row expression.
    """
    if isinstance(written, Aggregate):
        return written
    match = _CALL.fullmatch(written)
    kind = _NAMES.get(match[1].lower()) if match else None
    if match is None or kind is None or not _is_one_argument(match[2]):
        raise _unsupported(written, where)
    inner = match[2].strip()
    if kind is Kind.COUNT and inner in {"*", ""}:
        return Aggregate(Kind.COUNT)
    if not inner or inner.split()[0].lower() in {"distinct", "all"}:
        raise _unsupported(written, where)
    return Aggregate(kind, row_expression(inner, where))


def _unsupported(written: str, where: str) -> SpecError:
    return SpecError(
        f"{where}: {written!r} is not an aggregate that is supported",
        detail=f"supported: {_SUPPORTED}; x is any expression over one row",
        hint="compute with results in a with_columns step behind the window",
        code=EXPRESSION_INVALID,
    )


def _is_one_argument(inner: str) -> bool:
    """Whether the parentheses are balanced, i.e. the first one closes at the very end (not ``sum(a) + sum(b)``)."""
    depth = 0
    for token in tokens(inner):
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        if depth < 0 or (depth == 0 and token.text == ","):
            return False
    return depth == 0
