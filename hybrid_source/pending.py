"""Which partitions of the topics the unread files of a history may hold rows of, by the files' statistics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from headrace.kernel.boundary import TopicPartition
from hybrid_source.splits import HistoryFile

_WIDEST: Final = 10_000
"""A file over more partitions than this counts as one whose partitions are not known."""

_EXACT_TEXT: Final = 16
"""Writers cut the bounds of texts off at this length."""


class PendingPartitions:
    """The partitions that are left, by the number of files that have been read.

    Args:
        files: In the order in which they are read; ``bounds`` are those of the partition column and, where there are
            several topics, those of the topic column.
        topics: The topics of the source.
    """

    def __init__(self, files: Sequence[HistoryFile], topics: Sequence[str]) -> None:
        self._files = len(files)
        self._unknown = 0
        self._ends: dict[TopicPartition, int] = {}
        """By partition, how many files have been read when its last one has."""
        for count, file in enumerate(files, start=1):
            found = _partitions(file, topics)
            if found is None:
                self._unknown = count
            else:
                self._ends |= dict.fromkeys(found, count)

    def after(self, read: int) -> frozenset[TopicPartition] | None:
        """The partitions of the files that are left when some have been read whole; None: not known."""
        if read >= self._files:
            return frozenset()
        if read < self._unknown:
            return None
        return frozenset(at for at, end in self._ends.items() if end > read)


def _partitions(file: HistoryFile, topics: Sequence[str]) -> Sequence[TopicPartition] | None:
    if not file.bounds or any(bound is None for bound in file.bounds):
        return None
    (low, high), *named = [bound for bound in file.bounds if bound is not None]
    if high - low >= _WIDEST:
        return None
    topic = _topic(named, topics)
    return None if topic is None else [TopicPartition(topic, number) for number in range(int(low), int(high) + 1)]


def _topic(named: Sequence[tuple[Any, Any]], topics: Sequence[str]) -> str | None:
    if len(topics) == 1:
        return topics[0]
    if not named or named[0][0] != named[0][1] or len(str(named[0][0])) >= _EXACT_TEXT:
        return None
    return str(named[0][0])
