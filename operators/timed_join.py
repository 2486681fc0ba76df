"""What joins over event time share: lateness as a fact about a row, and the way of tagged rows into the operator.

* A row is *late* when its event time lies below its own watermark (``_row_watermark``: that of its own stream; null:
  never), less the allowed lateness. Late rows of both sides leave through the port ``late`` with the column ``_side``
  and the columns of both sides, and so do rows without event time, where that port is evaluated.
* Changelogs reach these joins through :class:`operators.settled.Settled`, as plain rows that have settled.
* The operator's watermark is the lowest of what stands above it, so a row that is not late finds all it may match.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from headrace.kernel import columns
from headrace.kernel.durations import format_duration_us
from headrace.kernel.errors import SpecError
from headrace.kernel.protocols import LATE, MAIN, Determinism
from operators.join_sides import TIME, JoinSides
from operators.passage import Narrowed, Passage


class TimedJoin:
    """The part of :class:`headrace.kernel.protocols.StatefulOperator` that joins over event time share.

    Subclasses are frozen dataclasses with these fields, over sides that are timed.
    """

    __slots__ = ()

    id: str
    sides: JoinSides
    allowed_lateness_us: int

    def prepare(self) -> None:
        """Check the definition.

        Raises:
            SpecError: Something in it cannot be.
        """
        if not self.sides.timed:
            raise SpecError(f"{self.sides.label} needs the event times of both sides")
        if self.allowed_lateness_us < 0:
            raise SpecError(f"{self.sides.label} has a negative allowed lateness", hint="give 0s or more")

    @property
    def determinism(self) -> Determinism:
        """Exact, unless the condition is not."""
        return self.sides.determinism

    @property
    def ports(self) -> Sequence[str]:
        """See :class:`headrace.kernel.protocols.StatefulOperator`."""
        return (MAIN, LATE)

    @property
    def lateness(self) -> str:
        """The allowed lateness in words, if there is one; part of the fingerprint."""
        late = self.allowed_lateness_us
        return f", allowed lateness {format_duration_us(late)}" if late else ""

    @property
    def held(self) -> Sequence[str]:
        """Columns of the right side that the join needs for itself, by their own names."""
        return ()

    @property
    def key_columns(self) -> Sequence[str]:
        """See :class:`headrace.kernel.protocols.StatefulOperator`."""
        return self.sides.keys

    def partial(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """The tagged rows that are not late."""
        late = self._late(rows)
        kept = rows if late is None else rows.filter(~late)
        return self.sides.without_null_keys(kept).drop(columns.ROW_WATERMARK, strict=False)

    def passages(self, rows: pl.Schema) -> Sequence[Passage]:  # noqa: ARG002 - the protocol's signature
        """See :meth:`operators.join_sides.JoinSides.passages`."""
        return self.sides.passages()

    def narrowed(self, wanted: Collection[str], rows: pl.Schema) -> Narrowed:
        """See :class:`operators.passage.NarrowsColumns`: rows are held without what nobody needs."""
        sides = self.sides.narrowed(wanted, self.held)
        left_out = {*self.sides.own("left"), *self.sides.own("right")} - {*sides.own("left"), *sides.own("right")}
        # Subclasses are frozen dataclasses and whole operators, which this class cannot say.
        operator: Any = replace(self, sides=sides)  # type: ignore[type-var]
        return Narrowed(operator, [name for name in rows if name not in left_out])

    def late(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """Late rows and rows without event time."""
        late, timeless = self._late(rows), pl.col(TIME).is_null()
        return self.sides.late(rows.filter(timeless if late is None else late | timeless))

    def leaves_out(self, partials: pl.DataFrame) -> bool:
        """See :class:`headrace.kernel.protocols.StatefulOperator`: rows without event time match nothing."""
        return bool(partials[TIME].has_nulls())

    def is_late(self) -> pl.Expr:
        """Whether a tagged row is late; null: it is not."""
        return pl.col(TIME) < pl.col(columns.ROW_WATERMARK) - self.allowed_lateness_us

    def _late(self, rows: pl.LazyFrame) -> pl.Expr | None:
        if columns.ROW_WATERMARK not in rows.collect_schema():
            return None
        return self.is_late().fill_null(value=False)
