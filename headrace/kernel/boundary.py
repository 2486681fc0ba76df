"""The boundary between history and tail, as a value. All offsets are *next* offsets, exclusive."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, TypeVar

FORMAT_VERSION: Final = 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_T = TypeVar("_T")


class TopicPartition(NamedTuple):
    """One partition of one topic: what every offset belongs to."""

    topic: str
    partition: int


_NAMED: Final = 5


def places_text(places: Collection[TopicPartition]) -> str:
    """``clicks[0], clicks[1]``, in order; of many partitions the first five and how many more."""
    named = [f"{at.topic}[{at.partition}]" for at in sorted(places)[:_NAMED]]
    more = len(places) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")


def nested(values: Mapping[TopicPartition, _T]) -> dict[str, dict[str, _T]]:
    """Values by topic, then by partition as text, both in order: the JSON form."""
    out: dict[str, dict[str, _T]] = {}
    for (topic, partition), value in sorted(values.items(), key=lambda item: item[0]):
        out.setdefault(topic, {})[str(partition)] = value
    return out


def flat(values: Mapping[str, Mapping[str, _T]]) -> dict[TopicPartition, _T]:
    """The inverse of :func:`nested`."""
    return {
        TopicPartition(topic, int(partition)): value
        for topic, partitions in values.items()
        for partition, value in partitions.items()
    }


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """What a table covers of one topic partition: offsets ``start`` (inclusive) to ``next`` (exclusive).

    ``next`` is the consumer's position: it stands past transaction markers and compacted holes.
    """

    start: int
    next: int
    leader_epoch: int | None = None

    def __post_init__(self) -> None:
        if self.start < 0 or self.next < self.start:
            raise ValueError(f"a partition range needs 0 <= start <= next, got start={self.start}, next={self.next}")


@dataclass(frozen=True, slots=True)
class Incarnation:
    """A topic as it was before it was deleted and created again, or on another cluster. What is not known is None."""

    topic_id: str | None = None
    cluster: str | None = None


@dataclass(frozen=True, slots=True)
class TopicBoundary:
    """What a table covers of one topic.

    Attributes:
        partitions: The covered ranges, by partition.
        topic_id: The topic's id where it is known (KIP-516).
        earlier: Incarnations of the topic whose rows the table holds as well: offsets in its rows may be theirs.
    """

    partitions: Mapping[int, PartitionRange]
    topic_id: str | None = None
    earlier: tuple[Incarnation, ...] = ()


@dataclass(frozen=True, slots=True)
class Boundary:
    """For each (topic, partition) the next offset that the history does not cover (docs/boundary-format.md).

    ``watermark`` (RFC 3339, see :func:`timestamp`) is the event time below which no further row is expected.
    """

    topics: Mapping[str, TopicBoundary] = field(default_factory=dict)
    cluster: str | None = None
    watermark: str | None = None

    def next_offset(self, topic: str, partition: int) -> int | None:
        """The next offset of a partition, or None when the boundary does not know it."""
        known = self.topics.get(topic)
        found = known.partitions.get(partition) if known else None
        return found.next if found else None

    @property
    def ranges(self) -> dict[TopicPartition, PartitionRange]:
        """What is covered, by topic and partition."""
        return {
            TopicPartition(name, partition): covered
            for name, topic in self.topics.items()
            for partition, covered in topic.partitions.items()
        }

    @property
    def nexts(self) -> dict[TopicPartition, int]:
        """The next offset by topic and partition."""
        return {at: covered.next for at, covered in self.ranges.items()}

    def to_json(self) -> dict[str, Any]:
        """The public format, version 1."""
        out: dict[str, Any] = {"version": FORMAT_VERSION}
        if self.cluster is not None:
            out["cluster"] = self.cluster
        topics: dict[str, Any] = {}
        for name, topic in self.topics.items():
            ranges: dict[str, Any] = {}
            for partition, covered in sorted(topic.partitions.items()):
                entry: dict[str, Any] = {"start": covered.start, "next": covered.next}
                if covered.leader_epoch is not None:
                    entry["leader_epoch"] = covered.leader_epoch
                ranges[str(partition)] = entry
            found: dict[str, Any] = {"topic_id": topic.topic_id} if topic.topic_id else {}
            topics[name] = {**found, "partitions": ranges}
            if topic.earlier:
                topics[name]["earlier"] = [_known(incarnation) for incarnation in topic.earlier]
        out["topics"] = topics
        if self.watermark is not None:
            out["watermark"] = self.watermark
        return out

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Boundary:
        """Read the public format.

        Raises:
            ValueError: Another version, or a record that does not follow the format; the message says where.
        """
        version = value.get("version")
        if version != FORMAT_VERSION:
            raise ValueError(f"boundary record has version {version!r}; this release reads version {FORMAT_VERSION}")
        try:
            topics = {
                name: TopicBoundary(
                    {
                        int(partition): PartitionRange(
                            int(entry.get("start", 0)), int(entry["next"]), entry.get("leader_epoch")
                        )
                        for partition, entry in topic["partitions"].items()
                    },
                    topic.get("topic_id"),
                    tuple(
                        Incarnation(known.get("topic_id"), known.get("cluster")) for known in topic.get("earlier", ())
                    ),
                )
                for name, topic in value["topics"].items()
            }
            watermark = value.get("watermark")
            if watermark is not None:
                microseconds(watermark)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"boundary record does not follow the format: {error!r}") from error
        return cls(topics, value.get("cluster"), watermark)


def timestamp(us: int) -> str | None:
    """Microseconds since 1970 as RFC 3339; None outside of the years 1 to 9999, which it cannot name."""
    try:
        at = _EPOCH + timedelta(microseconds=us)
    except OverflowError:
        return None
    return at.isoformat().replace("+00:00", "Z")


def microseconds(text: str) -> int:
    """The inverse of :func:`timestamp`; any offset from UTC is understood, none stands for UTC.

    Raises:
        ValueError: The text is no timestamp.
    """
    at = datetime.fromisoformat(text)
    return ((at if at.tzinfo else at.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1)


def _known(incarnation: Incarnation) -> dict[str, str]:
    facts = {"topic_id": incarnation.topic_id, "cluster": incarnation.cluster}
    return {name: value for name, value in facts.items() if value is not None}
