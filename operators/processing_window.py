"""Windows by the wall clock: a row lies in the windows that are open when it is read.

The window itself is one in event time (:mod:`operators.window`, :mod:`operators.session`) over a column that the rows
get when they come to the operator; its watermark is the clock. A restart goes on with the windows that were open, and
gives out at once what has ended meanwhile. Nothing is ever late.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

import polars as pl

from headrace.kernel import columns
from headrace.kernel.errors import InternalError
from headrace.kernel.protocols import (
    MAIN,
    Determinism,
    Emission,
    OperatorContext,
    OperatorInstance,
    OperatorState,
)
from operators.errors import computing
from operators.partials import one_zero
from operators.passage import Narrowed, Passage
from operators.windowed import WindowOperator

PROCESSING_TIME: Final = "_processing_time"
"""The column that rows get: when they were read, microseconds, UTC."""

_NOW: Final = "now"


@dataclass(frozen=True, slots=True)
class ProcessingTimeWindow:
    """Implements :class:`headrace.kernel.protocols.StatefulOperator`.

    Args:
        window: The window, whose event time is :data:`PROCESSING_TIME`.
    """

    window: WindowOperator

    @property
    def id(self) -> str:
        """See :class:`headrace.kernel.protocols.StatefulOperator`."""
        return self.window.id

    @property
    def determinism(self) -> Determinism:
        """None: the result depends on when rows are read."""
        return Determinism.NOT_INVARIANT

    @property
    def fingerprint(self) -> str:
        """See :class:`headrace.kernel.protocols.StatefulOperator`."""
        return f"processing time: {self.window.fingerprint}"

    @property
    def ports(self) -> Sequence[str]:
        """See :class:`headrace.kernel.protocols.StatefulOperator`."""
        return (MAIN,)

    @property
    def key_columns(self) -> Sequence[str]:
        """See :class:`headrace.kernel.protocols.StatefulOperator`."""
        return self.window.by

    def partial(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """The rows: what time it is, they learn when they have come to the operator."""
        schema = rows.collect_schema()
        keys = [one_zero(pl.col(name), schema[name]).alias(name) for name in self.window.by if name in schema]
        return rows.drop(columns.ROW_WATERMARK, strict=False).with_columns(keys)

    def passages(self, rows: pl.Schema) -> Sequence[Passage]:
        """The window's."""
        return self.window.passages(rows)

    def narrowed(self, wanted: Collection[str], rows: pl.Schema) -> Narrowed:
        """See :class:`operators.passage.NarrowsColumns`."""
        window = self.window.computing(wanted)
        return Narrowed(replace(self, window=window), window.reads(rows))

    def late(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """See :class:`headrace.kernel.protocols.StatefulOperator`: no row."""
        return rows.clear()

    def leaves_out(self, partials: pl.DataFrame) -> bool:  # noqa: ARG002 - the protocol's signature
        """See :class:`headrace.kernel.protocols.StatefulOperator`: no row."""
        return False

    def output_schema(self, schema: pl.Schema) -> pl.Schema:
        """See :class:`headrace.kernel.protocols.StatefulOperator`."""
        return self.window.output_schema(self._stamped(pl.LazyFrame(schema=schema), 0).collect().schema)

    def open(self, schema: pl.Schema, context: OperatorContext) -> ProcessingTimeInstance:
        """An instance over rows of ``schema``.

        Raises:
            GraphChangedError: The state was made by another definition, or over other types.
        """
        partials = self._stamped(pl.LazyFrame(schema=schema), 0).collect_schema()
        now = context.state.values[_NOW] if context.state else None
        return ProcessingTimeInstance(self, self.window.open(partials, context), now)

    def shown(self, table: str, rows: pl.LazyFrame) -> pl.LazyFrame:
        """See :class:`headrace.kernel.protocols.ShowsState`."""
        return self.window.shown(table, rows)

    def partials(self, rows: pl.DataFrame, now_us: int) -> pl.DataFrame:
        """Partials of rows that are read at ``now_us``."""
        with computing(self.window.where):
            return self._stamped(rows.lazy(), now_us).collect()

    def _stamped(self, rows: pl.LazyFrame, now_us: int) -> pl.LazyFrame:
        time = pl.lit(now_us, pl.Int64()).cast(pl.Datetime("us", "UTC"))
        return self.window.partial(rows.with_columns(time.alias(PROCESSING_TIME)))


class ProcessingTimeInstance:
    """Implements :class:`headrace.kernel.protocols.OperatorInstance` and :class:`headrace.kernel.protocols.Ticks`.

    Args:
        operator: The operator.
        window: The window at work.
        now_us: The clock when the state was stored; None: there is none.
    """

    def __init__(self, operator: ProcessingTimeWindow, window: OperatorInstance, now_us: int | None) -> None:
        self._operator = operator
        self._window = window
        self._now = now_us

    def tick(self, now_us: int) -> Emission:
        """Give out the windows that have ended. A clock that goes back stands still here."""
        self._now = now_us if self._now is None else max(now_us, self._now)
        return self._window.advance(self._now)

    def process(self, partials: pl.DataFrame) -> Emission:
        """Take in rows: they are read now."""
        if self._now is None:
            raise InternalError(f"{self._operator.window.where} has not been told the time")
        return self._window.process(self._operator.partials(partials, self._now))

    def advance(self, watermark: int) -> Emission:  # noqa: ARG002 - the protocol's signature
        """Event time is nothing to it."""
        return {}

    def drain(self) -> Emission:
        """Give out all windows, before they have ended."""
        return self._window.drain()

    def outgoing_watermark(self, watermark: int) -> int:
        """See :class:`headrace.kernel.protocols.OperatorInstance`: what it gives out has no event time."""
        return watermark

    def rows_held(self) -> int:
        """See :class:`headrace.kernel.protocols.OperatorInstance`."""
        return self._window.rows_held()

    def snapshot(self) -> OperatorState:
        """See :class:`headrace.kernel.protocols.OperatorInstance`."""
        state = self._window.snapshot()
        return replace(state, values={**state.values, _NOW: self._now})
