"""The history of a hybrid source as protocols: a bounded stage over pinned versions of a table or of files.

The handover (:mod:`hybrid_source.hybrid`) is written against these and :mod:`hybrid_source.tail_protocols`, so that the
same state machine runs over Iceberg and Kafka in production and over scripted stages in property tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import polars as pl

from headrace.kernel.boundary import Boundary, TopicPartition
from headrace.kernel.clock import Clock
from headrace.kernel.protocols import Json, ReadRequest
from hybrid_source.resolution import OffsetNames, Resolution
from hybrid_source.source_values import EventTime
from hybrid_source.tail_protocols import Replay


@dataclass(frozen=True, slots=True)
class HistoryBatch:
    """One split of the history.

    Attributes:
        scan: Gives the lazy rows with the requested columns, the predicate applied. May be called in any thread, in any
            order.
        cursor: Where the history stands after it (next, not last).
        watermark: No later split has an event time below it (microseconds); None: unknown.
        records: Rows before the predicate.
        nbytes: Bytes of the split.
        files: Its data files, for messages.
    """

    scan: Callable[[], pl.LazyFrame]
    cursor: Json
    watermark: int | None
    records: int
    nbytes: int
    files: Sequence[str] = ()

    @property
    def rows(self) -> pl.LazyFrame:
        """The lazy rows.

        Raises:
            SnapshotGoneError: A file of them is gone.
        """
        return self.scan()


class OpenHistory(Protocol):
    """A planned history over one pinned version of the table."""

    def read(self, cursor: Json) -> Iterator[HistoryBatch]:
        """The splits from ``cursor`` (None: the start) on, in a total order that only the pinned version decides."""

    def watermark(self, cursor: Json) -> int | None:
        """No row at or after ``cursor`` has an event time at or below it (microseconds); None: unknown."""

    def pending(self, cursor: Json) -> frozenset[TopicPartition] | None:
        """The partitions of the topics that rows at or after ``cursor`` may come from; empty when no row is left.

        Returns:
            None where that is not known: it may be any.
        """

    def fraction(self, cursor: Json) -> float:
        """The part of the history that is done at ``cursor``, 0 to 1."""

    @property
    def records(self) -> int:
        """Rows of the whole history as planned, before the predicate; 0 where the writer did not say."""


class HistoryStage(Protocol):
    """Where history comes from."""

    def pin(self) -> Json:
        """Decide which version is read; raises when there is none such."""

    def resolve(self, pin: Json, topics: Sequence[str]) -> Resolution:
        """The boundary of some topics that belongs to the pinned version.

        Returns:
            One resolution, whose boundary has all of these topics and no others.

        Raises:
            BoundaryError: No rule gives one.
        """

    def extents(self, pin: Json, topics: Sequence[str], columns: OffsetNames | None) -> Boundary | None:
        """For each partition of some topics that rows of the pinned version come from, their lowest to highest offset.

        Args:
            pin: The version.
            topics: The topics; empty: whichever rows name.
            columns: Where rows carry their offsets, if that is known from a version of the same history.

        Returns:
            None where rows carry no offsets.
        """

    def open(self, request: ReadRequest, pin: Json, resolution: Resolution | None) -> OpenHistory:
        """Plan the pinned version.

        Args:
            request: Columns and predicate.
            pin: What :meth:`pin` returned, maybe in an earlier process.
            resolution: What :meth:`resolve` returned for it, maybe in an earlier process; None without a tail.

        Raises:
            SnapshotGoneError: The pinned version is no longer there.
        """


@dataclass(frozen=True, slots=True)
class LaterRows:
    """Rows that a later stage of a history gives, and an earlier one therefore leaves out.

    Attributes:
        begins: By partition, the lowest of their offsets, as ``next``.
        where: Holds for each of them.
    """

    begins: Boundary
    where: pl.Expr


class LakeStage(HistoryStage, Protocol):
    """A history whose table grows: newer versions of it can be read later on."""

    @property
    def where(self) -> pl.Expr | None:
        """Only rows for which it holds are given; None: all."""

    def open(
        self, request: ReadRequest, pin: Json, resolution: Resolution | None, *, later: Sequence[LaterRows] = ()
    ) -> OpenHistory:
        """See :meth:`HistoryStage.open`.

        Args:
            request: Columns and predicate.
            pin: The version.
            resolution: Its boundary.
            later: What later stages give; it takes offset columns in the resolution.
        """

    def offset_columns(self, pin: Json, topics: Sequence[str], known: OffsetNames | None) -> OffsetNames | None:
        """The columns of a version that carry its rows' offsets, for a stage that does not meet the tail.

        Args:
            pin: The version.
            topics: The topics that must be told apart; empty: whichever there are.
            known: Those of a later stage, which it may have as well.
        """

    def spans(
        self, pin: Json, topics: Sequence[str], columns: OffsetNames | None
    ) -> Mapping[TopicPartition, Sequence[tuple[int, int]]] | None:
        """The offsets between which files of a version have rows, by partition, where statistics alone tell.

        Args:
            pin: The version.
            topics: The topics.
            columns: As for :meth:`extents`.

        Returns:
            Ranges from (inclusive) and to (exclusive), in their order; None where statistics do not tell.
        """

    def unplaced(self, pin: Json, columns: OffsetNames) -> int:
        """How many rows of a version that the job wants have no partition or no offset."""

    def at_offsets(
        self,
        pin: Json,
        topics: Sequence[str],
        columns: OffsetNames | None,
        window: Mapping[TopicPartition, tuple[int, int]],
        where: pl.Expr | None,
    ) -> pl.DataFrame | None:
        """Rows of a version by their offsets: the event time, or all plain columns, and topic, partition and offset.

        Args:
            pin: The version.
            topics: The topics.
            columns: Where rows carry their offsets, if that is known from a later stage.
            window: Offsets by partition, from (inclusive) and to (exclusive).
            where: Only rows for which it holds, too.

        Returns:
            None where rows carry no offsets.
        """

    def newest(self) -> Json:
        """The pin of the version that is the newest now, whichever the job began with."""

    def newer(self, pin: Json) -> Json:
        """The pin of what has been appended since a pinned version; None: nothing, or it cannot be told apart.

        The boundary of such an increment is that of the whole version it leads to.

        Raises:
            DataError: Rows were changed or deleted since.
        """

    def changed(self, pin: Json, newest: Json) -> str:
        """What has changed or deleted rows between two versions, so that the later one is not the first with more rows.

        Args:
            pin: The first.
            newest: What :meth:`newest` returned.

        Returns:
            For people; empty where there is nothing of the kind, as far as snapshots have not been expired.
        """

    def refuses_replay(self, resolution: Resolution, *, whole: bool = False) -> str:
        """Why rows of a version cannot be read in the order of the topics' offsets; empty when they can.

        Args:
            resolution: Its boundary, and the columns that carry offsets.
            whole: As the history; else in the place of the topics, whose rows no restriction of the history meets.
        """

    def replay(
        self,
        request: ReadRequest,
        pin: Json,
        columns: OffsetNames,
        position: Json,
        ends: Mapping[TopicPartition, int],
        *,
        time: EventTime | None,
        floor: int | None,
        clock: Clock,
    ) -> Replay:
        """Read a pinned version as the topics would be read.

        Args:
            request: Columns and predicate.
            pin: The version.
            columns: Those of its rows that carry topic, partition and offset.
            position: Of the tail; moves from there.
            ends: Where the topics go on (exclusive); partitions that are not in it stay where they are.
            time: How the source keeps time.
            floor: The watermark begins at it.
            clock: For idleness.

        Raises:
            SnapshotGoneError: The pinned version is no longer there.
        """
