"""The tail of a hybrid source as protocols: an unbounded stage, and the lake where it is read in the tail's place."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import polars as pl

from headrace.kernel.boundary import Boundary, TopicPartition
from headrace.kernel.errors import GapError
from headrace.kernel.protocols import Json, ReadRequest
from headrace.kernel.until import Until
from hybrid_source.source_values import TopicIdentity


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

    def silent(self) -> Sequence[TopicPartition]:
        """See :meth:`hybrid_source.tail_watermark.TailWatermark.silent`."""

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

    def knowing(self, position: Json, nexts: Mapping[TopicPartition, int]) -> Json:
        """The position with the partitions that it does not know, at these next offsets."""

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
