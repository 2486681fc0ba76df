"""Rule: the job states a time, and accepts that rows around it may come twice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from catalog.summaries import newest_note
from headrace.kafka import KafkaCluster, KafkaMetadata
from headrace.kernel.boundary import Boundary, PartitionRange, TopicBoundary
from headrace.kernel.errors import BoundaryError, GapError
from hybrid_source.boundary import layouts
from hybrid_source.boundary.coverage import check_topic
from hybrid_source.boundary.rule import BoundaryContext
from hybrid_source.iceberg_history import IcebergHistory
from hybrid_source.resolution import Resolution

VALID_THROUGH: Final = ("kafka.connect.valid-through-ts", "kafka.connect.vtts")
WATERMARK: Final = "automq.watermark"
_MS: Final = 1000


@dataclass(frozen=True, slots=True)
class TimeBoundary:
    """The tail begins at the first record that is not older than a time, less an overlap.

    Where rows of the history carry offsets, those at or above the boundary are left out, and nothing comes twice.
    Elsewhere rows younger than the begin come from both sides: at least once.

    Attributes:
        cluster: Where the topic is.
        time: The history holds every record up to it; None: the time that the writer has recorded with the pinned
            snapshot (Kafka Connect's ``valid-through-ts``, AutoMQ's ``watermark``).
        overlap: How far records may be older than others that came before them.
    """

    cluster: KafkaCluster
    time: datetime | None
    overlap: timedelta
    name: str = "time stated by the job"
    looks_for: str = "a time, stated by the job or recorded by Kafka Connect or AutoMQ"

    def resolve(self, context: BoundaryContext) -> Resolution:
        """See :class:`hybrid_source.boundary.rule.BoundaryRule`.

        Raises:
            BoundaryError: The time is to be the recorded one, and none is; or no row is of the topic.
            GapError: Records since then have been deleted.
            UnavailableError: The cluster does not answer.
        """
        time, where = (self.time, "stated by the job") if self.time is not None else _recorded(context)
        begin = time - self.overlap
        nexts = self._nexts(context, begin)
        said = ", ".join(f"{partition}: {offset}" for partition, offset in sorted(nexts.items()))
        columns = layouts.any_known(context.history.stored)
        check_topic(context, columns, nexts)
        complete = f"if the history holds every record up to {_text(time)}"
        return Resolution(
            Boundary({context.topic: TopicBoundary({number: PartitionRange(0, at) for number, at in nexts.items()})}),
            self.name,
            f"{_text(time)} {where}, less an overlap of {self.overlap}: first record since by partition {{{said}}}",
            f"exactly-once {complete}"
            if columns
            else f"at-least-once: rows younger than {_text(begin)} may come twice, none is missing {complete}",
            columns=columns,
        )

    def _nexts(self, context: BoundaryContext, begin: datetime) -> Mapping[int, int]:
        metadata, topic = KafkaMetadata(self.cluster), context.topic
        places = metadata.describe(topic).places
        found, held = metadata.at_time(places, int(begin.timestamp() * _MS)), metadata.ranges(places)
        nexts: dict[int, int] = {}
        for place in places:
            partition, at, log = place.partition, found[place], held[place]
            if log.earliest > 0 and at <= log.earliest:
                raise GapError(
                    f"topic {topic!r} partition {partition}: records since {_text(begin)} may be gone",
                    detail=f"its log begins at offset {log.earliest}, and no record that is left is older; available "
                    f"are {log.earliest} to {log.latest} (exclusive)",
                    hint="state a later time or a shorter overlap, read a newer snapshot of the history, or lengthen "
                    "the topic's retention",
                    context={
                        "topic": topic,
                        "partition": partition,
                        "wanted": _text(begin),
                        "available": [log.earliest, log.latest],
                    },
                )
            nexts[partition] = at
        return nexts


def _recorded(context: BoundaryContext) -> tuple[datetime, str]:
    history = context.history
    noted = None
    if isinstance(history, IcebergHistory):
        noted = newest_note(history.table, history.snapshot_id, _time)
    if noted is None:
        raise BoundaryError(
            f"no writer has recorded a time with the pinned version of {context.history.name}",
            detail=f"looked for {', '.join(VALID_THROUGH)} (with a value only when every partition had records) and "
            f"{WATERMARK} in the snapshot summary",
            hint="state the time (boundary: {timestamp: 2026-01-01T00:00:00Z, overlap: 5m})",
        )
    time, key = noted.value
    return time, f"recorded as {key} in snapshot {noted.snapshot_id}"


def _time(facts: Mapping[str, str]) -> tuple[datetime, str] | None:
    """The recorded time: RFC 3339, or milliseconds since the epoch."""
    for key in (*VALID_THROUGH, WATERMARK):
        text = facts.get(key, "")
        if text.isdigit():
            return datetime.fromtimestamp(int(text) / _MS, UTC), key
        try:
            found = datetime.fromisoformat(text)
        except ValueError:
            continue
        return (found if found.tzinfo else found.replace(tzinfo=UTC)), key
    return None


def _text(time: datetime) -> str:
    return time.astimezone(UTC).isoformat().replace("+00:00", "Z")
