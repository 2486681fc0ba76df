"""The timers of a custom operator: one time for each key and name."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import polars as pl

from headrace.kernel.errors import UserError
from headrace.kernel.keyed import KeyedLayout, KeyedSnapshot, KeyedState
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


class TimerQueue:
    """Timers of one kind.

    Args:
        key: The key columns, :data:`ALL` where there are none.
        held: What it begins with: key columns, ``timer`` and ``time`` (Int64, microseconds).
        whole: Nothing stands behind it, so that of removed timers nothing need be known.
        stored: Where they are kept for good (:func:`timer_layout`), and what it begins with if ``held`` is None.
    """

    def __init__(
        self,
        key: pl.Schema,
        held: pl.DataFrame | None = None,
        *,
        whole: bool = True,
        stored: KeyedState | None = None,
    ) -> None:
        self._whole = whole
        self._stored = stored
        self._key = list(key)
        self.schema = _schema(key)
        self._identity = [*self._key, NAME]
        self._held = Merged(self.schema, self._newest)
        self._unsaved = Merged(self.schema, self._newest)
        if held is None and stored is not None:
            held = pl.concat([pl.DataFrame(schema=self.schema), *stored.rows()])
        if held is not None:
            self._held.put(held)
        self.next = _earliest(self._held.frames())
        """No timer is set to an earlier time; None: none is set."""

    @property
    def height(self) -> int:
        """Timers that are set; some may be counted more than once."""
        return self._held.height

    def rows(self) -> pl.DataFrame:
        """All timers that are set."""
        merged = self._held.merged()
        if not merged[TIME].has_nulls():
            return merged
        timers = merged.filter(pl.col(TIME).is_not_null())
        if self._whole:
            self._held.put(timers)
        return timers

    def add(self, rows: pl.DataFrame) -> None:
        """Set timers, in place of those of the same key and name; a null time removes one."""
        self._change(rows)
        soonest = _earliest([rows])
        self.next = soonest if self.next is None else self.next if soonest is None else min(self.next, soonest)

    def due(self, limit: int) -> pl.DataFrame:
        """Of each key with timers up to and including ``limit``, the earliest; of equal ones the first by name."""
        if self.next is None or self.next > limit:
            return pl.DataFrame(schema=self.schema)
        timers = self.rows()
        self.next = _earliest([timers])
        return (
            timers.filter(pl.col(TIME) <= limit).sort(TIME, NAME).unique(self._key, keep="first", maintain_order=True)
        )

    def remove(self, due: pl.DataFrame) -> None:
        """Remove timers that have fired."""
        self._change(due.with_columns(pl.lit(None, pl.Int64()).alias(TIME)))

    def still(self, due: pl.DataFrame) -> pl.DataFrame:
        """Those of some timers that are set to the same time yet."""
        return due.join(self.rows(), on=[*self._identity, TIME], how="semi", nulls_equal=True, maintain_order="left")

    def near(self, keys: Sequence[pl.DataFrame]) -> TimerQueue:
        """The timers of some keys in a queue of their own; what becomes of them comes back with :meth:`absorb`."""
        wanted = pl.concat([frame.select(self._key) for frame in keys]).unique()
        timers = self.rows().join(wanted, on=self._key, how="semi", nulls_equal=True)
        return TimerQueue(self.schema_of_key(), timers, whole=False)

    def absorb(self, near: TimerQueue) -> None:
        """Take back what :meth:`near` gave, changed."""
        self.add(near.changes())
        self.next = _earliest([self.rows()])

    def save(self, stored: KeyedState) -> KeyedSnapshot:
        """Keep what has changed since the last time.

        Args:
            stored: What it was made with.
        """
        unsaved = self._unsaved.merged()
        stored.put(unsaved.filter(pl.col(TIME).is_not_null()))
        stored.remove(unsaved.filter(pl.col(TIME).is_null()))
        self._unsaved.put(unsaved.clear())
        return stored.snapshot()

    def changes(self) -> pl.DataFrame:
        """All timers, and those that were removed, with a null time."""
        return self._held.merged()

    def schema_of_key(self) -> pl.Schema:
        """The key columns."""
        return pl.Schema({name: self.schema[name] for name in self._key})

    def _change(self, rows: pl.DataFrame) -> None:
        self._held.add(rows)
        if self._stored is not None:
            self._unsaved.add(rows)

    def _newest(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        return rows.unique(self._identity, keep="last", maintain_order=True)


def timer_layout(name: str, key: pl.Schema, version: int) -> KeyedLayout:
    """How timers are kept for good."""
    return KeyedLayout(name, _schema(key), list(key), [NAME], version)


def _schema(key: pl.Schema) -> pl.Schema:
    return pl.Schema({**key, NAME: pl.String(), TIME: pl.Int64()})


def _earliest(frames: Sequence[pl.DataFrame]) -> int | None:
    found = [time for frame in frames if isinstance(time := frame[TIME].min(), int)]
    return min(found, default=None)


class Timers:
    """What an operator sets timers with. A key has one timer of each name.

    Args:
        event: Its timers in event time.
        processing: Its timers in processing time.
        where: Names the operator in error messages.
    """

    def __init__(self, event: TimerQueue, processing: TimerQueue, where: str) -> None:
        self._queues = {"event": event, "processing": processing}
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

    def using(self, event: TimerQueue, floor: pl.DataFrame | None) -> None:
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
        key = queue.schema_of_key()
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
