"""Newer versions of the table, as a way on: which of them reach beyond a position, and how they can be read."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headrace.kernel.boundary import TopicPartition
from headrace.kernel.errors import BoundaryError, DataError, GapError, SnapshotGoneError
from headrace.kernel.protocols import Json
from hybrid_source.hybrid_position import Offsets
from hybrid_source.identity import check_identities, recorded_identities
from hybrid_source.resolution import Resolution
from hybrid_source.stages import LakeStage, TopicIdentity

logger: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NewerVersion:
    """A version of the table that goes on beyond a position.

    Attributes:
        pin: The version; of an increment where ``increment``.
        resolution: Its boundary.
        ends: Where it leads: the next offset of each partition that it covers from the position on.
        ahead: Offsets from the position to there.
        increment: Its rows carry no offsets: what was appended since the last version is read, as history.
    """

    pin: Json
    resolution: Resolution
    ends: Offsets
    ahead: int
    increment: bool = False

    def closes(self, gap: GapError) -> bool:
        """Whether it leads to offsets that the topic still has, in the partition with the gap."""
        context = gap.context
        at = TopicPartition(context["topic"], context["partition"])
        # What the topic may have lost of deletions goes further than what it has lost of records.
        available = context["needed"] if "needed" in context else context["earliest"]
        return at in self.ends and self.ends[at] >= available


def reach(resolution: Resolution, nexts: Offsets) -> Offsets:
    """Where a version leads from a position: the ends of the partitions whose next offset lies in what it covers."""
    return {
        at: covered.next
        for at, covered in resolution.boundary.ranges.items()
        if at in nexts and covered.start <= nexts[at] < covered.next
    }


class LakeVersions:
    """Looks for newer versions.

    Args:
        lake: The table.
        identities: The topics, by name.
        known: The job's boundary: an offset that another rule gives is not comparable, unless this one covers nothing.
    """

    def __init__(self, lake: LakeStage, identities: Mapping[str, TopicIdentity], known: Resolution) -> None:
        self._lake = lake
        self._identities = identities
        self._known = known

    def beyond(self, since: Json, nexts: Offsets) -> NewerVersion | None:
        """The newest version, if it leads beyond a position, its rows carry offsets, and rows were only added.

        Args:
            since: The version that was read last; a change of its rows rules the newest one out.
            nexts: The position.

        Raises:
            IdentityError: It is of other topics.
            ExternalError: The catalog does not answer.
        """
        newest = self._lake.newest()
        found = self._found(newest, nexts, increment=False)
        changed = self._lake.changed(since, newest) if found is not None else ""
        if changed:
            logger.warning("the newest snapshot is not read in the place of the topic: %s", changed)
            return None
        return found

    def appended(self, since: Json, nexts: Offsets) -> NewerVersion | None:
        """What has been appended since a version, if that leads beyond a position; for rows that carry no offsets.

        Raises:
            IdentityError: It is of other topics.
            ExternalError: The catalog does not answer.
        """
        try:
            pin = self._lake.newer(since)
        except (DataError, SnapshotGoneError) as error:
            logger.warning("newer snapshots cannot be read as an increment: %s", error)
            return None
        return None if pin is None else self._found(pin, nexts, increment=True)

    @property
    def _topics(self) -> Sequence[str]:
        return tuple(self._identities)

    def _found(self, pin: Json, nexts: Offsets, *, increment: bool) -> NewerVersion | None:
        try:
            resolution = self._lake.resolve(pin, self._topics)
        except BoundaryError as error:
            logger.warning("the newest snapshot gives no boundary: %s", error)
            return None
        if resolution.rule != self._known.rule and self._known.boundary.ranges:
            return None
        if not increment and self._lake.refuses_replay(resolution):
            return None
        check_identities(recorded_identities(resolution.boundary), self._identities)
        ends = reach(resolution, nexts)
        ahead = sum(end - nexts[at] for at, end in ends.items())
        if not ahead or (increment and not _follows(resolution, nexts)):
            return None
        return NewerVersion(pin, resolution, ends, ahead, increment)


def _follows(resolution: Resolution, nexts: Offsets) -> bool:
    """Whether a version covers every partition from a position on: what was appended then is all that lies between."""
    ranges = resolution.boundary.ranges
    known = all(at in ranges and ranges[at].next >= offset for at, offset in nexts.items() if offset)
    return known and all(covered.start <= nexts.get(at, 0) for at, covered in ranges.items())
