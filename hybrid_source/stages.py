"""The two stages of a hybrid source, as protocols: a bounded history and an unbounded tail.

The handover (:mod:`hybrid_source.hybrid`) is written against these, so that the same state machine runs over Iceberg
and Kafka in production and over scripted stages in property tests.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

import polars as pl

from headrace.kernel.boundary import Boundary, TopicPartition
from headrace.kernel.clock import Clock
from headrace.kernel.errors import GapError
from headrace.kernel.protocols import Json, ReadRequest
from headrace.kernel.until import Until
from hybrid_source.resolution import OffsetNames, Resolution

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


@dataclass(frozen=True, slots=True)
class TailBatch:
    """What one poll of the tail gave.

    Attributes:
        rows: Frame with the requested columns, the predicate applied.
        position: The tail's own position after it: JSON, next offsets.
        watermark: The tail's watermark after it, at or above the floor it was opened with; None: unknown.
        maybe_late: Some row lies below its row watermark.
        errors: Dead letters, or None.
        records: Records consumed.
        nbytes: Bytes of their values.
    """

    rows: pl.DataFrame
    position: Json
    watermark: int | None
    maybe_late: bool
    errors: pl.DataFrame | None
    records: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Expiry:
    """When retention will delete what is needed of a partition.

    Attributes:
        at: The partition.
        next: The next offset that is needed.
        log_start: The first offset that is still there.
        seconds: Estimated seconds, at the earliest, until retention passes ``next``; 0: it may at any moment, or it
            has; None: never, or it cannot be told.
    """

    at: TopicPartition
    next: int
    log_start: int
    seconds: float | None

    @property
    def passed(self) -> bool:
        """What is needed is gone."""
        return self.next < self.log_start

    def to_json(self) -> dict[str, Json]:
        """The estimate as JSON values."""
        seconds = None if self.seconds is None else round(self.seconds)
        return {
            "topic": self.at.topic,
            "partition": self.at.partition,
            "next": self.next,
            "log_start": self.log_start,
            "seconds": seconds,
        }


Begins: TypeAlias = Mapping[TopicPartition, int | None]
"""What a topic has behind a position, by partition: the event time (microseconds) of the first record that has one;
None: its log ends without. Of a partition that is not in it that is not known; records are to come, or may be."""


class Replay(Protocol):
    """The lake, read in the place of the topic: the same rows, row watermarks and positions."""

    def poll(self) -> TailBatch | None:
        """The next batch, possibly without rows; None once everything has been handed out."""

    @property
    def finished(self) -> bool:
        """Every partition has arrived at its end."""

    @property
    def arrived(self) -> Collection[TopicPartition]:
        """The partitions of the position of which the lake gives no further row."""

    def rest(self, begins: Begins) -> None:
        """Say what the topic goes on with where partitions have arrived, so that they do not hold the watermark.

        One whose records begin at a time holds it there, minus the out-of-orderness. One whose log ends holds it until
        it counts as idle, as in the topic. One that is not in ``begins`` holds it where its own rows have brought it.
        """

    def lag(self) -> Sequence[Mapping[str, Json]]:
        """``{topic, partition, next, end}`` by partition; the end is where the topic goes on."""


class OpenTail(Protocol):
    """An assigned tail."""

    def poll(self, timeout: float) -> TailBatch | None:
        """The next batch, possibly without rows when only the position or the watermark moved; None: nothing."""

    @property
    def finished(self) -> bool:
        """True when a bounded tail has reached its end offsets."""

    @property
    def position(self) -> Json:
        """Where it stands."""

    @property
    def identities(self) -> Mapping[str, TopicIdentity]:
        """The topics that are read, those discovered since it was opened included, by name."""

    def go_live(self, partitions: Collection[TopicPartition]) -> None:
        """Read further partitions of the position; they hold the watermark from now on."""

    def hold(self, limit: int | None) -> int | None:
        """Keep the watermark at or below ``limit`` from now on; None: no limit. Gives the watermark.

        One that is not known stays so under ``BEFORE_ALL``. The limit of a partition that has nothing to say is the
        watermark, so it must be an event time: the end of the history is none.
        """

    def lag(self) -> Sequence[Mapping[str, Json]]:
        """``{topic, partition, next, end}`` by partition, as last seen."""

    def close(self) -> None:
        """Release the client."""


class TailStage(Protocol):
    """Where the tail comes from."""

    def strict(self) -> TailStage:
        """The same tail, to which every gap is an error: for who asks elsewhere before :meth:`skip` is in order."""

    def skip(self, position: Json, gap: GapError) -> Json:
        """The position behind a gap that nothing closes, with the gap in its ledger.

        Raises:
            GapError: The gap: the job is not to go on without.
        """

    def identities(self) -> Mapping[str, TopicIdentity]:
        """The topics to read and their identities now, by name.

        Raises:
            NotFoundError: A topic is not there.
        """

    def start(self, boundary: Boundary | None, *, check: bool = True) -> Json:
        """The position at which the tail begins.

        Args:
            boundary: Where the history ends; partitions it does not know begin at their earliest offset, if that is
                0. None: the stage's own start mode decides.
            check: False: whether the offsets are there is looked at when the tail is opened.

        Raises:
            GapError: A wanted offset is below the log start.
            IdentityError: A wanted offset lies beyond the end of the log, or a partition is gone.
        """

    def offsets(self, position: Json) -> Mapping[TopicPartition, int]:
        """Next offset by partition in a position."""

    def ranges(self) -> Mapping[TopicPartition, tuple[int, int]]:
        """By partition, what the log holds now: its start (inclusive) and its end (high watermark, exclusive)."""

    def verify(self, position: Json) -> None:
        """Look whether the log still holds what a position needs.

        Raises:
            GapError: It does not, and the job is not to go on without.
            IdentityError: A wanted offset lies beyond the end of the log, or a partition is gone.
        """

    def expiries(self, position: Json) -> Sequence[Expiry]:
        """By partition, until when the log will hold what a position needs. May take seconds."""

    def first_event_times(self, position: Json, partitions: Sequence[TopicPartition]) -> Begins:
        """What some partitions have at and after a position; behind a gap, where the job is to go on without.

        Raises:
            GapError: Wanted offsets are gone, and the job is not to go on without.
            UnavailableError: The topic does not answer.
        """

    def ends(self, until: Until) -> Mapping[TopicPartition, int]:
        """Where a run that is asked for now ends, by partition (exclusive)."""

    def open(
        self,
        request: ReadRequest,
        position: Json,
        floor: int | None,
        live: Collection[TopicPartition] | None = None,
        ends: Mapping[TopicPartition, int] | None = None,
    ) -> OpenTail:
        """Assign at ``position``.

        Args:
            request: Columns and predicate.
            position: Of all partitions.
            floor: The tail's watermark begins at it and never falls below it.
            live: Read only these for now; None: all.
            ends: Where the read ends (exclusive); of a partition that is not in it nothing is read. None: it does not.
        """
