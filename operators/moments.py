"""Variances, covariances and correlations of exact sums.

Of each row the values and their products are added up as three 128-bit fixed-point numbers (units 2^60, 2^-20, 2^-116),
which add without rounding and can be taken back. A product of two floats is the sum of four that are exact, since each
factor is split into halves of 26 bits (Dekker, 1971). So sums are exact down to 2^-116 for values below 2^65 (3.7e19),
and do not depend on order; results are computed of them with four times the digits of a float, so that values that lie
close together far from zero lose nothing.

Integers and decimals count as the nearest float. A group that holds an infinity, NaN or a value beyond 2^65 gives NaN.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from operators.aggregates import COVARIANCES, Aggregate, Kind

Floats: TypeAlias = npt.NDArray[np.float64]

_UNITS: Final = (2.0**-60, 2.0**20, 2.0**116)
_LIMIT: Final = 2.0**65
_SPLIT: Final = 2.0**27 + 1
_N: Final = "n"
_BEYOND: Final = "beyond"


def columns(key: str, kind: Kind) -> list[str]:
    """The state columns of an aggregate over arguments that are called ``key``; all are sums."""
    return [f"sum:{key}#{name}" for name in _fields(kind)]


def rows(key: str, wanted: Aggregate) -> Mapping[str, pl.Expr]:
    """What is added up of each row: a struct, in a column of its own.

    Computed by plain kernels on whole columns, since the plan of so many expressions would take longer than they.

    Args:
        key: Names the arguments.
        wanted: The aggregate.
    """
    given = {"x": wanted.argument, "y": wanted.by}
    floats = pl.struct(one.expr.cast(pl.Float64).alias(name) for name, one in given.items() if one)
    made = floats.map_batches(
        lambda values: _summands(values.struct.unnest(), wanted.kind),
        return_dtype=pl.Struct(_fields(wanted.kind)),
        is_elementwise=True,
    )
    return {f"moments:{key}#{wanted.kind}": made}


def state(key: str, kind: Kind) -> Mapping[str, pl.Expr]:
    """The reductions that build the state columns of the column that :func:`rows` makes."""
    made = pl.col(f"moments:{key}#{kind}")
    return {f"sum:{key}#{name}": made.struct.field(name).sum() for name in _fields(kind)}


def result(key: str, kind: Kind) -> pl.Expr:
    """The result of merged state columns. Float64."""
    names = columns(key, kind)
    computed = pl.struct(names).map_batches(
        lambda merged: pl.Series(_computed(merged.struct.unnest(), key, kind), dtype=pl.Float64),
        return_dtype=pl.Float64,
        is_elementwise=True,
    )
    beyond = pl.col(f"sum:{key}#{_BEYOND}") > 0
    known = pl.when(beyond).then(np.nan).otherwise(computed.fill_nan(None))
    least = 1 if kind in {Kind.VAR_SAMP, Kind.STDDEV_SAMP, Kind.COVAR_SAMP} else 0
    return pl.when(pl.col(f"sum:{key}#{_N}") > least).then(known)


def _terms(kind: Kind) -> Sequence[str]:
    """What is added up: values, and products of two of them."""
    if kind not in COVARIANCES:
        return ("x", "xx")
    return ("x", "y", "xy", "xx", "yy") if kind is Kind.CORR else ("x", "y", "xy")


def _fields(kind: Kind) -> dict[str, pl.DataType]:
    """What a row adds, by name: whether its values count, and whether they are too large or no numbers; limbs."""
    limbs = [f"{term}{index}" for term in _terms(kind) for index in range(len(_UNITS))]
    return {_N: pl.Int64(), _BEYOND: pl.Int64(), **dict.fromkeys(limbs, pl.Int128())}


def _summands(values: pl.DataFrame, kind: Kind) -> pl.Series:
    given = {name: values[name].to_numpy() for name in values.columns}
    known = np.logical_and.reduce([values[name].is_not_null().to_numpy() for name in values.columns])
    with np.errstate(invalid="ignore"):
        inside = np.logical_and.reduce([known, *(np.abs(one) < _LIMIT for one in given.values())])
    halves = {name: _split(np.where(inside, one, 0.0)) for name, one in given.items()}
    made = {_N: pl.Series(known).cast(pl.Int64), _BEYOND: pl.Series(known & ~inside).cast(pl.Int64)}
    for term in _terms(kind):
        parts = halves[term] if len(term) == 1 else [a * b for a in halves[term[0]] for b in halves[term[1]]]
        made |= {f"{term}{index}": limb for index, limb in enumerate(_limbs(parts))}
    return pl.DataFrame(made).to_struct("moments")


def _limbs(parts: Sequence[Floats]) -> list[pl.Series]:
    """The sum of floats as fixed-point numbers in each of the units, Int128."""
    limbs, rest = [], list(parts)
    for unit in _UNITS:
        whole = [np.trunc(part * unit) for part in rest]
        limbs.append(functools.reduce(operator.add, (pl.Series(some).cast(pl.Int128) for some in whole)))
        rest = [part - some / unit for part, some in zip(rest, whole, strict=True)]
    return limbs


# ------------------------------------------------------------------------------------------------------------ results


def _computed(state: pl.DataFrame, key: str, kind: Kind) -> Floats:
    n = state[f"sum:{key}#{_N}"].cast(pl.Float64).to_numpy()
    sums = {term: _total(state, f"sum:{key}#{term}") for term in _terms(kind)}
    with np.errstate(divide="ignore", invalid="ignore"):
        if kind is Kind.CORR:
            both = [_central(sums, pair, n) for pair in ("xy", "xx", "yy")]
            correlation: Floats = np.clip(both[0] / np.sqrt(both[1] * both[2]), -1.0, 1.0)
            return correlation
        pair = "xy" if kind in COVARIANCES else "xx"
        central = _central(sums, pair, n)
        if pair == "xx":
            central = np.maximum(central, 0.0)
        spread = central / (n if kind in {Kind.VAR_POP, Kind.STDDEV_POP, Kind.COVAR_POP} else n - 1)
        return np.sqrt(spread) if kind in {Kind.STDDEV_POP, Kind.STDDEV_SAMP} else spread


def _central(sums: Mapping[str, Sequence[Floats]], pair: str, n: Floats) -> Floats:
    """The sum of products of deviations from the means; 0 where it is less than what lies below the last unit."""
    x, y = sums[pair[0]], sums[pair[1]]
    x_mean, y_mean = sum(x) / n, sum(y) / n
    both, rest = _two_product(x_mean, y_mean)
    around = [*sums[pair], *_products(-x_mean, y), *_products(-y_mean, x), *_products(n, [both, rest])]
    x_off, y_off = (_added([*one, *_products(-mean, [n])]) for one, mean in ((x, x_mean), (y, y_mean)))
    central = _added(around) - x_off * y_off / n
    return np.where(np.abs(central) <= n * 2.0**-114, 0.0, central)


def _total(state: pl.DataFrame, name: str) -> list[Floats]:
    """Floats that add up to a sum exactly."""
    parts = []
    for index, unit in enumerate(_UNITS):
        rest = state[f"{name}{index}"]
        for _ in range(3):
            part = rest.cast(pl.Float64)
            rest = rest - part.cast(pl.Int128)
            parts.append(part.to_numpy() / unit)
    return parts


def _products(factor: Floats, parts: Sequence[Floats]) -> list[Floats]:
    return [half for part in parts for half in _two_product(factor, part)]


def _added(parts: Sequence[Floats]) -> Floats:
    """The sum as if computed with four times the digits, then rounded (Ogita, Rump and Oishi, 2005: SumK)."""
    terms = list(parts)
    for _ in range(3):
        for index in range(1, len(terms)):
            terms[index], terms[index - 1] = _two_sum(terms[index], terms[index - 1])
    total: Floats = functools.reduce(operator.add, terms)
    return total


def _two_sum(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """A sum and what it has lost."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _two_product(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """A product and what it has lost."""
    product = a * b
    a_high, a_low = _split(a)
    b_high, b_low = _split(b)
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def _split(a: Floats) -> tuple[Floats, Floats]:
    """Two floats of 26 bits that add up to one."""
    scaled = a * _SPLIT
    high = scaled - (scaled - a)
    return high, a - high
