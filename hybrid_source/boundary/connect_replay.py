"""Rule: replay of the control topic of Iceberg's Kafka Connect sink, for tables whose rows carry no offsets."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from catalog.summaries import Noted, newest_note
from headrace.kafka import KafkaCluster, KafkaMetadata
from headrace.kernel.boundary import Boundary, PartitionRange, TopicBoundary
from headrace.kernel.errors import BoundaryError, NotFoundError
from hybrid_source.boundary import layouts
from hybrid_source.boundary.connect_events import DATA_COMPLETE, ControlEvent, decode_event
from hybrid_source.boundary.control_topic import read_range
from hybrid_source.boundary.rule import BoundaryContext, Unusable
from hybrid_source.iceberg_history import IcebergHistory
from hybrid_source.resolution import Resolution

OFFSETS: Final = ("kafka.connect.offsets.", "kafka.connect.control.offsets.")
"""The property's prefix, and the one of Tabular's first releases; the control topic and the group follow."""

COMMIT_ID: Final = ("kafka.connect.commit-id", "kafka.connect.commitId")


@dataclass(frozen=True, slots=True)
class ControlOffsets:
    """What a snapshot summary says of the control topic.

    Attributes:
        suffix: Control topic and group, joined by a dot; both may hold dots.
        nexts: Next offset of the control topic by its partition: all events below it are in the table.
        commit_id: The commit, or None.
    """

    suffix: str
    nexts: Mapping[int, int]
    commit_id: str | None


@dataclass(frozen=True, slots=True)
class ConnectReplay:
    """Source offsets from the ``DataComplete`` events of the control topic that the pinned snapshot has taken in.

    The summary says up to which offsets of the *control* topic the coordinator had read when it committed. A worker
    writes its files' events and the ``DataComplete`` with its source offsets in one transaction, so every such event
    below those offsets is of data that the table holds. The connector's consumer group is never asked: it is committed
    with the events, hence ahead of the table, and as a boundary would lose rows.

    Attributes:
        cluster: Where the control topic is.
        source: Where the source topic is; None: there, too.
        control_topic: Its name; None: taken from the property.
        group: The connector's group, likewise.
        required: The job asks for this rule: what stands in its way is an error.
    """

    cluster: KafkaCluster
    control_topic: str | None = None
    group: str | None = None
    source: KafkaCluster | None = None
    required: bool = False
    name: str = "control topic of Kafka Connect"
    looks_for: str = f"{OFFSETS[0]}<control topic>.<group> in the snapshot summary"

    def resolve(self, context: BoundaryContext) -> Resolution | Unusable | None:
        """See :class:`hybrid_source.boundary.rule.BoundaryRule`.

        Raises:
            BoundaryError: An event cannot be read; or the job asks for this rule and it gives no boundary.
            UnavailableError: The cluster does not answer.
        """
        found = self._resolve(context)
        if self.required and not isinstance(found, Resolution):
            raise BoundaryError(
                f"the control topic of Kafka Connect gives no boundary between {context.history.name} and topic "
                f"{context.topic}",
                detail=found.why if found else f"not there: {self.looks_for}",
                hint="name control topic and group (boundary: {connect: {control_topic: ..., group: ...}}), let the "
                "connector add the metadata transform, or give the next offsets (boundary: {offsets: ...})",
            )
        return found

    def _resolve(self, context: BoundaryContext) -> Resolution | Unusable | None:
        history = context.history
        if not isinstance(history, IcebergHistory):
            return None
        noted = newest_note(history.table, history.snapshot_id, _control_offsets)
        if noted is None:
            return None
        metadata = KafkaMetadata(self.cluster)
        names = self._names(noted.value, metadata)
        if isinstance(names, Unusable):
            return names
        topic, group = names
        held = {at.partition: log for at, log in metadata.ranges(metadata.describe(topic).places).items()}
        for partition, following in noted.value.nexts.items():
            if partition not in held or following > held[partition].latest:
                end = held[partition].latest if partition in held else 0
                return Unusable(
                    f"snapshot {noted.snapshot_id} has read control topic {topic} partition {partition} up to "
                    f"{following}, but it ends at {end}: it was created again"
                )
        starts = {partition: held[partition].earliest for partition in noted.value.nexts}
        events = list(self._events(topic, group, starts, noted.value.nexts))
        nexts = _source_nexts(events, context.topic)
        truncated = {partition: start for partition, start in starts.items() if start > 0}
        if truncated:
            wanted = KafkaMetadata(self.source or self.cluster).describe(context.topic).partitions
            missing = [partition for partition in wanted if partition not in nexts]
            if missing:
                return Unusable(
                    f"control topic {topic} begins at {_offsets(truncated)}: no event is left that says how far topic "
                    f"{context.topic} partition {missing[0]} was read"
                )
        ranges = {partition: PartitionRange(0, following) for partition, following in sorted(nexts.items())}
        return Resolution(
            Boundary({context.topic: TopicBoundary(ranges)}),
            self.name,
            _evidence(topic, group, noted, events, nexts),
            "exactly-once"
            + (" if rows that others added since are not of this topic" if noted.foreign_changes else ""),
            columns=layouts.any_known(history.stored),
        )

    def _names(self, found: ControlOffsets, metadata: KafkaMetadata) -> tuple[str, str] | Unusable:
        """Control topic and group: as the job says, else the one way to cut the suffix that names a topic."""
        parts = found.suffix.split(".")
        cuts = [(".".join(parts[:at]), ".".join(parts[at:])) for at in range(1, len(parts))]
        fitting = [
            (topic, group)
            for topic, group in cuts
            if self.control_topic in (None, topic) and self.group in (None, group) and _exists(topic, metadata)
        ]
        if len(fitting) == 1:
            return fitting[0]
        if not fitting:
            return Unusable(
                f"no control topic of {OFFSETS[0]}{found.suffix} is on cluster {self.cluster.name}; it may be on "
                "another (boundary: {connect: {cluster: ...}})"
            )
        return Unusable(
            f"{OFFSETS[0]}{found.suffix} may name several control topics: "
            + ", ".join(topic for topic, _ in fitting)
            + "; name it (boundary: {connect: {control_topic: ..., group: ...}})"
        )

    def _events(
        self, topic: str, group: str, starts: Mapping[int, int], ends: Mapping[int, int]
    ) -> Iterator[ControlEvent]:
        for partition, offset, value in read_range(self.cluster, topic, starts, ends):
            try:
                event = decode_event(value)
            except ValueError as error:
                raise BoundaryError(
                    f"control topic {topic!r} holds a record that is no event of Kafka Connect's sink",
                    detail=f"partition {partition} offset {offset}: {error}",
                    hint="name another control topic (boundary: {connect: {control_topic: ...}}), or give the next "
                    "offsets (boundary: {offsets: ...})",
                    code="BOUNDARY_UNREADABLE",
                    context={"topic": topic, "partition": partition, "offset": offset},
                ) from error
            if event.group == group:
                yield event


def _control_offsets(facts: Mapping[str, str]) -> ControlOffsets | None:
    for key, value in facts.items():
        prefix = next((prefix for prefix in OFFSETS if key.startswith(prefix)), None)
        if prefix is None:
            continue
        try:
            nexts = {int(partition): int(following) for partition, following in json.loads(value).items()}
        except (ValueError, TypeError, AttributeError):
            continue
        commit = next((facts[name] for name in COMMIT_ID if name in facts), None)
        return ControlOffsets(key.removeprefix(prefix), nexts, commit)
    return None


def _exists(topic: str, metadata: KafkaMetadata) -> bool:
    try:
        metadata.describe(topic)
    except NotFoundError:
        return False
    return True


def _source_nexts(events: Sequence[ControlEvent], topic: str) -> Mapping[int, int]:
    nexts: dict[int, int] = {}
    for event in events:
        for source in event.offsets if event.type == DATA_COMPLETE else ():
            if source.topic == topic and source.next is not None:
                nexts[source.partition] = max(source.next, nexts.get(source.partition, 0))
    return nexts


def _evidence(
    topic: str, group: str, noted: Noted[ControlOffsets], events: Sequence[ControlEvent], nexts: Mapping[int, int]
) -> str:
    complete = [event for event in events if event.type == DATA_COMPLETE]
    text = (
        f"{len(complete)} DataComplete events of group {group} in control topic {topic} below "
        f"{_offsets(noted.value.nexts)}, which snapshot {noted.snapshot_id} has taken in: "
        f"next offset by partition {{{_offsets(nexts)}}}"
    )
    commit = noted.value.commit_id
    if commit is not None:
        mine = sum(event.commit_id == commit for event in complete)
        text += f"; {mine} of them are of its commit {commit}"
    return "; ".join([text, *map(str, noted.foreign_changes)])


def _offsets(nexts: Mapping[int, int]) -> str:
    return ", ".join(f"{partition}: {following}" for partition, following in sorted(nexts.items()))
