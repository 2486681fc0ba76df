"""Numbers, times and sizes as people read them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from headrace.runtime.observer import LostOffsets

_BYTE_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_STEP: Final = 1024
_MINUTE: Final = 60
_HOUR: Final = 3600
_DAY: Final = 86400
_SHOWN_GAPS: Final = 3


def count_text(number: int) -> str:
    """``1234567`` as ``1,234,567``."""
    return f"{number:,}"


def bytes_text(nbytes: float) -> str:
    """``3145728`` as ``3.0 MiB``."""
    for unit in _BYTE_UNITS:
        if nbytes < _STEP or unit == _BYTE_UNITS[-1]:
            break
        nbytes /= _STEP
    return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"


def seconds_text(seconds: float) -> str:
    """``3700`` as ``1h01m``; for times to come, so rounded."""
    whole = round(seconds)
    if whole < _MINUTE:
        return f"{whole}s"
    if whole < _HOUR:
        return f"{whole // _MINUTE}m{whole % _MINUTE:02}s"
    if whole < _DAY:
        return f"{whole // _HOUR}h{whole % _HOUR // _MINUTE:02}m"
    return f"{whole // _DAY}d{whole % _DAY // _HOUR:02}h"


def time_text(us: int | None) -> str:
    """Event time in microseconds since the epoch as ISO 8601 with whole seconds; ``-`` for none."""
    if us is None:
        return "-"
    try:
        return datetime.fromtimestamp(us // 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return str(us)


def lost_text(lost: Sequence[LostOffsets]) -> str:
    """The gap ledger in a line: ``50 offsets: flights[0] 100 to 149``; the newest gaps."""
    total = sum(gap.next - gap.first for gap in lost)
    shown = [f"{gap.topic}[{gap.partition}] {gap.first} to {gap.next - 1}" for gap in lost[-_SHOWN_GAPS:]]
    earlier = len(lost) - len(shown)
    return f"{count_text(total)} offsets: {', '.join(shown)}" + (f", and {earlier} earlier gaps" if earlier else "")
