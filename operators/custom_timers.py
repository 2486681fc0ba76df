"""The timers of a custom operator: one time for each key and name. Kept they are in :mod:`operators.custom_alarms`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

import polars as pl

from headrace.kernel.errors import UserError
from headrace.kernel.merged import Merged
from operators import event_time as times
from operators.custom_calls import OPERATOR_INVALID, fitted
from operators.custom_state import ALL

NAME: Final = "timer"
TIME: Final = "time"
DEFAULT: Final = "timer"
FLOOR: Final = "_floor"
"""The earliest time a key's timers may be set to in a call."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class TimerSetter(Protocol):
    """What takes timers in."""

    @property
    def key(self) -> pl.Schema:
        """The key columns, :data:`ALL` where there are none."""

    def add(self, rows: pl.DataFrame) -> None:
        """Set timers, in place of those of the same key and name; a null time removes one."""


class TimerQueue:
    """Some timers, in memory.

    Args:
        timers: What it begins with: key columns, ``timer`` and ``time`` (Int64, microseconds).
    """

    def __init__(self, timers: pl.DataFrame) -> None:
        self._schema = timers.schema
        self._names = [name for name in self._schema if name not in {NAME, TIME}]
        self._held = Merged(self._schema, lambda rows: newest(rows, [*self._names, NAME]))
        self._held.put(timers)

    @property
    def key(self) -> pl.Schema:
        """See :class:`TimerSetter`."""
        return pl.Schema({name: self._schema[name] for name in self._names})

    def add(self, rows: pl.DataFrame) -> None:
        """See :class:`TimerSetter`."""
        self._held.add(rows)

    def due(self, limit: int) -> pl.DataFrame:
        """Of each key with timers up to and including ``limit``, the earliest; of equal ones the first by name."""
        return firsts(self._held.merged().filter(pl.col(TIME) <= limit), self._names)

    def remove(self, due: pl.DataFrame) -> None:
        """Remove timers that have fired."""
        self._held.add(removed(due))

    def changes(self) -> pl.DataFrame:
        """All timers, and those that were removed, with a null time."""
        return self._held.merged()


def newest(rows: pl.LazyFrame, identity: Sequence[str]) -> pl.LazyFrame:
    """Of several times of one timer the last one that was set."""
    return rows.unique(identity, keep="last", maintain_order=True)


def firsts(timers: pl.DataFrame, key: Sequence[str]) -> pl.DataFrame:
    """Of each key the earliest timer, the first by name of equal ones; in this order."""
    return timers.sort(TIME, NAME).unique(key, keep="first", maintain_order=True)


def removed(timers: pl.DataFrame) -> pl.DataFrame:
    """Timers as they are taken back."""
    return timers.with_columns(pl.lit(None, pl.Int64()).alias(TIME))


class Timers:
    """What an operator sets timers with. A key has one timer of each name.

    Args:
        event: Its timers in event time.
        processing: Its timers in processing time.
        where: Names the operator in error messages.
    """

    def __init__(self, event: TimerSetter, processing: TimerSetter, where: str) -> None:
        self._queues: dict[str, TimerSetter] = {"event": event, "processing": processing}
        self._where = where
        self._floor: pl.DataFrame | None = None
        self.now_us = 0

    @property
    def now(self) -> datetime:
        """Processing time: the wall clock when this batch, or turn without one, began."""
        return _EPOCH + timedelta(microseconds=self.now_us)

    def set_event_time(self, timers: pl.DataFrame, name: str = DEFAULT) -> None:
        """Set a timer for each row: ``on_event_time`` is called once the rows before its time have been processed.

        Args:
            timers: Key columns and ``time``, a timestamp; null removes the key's timer. Other columns are ignored.
            name: The timer's name; one that is set already is replaced.

        Raises:
            UserError: A column is missing or has another type, or a time is too early (``timer_delay``).
        """
        rows = self._rows("event", timers, name)
        if self._floor is not None:
            self._check_floor(rows, self._floor)
        self._queues["event"].add(rows)

    def set_processing_time(self, timers: pl.DataFrame, name: str = DEFAULT) -> None:
        """Set a timer for each row: ``on_processing_time`` is called when the wall clock has reached its time."""
        self._queues["processing"].add(self._rows("processing", timers, name))

    def clear_event_time(self, keys: pl.DataFrame, name: str = DEFAULT) -> None:
        """Remove the timers of some keys, where they are set."""
        self._queues["event"].add(self._rows("event", _timeless(keys), name))

    def clear_processing_time(self, keys: pl.DataFrame, name: str = DEFAULT) -> None:
        """Remove the timers of some keys, where they are set."""
        self._queues["processing"].add(self._rows("processing", _timeless(keys), name))

    def using(self, event: TimerSetter, floor: pl.DataFrame | None) -> None:
        """For the next call: where event-time timers go, and how early they may be by key (:data:`FLOOR`)."""
        self._queues["event"] = event
        self._floor = floor

    def _rows(self, kind: str, timers: pl.DataFrame, name: str) -> pl.DataFrame:
        queue = self._queues[kind]
        if TIME not in getattr(timers, "columns", ()):
            raise UserError(
                f"{self._where} sets timers without a column {TIME!r}",
                hint=f"give a frame with the key columns and {TIME}",
                code=OPERATOR_INVALID,
            )
        key = queue.key
        if ALL in key:
            timers = timers.with_columns(pl.lit(0, pl.Int8()).alias(ALL))
        dtype = timers.schema[TIME]
        if not isinstance(dtype, pl.Datetime | pl.Date | pl.Null):
            raise UserError(f"{self._where} sets timers to {dtype}, which is no point in time", code=OPERATOR_INVALID)
        time = pl.lit(None, pl.Int64()) if isinstance(dtype, pl.Null) else times.microseconds(TIME, dtype, self._where)
        found = timers.select(column for column in key if column in timers.columns)
        keys = fitted(found, key, f"{self._where} sets timers with keys")
        return keys.with_columns(pl.lit(name).alias(NAME), timers.select(time.alias(TIME))[TIME])

    def _check_floor(self, rows: pl.DataFrame, floor: pl.DataFrame) -> None:
        key = [name for name in floor.columns if name != FLOOR]
        early = rows.join(floor, on=key, how="inner", nulls_equal=True).filter(pl.col(TIME) < pl.col(FLOOR))
        if early.height:
            raise UserError(
                f"{self._where} sets an event-time timer too early",
                detail=f"to {_EPOCH + timedelta(microseconds=early[TIME][0])}, when the earliest it may be set to is "
                f"{_EPOCH + timedelta(microseconds=early[FLOOR][0])}",
                hint="a timer is set at least timer_delay after the row it is for, and after the timer that sets it",
                code=OPERATOR_INVALID,
            )


def _timeless(keys: pl.DataFrame) -> pl.DataFrame:
    return keys.with_columns(pl.lit(None, pl.Datetime("us")).alias(TIME))
