"""Regular joins: rows of two streams with equal keys, however far apart they come.

Every row is held for ever, or until the watermark is a ``ttl`` past its event time. Rows of changelogs are taken in
with their weights, and a pair weighs the product of its rows' weights. What has to be taken back is taken back: an
outer join gives a row with nulls as long as it has no match, and takes it back with its first one.

* ``inner`` and ``semi`` joins of streams without changes take nothing back, so they give plain rows, and are exact.
* Everything else gives a changelog (rows with ``_weight``). Which rows in between are given out depends on batches; the
  final table does not (``EXACT_TABLE``).
* With a ``ttl``, rows match only if their event times are at most that far apart. So it does not matter when a row is
  forgotten, and late rows leave through the port ``late``. Only where a changelog takes a row back after its match has
  been forgotten does the pair stay: with a ``ttl`` over a changelog the join is *not invariant*.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from headrace.kernel import columns
from headrace.kernel.durations import format_duration_us
from headrace.kernel.protocols import LATE, MAIN, Determinism, OperatorContext, OperatorInstance
from operators.determinism import weakest
from operators.join_sides import JoinSides
from operators.stream_join_instance import AppendingJoinInstance, UpdatingJoinInstance
from operators.timed_join import TimedJoin


@dataclass(frozen=True, slots=True, eq=False)
class StreamJoin(TimedJoin):
    """Join rows whenever they come; implements :class:`headrace.kernel.protocols.StatefulOperator`.

    Output: the columns of :meth:`operators.join_sides.JoinSides.output`, and ``_weight`` where rows may be taken back;
    retractions that are given out together with insertions come first.

    Args:
        id: Stable id; the state is bound to it.
        sides: The sides, with event times if there is a ``ttl``.
        ttl_us: How far apart in event time rows may be, microseconds; None: any distance.
    """

    id: str
    sides: JoinSides
    ttl_us: int | None = None
    allowed_lateness_us: int = 0

    @property
    def updates(self) -> bool:
        """Whether rows may be taken back, so that the output has ``_weight``."""
        return self.sides.weighted or self.sides.how not in {"inner", "semi"}

    @property
    def determinism(self) -> Determinism:
        """See :class:`headrace.kernel.protocols.StatefulOperator`."""
        if self.ttl_us is not None and self.sides.weighted:
            return Determinism.NOT_INVARIANT
        return weakest([self.sides.determinism, Determinism.EXACT_TABLE if self.updates else Determinism.EXACT])

    @property
    def fingerprint(self) -> str:
        """What the state depends on, as text that people can compare; types are checked when the state is opened."""
        ttl = "" if self.ttl_us is None else f", forgotten after {format_duration_us(self.ttl_us)}"
        return f"join, {self.sides.describe()}{ttl}{self.lateness}"

    @property
    def ports(self) -> Sequence[str]:
        """See :class:`headrace.kernel.protocols.StatefulOperator`."""
        return (MAIN,) if self.ttl_us is None else (MAIN, LATE)

    def partial(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """The tagged rows that are not late."""
        if self.ttl_us is None:
            return self.sides.without_null_keys(rows).drop(columns.ROW_WATERMARK, strict=False)
        return TimedJoin.partial(self, rows)

    def late(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """Late rows and rows without event time; none without a ``ttl``."""
        if self.ttl_us is None:
            return self.sides.late(rows.filter(pl.lit(value=False)))
        return TimedJoin.late(self, rows)

    def leaves_out(self, partials: pl.DataFrame) -> bool:
        """See :class:`headrace.kernel.protocols.StatefulOperator`."""
        return self.ttl_us is not None and TimedJoin.leaves_out(self, partials)

    def output_schema(self, schema: pl.Schema) -> pl.Schema:  # noqa: ARG002 - the protocol's signature
        """See :class:`headrace.kernel.protocols.StatefulOperator`."""
        weight = {columns.WEIGHT: columns.WEIGHT_TYPE} if self.updates else {}
        return pl.Schema({**self.sides.output(), **weight})

    def open(self, schema: pl.Schema, context: OperatorContext) -> OperatorInstance:
        """An instance over tagged rows of ``schema``.

        Raises:
            GraphChangedError: The state was made over other types, or by a newer release.
        """
        late = self.allowed_lateness_us
        if self.updates or self.sides.half:
            return UpdatingJoinInstance(self.sides, self.ttl_us, late, schema, context, gives_weight=self.updates)
        return AppendingJoinInstance(self.sides, self.ttl_us, late, schema, context)
