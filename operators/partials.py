"""How aggregates are split: columns computed of each row, reductions that build and merge them, and a final expression.

The name of a state column says how it merges (``sum:delay``, ``min:delay``), so that a state restored from a checkpoint
needs nothing but its own columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import polars as pl

from headrace.kernel.errors import SpecError
from operators.aggregates import Aggregate, Kind

ROWS: Final = "rows:"
"""State column of every group: how many rows it stands for. Int64."""

_COARSE: Final = 2.0**20
_FINE: Final = 2.0**116
_LIMIT: Final = 2.0**77


def needs(wanted: Aggregate, output: str) -> set[str]:
    """The state that an aggregate needs, whatever the argument's type; part of an operator's fingerprint."""
    key = wanted.key(output)
    if wanted.argument is None:
        return {ROWS}
    match wanted.kind:
        case Kind.COUNT:
            return {f"count:{key}"}
        case Kind.SUM | Kind.MEAN:
            return {f"count:{key}", f"sum:{key}"}
        case Kind.MIN | Kind.MAX:
            return {f"{wanted.kind}:{key}"}


def row_columns(wanted: Aggregate, output: str, dtype: pl.DataType | None, where: str) -> Mapping[str, pl.Expr]:
    """What is computed of each row, by the name of the state column that it is reduced into.

    Args:
        wanted: The aggregate.
        output: Its name in the output.
        dtype: The type of its argument; None for ``count(*)``.
        where: For error messages.

    Raises:
        SpecError: The type does not go with the aggregate.
    """
    if wanted.argument is None or dtype is None:
        return {}
    key, value = wanted.key(output), wanted.argument.expr
    where = f"{where}: {wanted.text}"
    if wanted.kind in {Kind.MIN, Kind.MAX}:
        if dtype.is_nested() or isinstance(dtype, pl.Object | pl.Categorical):
            raise SpecError(f"{where} over {dtype} is not supported", hint="aggregate a scalar of it")
        return {f"{wanted.kind}:{key}": one_zero(value, dtype)}
    counted = {f"count:{key}": value.is_not_null().cast(pl.Int64)}
    return counted if wanted.kind is Kind.COUNT else counted | _addends(value, key, dtype, where)


def reduction(name: str) -> pl.Expr:
    """The reduction that both builds a state column and merges it."""
    column = pl.col(name)
    match name.partition(":")[0]:
        case "min":
            return column.min()
        case "max":
            return column.max()
        case _:
            return column.sum()


def reductions(names: Iterable[str]) -> list[pl.Expr]:
    """The reductions of several state columns."""
    return [reduction(name) for name in names]


def final(wanted: Aggregate, output: str, state: pl.Schema) -> pl.Expr:
    """The result, computed of merged state columns.

    Args:
        wanted: The aggregate.
        output: Its name in the output.
        state: Types of the state columns.
    """
    key = wanted.key(output)
    if wanted.argument is None:
        return pl.col(ROWS).alias(output)
    if wanted.kind in {Kind.COUNT, Kind.MIN, Kind.MAX}:
        return pl.col(f"{wanted.kind}:{key}").alias(output)
    total = _total(key, state)
    counted = pl.col(f"count:{key}")
    if wanted.kind is Kind.MEAN:
        total = total.cast(pl.Float64) / counted
    elif state.get(f"sum:{key}") == pl.Int128:
        total = total.cast(pl.Int64)
    return pl.when(counted > 0).then(total).alias(output)


def one_zero(value: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """Floats with one zero: 0.0 and -0.0 are equal, so which of them a group shows would depend on order."""
    return pl.when(value == 0).then(pl.lit(0.0, dtype)).otherwise(value) if dtype.is_float() else value


def _addends(value: pl.Expr, key: str, dtype: pl.DataType, where: str) -> dict[str, pl.Expr]:
    if dtype.is_float():
        return _fixed_point(value.cast(pl.Float64), key)
    if isinstance(dtype, pl.Decimal):
        return {f"sum:{key}": value.cast(pl.Decimal(38, dtype.scale))}
    if dtype.is_integer() or isinstance(dtype, pl.Boolean | pl.Null):
        return {f"sum:{key}": value.cast(pl.Int128)}
    raise SpecError(f"{where} needs a number, not {dtype}", hint="cast(... as bigint) or cast(... as double)")


def _fixed_point(value: pl.Expr, key: str) -> dict[str, pl.Expr]:
    small = value.abs() < _LIMIT
    within = pl.when(small).then(value)
    units = (within * _COARSE).cast(pl.Int128)
    rest = within - units.cast(pl.Float64) / _COARSE
    return {
        f"coarse:{key}": units,
        f"fine:{key}": (rest * _FINE).cast(pl.Int128),
        f"beyond:{key}": pl.when(small.not_()).then(value),
    }


def _total(key: str, state: pl.Schema) -> pl.Expr:
    if f"sum:{key}" in state:
        return pl.col(f"sum:{key}")
    coarse, fine = pl.col(f"coarse:{key}").cast(pl.Float64), pl.col(f"fine:{key}").cast(pl.Float64)
    return coarse / _COARSE + fine / _FINE + pl.col(f"beyond:{key}")
