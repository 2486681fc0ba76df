"""Deduplication: of rows with the same key, keep the first or the last one by event time.

The order is (event time, partition, offset), :mod:`operators.row_order`; it is not the order in which rows come. A key
is forgotten when no row of it has come, in event time, for ``ttl``: rows of a key are duplicates of each other as long
as each is less than ``ttl`` after the one before it. Without ``ttl`` a key is never forgotten.

* ``first``: a row is given out when the watermark has passed its event time, so that no earlier one can come.
* ``last``: a row is given out when the watermark has reached its event time plus ``ttl``: there is no later one then.
* A row is *late* when its event time lies below its own watermark (less the allowed lateness); it leaves through the
  port ``late``, and so do rows without event time, where that port is evaluated.

What is kept is a function of the rows that are not late. Null keys are keys like others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import polars as pl

from headrace.kernel.durations import format_duration_us
from headrace.kernel.errors import SpecError
from headrace.kernel.protocols import LATE, MAIN, Determinism, OperatorContext
from operators import event_time as times
from operators import partials
from operators.aggregate_set import check_keys
from operators.dedup_instance import DedupInstance, DedupLayout
from operators.dedup_rows import COUNT, FIRST, LAST, ROW, candidates
from operators.errors import column_not_found
from operators.passage import Narrowed, Passage, by_key, reading
from operators.plan_cache import plan_for
from operators.row_order import ORDER, total_order

_BUCKET: Final = "_bucket"
_TIME: Final = "_time"


@dataclass(frozen=True, slots=True)
class Dedup:
    """Keep one row of each key; implements :class:`headrace.kernel.protocols.StatefulOperator`.

    Output: the rows that are kept, with all their columns. Rows that are given out together are sorted by event time
    and key.

    Args:
        id: Stable id; the state is bound to it.
        event_time: Column with the event time: Datetime or Date.
        by: Key columns, at least one.
        keep: Which row.
        ttl_us: When a key is forgotten, microseconds; None: never, which ``last`` does not allow.
        allowed_lateness_us: How much later than the watermark passes rows are given out, and are late.

    Raises:
        SpecError: Something in it cannot be.
    """

    id: str
    event_time: str
    by: Sequence[str]
    keep: Literal["first", "last"] = "first"
    ttl_us: int | None = None
    allowed_lateness_us: int = 0
    _plans: dict[tuple[Any, ...], _Plan] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        if not self.by:
            raise SpecError(f"{self.where} has no key", hint="name the columns that make rows duplicates in `by`")
        if self.keep == "last" and self.ttl_us is None:
            raise SpecError(
                f"{self.where} keeps the last row, but without a ttl there may always come a later one",
                hint="add a ttl, or use a window with last(...) aggregates",
            )
        if self.ttl_us is not None and self.ttl_us <= 0:
            raise SpecError(f"{self.where} has ttl {self.ttl_us} us", hint="give a positive duration, e.g. 1h")

    @property
    def where(self) -> str:
        """Names the operator in error messages."""
        return f"dedup {self.id!r}"

    @property
    def determinism(self) -> Determinism:
        """Exact: what is kept does not depend on how rows come."""
        return Determinism.EXACT

    @property
    def fingerprint(self) -> str:
        """What the state depends on, as text that people can compare; types are checked when the state is opened."""
        ttl = "never forgotten" if self.ttl_us is None else f"forgotten after {format_duration_us(self.ttl_us)}"
        late = f", allowed lateness {format_duration_us(self.allowed_lateness_us)}" if self.allowed_lateness_us else ""
        return f"dedup keeping the {self.keep} over {self.event_time} by {', '.join(self.by)}, {ttl}{late}"

    @property
    def ports(self) -> Sequence[str]:
        """See :class:`headrace.kernel.protocols.StatefulOperator`."""
        return (MAIN, LATE)

    @property
    def key_columns(self) -> Sequence[str]:
        """See :class:`headrace.kernel.protocols.StatefulOperator`."""
        return self.by

    def partial(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """The row to keep of each key, or of each bucket of one ttl's length; with its rows' first and last time.

        Raises:
            SpecError: The rows lack a column (``COLUMN_NOT_FOUND``) or have types that do not fit.
        """
        plan = self._plan(rows.collect_schema())
        keys = [*plan.keys, _BUCKET]
        picked = times.kept(rows, plan.late).select(
            *(expr.alias(name) for name, expr in plan.keys.items()),
            plan.bucket.alias(_BUCKET),
            plan.time.alias(_TIME),
            pl.struct(plan.order).alias(ROW),
        )
        held = picked.collect_schema()
        made = {FIRST: pl.Int64(), LAST: pl.Int64(), COUNT: pl.Int64(), ROW: held[ROW]}
        return picked.map_batches(
            lambda some: candidates(some, keys, _TIME, self.keep).drop(_BUCKET),
            schema={**{name: held[name] for name in plan.keys}, **made},
        )

    def passages(self, rows: pl.Schema) -> Sequence[Passage]:
        """See :class:`operators.passage.PassesPredicates`: rows of different keys never meet."""
        return by_key(self.by, rows)

    def narrowed(self, wanted: Collection[str], rows: pl.Schema) -> Narrowed:
        """See :class:`operators.passage.NarrowsColumns`: rows are held without what nobody needs."""
        return Narrowed(self, reading([*wanted, *self.by, self.event_time], rows))

    def late(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """Late rows and rows without event time, with all their columns.

        Raises:
            SpecError: The rows lack a column (``COLUMN_NOT_FOUND``) or have types that do not fit.
        """
        plan = self._plan(rows.collect_schema())
        return times.left_out(rows, plan.late, plan.time.is_null())

    def leaves_out(self, partials: pl.DataFrame) -> bool:
        """See :class:`headrace.kernel.protocols.StatefulOperator`: rows without event time are nobody's duplicates."""
        return bool(partials[FIRST].has_nulls())

    def output_schema(self, schema: pl.Schema) -> pl.Schema:
        """See :class:`headrace.kernel.protocols.StatefulOperator`."""
        row = schema[ROW]
        fields = row.fields if isinstance(row, pl.Struct) else []
        return pl.Schema({field.name: field.dtype for field in fields if not field.name.startswith(ORDER)})

    def open(self, schema: pl.Schema, context: OperatorContext) -> DedupInstance:
        """An instance over partials of ``schema``.

        Raises:
            GraphChangedError: The state was made by another definition, or over other types.
        """
        return DedupInstance(
            DedupLayout(self.where, tuple(self.by), self.keep, self.ttl_us, self.allowed_lateness_us), schema, context
        )

    def _plan(self, schema: pl.Schema) -> _Plan:
        return plan_for(self._plans, schema, self._planned)

    def _planned(self, schema: pl.Schema) -> _Plan:
        if self.event_time not in schema:
            raise column_not_found(self.event_time, schema.names(), self.where)
        check_keys(self.by, schema, self.where)
        time = times.microseconds(self.event_time, schema[self.event_time], self.where)
        one = pl.when(time.is_not_null()).then(pl.lit(0, pl.Int64))
        return _Plan(
            late=times.lateness(time, schema, self.allowed_lateness_us),
            time=time,
            bucket=one if self.ttl_us is None else time.floordiv(self.ttl_us),
            keys={name: partials.one_zero(pl.col(name), schema[name]) for name in self.by},
            order=total_order(time, schema),
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """Expressions over the rows of one schema."""

    late: pl.Expr | None
    time: pl.Expr
    bucket: pl.Expr
    keys: Mapping[str, pl.Expr]
    order: Sequence[pl.Expr]
