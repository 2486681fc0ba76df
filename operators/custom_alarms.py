"""Timers that are kept: found by key, and by time, without looking at the others.

By key they are keyed state, and that is what a checkpoint has. By time there are *alarms*, held rows that lie on the
local disk at most: one for each time that was set. Whether it still holds shows when it rings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import polars as pl

from headrace.kernel.held import HeldLayout
from headrace.kernel.keyed import KeyedLayout, KeyedSnapshot
from headrace.kernel.protocols import OperatorContext
from operators.custom_timers import NAME, TIME, TimerQueue, firsts, newest, removed

_SPARE: Final = 1 << 16
"""So many alarms more than twice the timers are kept before those that no longer hold are looked for."""
_ALARMS: Final = "_alarms"
_AFTER_ALL: Final = 2**63 - 1


class KeptTimers:
    """Timers of one kind. Implements :class:`operators.custom_timers.TimerSetter`.

    Args:
        name: Of the keyed state.
        key: The key columns.
        version: Of the state.
        context: Where to resume.
        spare: See :data:`_SPARE`.

    Raises:
        GraphChangedError: The state was made over other types, or by a newer release.
    """

    def __init__(
        self, name: str, key: pl.Schema, version: int, context: OperatorContext, *, spare: int = _SPARE
    ) -> None:
        self.key = key
        self._names = list(key)
        self._identity = [*self._names, NAME]
        self._spare = spare
        schema = pl.Schema({**key, NAME: pl.String(), TIME: pl.Int64()})
        self._kept = context.keyed(KeyedLayout(name, schema, self._names, [NAME], version))
        anew = context.narrowed(context.key_groups, None)  # they follow from the timers, and no checkpoint has them
        self._alarms = anew.held(HeldLayout(f"{name}{_ALARMS}", schema, self._names, TIME, version))
        for timers in self._kept.rows():
            self._alarms.add(timers)

    @property
    def height(self) -> int:
        """Timers that are set; some may be counted more than once."""
        return self._kept.height

    @property
    def alarms(self) -> int:
        """Alarms, those that no longer hold among them."""
        return self._alarms.height

    def rows(self) -> Iterator[pl.DataFrame]:
        """All timers, in pieces."""
        return self._kept.rows()

    def add(self, rows: pl.DataFrame) -> None:
        """See :class:`operators.custom_timers.TimerSetter`."""
        rows = newest(rows.lazy(), self._identity).collect()
        is_set = rows[TIME].is_not_null()
        timers = rows.filter(is_set)
        self._kept.put(timers)
        self._kept.remove(rows.filter(~is_set))
        self._alarms.add(timers)
        if self._alarms.height > 2 * self._kept.height + self._spare:
            self._alarms.drop(_AFTER_ALL)
            for some in self._kept.rows():
                self._alarms.add(some)

    def due(self, limit: int) -> pl.DataFrame:
        """Of each key with timers up to and including ``limit``, the earliest; of equal ones the first by name."""
        earliest = self._alarms.earliest
        if earliest is None or earliest > limit:
            return pl.DataFrame(schema=self._alarms.schema)
        rung = self._alarms.take(min(limit, _AFTER_ALL - 1) + 1)
        timers = self.still(rung.unique())
        # They hold until they are removed; the alarms of those that have fired ring once more, and are gone.
        self._alarms.add(timers)
        return firsts(timers, self._names)

    def remove(self, due: pl.DataFrame) -> None:
        """Remove timers that have fired."""
        self.add(removed(due))

    def still(self, due: pl.DataFrame) -> pl.DataFrame:
        """Those of some timers that are set to the same time yet, in their order."""
        if not due.height:
            return due
        on = [*self._identity, TIME]
        return due.join(self._kept.find(due), on=on, how="semi", nulls_equal=True, maintain_order="left")

    def near(self, keys: Sequence[pl.DataFrame]) -> TimerQueue:
        """The timers of some keys in a queue of their own; what becomes of them comes back with :meth:`absorb`."""
        return TimerQueue(self._kept.find(pl.concat([frame.select(self._names) for frame in keys])))

    def absorb(self, near: TimerQueue) -> None:
        """Take back what :meth:`near` gave, changed."""
        timers = near.changes()
        on = [*self._identity, TIME]
        self.add(timers.join(self._kept.find(timers), on=on, how="anti", nulls_equal=True))

    def snapshot(self) -> KeyedSnapshot:
        """The timers."""
        return self._kept.snapshot()
