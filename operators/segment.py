"""Segments: chains of stateless operators as one lazy plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from headrace.kernel.protocols import Determinism, StatefulOperator, Transform
from operators.determinism import weakest
from operators.errors import planning


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive stateless operators, and the stateful operator that follows them, if any."""

    transforms: Sequence[Transform] = ()
    stateful: StatefulOperator | None = None

    @property
    def determinism(self) -> Determinism:
        """The weakest promise among its operators."""
        classes = [transform.determinism for transform in self.transforms]
        return weakest([*classes, self.stateful.determinism] if self.stateful else classes)

    def rows(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """The rows behind the stateless operators."""
        for transform in self.transforms:
            rows = transform.apply(rows)
        return rows

    def partial(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """What the stateful operator's instance takes in; the rows themselves when there is none."""
        derived = self.rows(rows)
        return self.stateful.partial(derived) if self.stateful else derived

    def late(self, rows: pl.LazyFrame) -> pl.LazyFrame | None:
        """The late rows, None without a stateful operator."""
        return self.stateful.late(self.rows(rows)) if self.stateful else None

    def output_schema(self, schema: pl.Schema) -> pl.Schema:
        """Columns of the segment's main output, checked step by step.

        Raises:
            SpecError: A step names a column that is not there (``COLUMN_NOT_FOUND``) or does not fit the types.
        """
        for transform in self.transforms:
            schema = output_schema(transform, schema)
        return window_schema(self.stateful, schema) if self.stateful else schema


def output_schema(transform: Transform, schema: pl.Schema) -> pl.Schema:
    """Columns behind one stateless operator, given those before it. Reads no rows.

    Raises:
        SpecError: It names a column that is not there (``COLUMN_NOT_FOUND``) or does not fit the types.
    """
    with planning(f"step {transform.id!r}", schema.names()):
        return resolved(transform.apply(pl.LazyFrame(schema=schema)))


def window_schema(operator: StatefulOperator, schema: pl.Schema) -> pl.Schema:
    """Columns of a stateful operator's main port, given those of the rows before it. Reads no rows.

    Raises:
        SpecError: It names a column that is not there (``COLUMN_NOT_FOUND``) or does not fit the types.
    """
    with planning(f"step {operator.id!r}", schema.names()):
        return operator.output_schema(resolved(operator.partial(pl.LazyFrame(schema=schema))))


def late_schema(operator: StatefulOperator, schema: pl.Schema) -> pl.Schema:
    """Columns of a stateful operator's port ``late``, given those of the rows before it. Reads no rows."""
    return operator.late(pl.LazyFrame(schema=schema)).collect_schema()


def resolved(rows: pl.LazyFrame) -> pl.Schema:
    """The schema of a plan over no rows; it is run, too, for not every clash of types shows before that."""
    schema = rows.collect_schema()
    rows.collect()
    return schema
