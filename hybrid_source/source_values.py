"""What both halves of a hybrid source speak of: event time, topics, and the edges of time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

END_OF_HISTORY: Final = 2**63 - 1
"""The history's watermark once every row of it has been handed out."""

BEFORE_ALL: Final = -(2**63)
"""A limit below every event time: a watermark that is held there stays unknown."""

EXACTLY_ONCE: Final = "exactly-once"


@dataclass(frozen=True, slots=True)
class EventTime:
    """How a source keeps time.

    Attributes:
        column: The event-time column.
        out_of_orderness_us: How far a row may lie behind an earlier one of its partition.
        idle_us: A partition at its end that has been silent this long no longer holds the watermark; None: never.
        max_drift_us: A partition of the tail waits while its largest event time is further ahead of that of the slowest
            one that is not at its end; None: no limit.
    """

    column: str
    out_of_orderness_us: int = 0
    idle_us: int | None = None
    max_drift_us: int | None = None


@dataclass(frozen=True, slots=True)
class TopicIdentity:
    """Which topic of which cluster, beyond their names."""

    topic: str
    topic_id: str | None
    cluster_id: str | None
