"""Where a source goes when the lake has been read to a boundary: to the topic, or to a newer version of the table."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from headrace.kernel.errors import ExternalError, GapError, HeadraceError, InternalError
from headrace.kernel.protocols import ReadRequest
from hybrid_source.gaps import looked_for, wanted_of
from hybrid_source.history_sequence import last_stage
from hybrid_source.hybrid_opening import open_tail, wanted_tail
from hybrid_source.hybrid_position import HybridPosition
from hybrid_source.lake_versions import LakeVersions, NewerVersion
from hybrid_source.run_ends import Offsets
from hybrid_source.tail_protocols import OpenTail, TailStage

if TYPE_CHECKING:
    from hybrid_source.hybrid import HybridSource

logger: Final = logging.getLogger(__name__)

NOT_ASKED: Final = "nothing, as it is not to be asked"
"""What the lake says of a gap where the job has none, or wants no chase and no switch back."""


@dataclass(frozen=True, slots=True)
class Way:
    """One of them: an open topic, or a newer version of the table.

    Attributes:
        tail: The open topic.
        newer: The version.
        found: Partitions that the position does not know, and that it begins with, too: their next offsets.
    """

    tail: OpenTail | None = None
    newer: NewerVersion | None = None
    found: Offsets = field(default_factory=dict)


class WaysOn:
    """Finds the way on.

    Args:
        source: The source.
        tail: Its tail, to which every gap is an error where the lake may have what is gone.
        request: What is read of it.
    """

    def __init__(self, source: HybridSource, tail: TailStage | None, request: ReadRequest) -> None:
        self._source = source
        self._tail = tail
        self._request = request
        self._ahead: Way | None = None
        self._found = NOT_ASKED

    def prepare(self, at: HybridPosition, opened: OpenTail | None) -> None:
        """Find the way on while the last rows are still being processed, as :meth:`take` will want it.

        What stands in the way is no reason to stop yet: it is looked for again when it is due.

        Raises:
            InternalError: A fault of Headrace, which no second look mends.
        """
        if self._tail is None:
            return  # the end of the history is the end
        try:
            self._ahead = self.find(at, opened)
        except InternalError:
            raise
        except HeadraceError as error:
            logger.warning("the way on is not open yet, and is looked for again at the end: %s", error)

    def forget(self) -> None:
        """What was prepared is no longer to be taken, and whoever asked for it closes the tail that it may hold."""
        self._ahead = None

    def take(self, at: HybridPosition, opened: OpenTail | None) -> tuple[Way, HybridPosition]:
        """The way on, and the position that it begins at: behind the gaps that the lake does not close.

        What the topic has lost of partitions that were added to it meanwhile is wanted of the lake, too.

        Raises:
            GapError: There are such gaps, under ``on_gap: fail``.
        """
        way, self._ahead = self._ahead, None
        while way is None:
            try:
                way = self.find(at, opened)
            except GapError as gap:
                at = self.skip(at, gap)
        return way, self._knowing(at, way.found)

    def skip(self, at: HybridPosition, gap: GapError) -> HybridPosition:
        """The position behind a gap that the lake does not close.

        Raises:
            GapError: Under ``on_gap: fail``.
        """
        return replace(at, tail=wanted_tail(self._source, self._source.tail).skip(at.tail, self.looked_for(gap)))

    def looked_for(self, gap: GapError) -> GapError:
        """A gap that the lake does not close, with what the last look there has found."""
        return looked_for(gap, self._found) if self._source.lake is not None else gap

    def close(self) -> None:
        """Close a tail that was opened ahead."""
        if self._ahead is not None and self._ahead.tail is not None:
            self._ahead.tail.close()

    def find(self, at: HybridPosition, opened: OpenTail | None) -> Way:
        """The way on from a position at the end of what is read of the lake.

        Args:
            at: The position.
            opened: The tail, where some partitions are live already.

        Raises:
            GapError: The topic no longer has the next offsets, and no version of the table has them.
        """
        tail = wanted_tail(self._source, self._tail)
        policy = self._source.policy
        newer = self.newer_if_reachable(at) if policy.chase else None
        # Rows without offsets come by whole increments: one that leads beyond the end of the run is for who must.
        if newer is not None and newer.ahead >= policy.worthwhile and not (newer.increment and newer.passes):
            return Way(newer=newer)
        if opened is not None:
            return Way(opened)
        try:
            return Way(open_tail(tail, self._request, at))
        except GapError as gap:
            found = wanted_of(gap)
            if self._source.may_look_back and (newer is None or newer.leaves(gap) is not None):
                newer = self.newer(self._knowing(at, found))
            left = gap if newer is None else newer.leaves(gap)
            if left is not None:
                raise self.looked_for(left) from gap
            return Way(newer=newer, found=found)

    def closing(self, at: HybridPosition, gap: GapError) -> tuple[NewerVersion | None, HybridPosition]:
        """The newest version of the table, for what a topic has lost, and the position with all that was wanted."""
        at = self._knowing(at, wanted_of(gap))
        return self.newer(at), at

    def newer_if_reachable(self, at: HybridPosition) -> NewerVersion | None:
        """As :meth:`newer`, for where nothing compels to: a catalog that does not answer now is no reason to stop."""
        try:
            return self.newer(at)
        except ExternalError as error:
            logger.warning("newer snapshots cannot be looked for now: %s", error)
            return None

    def _knowing(self, at: HybridPosition, found: Offsets) -> HybridPosition:
        return replace(at, tail=wanted_tail(self._source, self._tail).knowing(at.tail, found)) if found else at

    def newer(self, at: HybridPosition) -> NewerVersion | None:
        """The newest version of the table, if it leads beyond a position."""
        lake = self._source.lake
        if lake is None or at.resolution is None or self._source.history is None:
            return None
        nexts = wanted_tail(self._source, self._tail).offsets(at.tail)
        versions = LakeVersions(lake, at.identities or {}, at.resolution, at.bound)
        since = last_stage(self._source.history, at.pin)[1]
        found = versions.beyond(since if at.lake is None else at.lake.pin, nexts)
        # What the job's condition leaves out of an increment the topic would have given.
        if found is None and at.phase == "history" and not at.live and lake.where is None:
            found = versions.appended(since, nexts)
        self._found = versions.found
        return found
