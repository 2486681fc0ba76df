"""Where a bounded run ends, as people write it."""

from __future__ import annotations

from datetime import datetime
from typing import Final, Literal, TypeAlias

from headrace.kernel.errors import UserError

Until: TypeAlias = Literal["caught-up"] | datetime
"""``caught-up``: the end offsets at the start. A time (with a zone): each partition's first record at or after it."""

CAUGHT_UP: Final = "caught-up"
_CODE: Final = "UNTIL_INVALID"


def parse_until(text: str | None) -> Until | None:
    """``caught-up``, or a time as ISO 8601 with its zone; None stays None.

    Raises:
        UserError: ``UNTIL_INVALID``: it is neither.
    """
    if text is None:
        return None
    if text == CAUGHT_UP:
        return "caught-up"
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise UserError(
            f"{text!r} is no end of a run" if found is None else f"the time {text!r} has no zone",
            hint="write caught-up, or a time such as 2026-01-01T00:00:00Z",
            code=_CODE,
        )
    return found


def until_text(until: Until | None) -> str | None:
    """The inverse of :func:`parse_until`."""
    return until.isoformat() if isinstance(until, datetime) else until


def until_ms(until: datetime) -> int:
    """Milliseconds since the epoch: the first that is not before the time."""
    return -(-int(until.timestamp() * 1_000_000) // 1000)


def check_until(until: Until | None, now_us: int) -> None:
    """Refuse an end that has not come yet: what would be read until then cannot be known now.

    Raises:
        UserError: ``UNTIL_INVALID``: the time lies in the future.
    """
    if isinstance(until, datetime) and until_ms(until) * 1000 > now_us:
        raise UserError(
            f"the end {until.isoformat()} lies in the future",
            detail="a run ends at the first records at or after its end, which are looked up when it starts",
            hint="run until caught-up, or begin the run after that time",
            code=_CODE,
        )
