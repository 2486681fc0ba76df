"""Session windows in event time.

Rows of one key belong to one session as long as each is *less* than ``gap`` after the one before it: a row at ``t``
claims ``[t, t + gap)``, and claims that overlap are one session. Rows exactly ``gap`` apart are in two sessions (as in
Flink and Beam). A session is ``[first row, last row + gap)``, given out once, when the watermark has reached its end
(and passed the allowed lateness).

* A row is *late* when its event time lies below its own watermark (less the allowed lateness). Whether its session
  has closed could not be told from the row alone: it would depend on which other rows have been read by then. So a row
  that bridges two sessions always finds both open, and what is one session does not depend on the order of rows.
* Rows of one key that fall into one bucket of the gap's length are one session in any case; partials are made of such
  buckets, and the state holds disjoint stretches of rows for each key.

Lateness and everything else that windows share: :mod:`operators.windowed`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import polars as pl

from headrace.kernel.durations import format_duration_us
from headrace.kernel.errors import SpecError
from headrace.kernel.held import Merge
from headrace.kernel.protocols import OperatorContext
from operators import partials
from operators.aggregates import Aggregate
from operators.session_instance import LAST, SessionInstance, SessionLayout, merging
from operators.windowed import WINDOW_END, WINDOW_START, Placement, WindowOperator

_BUCKET: Final = "_bucket"
_TIME: Final = "_time"


@dataclass(frozen=True, slots=True)
class SessionWindow(WindowOperator):
    """Aggregate rows by key and session.

    Args:
        id: Stable id; the state is bound to it.
        event_time: Column with the event time: Datetime or Date.
        gap_us: Rows at least this far apart are in two sessions; microseconds, positive.
        aggregates: From the output's name to SQL text or an ``Aggregate`` (:mod:`operators.aggregates`).
        by: Key columns.
        allowed_lateness_us: How much later sessions close.

    Raises:
        SpecError: Something in it cannot be.
    """

    id: str
    event_time: str
    gap_us: int
    aggregates: Mapping[str, str | Aggregate]
    by: Sequence[str] = ()
    allowed_lateness_us: int = 0
    revised: bool = False
    _wanted: Mapping[str, Aggregate] = field(init=False, repr=False, compare=False)
    _plans: dict[tuple[Any, ...], Any] = field(init=False, repr=False, compare=False, default_factory=dict)

    kind: ClassVar[str] = "session window"

    def __post_init__(self) -> None:
        if self.gap_us <= 0:
            raise SpecError(f"{self.where} has gap {self.gap_us} us", hint="give a positive duration, e.g. 30m")
        self.prepare()

    def placement(self, time: pl.Expr, mark: pl.Expr | None, time_type: pl.DataType) -> Placement:
        """See :class:`operators.windowed.WindowOperator`."""
        bounds = {WINDOW_START: pl.col(_TIME).min().cast(time_type), LAST: pl.col(_TIME).max()}
        return Placement(
            None if mark is None else time < mark,
            {_BUCKET: time.floordiv(self.gap_us)},
            partials.Build({_TIME: time}, bounds),
            carried=(),
        )

    def definition(self) -> str:
        """See :class:`operators.windowed.WindowOperator`."""
        return f"gap {format_duration_us(self.gap_us)}"

    def window(self, merged: pl.Schema) -> Sequence[pl.Expr]:
        """See :class:`operators.windowed.WindowOperator`."""
        end = pl.col(LAST) + self.gap_us
        return [pl.col(WINDOW_START), end.cast(merged[WINDOW_START]).alias(WINDOW_END)]

    def open(self, schema: pl.Schema, context: OperatorContext) -> SessionInstance:
        """An instance over partials of ``schema``.

        Raises:
            GraphChangedError: The state was made by another definition, or over other types.
        """
        late, merge = self.allowed_lateness_us, self.merging(schema)
        layout = SessionLayout(self.where, tuple(self.by), self.gap_us, late, self.finish, merge)
        return SessionInstance(layout, schema, context)

    def merging(self, schema: pl.Schema) -> Merge:
        """See :class:`operators.windowed.WindowOperator`."""
        return merging(self.by, self.gap_us, schema)
