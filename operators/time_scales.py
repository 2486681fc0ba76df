"""Time scales: the marks that windows begin and end at, and the instants they stand for.

A *mark* is a point on the scale, in microseconds; an *instant* is microseconds since the Unix epoch in UTC. In UTC
they are the same. On the scale of a time zone a mark is a wall-clock time, so that marks one day apart are always
86,400,000,000 apart, though the day between them may have 23 or 25 hours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

import polars as pl

from headrace.kernel.errors import SpecError

DAY_US: Final = 86_400_000_000
_UTC: Final = (None, "UTC", "Etc/UTC")


class TimeScale(Protocol):
    """Marks and instants. Marks that are asked for are multiples of ``every`` apart, shifted by ``phase``."""

    def floor(self, time: pl.Expr, every: int, phase: int) -> pl.Expr:
        """The last mark whose instant is at or before an instant."""

    def floor_at(self, time: int, every: int, phase: int) -> int:
        """:meth:`floor` for one instant."""

    def instant(self, mark: pl.Expr) -> pl.Expr:
        """When a mark is."""

    def instant_at(self, mark: int) -> int:
        """:meth:`instant` for one mark."""


@dataclass(frozen=True, slots=True)
class Utc:
    """Marks are instants."""

    def floor(self, time: pl.Expr, every: int, phase: int) -> pl.Expr:
        """See :class:`TimeScale`; floored modulo, so that it holds before 1970, too."""
        return time - (time - phase) % every

    def floor_at(self, time: int, every: int, phase: int) -> int:
        """See :class:`TimeScale`."""
        return time - (time - phase) % every

    def instant(self, mark: pl.Expr) -> pl.Expr:
        """See :class:`TimeScale`."""
        return mark

    def instant_at(self, mark: int) -> int:
        """See :class:`TimeScale`."""
        return mark

    def __str__(self) -> str:
        return "UTC"


@dataclass(frozen=True, slots=True)
class ZoneDays:
    """Wall-clock marks of a time zone, whole days apart.

    A mark that occurs twice (the clock is put back over it) is its first occurrence; one that is left out (the clock is
    put forward over it) comes 24 hours after the mark of the day before. So marks never go back in time, and every
    instant lies between two of them.
    """

    zone: str

    def floor(self, time: pl.Expr, every: int, phase: int) -> pl.Expr:
        """See :class:`TimeScale`; ``every`` is a multiple of a day."""
        utc = time.cast(pl.Datetime("us", "UTC"))
        wall = utc.dt.convert_time_zone(self.zone).dt.replace_time_zone(None).to_physical()
        mark = wall - (wall - phase) % every
        return (
            pl.when(self.instant(mark) > time)
            .then(mark - every)
            .when(self.instant(mark + every) <= time)
            .then(mark + every)
            .otherwise(mark)
        )

    def floor_at(self, time: int, every: int, phase: int) -> int:
        """See :class:`TimeScale`."""
        return _one(self.floor(pl.lit(time, pl.Int64), every, phase))

    def instant(self, mark: pl.Expr) -> pl.Expr:
        """See :class:`TimeScale`."""
        return self._first(mark).fill_null(self._first(mark - DAY_US) + DAY_US)

    def instant_at(self, mark: int) -> int:
        """See :class:`TimeScale`."""
        return _one(self.instant(pl.lit(mark, pl.Int64)))

    def _first(self, mark: pl.Expr) -> pl.Expr:
        wall = mark.cast(pl.Datetime("us"))
        return wall.dt.replace_time_zone(self.zone, ambiguous="earliest", non_existent="null").to_physical()

    def __str__(self) -> str:
        return self.zone


def time_scale(zone: str | None, spans: dict[str, int], where: str) -> TimeScale:
    """The scale of a time zone.

    Args:
        zone: Its IANA name; None: UTC.
        spans: What is measured on the scale, by name, e.g. ``{"size": 3600000000}``.
        where: For error messages.

    Raises:
        SpecError: There is no such zone, or a span is no whole number of days in a zone other than UTC.
    """
    if zone in _UTC or zone is None:
        return Utc()
    try:
        pl.select(pl.lit(0).cast(pl.Datetime("us", "UTC")).dt.convert_time_zone(zone))
    except pl.exceptions.PolarsError as error:
        raise SpecError(
            f"{where} has time zone {zone!r}, which is not known", hint="give an IANA name, e.g. Europe/Paris"
        ) from error
    for name, span in spans.items():
        if span % DAY_US:
            raise SpecError(
                f"{where} stands in time zone {zone!r}, but its {name} is not a whole number of days",
                hint="windows of hours and less stand in UTC: leave time_zone out and shift them with offset",
            )
    return ZoneDays(zone)


def _one(value: pl.Expr) -> int:
    found: int = pl.select(value).item()
    return found
