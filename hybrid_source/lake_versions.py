"""Newer versions of the table, as a way on: which of them reach beyond a position, and how they can be read."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headrace.kernel.boundary import TopicPartition
from headrace.kernel.errors import BoundaryError, DataError, GapError, SnapshotGoneError
from headrace.kernel.protocols import Json
from hybrid_source.gaps import gap_error, gaps_of
from hybrid_source.history_protocols import LakeStage
from hybrid_source.identity import check_identities, recorded_identities
from hybrid_source.resolution import Resolution, naming
from hybrid_source.run_ends import Offsets, RunEnds
from hybrid_source.source_values import TopicIdentity

logger: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NewerVersion:
    """A version of the table that goes on beyond a position.

    Attributes:
        pin: The version; of an increment where ``increment``.
        resolution: Its boundary.
        ends: Where it leads: the next offset of each partition that it covers from the position on.
        ahead: Offsets from the position to there, as far as the run wants them.
        increment: Its rows carry no offsets: what was appended since the last version is read, as history.
        bound: Where a bounded run ends; None: the run has no end.
    """

    pin: Json
    resolution: Resolution
    ends: Offsets
    ahead: int
    increment: bool = False
    bound: RunEnds | None = None

    @property
    def passes(self) -> bool:
        """It leads beyond the end of the run."""
        return self.bound is not None and self.bound.within(self.ends) != self.ends

    def leaves(self, gap: GapError) -> GapError | None:
        """What of a gap it does not close: where it leads neither to what the topic still has, nor to the run's end."""
        gaps = gaps_of(gap)
        if not gaps:
            # What the topic may have lost of deletions goes further than what it has lost of records.
            at = TopicPartition(gap.context["topic"], gap.context["partition"])
            return None if self._leads(at, gap.context["needed"]) else gap
        left = [one for one in gaps if not self._leads(one.at, one.earliest)]
        return gap if len(left) == len(gaps) else gap_error(left) if left else None

    def _leads(self, at: TopicPartition, to: int) -> bool:
        wanted = to if self.bound is None else min(to, self.bound.ends.get(at, 0))
        return at in self.ends and self.ends[at] >= wanted


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
        bound: Where a bounded run ends; None: the run has no end.
    """

    def __init__(
        self,
        lake: LakeStage,
        identities: Mapping[str, TopicIdentity],
        known: Resolution,
        bound: RunEnds | None = None,
    ) -> None:
        self._lake = lake
        self._bound = bound
        self._identities = identities
        self._known = known
        self.found = "nothing newer"
        """What the last look found, for people: why it gave no version, or how far the one goes that it gave."""

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
            self.found = f"the newest snapshot is not read in the place of the topic: {changed}"
            logger.warning("%s", self.found)
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
            self.found = f"newer snapshots cannot be read as an increment: {error.message}"
            logger.warning("newer snapshots cannot be read as an increment: %s", error)
            return None
        return None if pin is None else self._found(pin, nexts, increment=True)

    @property
    def _topics(self) -> Sequence[str]:
        return tuple(self._identities)

    def _found(self, pin: Json, nexts: Offsets, *, increment: bool) -> NewerVersion | None:
        try:
            resolution = self._lake.resolve(pin, self._topics)
        except (BoundaryError, GapError) as error:
            self.found = f"the newest snapshot gives no boundary: {error.message}"
            logger.warning("the newest snapshot gives no boundary: %s", error)
            return None
        if resolution.rule != self._known.rule and self._known.boundary.ranges:
            self.found = (
                f"the newest snapshot has a boundary by rule {resolution.rule!r}, which cannot be compared with one by "
                f"rule {self._known.rule!r}"
            )
            return None
        refused = "" if increment else self._lake.refuses_replay(resolution)
        if refused:
            self.found = f"the table cannot stand in for the topic: {refused}"
            return None
        with naming(lambda: resolution):
            check_identities(recorded_identities(resolution.boundary), self._identities)
        ends = reach(resolution, nexts)
        covers = ", ".join(f"{at.topic}[{at.partition}] up to {end}" for at, end in sorted(ends.items()))
        self.found = f"the newest snapshot covers {covers or 'no wanted offset'} by rule {resolution.rule!r}"
        behind = {at: held.start for at, held in resolution.boundary.ranges.items() if held.start > nexts.get(at, 0)}
        if behind and not ends:
            self.found += f", and begins at {', '.join(f'{at.topic}[{at.partition}] {n}' for at, n in behind.items())}"
        wanted = ends if self._bound is None else self._bound.within(ends)
        ahead = sum(max(0, end - nexts[at]) for at, end in wanted.items())
        if not ahead or (increment and not _follows(resolution, nexts)):
            return None
        return NewerVersion(pin, resolution, ends, ahead, increment, self._bound)


def _follows(resolution: Resolution, nexts: Offsets) -> bool:
    """Whether a version covers every partition from a position on: what was appended then is all that lies between."""
    ranges = resolution.boundary.ranges
    known = all(at in ranges and ranges[at].next >= offset for at, offset in nexts.items() if offset)
    return known and all(covered.start <= nexts.get(at, 0) for at, covered in ranges.items())
