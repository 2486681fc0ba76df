"""An open tail: one consumer with explicit offsets, read into micro-batches."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from confluent_kafka import KafkaError, Message

from headrace.kafka import KafkaCluster, KafkaMetadata, TopicInfo
from headrace.kernel.clock import Clock
from headrace.kernel.errors import (
    ExternalError,
    GapError,
    HeadraceError,
    IdentityError,
    NotFoundError,
    UnavailableError,
)
from headrace.kernel.protocols import Json
from hybrid_source.stages import TailBatch
from hybrid_source.tail_assignment import Assignment
from hybrid_source.tail_batch import Records
from hybrid_source.tail_bounds import Bounds
from hybrid_source.tail_offsets import RECREATED, TopicOffsets
from hybrid_source.tail_position import PartitionState, TailPosition
from hybrid_source.tail_rate import RateLimit
from hybrid_source.tail_rows import RowBuilder, Rows
from hybrid_source.tail_watermark import TailWatermark

logger: Final = logging.getLogger(__name__)

BATCH_ROWS: Final = 16_384
DISCOVERY_DEADLINE_S: Final = 5.0
_NONE: Final = Records((), (), {})


class KafkaTailReader:
    """See :class:`hybrid_source.stages.OpenTail`.

    Guarantee: each committed record at or above the position it was opened at is handed out once, in offset order
    within its partition; records of aborted transactions never. A gap is an error or, by policy, an entry in the
    position.

    Args:
        cluster: The cluster.
        offsets: Offset checks for the topic, with the gap policy.
        topic_id: The topic's id when it was opened; a change is an error.
        rows: Builds the requested columns.
        watermark: The tail's watermark, begun at the floor.
        position: Checked against the log.
        bounds: End offsets of a bounded read; None reads for ever.
        rate: Limit on rows per second.
        clock: For discovery.
        discovery_s: Seconds between looks for new partitions.
    """

    def __init__(
        self,
        cluster: KafkaCluster,
        offsets: TopicOffsets,
        topic_id: str | None,
        rows: RowBuilder,
        watermark: TailWatermark,
        position: TailPosition,
        *,
        bounds: Bounds | None,
        rate: RateLimit,
        clock: Clock,
        discovery_s: float,
    ) -> None:
        self._topic = offsets.topic
        self._offsets = offsets
        self._topic_id = topic_id
        self._rows = rows
        self._watermark = watermark
        self._at = position
        self._bounds = bounds
        self._rate = rate
        self._clock = clock
        self._discovery_s = discovery_s
        self._discovered = clock.monotonic()
        self._lookout = KafkaMetadata(cluster, deadline=DISCOVERY_DEADLINE_S)
        self._log_ends: dict[int, int] = {}
        self._reading = {
            partition for partition, at in position.nexts.items() if bounds is None or not bounds.done(partition, at)
        }
        self._assignment = Assignment(cluster, self._topic, self._nexts_of(self._reading))
        self.tombstones = 0
        """Null values met since the reader was opened; they give no row."""

    # ------------------------------------------------------------------------------------------------------ protocol

    def poll(self, timeout: float) -> TailBatch | None:
        """See :meth:`hybrid_source.stages.OpenTail.poll`.

        Raises:
            GapError: Wanted offsets have been deleted, under ``on_gap: fail``.
            IdentityError: The topic was deleted and created again.
            UnavailableError: A bounded read waited too long for an open transaction.
            AccessDeniedError, NotFoundError: The topic can no longer be read.
        """
        before, watermark_before = self._at, self._watermark.value
        if self._bounds is None:
            self._discover()
        rows, records = None, _NONE
        most = self._rate.allowed(BATCH_ROWS)
        if most < 1:
            time.sleep(min(timeout, self._rate.wait()))
        else:
            records, events = self._split(self._assignment.consume(most, timeout))
            if records.messages:
                rows = self._take(records)
            self._meet(events)
        self._settle()
        watermark = self._watermark.advance(self._at_end)
        if rows is None:
            if self._at == before and watermark == watermark_before:
                return None
            return TailBatch(
                self._rows.empty, self.position, watermark, maybe_late=False, errors=None, records=0, nbytes=0
            )
        return TailBatch(
            rows.frame, self.position, watermark, rows.maybe_late, rows.errors, len(records.messages), rows.nbytes
        )

    @property
    def finished(self) -> bool:
        """See :attr:`hybrid_source.stages.OpenTail.finished`."""
        return self._bounds is not None and self._bounds.finished(self._at.nexts)

    @property
    def position(self) -> Json:
        """See :attr:`hybrid_source.stages.OpenTail.position`."""
        return self._at.to_json()

    def lag(self) -> Sequence[Mapping[str, Json]]:
        """See :meth:`hybrid_source.stages.OpenTail.lag`."""
        return [
            {
                "topic": self._topic,
                "partition": partition,
                "next": at,
                "end": max(at, self._assignment.end(partition) or at),
            }
            for partition, at in self._at.nexts.items()
        ]

    def close(self) -> None:
        """See :meth:`hybrid_source.stages.OpenTail.close`."""
        self._assignment.close()

    # ------------------------------------------------------------------------------------------------------- records

    def _split(self, messages: Sequence[Message]) -> tuple[Records, list[Message]]:
        errors = list(map(Message.error, messages))
        events: list[Message] = []
        if any(errors):
            events = [message for message, error in zip(messages, errors, strict=True) if error is not None]
            messages = [message for message, error in zip(messages, errors, strict=True) if error is None]
        records = Records.of(messages)
        return (records if self._bounds is None else records.below(self._bounds.ends)), events

    def _take(self, records: Records) -> Rows:
        self._rate.take(len(records.messages))
        nexts = records.nexts
        for partition in nexts:
            self._watermark.heard(partition)
        rows = self._rows.build(records, self._watermark)
        self.tombstones += rows.tombstones
        times = self._watermark.max_event_times
        self._at = self._at.with_partitions(
            {
                partition: PartitionState(after, times.get(partition), self._first(records, partition))
                for partition, after in nexts.items()
            }
        )
        return rows

    def _first(self, records: Records, partition: int) -> int | None:
        known = self._at.partitions[partition].first
        return records.first(partition) if known is None else known

    # -------------------------------------------------------------------------------------------------------- events

    def _meet(self, events: Sequence[Message]) -> None:
        for event in events:
            error, partition, offset = event.error(), event.partition(), event.offset()
            if error is None or partition is None:
                continue
            if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's public name for the event
                if offset is not None and partition in self._reading:
                    self._reached(partition, offset)
                continue
            self._meet_error(self._assignment.error(error, partition), partition)

    def _reached(self, partition: int, offset: int) -> None:
        # Only the event tells of markers and aborted records that lie between the last record and the end.
        if self._bounds is not None:
            offset = min(offset, self._bounds.ends.get(partition, offset))
        self._log_ends[partition] = offset
        state = self._at.partitions[partition]
        if offset > state.next:
            self._at = self._at.with_partitions({partition: replace(state, next=offset)})

    def _meet_error(self, error: HeadraceError, partition: int) -> None:
        if isinstance(error, GapError):
            self._meet_gap(partition)
        elif isinstance(error, NotFoundError):
            self._check_identity(self._lookout.describe(self._topic))
        elif isinstance(error, ExternalError):
            logger.warning("%s; the client keeps trying", error)
        else:
            raise error

    def _meet_gap(self, partition: int) -> None:
        held = self._lookout.ranges(self._topic, [partition])[partition]
        self._at = self._offsets.check(self._at, partition, held)
        self._log_ends.pop(partition, None)
        self._assignment.drop([partition])
        self._assignment.add({partition: self._at.partitions[partition].next})

    # ----------------------------------------------------------------------------------------------------- discovery

    def _discover(self) -> None:
        now = self._clock.monotonic()
        if now - self._discovered < self._discovery_s:
            return
        self._discovered = now
        try:
            found = self._lookout.describe(self._topic)
            self._check_identity(found)
            new = [partition for partition in found.partitions if partition not in self._at.partitions]
            if new:
                self._at = self._offsets.checked(self._at, found.partitions)
        except UnavailableError as error:
            logger.warning("new partitions of topic %r cannot be looked for now: %s", self._topic, error)
            return
        for partition in new:
            self._watermark.add(partition)
        if new:
            logger.info("topic %r has new partitions %s", self._topic, new)
            self._reading.update(new)
            self._assignment.add(self._nexts_of(new))

    def _check_identity(self, found: TopicInfo) -> None:
        if self._topic_id is not None and found.topic_id is not None and found.topic_id != self._topic_id:
            raise IdentityError(
                f"topic {self._topic!r} was deleted and created again while it was read",
                detail=f"topic id {self._topic_id} before, {found.topic_id} now",
                hint="start the job under a new uid",
                code=RECREATED,
                context={"topic": self._topic, "recorded": self._topic_id, "found": found.topic_id},
            )

    # ---------------------------------------------------------------------------------------------------------- ends

    def _settle(self) -> None:
        """Stop reading the partitions of a bounded read that are done; look at those that stand still."""
        if self._bounds is None:
            return
        nexts = self._at.nexts
        done = [partition for partition in self._reading if self._bounds.done(partition, nexts[partition])]
        if done:
            self._reading.difference_update(done)
            self._assignment.drop(done)
        self._bounds.wait_for_transactions(
            {partition: nexts[partition] for partition in self._reading if self._stands_at_end(partition)}
        )

    def _stands_at_end(self, partition: int) -> bool:
        return self._log_ends.get(partition) == self._at.partitions[partition].next

    def _at_end(self, partition: int) -> bool:
        if partition not in self._reading:
            return True
        # Under an open transaction the client reports the end at the last stable offset, but records are to come.
        end = self._assignment.end(partition)
        return self._stands_at_end(partition) and end is not None and end <= self._at.partitions[partition].next

    def _nexts_of(self, partitions: Iterable[int]) -> dict[int, int]:
        return {partition: self._at.partitions[partition].next for partition in partitions}
