"""Which columns and which predicate a Polars pipeline pushes down into its source."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

import polars as pl
from polars.io.plugins import register_io_source

Pipeline = Callable[[pl.LazyFrame], Sequence[pl.LazyFrame]]
"""Every output of a plan, made from one lazy source. Called on an empty frame to probe."""


@dataclass(frozen=True, slots=True)
class Pushdown:
    """What a source must give.

    Attributes:
        columns: Columns that some output needs, in the order of the source's schema. Never empty for a source with
            columns, so that rows can still be counted.
        predicate: Rows for which this is not true reach no output; None when every row is needed. The pipeline still
            filters for itself: this is only what the source may leave out.
        uses: The predicate of each use of the source; empty when some use needs every row.
        filters: The predicates of the uses that have one, whatever others need. None: they could not be asked for.
    """

    columns: tuple[str, ...]
    predicate: pl.Expr | None
    uses: tuple[pl.Expr, ...] = ()
    filters: tuple[pl.Expr, ...] | None = None


def probe(pipeline: Pipeline, schema: pl.Schema) -> Pushdown:
    """Run a pipeline once over an empty IO source and note what the Polars optimiser asks of it.

    A source that is used more than once is asked more than once: the predicates are joined by OR (a use without a
    predicate needs every row), the columns are united. A row limit is not pushed down.

    Args:
        pipeline: The plan. It is executed on no rows, so user code in it runs on empty frames.
        schema: All columns the source can give.
    """
    known = True
    try:
        uses = _uses(pipeline, schema, pl.QueryOptFlags())
    except pl.exceptions.ComputeError:
        # A Python function inside a predicate cannot always be handed to a source: ask for the columns alone.
        uses, known = _uses(pipeline, schema, pl.QueryOptFlags(predicate_pushdown=False)), False
    if uses is None:
        return Pushdown(tuple(schema), None)
    wanted = {name for columns, _ in uses for name in (schema if columns is None else columns)}
    columns = tuple(name for name in schema if name in wanted) or tuple(schema)[:1]
    predicates = tuple(predicate for _, predicate in uses if predicate is not None)
    filters = predicates if known else None
    if not predicates or len(predicates) < len(uses):
        return Pushdown(columns, None, (), filters)
    return Pushdown(columns, reduce(or_, _different(predicates)), predicates, filters)


def _different(predicates: Sequence[pl.Expr]) -> list[pl.Expr]:
    """Each predicate once: rows that go several ways behind one filter are asked for with it each time."""
    found: list[pl.Expr] = []
    for predicate in predicates:
        if not any(predicate.meta == other.meta for other in found):
            found.append(predicate)
    return found


_Use = tuple[list[str] | None, pl.Expr | None]


def _uses(pipeline: Pipeline, schema: pl.Schema, optimizations: pl.QueryOptFlags) -> list[_Use] | None:
    """What each output asks of the source; None: one has not asked at all, so nothing is known of it.

    By the in-memory engine: the streaming engine does not ask a source whose rows are joined with none.
    """
    outputs, uses = _plan(pipeline, schema)
    for output in outputs:
        before = len(uses)
        output.collect(engine="in-memory", optimizations=optimizations)
        if len(uses) == before:
            return None
    return uses


def _plan(pipeline: Pipeline, schema: pl.Schema) -> tuple[list[pl.LazyFrame], list[_Use]]:
    uses: list[_Use] = []
    empty = pl.DataFrame(schema=schema)

    def source(
        columns: list[str] | None,
        predicate: pl.Expr | None,
        _rows: int | None,
        _batch: int | None,
    ) -> Iterator[pl.DataFrame]:
        uses.append((columns, predicate))
        yield empty if columns is None else empty.select(columns)

    return list(pipeline(register_io_source(source, schema=schema))), uses
