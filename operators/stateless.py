"""Stateless operators: filter, select, with_columns, and a user's own function of a lazy frame.

Each takes a LazyFrame and gives one; consecutive ones become one Polars plan. None of them reads a schema, so that
they cost nothing per batch; :func:`operators.segment.output_schema` checks them once against the input's columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import polars as pl

from headrace.kernel import columns
from headrace.kernel.errors import SpecError
from headrace.kernel.protocols import Determinism
from operators.determinism import weakest
from operators.errors import check_names
from operators.expressions import Expression, RowExpression, row_expression
from operators.selection import selected


@dataclass(frozen=True, slots=True)
class Filter:
    """Keep the rows for which a predicate is true; those for which it is false or null are dropped.

    Args:
        id: Stable id.
        predicate: SQL text or a Polars expression, boolean.

    Raises:
        SpecError: The predicate is no row expression.
    """

    id: str
    predicate: Expression
    _row: RowExpression = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_row", row_expression(self.predicate, f"step {self.id!r}"))

    @property
    def determinism(self) -> Determinism:
        """See :class:`headrace.kernel.protocols.Transform`."""
        return self._row.determinism

    def apply(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """Rows for which the predicate is true."""
        return rows.filter(self._row.over(rows))


@dataclass(frozen=True, slots=True)
class Select:
    """Keep or compute exactly these columns, in this order.

    The columns ``_row_watermark`` and ``_weight`` pass through by themselves: windows and sinks behind need them.

    Args:
        id: Stable id.
        select: Names and expressions (``"a + b as c"``), or a mapping from the new name to an expression.

    Raises:
        SpecError: Something in it is no row expression, or nothing is selected.
    """

    id: str
    select: Sequence[Expression] | Mapping[str, Expression]
    _rows: tuple[RowExpression, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.select:
            raise SpecError(f"step {self.id!r} selects no column", hint="name at least one column")
        object.__setattr__(self, "_rows", _named(self.select, f"step {self.id!r}"))

    @property
    def determinism(self) -> Determinism:
        """See :class:`headrace.kernel.protocols.Transform`."""
        return weakest(row.determinism for row in self._rows)

    def apply(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """The selected columns."""
        return selected(rows, [row.over(rows) for row in self._rows], (columns.ROW_WATERMARK, columns.WEIGHT))


@dataclass(frozen=True, slots=True)
class Drop:
    """Leave these columns out.

    Args:
        id: Stable id.
        columns: Their names.

    Raises:
        SpecError: None is named.
    """

    id: str
    columns: Sequence[str]

    def __post_init__(self) -> None:
        if not self.columns:
            raise SpecError(f"step {self.id!r} leaves no column out", hint="name at least one column")

    @property
    def determinism(self) -> Determinism:
        """See :class:`headrace.kernel.protocols.Transform`."""
        return Determinism.EXACT

    def apply(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """The rows without the columns."""
        return rows.drop(*self.columns)


@dataclass(frozen=True, slots=True)
class WithColumns:
    """Add columns, or replace those of the same name. All expressions see the input, not each other.

    Args:
        id: Stable id.
        columns: From the new name to an expression.

    Raises:
        SpecError: Something in it is no row expression, or it is empty.
    """

    id: str
    columns: Mapping[str, Expression]
    _rows: tuple[RowExpression, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.columns:
            raise SpecError(f"step {self.id!r} adds no column", hint="name at least one column")
        object.__setattr__(self, "_rows", _named(self.columns, f"step {self.id!r}"))

    @property
    def determinism(self) -> Determinism:
        """See :class:`headrace.kernel.protocols.Transform`."""
        return weakest(row.determinism for row in self._rows)

    def apply(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """The rows with the new columns."""
        return rows.with_columns(*(row.over(rows) for row in self._rows))


@dataclass(frozen=True, slots=True)
class Apply:
    """A user's function from LazyFrame to LazyFrame, called for each micro-batch and once on an empty frame.

    A batch is an arbitrary piece of the input: a function that looks at several rows at once (group_by, sort, unique)
    gives results that depend on how rows are cut into batches. Nobody can check this, so it is declared *not invariant*
    unless the user says ``exact``: each output row then depends on one input row only. Keep the column
    ``_row_watermark`` if it is there: windows behind tell late rows by it.

    Args:
        id: Stable id.
        function: Pure; does not collect.
        exact: The user's word that it works row by row and gives the same each time.
    """

    id: str
    function: Callable[[pl.LazyFrame], pl.LazyFrame]
    exact: bool = False

    @property
    def determinism(self) -> Determinism:
        """See :class:`headrace.kernel.protocols.Transform`."""
        return Determinism.EXACT if self.exact else Determinism.NOT_INVARIANT

    def apply(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """What the function makes of the rows.

        Raises:
            SpecError: It gave something that is no LazyFrame.
        """
        made = self.function(rows)
        if not isinstance(made, pl.LazyFrame):
            raise SpecError(
                f"step {self.id!r}: the function gave a {type(made).__name__}, not a LazyFrame",
                hint="give back the LazyFrame without collecting it",
            )
        return made


def _named(written: Sequence[Expression] | Mapping[str, Expression], where: str) -> tuple[RowExpression, ...]:
    if not isinstance(written, Mapping):
        return tuple(row_expression(item, where) for item in written)
    named = []
    check_names(written, where)
    for name, item in written.items():
        row = row_expression(item, f"{where}, column {name!r}")
        named.append(replace(row, expr=row.expr.alias(name)))
    return tuple(named)
