"""Interval joins: rows of two streams with equal keys whose event times lie close together.

A left and a right row match when their keys are equal, ``right + lower <= left <= right + upper`` holds for their event
times, and the condition is true, if there is one. Pairs are given out when the second of the two comes. A row that has
found no match by the time that the watermark has passed everything it could match is given out then, if the kind of
join keeps it (``left``, ``right``, ``full``, ``anti``), with nulls for the other side.

What is given out is a function of the rows that are not late, so the join is exact. A row is held for as long as the
other side can still have a match for it; ``semi`` and ``anti`` forget a left row with its first match.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from headrace.kernel.durations import format_duration_us
from headrace.kernel.errors import SpecError
from headrace.kernel.protocols import OperatorContext
from operators.interval_join_instance import IntervalJoinInstance
from operators.join_sides import JoinSides
from operators.timed_join import TimedJoin


@dataclass(frozen=True, slots=True, eq=False)
class IntervalJoin(TimedJoin):
    """Join rows that are close in time; implements :class:`headrace.kernel.protocols.StatefulOperator`.

    Output: the columns of :meth:`operators.join_sides.JoinSides.output`, in no order.

    The watermark behind it holds for the left side's event-time column, or the right side's for ``right``; with a
    ``later`` column it holds for that.

    Args:
        id: Stable id; the state is bound to it.
        sides: The sides, with event times.
        lower_us: A left row is at least this much later than the right one, microseconds; may be negative.
        upper_us: A left row is at most this much later than the right one; not below ``lower_us``. None: it is at most
            as late as the right row's ``until`` says (:class:`operators.join_sides.JoinSide`); null: never.
        allowed_lateness_us: How much later than the watermark passes rows are given up, and are late.

    Raises:
        SpecError: Something in it cannot be.
    """

    id: str
    sides: JoinSides
    lower_us: int
    upper_us: int | None
    allowed_lateness_us: int = 0

    def __post_init__(self) -> None:
        if (self.upper_us is None) == (self.sides.right.until is None):
            raise SpecError(f"{self.sides.label}: within has an upper bound or until, one of them")
        if self.upper_us is not None and self.lower_us > self.upper_us:
            raise SpecError(
                f"{self.sides.label}: within has its lower bound above its upper one, so nothing can match",
                hint="write within: {lower: -10m, upper: 0s}: right + lower <= left <= right + upper",
            )
        self.prepare()

    @property
    def fingerprint(self) -> str:
        """What the state depends on, as text that people can compare; types are checked when the state is opened."""
        upper = f"time {self.sides.right.until}" if self.upper_us is None else _signed(self.upper_us)
        lower = _signed(self.lower_us)
        return f"interval join, {self.sides.describe()}, from {lower} to {upper}{self.lateness}"

    def output_schema(self, schema: pl.Schema) -> pl.Schema:  # noqa: ARG002 - the protocol's signature
        """See :class:`headrace.kernel.protocols.StatefulOperator`."""
        return self.sides.output()

    def open(self, schema: pl.Schema, context: OperatorContext) -> IntervalJoinInstance:
        """An instance over tagged rows of ``schema``.

        Raises:
            GraphChangedError: The state was made over other types, or by a newer release.
        """
        return IntervalJoinInstance(
            self.sides, (self.lower_us, self.upper_us), self.allowed_lateness_us, schema, context
        )


def _signed(us: int) -> str:
    return format_duration_us(us) if us >= 0 else f"-{format_duration_us(-us)}"
