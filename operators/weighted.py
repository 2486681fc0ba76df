"""Partials over a changelog: rows count as often as they weigh, and what cannot be subtracted is computed anew.

Sums and counts take a row back by subtracting it. The others (the least of some values, without the least one) are
computed of the values that are there: partials then have one row for each different combination of values of a key, and
say how often it is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from headrace.kernel import columns
from operators import partials
from operators.partials import ROWS, Build

VALUE: Final = "value:"
"""Columns of partials with a value that is kept begin with it, and end with the name of the state column that is built
of them."""


@dataclass(frozen=True, slots=True, eq=False)
class Weighted:
    """How partials are built of a changelog's rows.

    Attributes:
        build: What is summed up.
        values: Values to group by besides the key.
    """

    build: Build
    values: dict[str, pl.Expr]


def weighted(build: Build, schema: pl.Schema) -> Weighted:
    """What a build is over rows of a schema: unchanged, unless they have a ``_weight``."""
    if columns.WEIGHT not in schema:
        return Weighted(build, {})
    linear = {name for name in build.state if partials.is_linear(name)}
    values = {f"{VALUE}{name}": build.rows[name] for name in build.state.keys() - linear if name in build.rows}
    made = {name: expr for name, expr in build.rows.items() if name not in build.state or name in linear}
    state = {name: partials.weighted(name, built) for name, built in build.state.items() if name in linear}
    kept = {name: built for name, built in build.state.items() if name not in linear and name not in build.rows}
    return Weighted(Build(made, {**state, **kept}), values)


def value_columns(schema: Sequence[str]) -> list[str]:
    """Those of the columns that hold values."""
    return [name for name in schema if name.startswith(VALUE)]


def of_values(merged: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Partials by key, of merged partials by key and value."""
    kept = value_columns(merged.columns)
    if not kept:
        return merged
    rest = merged.drop(kept)
    summed = rest.group_by(keys).agg(partials.reductions(name for name in rest.columns if name not in keys))
    there = merged.filter(pl.col(ROWS) > 0)
    times = there.select(pl.int_range(pl.len()).repeat_by(ROWS).explode(empty_as_null=False)).to_series()
    named = {name: name.removeprefix(VALUE) for name in kept}
    each = there[times].select(*keys, *kept).rename(named)
    computed = each.group_by(keys).agg(partials.building(name) for name in named.values())
    return summed.join(computed, on=keys, how="left", nulls_equal=True)
