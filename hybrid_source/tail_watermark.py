"""Event time in the tail: the watermark of each partition, of the source, and of each row.

A partition's watermark is the largest event time of its earlier offsets minus the out-of-orderness; the source's is the
smallest over the partitions that are not idle. Neither goes back. A row is measured against the watermark that its own
partition's earlier offsets make, so that lateness does not depend on how partitions interleave or how rows are batched;
only where an idle partition let the source's watermark pass does that raise it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
import polars as pl

from headrace.kernel.boundary import TopicPartition
from headrace.kernel.clock import Clock
from hybrid_source.source_values import BEFORE_ALL

SILENT_S: Final = 10.0
"""A partition that is read to its end counts as silent after this long without a record."""


def row_watermarks(
    slots: pl.Series,
    event_times: pl.Series,
    *,
    before: Mapping[int, int | None],
    floor: int | None,
    out_of_orderness_us: int,
) -> pl.Series:
    """The watermark of each row of a batch.

    Args:
        slots: A number for the partition of each row (integer), rows of one partition in offset order.
        event_times: Event time of each row, microseconds (Int64); null does not move any watermark.
        before: Largest event time by slot before the batch.
        floor: The source's watermark before the batch.
        out_of_orderness_us: How far a row may lie behind an earlier one of its partition.

    Returns:
        Int64, microseconds; null where nothing is known yet.
    """
    rows = pl.DataFrame({"p": slots, "t": event_times})
    earlier = pl.col("t").cum_max().forward_fill().shift(1)
    known = {slot: time for slot, time in before.items() if time is not None}
    if rows["p"].n_unique() == 1:
        carried = pl.lit(known.get(rows["p"][0]), dtype=pl.Int64)
    else:
        earlier = earlier.over("p")
        carried = pl.col("p").replace_strict(list(known), list(known.values()), default=None, return_dtype=pl.Int64)
    own = pl.max_horizontal(earlier, carried) - out_of_orderness_us
    return rows.select(pl.max_horizontal(own, pl.lit(floor, dtype=pl.Int64)).alias("w"))["w"]


def event_time_bounds(slots: pl.Series, event_times: pl.Series) -> dict[int, tuple[int, int]]:
    """Smallest and largest event time by slot, for slots with one."""
    if event_times.null_count():
        known = event_times.is_not_null()
        slots, event_times = slots.filter(known), event_times.filter(known)
    given, times = slots.to_numpy(), event_times.to_numpy()
    order = np.argsort(given, kind="stable")
    given, times = given[order], times[order]
    first = np.flatnonzero(np.append(True, given[1:] != given[:-1])[: given.size])
    if not first.size:
        return {}
    bounds = zip(np.minimum.reduceat(times, first).tolist(), np.maximum.reduceat(times, first).tolist(), strict=True)
    return dict(zip(given[first].tolist(), bounds, strict=True))


class TailWatermark:
    """The source's watermark over its partitions.

    Args:
        clock: For idleness.
        max_event_times: Largest event time by partition so far; None: no row had one.
        floor: What the watermark begins at and never falls below (the history's, at a handover).
        out_of_orderness_us: How far a row may lie behind an earlier one of its partition.
        idle_us: A partition that stands at the end of its log and has been silent this long no longer holds the
            watermark; None: never. One that is behind, or waits for an open transaction, holds it.
    """

    def __init__(
        self,
        clock: Clock,
        max_event_times: Mapping[TopicPartition, int | None],
        floor: int | None,
        *,
        out_of_orderness_us: int = 0,
        idle_us: int | None = None,
    ) -> None:
        self._clock = clock
        self._max = dict(max_event_times)
        self._value = floor
        self._out_of_orderness_us = out_of_orderness_us
        self._idle_us = idle_us
        self._limit: int | None = None
        self._expected: dict[TopicPartition, int] = {}
        now = clock.monotonic()
        self._heard = dict.fromkeys(self._max, now)

    @property
    def value(self) -> int | None:
        """The source's watermark, microseconds; None: unknown."""
        return self._value

    @property
    def max_event_times(self) -> Mapping[TopicPartition, int | None]:
        """Largest event time by partition."""
        return self._max

    @property
    def held(self) -> int | None:
        """What rows that are read elsewhere keep it at; None: nothing does, or it is not known."""
        return None if self._limit == BEFORE_ALL else self._limit

    def hold(self, limit: int | None) -> None:
        """Keep the watermark at or below ``limit`` from now on, for rows that are read elsewhere; None: no limit.

        Under ``BEFORE_ALL`` one that is not known stays so.
        """
        self._limit = limit

    def expect(self, at: TopicPartition, event_time: int) -> None:
        """The next row of the partition that has an event time has this one; it is read later, by somebody else."""
        self._expected[at] = event_time

    def add(self, at: TopicPartition) -> None:
        """A new partition, which holds the watermark from now on."""
        self._max.setdefault(at, None)
        self._heard[at] = self._clock.monotonic()

    def rows(self, slots: pl.Series, event_times: pl.Series, places: Mapping[int, TopicPartition]) -> pl.Series | None:
        """Stamp the next batch's rows (:func:`row_watermarks`), then take their event times in.

        Args:
            slots: A number for the partition of each row (integer).
            event_times: Microseconds (Int64).
            places: What the numbers stand for.

        Returns:
            None where the bounds by partition show already that no row lies below its watermark.
        """
        bounds = {places[slot]: bound for slot, bound in event_time_bounds(slots, event_times).items()}
        stamped = None
        if not self._punctual(bounds):
            stamped = row_watermarks(
                slots,
                event_times,
                before={slot: self._max.get(at) for slot, at in places.items()},
                floor=self._value,
                out_of_orderness_us=self._out_of_orderness_us,
            )
        for at, (_, high) in bounds.items():
            self._max[at] = self._raised(at, high)
        return stamped

    def _punctual(self, bounds: Mapping[TopicPartition, tuple[int, int]]) -> bool:
        return all(
            low >= self._raised(at, high) - self._out_of_orderness_us and (self._value is None or low >= self._value)
            for at, (low, high) in bounds.items()
        )

    def _raised(self, at: TopicPartition, time: int) -> int:
        known = self._max.get(at)
        return time if known is None else max(time, known)

    def heard(self, at: TopicPartition) -> None:
        """A record of the partition has come (with an event time or not)."""
        self._heard[at] = self._clock.monotonic()

    def advance(self, at_end: Callable[[TopicPartition], bool]) -> int | None:
        """The watermark now.

        Args:
            at_end: Whether a partition stands at the end of its log.
        """
        active = [at for at in self._max if not self._is_idle(at, at_end)]
        if active:
            times = [self._ahead(at) for at in active]
            lowest = None if None in times else min(time for time in times if time is not None)
        else:
            lowest = max((time for time in self._max.values() if time is not None), default=None)
        own = None if lowest is None else lowest - self._out_of_orderness_us
        if self._limit is not None:
            # Without an active partition only what is read elsewhere holds.
            own = min(own, self._limit) if own is not None else None if active else self._limit
        if own is not None and own > BEFORE_ALL:
            self._value = own if self._value is None else max(self._value, own)
        return self._value

    def silent(self, at_end: Callable[[TopicPartition], bool]) -> Sequence[TopicPartition]:
        """The partitions that hold the watermark behind what others have brought, in order, for people.

        They stand at the end of their logs, do not count as idle, and have been silent for :data:`SILENT_S`. One
        without a row so far holds it even where it is alone.

        Args:
            at_end: Whether a partition stands at the end of its log.
        """
        ahead = {at: self._ahead(at) for at in self._max if not self._is_idle(at, at_end)}
        known = [time for time in ahead.values() if time is not None]
        lowest = min(known, default=None) if len(known) == len(ahead) else None
        holds = [at for at, time in ahead.items() if time == lowest and (time is None or time < max(known))]
        since = self._clock.monotonic() - SILENT_S
        return sorted(at for at in holds if self._heard[at] <= since and at_end(at))

    def _ahead(self, at: TopicPartition) -> int | None:
        """What no row of the partition lies behind by more than the out-of-orderness."""
        return self._raised(at, self._expected[at]) if at in self._expected else self._max[at]

    def _is_idle(self, at: TopicPartition, at_end: Callable[[TopicPartition], bool]) -> bool:
        if self._idle_us is None:
            return False
        silent_us = (self._clock.monotonic() - self._heard[at]) * 1e6
        return silent_us >= self._idle_us and at_end(at)
