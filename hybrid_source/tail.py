"""The Kafka tail of a source: where it begins, what it is, how it is opened. Building it does no I/O."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Final

import polars as pl

from headrace.kafka import KafkaCluster, KafkaMetadata
from headrace.kernel.boundary import Boundary, TopicPartition
from headrace.kernel.clock import Clock, SystemClock
from headrace.kernel.errors import GapError
from headrace.kernel.protocols import Json, ReadRequest
from headrace.kernel.until import Until, until_ms
from hybrid_source.decode import Decoder, JsonDecoder
from hybrid_source.source_values import EventTime, TopicIdentity
from hybrid_source.tail_alignment import Alignment
from hybrid_source.tail_bounds import TRANSACTION_WAIT_S, Bounds
from hybrid_source.tail_compaction import Compaction, UpsertKey
from hybrid_source.tail_offsets import EARLIEST, AtOffsets, AtTime, LogOffsets, OnGap, Start, starting_at
from hybrid_source.tail_peek import Peek, Timeless
from hybrid_source.tail_position import TailPosition
from hybrid_source.tail_protocols import Begins, Expiry, OpenTail
from hybrid_source.tail_rate import RateLimit
from hybrid_source.tail_reader import KafkaTailReader
from hybrid_source.tail_retention import Retention
from hybrid_source.tail_rows import RowBuilder
from hybrid_source.tail_topics import TopicChoice, identities, places
from hybrid_source.tail_watermark import TailWatermark

DISCOVERY_S: Final = 30.0


@dataclass(frozen=True)
class KafkaTail:
    """See :class:`hybrid_source.tail_protocols.TailStage`.

    Attributes:
        cluster: The cluster.
        topics: The topics, which one consumer reads.
        schema: Payload columns that messages carry.
        event_time: None: no watermark.
        start_at: Where a tail without a history begins.
        on_gap: ``fail``, or ``record``: go on behind what is gone and write it into the position.
        rate_limit: Rows per second; None: no limit.
        discovery_s: Seconds between looks for new partitions.
        transaction_wait_s: How long a bounded read waits for an open transaction.
        decoder: Makes the decoder for some of the payload columns.
        upserts: The records are versions by key, and null values delete; None: they are rows of their own.
        compacted: A compacted topic may be read; else it is refused.
        clock: For idleness, rate, discovery and waits.
    """

    cluster: KafkaCluster
    topics: TopicChoice
    schema: pl.Schema
    event_time: EventTime | None = None
    start_at: Start = EARLIEST
    on_gap: OnGap = "fail"
    rate_limit: float | None = None
    discovery_s: float = DISCOVERY_S
    transaction_wait_s: float = TRANSACTION_WAIT_S
    decoder: Callable[[pl.Schema], Decoder] = JsonDecoder
    upserts: UpsertKey | None = None
    compacted: bool = False
    clock: Clock = field(default_factory=SystemClock)

    @cached_property
    def _metadata(self) -> KafkaMetadata:
        return KafkaMetadata(self.cluster)

    @cached_property
    def _retention(self) -> Retention:
        return Retention(self.cluster, self._metadata, self.clock)

    @cached_property
    def _timeless(self) -> Timeless:
        return {}

    @property
    def _offsets(self) -> LogOffsets:
        return LogOffsets(self._metadata, self.on_gap)

    @property
    def _compaction(self) -> Compaction:
        return Compaction(self._metadata, self.compacted or self.upserts is not None)

    def strict(self) -> KafkaTail:
        """See :meth:`hybrid_source.tail_protocols.TailStage.strict`."""
        return replace(self, on_gap="fail")

    def skip(self, position: Json, gap: GapError) -> Json:
        """See :meth:`hybrid_source.tail_protocols.TailStage.skip`."""
        return self._offsets.skip(TailPosition.from_json(position), gap).to_json()

    def knowing(self, position: Json, nexts: Mapping[TopicPartition, int]) -> Json:
        """See :meth:`hybrid_source.tail_protocols.TailStage.knowing`."""
        return TailPosition.from_json(position).knowing(nexts).to_json()

    def identities(self) -> Mapping[str, TopicIdentity]:
        """See :meth:`hybrid_source.tail_protocols.TailStage.identities`."""
        return identities(self.topics.find(self._metadata))

    def start(self, boundary: Boundary | None, *, check: bool = True) -> Json:
        """See :meth:`hybrid_source.tail_protocols.TailStage.start`."""
        found = self.topics.find(self._metadata)
        self._compaction.check_declared(found)
        if boundary is None:
            began = replace(self._offsets.resolve(self.start_at, places(found)), began_ms=self.clock.now_us() // 1000)
            return began.to_json()
        nexts = {at: offset for at, offset in boundary.nexts.items() if at.topic in found}
        if not check:
            return starting_at({**dict.fromkeys(places(found), 0), **nexts}).to_json()
        return self._with_deletions(self._offsets.resume(nexts, places(found))).to_json()

    def offsets(self, position: Json) -> Mapping[TopicPartition, int]:
        """See :meth:`hybrid_source.tail_protocols.TailStage.offsets`."""
        return TailPosition.from_json(position).nexts

    def ranges(self) -> Mapping[TopicPartition, tuple[int, int]]:
        """See :meth:`hybrid_source.tail_protocols.TailStage.ranges`."""
        found = self._metadata.ranges(places(self.topics.find(self._metadata)))
        return {at: (held.earliest, held.latest) for at, held in found.items()}

    def verify(self, position: Json) -> None:
        """See :meth:`hybrid_source.tail_protocols.TailStage.verify`."""
        at = self._offsets.checked(TailPosition.from_json(position), places(self.topics.find(self._metadata)))
        self._with_deletions(at)

    def expiries(self, position: Json) -> Sequence[Expiry]:
        """See :meth:`hybrid_source.tail_protocols.TailStage.expiries`."""
        return self._retention.expiries(TailPosition.from_json(position).nexts)

    def first_event_times(self, position: Json, partitions: Sequence[TopicPartition]) -> Begins:
        """See :meth:`hybrid_source.tail_protocols.TailStage.first_event_times`.

        Records that cannot be decoded, and rows without an event time, are passed over. A partition whose records came
        not far enough in time is left out; the next call goes on where this one ended.
        """
        if self.event_time is None:
            return {}
        at, held = TailPosition.from_json(position), self._metadata.ranges(partitions)
        for place in partitions:
            at = self._offsets.check(at, place, held[place])
        ends = {place: held[place].latest for place in partitions}
        ahead = {place: at.nexts[place] for place in partitions if at.nexts[place] < ends[place]}
        found: dict[TopicPartition, int | None] = dict.fromkeys(place for place in partitions if place not in ahead)
        if ahead:
            found |= Peek(self.cluster, self.decoder, self.schema, self.event_time.column, self._timeless)(ahead, ends)
        return found

    def ends(self, until: Until) -> Mapping[TopicPartition, int]:
        """See :meth:`hybrid_source.tail_protocols.TailStage.ends`.

        Of a time: each partition's first record at or after it; one without such a record ends where it ends now.
        """
        partitions = places(self.topics.find(self._metadata))
        if isinstance(until, datetime):
            return self._metadata.at_time(partitions, until_ms(until))
        return self._metadata.latest(partitions)

    def open(
        self,
        request: ReadRequest,
        position: Json,
        floor: int | None,
        live: Collection[TopicPartition] | None = None,
        ends: Mapping[TopicPartition, int] | None = None,
    ) -> OpenTail:
        """See :meth:`hybrid_source.tail_protocols.TailStage.open`.

        Partitions that the position does not know are read from offset 0.

        Raises:
            GapError: Wanted offsets have been deleted.
            IdentityError: A wanted offset lies beyond the end of the log, or a partition is gone.
            NotFoundError: The topic, or a column.
        """
        rows = RowBuilder(str(self.topics), self.schema, request, self.event_time, self.decoder, self.upserts)
        found = self.topics.find(self._metadata)
        at = self._with_deletions(self._offsets.checked(TailPosition.from_json(position), places(found), ends))
        bounds = None
        if ends is not None:
            bounds = Bounds(ends, self.clock, transaction_wait_s=self.transaction_wait_s)
        return KafkaTailReader(
            self.cluster,
            self.topics,
            identities(found),
            self._offsets,
            rows,
            self._watermark(at, floor, at.partitions if live is None else live),
            at,
            live=live,
            bounds=bounds,
            rate=RateLimit(self.rate_limit, self.clock),
            alignment=Alignment(self.event_time.max_drift_us if self.event_time else None),
            clock=self.clock,
            discovery_s=self.discovery_s,
        )

    def _with_deletions(self, at: TailPosition) -> TailPosition:
        """The position, of which no deletions are missing where they are read.

        Raises:
            GapError: ``TOMBSTONES_GONE``.
        """
        if self.upserts is not None:
            self._compaction.check_tombstones(at, self.clock.now_us() // 1000)
        return at

    def _watermark(self, at: TailPosition, floor: int | None, live: Collection[TopicPartition]) -> TailWatermark:
        time_ = self.event_time or EventTime("")
        return TailWatermark(
            self.clock,
            {place: state.max_event_time for place, state in at.partitions.items() if place in live},
            floor,
            out_of_orderness_us=time_.out_of_orderness_us,
            idle_us=time_.idle_us,
        )


__all__ = ["AtOffsets", "AtTime", "KafkaTail", "OnGap", "Start"]
