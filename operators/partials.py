"""How aggregates are split: columns computed of each row, reductions that build and merge them, and a final expression.

The name of a state column says how it merges (``sum:delay``, ``min:delay``), so that a state restored from a checkpoint
needs nothing but its own columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import polars as pl

from headrace.kernel import columns
from headrace.kernel.errors import SpecError
from operators import moments, sketches
from operators.aggregates import COVARIANCES, VARIANCES, Aggregate, Kind
from operators.row_forms import mean

ROWS: Final = "rows:"
"""State column of every group: how many rows it stands for. Int64."""

_VALUE: Final = "value"
_BY: Final = "by"
_COARSE: Final = 2.0**20
_FINE: Final = 2.0**116
_LIMIT: Final = 2.0**77
_STATE: Final[Mapping[Kind, Kind]] = {Kind.ALL: Kind.MIN, Kind.ANY: Kind.MAX, Kind.JOINED: Kind.LIST}
"""Kinds that hold what another one holds."""


def needs(wanted: Aggregate, output: str) -> set[str]:
    """The state that an aggregate needs, whatever the argument's type; part of an operator's fingerprint."""
    return set().union(*(_needs(leaf, leaf.key(name)) for name, leaf in wanted.leaves(output)))


def _needs(wanted: Aggregate, key: str) -> set[str]:
    if wanted.kind in VARIANCES | COVARIANCES:
        return set(moments.columns(key, wanted.kind))
    names = {
        Kind.COUNT: {f"count:{key}" if wanted.argument else ROWS},
        Kind.SUM: {f"count:{key}", f"sum:{key}"},
        Kind.MEAN: {f"count:{key}", f"sum:{key}"},
        Kind.QUANTILE: {f"values:{key}"},
        Kind.APPROXIMATE: {f"{sketches.family()}:{key}"},
    }
    return names.get(wanted.kind) or {f"{_STATE.get(wanted.kind, wanted.kind)}:{key}"}


@dataclass(frozen=True, slots=True, eq=False)
class Build:
    """How state columns are built of rows: ``rows`` are computed of each row, ``state`` reduces those by group."""

    rows: Mapping[str, pl.Expr] = field(default_factory=dict)
    state: Mapping[str, pl.Expr] = field(default_factory=dict)

    def __or__(self, other: Build) -> Build:
        return Build({**self.rows, **other.rows}, {**self.state, **other.state})


def build(
    wanted: Aggregate,
    output: str,
    dtype: pl.DataType | None,
    where: str,
    *,
    by_type: pl.DataType | None = None,
    order: Sequence[pl.Expr] = (),
) -> Build:
    """How the state of an aggregate is built.

    Args:
        wanted: The aggregate.
        output: Its name in the output.
        dtype: The type of its argument; None for ``count(*)``.
        where: For error messages.
        by_type: The type of its ``by``, if it has one.
        order: What rows are ordered by (:mod:`operators.row_order`); empty where there is no event time.

    Raises:
        SpecError: The type does not go with the aggregate.
    """
    if wanted.argument is None or dtype is None:
        return Build(state={ROWS: pl.len().cast(pl.Int64)})
    key, value = wanted.key(output), wanted.argument.expr
    where = f"{where}: {wanted.text}"
    if wanted.kind in VARIANCES | COVARIANCES:
        for given in (dtype, by_type or dtype):
            _check_number(given, where)
        return Build(moments.rows(key, wanted), moments.state(key, wanted.kind))
    match wanted.kind:
        case Kind.COUNT:
            made = _counted(f"count:{key}", key, value)
        case Kind.MIN | Kind.MAX | Kind.ALL | Kind.ANY:
            made = _extreme(wanted.kind, key, value, dtype, where)
        case Kind.SUM | Kind.MEAN:
            made = _float_sum(key, value) if dtype.is_float() else _sum(key, value, dtype, where)
        case Kind.DISTINCT | Kind.QUANTILE | Kind.APPROXIMATE:
            made = _held(wanted, key, value, dtype, where)
        case _:
            made = _ordered(wanted, key, value, dtype, by_type, order, where)
    return made


def reduction(name: str) -> pl.Expr:
    """The reduction that merges a state column, and that builds those which are not lists."""
    column = pl.col(name)
    merged: Mapping[str, Callable[[], pl.Expr]] = {
        "min": column.min,
        "max": column.max,
        "first": lambda: column.min_by(name),
        "last": lambda: column.max_by(name),
        "arg_min": lambda: column.min_by(name),
        "arg_max": lambda: column.max_by(name),
        "list": lambda: column.explode().drop_nulls(),
        "values": lambda: column.explode().drop_nulls(),
        "distinct": lambda: column.explode().drop_nulls().unique(),
        "codes": lambda: sketches.largest(column.explode().drop_nulls()),
    }
    return merged.get(name.partition(":")[0], column.sum)()


def building(name: str) -> pl.Expr:
    """The reduction that builds a state column of a column of rows that has its name."""
    match name.partition(":")[0]:
        case "list" | "values":
            return pl.col(name).drop_nulls()
        case "distinct":
            # Lists of values are made by the streaming engine, groups without repetitions are not.
            return pl.col(name).drop_nulls().implode().list.unique()
        case "codes":
            return sketches.largest(pl.col(name).drop_nulls())
        case _:
            return reduction(name)


def is_linear(name: str) -> bool:
    """Whether a state column is a sum over rows, so that a row can be taken back."""
    return name.partition(":")[0] in {"rows", "count", "sum", "coarse", "fine", "beyond"}


def contribution(name: str, built: pl.Expr) -> pl.Expr:
    """What a row contributes to a state column, of the columns that are computed of it (:class:`Build`).

    Of linear ones the summand, never null; of others the value, which may be.
    """
    if name == ROWS:
        return pl.lit(1, pl.Int64)
    if name.startswith("count:"):
        return pl.col(*built.meta.root_names()).is_not_null().cast(pl.Int64)
    if not is_linear(name):
        return pl.col(name)
    (value,) = built.meta.pop()
    return value.fill_null(0)


def weighted(name: str, built: pl.Expr) -> pl.Expr:
    """What builds a linear state column, over rows that count as often as they weigh (``_weight``)."""
    weight = pl.col(columns.WEIGHT)
    return weight.sum() if name == ROWS else (weight * contribution(name, built)).sum()


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
    if wanted.finish is not None:
        parts = {name: final(part, f"{output}.{name}", state) for name, part in wanted.parts.items()}
        return wanted.finish(parts).alias(output)
    key = wanted.key(output)
    if wanted.kind in VARIANCES | COVARIANCES:
        return moments.result(key, wanted.kind).alias(output)
    if wanted.kind in {Kind.SUM, Kind.MEAN}:
        return _summed(wanted, key, state).alias(output)
    return _result(wanted, pl.col(min(needs(wanted, output)))).alias(output)


def _result(wanted: Aggregate, held: pl.Expr) -> pl.Expr:
    """The result of an aggregate that needs one state column."""
    at = pl.element().cast(pl.Float64).quantile(wanted.fraction or 0.0, "linear")
    text = pl.when(held.list.len() > 0)
    made: Mapping[Kind, Callable[[], pl.Expr]] = {
        Kind.DISTINCT: lambda: held.list.len().cast(pl.Int64),
        Kind.QUANTILE: held.list.eval(at).list.first,
        Kind.APPROXIMATE: partial(sketches.estimate, held),
        Kind.LIST: partial(_listed, held),
        Kind.JOINED: lambda: text.then(_listed(held).list.join(wanted.separator or "")),
        Kind.FIRST: lambda: held.struct.field(_VALUE),
        Kind.LAST: lambda: held.struct.field(_VALUE),
        Kind.ARG_MIN: lambda: held.struct.field(_VALUE),
        Kind.ARG_MAX: lambda: held.struct.field(_VALUE),
    }
    return made.get(wanted.kind, lambda: held)()


def _listed(held: pl.Expr) -> pl.Expr:
    return held.list.sort().list.eval(pl.element().struct.field(_VALUE))


def _summed(wanted: Aggregate, key: str, state: pl.Schema) -> pl.Expr:
    total = _total(key, state)
    counted = pl.col(f"count:{key}")
    if wanted.kind is Kind.MEAN:
        total = mean(total.cast(pl.Float64), counted)
    elif state.get(f"sum:{key}") == pl.Int128:
        total = total.cast(pl.Int64)
    return pl.when(counted > 0).then(total)


def one_zero(value: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """Floats with one zero: 0.0 and -0.0 are equal, so which of them a group shows would depend on order."""
    return pl.when(value == 0).then(pl.lit(0.0, dtype)).otherwise(value) if dtype.is_float() else value


def _counted(row: str, key: str, value: pl.Expr) -> Build:
    """The number of non-null values, counted on a row column named ``row``."""
    return Build({row: value}, {f"count:{key}": pl.col(row).count().cast(pl.Int64)})


def _extreme(kind: Kind, key: str, value: pl.Expr, dtype: pl.DataType, where: str) -> Build:
    _check_scalar(dtype, where)
    if kind in {Kind.ALL, Kind.ANY} and not isinstance(dtype, pl.Boolean):
        raise SpecError(f"{where} needs a boolean, not {dtype}", hint="write a condition, e.g. x > 0")
    name = f"{_STATE.get(kind, kind)}:{key}"
    return Build({name: one_zero(value, dtype)}, {name: reduction(name)})


def _held(wanted: Aggregate, key: str, value: pl.Expr, dtype: pl.DataType, where: str) -> Build:
    """Every value, or every different one, or what a sketch holds of them."""
    if wanted.kind is Kind.QUANTILE:
        _check_number(dtype, where)
    _check_scalar(dtype, where)
    value = one_zero(value, dtype)
    if wanted.kind is Kind.APPROXIMATE:
        name = f"{sketches.family()}:{key}"
        return Build({name: sketches.codes(value)}, {name: building(name)})
    name = f"values:{key}" if wanted.kind is Kind.QUANTILE else f"distinct:{key}"
    return Build({name: value}, {name: building(name)})


def _ordered(
    wanted: Aggregate,
    key: str,
    value: pl.Expr,
    dtype: pl.DataType,
    by_type: pl.DataType | None,
    order: Sequence[pl.Expr],
    where: str,
) -> Build:
    """Values with what they are ordered by, as structs; null where there is nothing to take."""
    if not order and wanted.by is None:
        raise SpecError(
            f"{where} needs an event time to order rows by",
            hint="give the source an event time, or use min, max or arg_min",
        )
    _check_scalar(dtype, where)
    if wanted.kind is Kind.JOINED and not isinstance(dtype, pl.String):
        raise SpecError(f"{where} needs text, not {dtype}", hint="cast(... as string)")
    name, present = f"{_STATE.get(wanted.kind, wanted.kind)}:{key}", value.is_not_null()
    first = []
    if wanted.by is not None and by_type is not None:
        _check_scalar(by_type, where)
        by = wanted.by.expr
        present &= by.is_not_nan() if by_type.is_float() else by.is_not_null()
        first = [one_zero(by, by_type).alias(_BY)]
    taken = pl.when(present).then(pl.struct([*first, *order, one_zero(value, dtype).alias(_VALUE)]))
    return Build({name: taken}, {name: building(name)})


def _check_number(dtype: pl.DataType, where: str) -> None:
    if not dtype.is_numeric():
        raise SpecError(f"{where} needs a number, not {dtype}", hint="cast(... as bigint) or cast(... as double)")


def _check_scalar(dtype: pl.DataType, where: str) -> None:
    if dtype.is_nested() or isinstance(dtype, pl.Object | pl.Categorical):
        raise SpecError(f"{where} over {dtype} is not supported", hint="aggregate a scalar of it")


def _sum(key: str, value: pl.Expr, dtype: pl.DataType, where: str) -> Build:
    name = f"sum:{key}"
    if isinstance(dtype, pl.Decimal):
        wide = value.cast(pl.Decimal(38, dtype.scale))
    elif dtype.is_integer() or isinstance(dtype, pl.Boolean | pl.Null):
        wide = value.cast(pl.Int128)
    else:
        raise SpecError(f"{where} needs a number, not {dtype}", hint="cast(... as bigint) or cast(... as double)")
    return _counted(name, key, wide) | Build(state={name: reduction(name)})


def _float_sum(key: str, value: pl.Expr) -> Build:
    """Two fixed-point limbs, and what lies beyond them: 0, or the value where it is too large or no number."""
    coarse, fine, beyond = f"coarse:{key}", f"fine:{key}", f"beyond:{key}"
    value = value.cast(pl.Float64)
    within = pl.when(value.abs() < _LIMIT).then(value).otherwise(0.0)
    units = (within * _COARSE).cast(pl.Int128)
    rest = within - units.cast(pl.Float64) / _COARSE
    limbs = {coarse: units, fine: (rest * _FINE).cast(pl.Int128)}
    return _counted(beyond, key, value - within) | Build(
        limbs, {name: reduction(name) for name in (coarse, fine, beyond)}
    )


def _total(key: str, state: pl.Schema) -> pl.Expr:
    if f"sum:{key}" in state:
        return pl.col(f"sum:{key}")
    coarse, fine = pl.col(f"coarse:{key}").cast(pl.Float64), pl.col(f"fine:{key}").cast(pl.Float64)
    return coarse / _COARSE + fine / _FINE + pl.col(f"beyond:{key}")
