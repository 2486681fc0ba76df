"""Headrace's own boundary record in a table (docs/boundary-format.md).

Where it stands, written atomically with the rows it speaks of:

* ``headrace.boundary`` in the snapshot's summary: the record as JSON, or, beyond 4 KB, ``{"version": 1, "file": ...,
  "sha256": ...}`` that names a file beside the table's metadata.
* The same text mirrored in the table property ``headrace.boundary``, with the snapshot it belongs to in
  ``headrace.boundary-snapshot-id`` and that snapshot's sequence number in ``headrace.boundary-sequence-number``.
* The tag ``headrace-boundary`` at that snapshot, so that expiry spares it.

A record belongs to its snapshot: after a rollback of the table the mirror is void.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from catalog.ancestry import Ancestry
from catalog.errors import mapping
from catalog.summaries import ForeignChange, foreign_change, integer, newest_note
from headrace.kernel.boundary import FORMAT_VERSION, Boundary, Incarnation, PartitionRange, TopicBoundary, microseconds
from headrace.kernel.errors import BoundaryError

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table

BOUNDARY: Final = "headrace.boundary"
SNAPSHOT_ID: Final = "headrace.boundary-snapshot-id"
SEQUENCE_NUMBER: Final = "headrace.boundary-sequence-number"
TAG: Final = "headrace-boundary"
INLINE_LIMIT: Final = 4096

Where = Literal["snapshot summary", "table property", "table property, ancestors expired"]


@dataclass(frozen=True, slots=True)
class FoundBoundary:
    """A boundary record and the evidence for it.

    Attributes:
        boundary: The record.
        snapshot_id: The snapshot it was committed with: the pinned one or an ancestor of it.
        where: Where it was found.
        foreign_changes: Snapshots after the record's, up to the pinned one, that changed rows without saying what
            they cover. Compaction (``replace``) is none.
        proven: The record's snapshot is known to be an ancestor. False when expiry has cut the line between them and
            only sequence numbers speak for it.
    """

    boundary: Boundary
    snapshot_id: int
    where: Where
    foreign_changes: tuple[ForeignChange, ...] = ()
    proven: bool = True


def find_boundary(table: Table, snapshot_id: int | None) -> FoundBoundary | None:
    """The boundary that holds for a snapshot.

    The snapshot itself and its ancestors are asked, newest first; so a record of a rolled-back snapshot, or of another
    branch, is never found. When expiry has removed the ancestor, the mirrored property serves if it can be theirs.

    Args:
        table: The table.
        snapshot_id: The pinned snapshot; None for a table without snapshots.

    Returns:
        The record, or None when there is none.

    Raises:
        BoundaryError: There is a record, but it cannot be read (``BOUNDARY_UNREADABLE``).
        HeadraceError: The storage failed while a record's file was read.
    """
    noted = newest_note(table, snapshot_id, lambda facts: facts.get(BOUNDARY))
    if noted is not None:
        return FoundBoundary(read(table.io, noted.value), noted.snapshot_id, "snapshot summary", noted.foreign_changes)
    return _from_property(table, Ancestry.of(table.metadata, snapshot_id))


def _from_property(table: Table, line: Ancestry) -> FoundBoundary | None:
    properties = table.metadata.properties
    text, owner = properties.get(BOUNDARY), integer(properties.get(SNAPSHOT_ID))
    if text is None or owner is None:
        return None
    foreign = tuple(change for snapshot in line.snapshots if (change := foreign_change(snapshot)))
    if owner in line or line.dangling == owner:
        return FoundBoundary(read(table.io, text), owner, "table property", foreign)
    if line.may_precede(owner, integer(properties.get(SEQUENCE_NUMBER))):
        boundary = read(table.io, text)
        return FoundBoundary(boundary, owner, "table property, ancestors expired", foreign, proven=False)
    return None


def write(table: Table, boundary: Boundary) -> str:
    """The text for ``headrace.boundary``: the record, or a reference to a file that is written here.

    The file's name holds its digest: writing it twice does no harm. Table buckets take only the extensions
    of Iceberg's own files, hence that of statistics.
    """
    text = json.dumps(boundary.to_json(), separators=(",", ":"), sort_keys=True)
    content = text.encode()
    if len(content) <= INLINE_LIMIT:
        return text
    digest = hashlib.sha256(content).hexdigest()
    location = table.location_provider().new_metadata_location(f"headrace-boundary-{digest[:32]}.stats")
    with (
        mapping(f"write boundary file {location}"),
        table.io.new_output(location).create(overwrite=True) as stream,
    ):
        stream.write(content)
    return json.dumps({"version": FORMAT_VERSION, "file": location, "sha256": digest}, separators=(",", ":"))


def read(file_io: FileIO, text: str) -> Boundary:
    """Read a record from its text in a summary or property.

    Raises:
        BoundaryError: It does not follow the format, is of another version, or its file is not the one recorded.
    """
    try:
        value = json.loads(text)
        if isinstance(value, dict) and "file" in value:
            value = _read_file(file_io, value)
        return Boundary.from_json(value)
    except (ValueError, TypeError, AttributeError) as error:
        raise BoundaryError(
            "a boundary record of the table cannot be read",
            detail=str(error),
            hint="set it anew with `headrace boundary set`, or state the boundary in the job",
            code="BOUNDARY_UNREADABLE",
        ) from error


def _read_file(file_io: FileIO, reference: Mapping[str, Any]) -> Any:
    location = str(reference["file"])
    with mapping(f"read boundary file {location}"), file_io.new_input(location).open() as stream:
        content = stream.read()
    if hashlib.sha256(content).hexdigest() != reference.get("sha256"):
        raise ValueError(f"the file {location} does not have the recorded digest")
    return json.loads(content)


def properties(text: str, snapshot_id: int, sequence_number: int) -> dict[str, str]:
    """The table properties that mirror a record."""
    return {BOUNDARY: text, SNAPSHOT_ID: str(snapshot_id), SEQUENCE_NUMBER: str(sequence_number)}


def merged(earlier: Boundary | None, ours: Boundary, *, restate: bool = False) -> Boundary:
    """``ours``, with the topics and partitions that only ``earlier`` knows.

    Several jobs may archive into one table, and an append takes away nothing that an earlier one covered. Ranges of a
    topic that was recreated, or that is on another cluster now, are not carried on: its former incarnation is listed
    as ``earlier`` instead. Ranges of one partition that touch become one, so that a slower second archiver never takes
    ``next`` back; of two that do not, the later one stands. With ``restate`` somebody says anew what is covered, and
    the ranges of ``ours`` stand as they are. While other topics feed the table, too, event time has come as far as the
    slowest of the records says.
    """
    if earlier is None:
        return ours
    moved = bool(earlier.cluster and ours.cluster and earlier.cluster != ours.cluster)
    topics = {} if moved else dict(earlier.topics)
    for name, topic in ours.topics.items():
        before = earlier.topics.get(name)
        if before is None:
            topics[name] = topic
            continue
        if moved or (before.topic_id and topic.topic_id and before.topic_id != topic.topic_id):
            was = Incarnation(before.topic_id, earlier.cluster)
            topics[name] = replace(topic, earlier=_distinct(*before.earlier, was, *topic.earlier))
            continue
        joined = {
            number: _joined(before.partitions.get(number), covered) for number, covered in topic.partitions.items()
        }
        topics[name] = TopicBoundary(
            {**before.partitions, **(topic.partitions if restate else joined)},
            topic.topic_id or before.topic_id,
            _distinct(*before.earlier, *topic.earlier),
        )
    watermark = ours.watermark if topics.keys() <= ours.topics.keys() else _slower(earlier.watermark, ours.watermark)
    return replace(ours, topics=topics, cluster=ours.cluster or earlier.cluster, watermark=watermark)


def _slower(one: str | None, other: str | None) -> str | None:
    return None if one is None or other is None else min(one, other, key=microseconds)


def forgotten(record: Boundary, topic: str, now: Incarnation) -> Boundary:
    """A record that covers nothing of a topic as it is now; what it covered becomes an earlier incarnation.

    Raises:
        KeyError: The record does not know the topic.
    """
    before = record.topics[topic]
    was = Incarnation(before.topic_id, record.cluster)
    fresh = TopicBoundary({}, now.topic_id, _distinct(*before.earlier, was))
    others = {} if now.cluster and record.cluster and now.cluster != record.cluster else dict(record.topics)
    return replace(record, topics={**others, topic: fresh}, cluster=now.cluster or record.cluster, watermark=None)


def _distinct(*incarnations: Incarnation) -> tuple[Incarnation, ...]:
    return tuple(dict.fromkeys(incarnations))


def _joined(before: PartitionRange | None, ours: PartitionRange) -> PartitionRange:
    if before is None:
        return ours
    later = max(before, ours, key=lambda covered: covered.next)
    touching = ours.start <= before.next and before.start <= ours.next
    return replace(later, start=min(before.start, ours.start)) if touching else later
