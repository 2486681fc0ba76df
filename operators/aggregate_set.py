"""The aggregates of one operator together: read, checked against columns, built; and the checks of its key."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import polars as pl

from headrace.kernel.errors import SpecError
from operators import partials
from operators.aggregate_text import aggregate
from operators.aggregates import Aggregate, Kind
from operators.errors import check_names, column_not_found, planning


def read_aggregates(
    written: Mapping[str, str | Aggregate], others: Sequence[str], where: str
) -> Mapping[str, Aggregate]:
    """The aggregates of an operator, by output name.

    Args:
        written: SQL text or aggregates, by output name.
        others: What else the operator gives out.
        where: Names the operator in error messages.

    Raises:
        SpecError: There is none, one cannot be read, or two columns have one name.
    """
    if not written:
        raise SpecError(f"{where} has no aggregate", hint='add one, e.g. {rows: "count(*)"}')
    check_names(written, where)
    names = [*others, *written]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SpecError(f"{where} gives out {', '.join(map(repr, twice))} twice", hint="rename an aggregate or a key")
    return {name: aggregate(text, f"{where}, {name!r}") for name, text in written.items()}


def wanted_of(written: Mapping[str, str | Aggregate], wanted: Collection[str]) -> Mapping[str, str | Aggregate]:
    """The aggregates that are wanted; the first one if none is, for an operator has at least one."""
    return {name: one for name, one in written.items() if name in wanted} or dict([next(iter(written.items()))])


def state_of(wanted: Mapping[str, Aggregate]) -> str:
    """The names of the state columns that aggregates need, as text for fingerprints."""
    return ", ".join(sorted(set().union(*(partials.needs(one, name) for name, one in wanted.items()))))


def build_all(
    wanted: Mapping[str, Aggregate], schema: pl.Schema, where: str, order: Sequence[pl.Expr] = ()
) -> partials.Build:
    """How the state of several aggregates is built of rows of a schema; the number of rows is always part of it.

    Args:
        wanted: The aggregates, by output name.
        schema: The rows.
        where: For error messages.
        order: See :func:`operators.partials.build`.

    Raises:
        SpecError: An argument does not fit the columns, or its type does not go with the aggregate.
    """
    rows = pl.LazyFrame(schema=schema)
    with planning(where, schema.names()):
        leaves = {leaf: one.over(rows) for name, each in wanted.items() for leaf, one in each.leaves(name)}
    arguments = {name: one.argument.expr for name, one in leaves.items() if one.argument}
    deciding = {name: one.by.expr for name, one in leaves.items() if one.by}
    with planning(where, schema.names()):
        types = rows.select(**arguments).collect_schema()
        by_types = rows.select(**deciding).collect_schema()
    build = partials.build(Aggregate(Kind.COUNT), "", None, where)
    for name, one in leaves.items():
        build |= partials.build(one, name, types.get(name), where, by_type=by_types.get(name), order=order)
    return build


def check_keys(by: Sequence[str], schema: pl.Schema, where: str) -> None:
    """Check that the columns of a key are there and scalar.

    Raises:
        SpecError: One is not there (``COLUMN_NOT_FOUND``), or nested.
    """
    for name in by:
        if name not in schema:
            raise column_not_found(name, schema.names(), where)
        if schema[name].is_nested() or isinstance(schema[name], pl.Object):
            raise SpecError(f"{where}: key {name!r} has type {schema[name]}", hint="take scalars of it as keys")
