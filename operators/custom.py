"""What people build on who write operators of their own: :class:`CustomOperator` and what is handed to it.

Public as :mod:`headrace.operators`; explained in docs/custom-operators.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import polars as pl

from headrace.kernel.protocols import Determinism

if TYPE_CHECKING:
    from operators.custom_state import State
    from operators.custom_timers import Timers

ColumnTypes: TypeAlias = Mapping[str, Any]
"""Columns and their Polars types; a ``pl.Schema`` is one."""


@dataclass(frozen=True, slots=True)
class StateTable:
    """A table of an operator's state: rows by key.

    Attributes:
        columns: Columns of a row besides the key's.
        within: Those of them that tell rows of one key apart; none: a key has one row.
        time: A Datetime column with event time from which a row is kept for ``ttl``. Null: for ever.
        ttl: How long.
    """

    columns: ColumnTypes
    within: Sequence[str] = ()
    time: str | None = None
    ttl: timedelta | None = None


class CustomOperator:
    """An operator in Python over Polars frames, with state by key and timers.

    A subclass overrides :meth:`output_schema`, :meth:`process` and, with timers, :meth:`on_event_time` or
    :meth:`on_processing_time`. Frames go in and come out: a call gets the rows of many keys, and works on all of them
    at once. An instance keeps nothing in attributes that changes: what is not in ``state`` or ``timers`` is lost at a
    restart, and may not be there for other keys.

    Attributes:
        Args: A dataclass or pydantic model of the arguments, which are checked by it; None: there are none.
        determinism: What it promises (docs/custom-operators.md); nothing, if it does not say.
        version: Of what the state means; a changed one refuses the state of an older one.
        timer_delay: No event-time timer is set less than this after the row or timer it is set for. With ``order_by``,
            a key's rows that are closer together than that may come in one call, as no timer can fall between them.
        output_lag: How far the output's event time may lie behind the row or timer that makes it.
        args: The arguments of the step: an ``Args``, or None.
    """

    Args: ClassVar[type | None] = None
    determinism: ClassVar[Determinism] = Determinism.NOT_INVARIANT
    version: ClassVar[int] = 1
    timer_delay: timedelta = timedelta(0)
    output_lag: timedelta = timedelta(0)

    def __init__(self, args: Any = None) -> None:
        self.args = args

    def output_schema(self, schema: pl.Schema) -> ColumnTypes:
        """The columns that it gives out, exactly and in this order.

        Args:
            schema: The columns of the rows that come in.
        """
        raise NotImplementedError

    def tables(self, schema: pl.Schema) -> Mapping[str, StateTable | ColumnTypes]:  # noqa: ARG002 - for subclasses
        """The tables of its state, by name; the key columns are put before their columns.

        Args:
            schema: The columns of the rows that come in.
        """
        return {}

    def process(self, rows: pl.DataFrame, state: State, timers: Timers) -> pl.DataFrame | None:
        """Take rows in, and give rows out.

        With ``order_by``, rows come sorted by (event time, partition, offset), those of a key after all earlier ones
        and after the timers that are due before them. How many come at once is not fixed: the result must be the same
        for ``process(a + b)`` as for ``process(a)`` and ``process(b)``.
        """
        raise NotImplementedError

    def on_event_time(self, due: pl.DataFrame, state: State, timers: Timers) -> pl.DataFrame | None:
        """Event-time timers whose time has come: all rows before it have been processed.

        Args:
            due: Key columns, ``timer`` (the name) and ``time``; one row for each key, its earliest timer.
            state: The state.
            timers: To set others, later than ``time``.
        """
        raise NotImplementedError

    def on_processing_time(self, due: pl.DataFrame, state: State, timers: Timers) -> pl.DataFrame | None:
        """Processing-time timers whose time has come; ``due`` as in :meth:`on_event_time`."""
        raise NotImplementedError
