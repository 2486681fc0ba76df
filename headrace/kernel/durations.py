"""Durations as people write them: ``500ms``, ``10s``, ``5m``, ``1h``, ``7d``."""

from __future__ import annotations

import re
from typing import Final

_UNITS_US: Final = {"us": 1, "ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
_PART: Final = re.compile(r"(\d+)(us|ms|s|m|h|d)")


def parse_duration_us(text: str) -> int:
    """Microseconds in a duration such as ``10s``, ``1h30m`` or ``500ms``.

    Raises:
        ValueError: The text is no duration; the message says what is.
    """
    compact = text.replace(" ", "")
    parts = _PART.findall(compact)
    if not parts or "".join(number + unit for number, unit in parts) != compact:
        raise ValueError(f"{text!r} is no duration; write for example 500ms, 10s, 5m, 1h30m or 7d")
    return sum(int(number) * _UNITS_US[unit] for number, unit in parts)


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
