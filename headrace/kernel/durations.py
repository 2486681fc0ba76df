"""Durations as people write them: ``500ms``, ``10s``, ``5m``, ``1h``, ``7d``."""

from __future__ import annotations

import re
from typing import Final

_UNITS_US: Final = {"us": 1, "ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
_LONGEST_DAYS: Final = 1_000_000
"""Far longer than event times reach (the year 9999), and short enough that no sum of both is too large for 64 bits."""
_PART: Final = re.compile(r"(\d+)(us|ms|s|m|h|d)")


def parse_duration_us(text: str) -> int:
    """Microseconds in a duration such as ``10s``, ``1h30m`` or ``500ms``.

    Raises:
        ValueError: The text is no duration, or a longer one than 1,000,000 days; the message says so.
    """
    compact = text.replace(" ", "")
    parts = _PART.findall(compact)
    if not parts or "".join(number + unit for number, unit in parts) != compact:
        raise ValueError(f"{text!r} is no duration; write for example 500ms, 10s, 5m, 1h30m or 7d")
    us = sum(int(number) * _UNITS_US[unit] for number, unit in parts)
    if us > _LONGEST_DAYS * _UNITS_US["d"]:
        raise ValueError(f"{text!r} is too long; the longest duration is {_LONGEST_DAYS}d")
    return us


def format_duration_us(us: int) -> str:
    """The shortest exact form of a non-negative duration, e.g. ``1h30m``."""
    if us == 0:
        return "0s"
    out = []
    for unit, size in sorted(_UNITS_US.items(), key=lambda item: -item[1]):
        count, us = divmod(us, size)
        if count:
            out.append(f"{count}{unit}")
    return "".join(out)
