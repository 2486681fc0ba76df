"""Lengths of SQL intervals: Polars lets those that do not fit 64 bits wrap around, which gives wrong times."""

from __future__ import annotations

import re
from typing import Final

_PART: Final = re.compile(r"(\d+)\s*([a-z]*)")
_MOST_DAYS: Final = 1_000_000
"""As of durations: longer than event times reach, and short enough that no sum of both is too large for 64 bits."""
_MOST_CLOCK_DAYS: Final = 100_000
"""Hours and what is shorter are counted in nanoseconds, of which 64 bits hold 106,751 days."""
_DAYS: Final = {"y": 366.0, "q": 92.0, "mo": 31.0, "w": 7.0, "d": 1.0}
_CLOCK_DAYS: Final = {
    "h": 1 / 24,
    "mi": 1 / 1440,
    "s": 1 / 86_400,
    "milli": 1e-3 / 86_400,
    "ms": 1e-3 / 86_400,
    "micro": 1e-6 / 86_400,
    "us": 1e-6 / 86_400,
    "n": 1e-9 / 86_400,
}
"""Days in a unit, by how its name begins; the longest beginning counts."""

LONGEST: Final = f"{_MOST_DAYS} days, and {_MOST_CLOCK_DAYS} days in hours and shorter units"


def is_too_long(text: str) -> bool:
    """Whether an interval such as ``1 month 2 days`` is longer than :data:`LONGEST`; units need not be known."""
    days = clock = 0.0
    for number, unit in _PART.findall(text.lower()):
        begins = [begin for begin in (*_DAYS, *_CLOCK_DAYS) if unit.startswith(begin)]
        begin = max(begins, key=len, default="d")
        if begin in _CLOCK_DAYS:
            clock += int(number) * _CLOCK_DAYS[begin]
        else:
            days += int(number) * _DAYS[begin]
    return clock > _MOST_CLOCK_DAYS or days + clock > _MOST_DAYS
