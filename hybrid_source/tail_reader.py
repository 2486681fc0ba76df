"""An open tail: one consumer with explicit offsets, read into micro-batches."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from confluent_kafka import KafkaError, Message

from headrace.kafka import KafkaCluster, KafkaMetadata, TopicInfo
from headrace.kernel.boundary import TopicPartition
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
from hybrid_source.source_values import TopicIdentity
from hybrid_source.tail_alignment import Alignment
from hybrid_source.tail_assignment import Assignment, place
from hybrid_source.tail_batch import Records
from hybrid_source.tail_bounds import Bounds
from hybrid_source.tail_offsets import RECREATED, LogOffsets, deleted
from hybrid_source.tail_position import PartitionState, TailPosition
from hybrid_source.tail_protocols import TailBatch
from hybrid_source.tail_rate import RateLimit
from hybrid_source.tail_rows import RowBuilder, Rows
from hybrid_source.tail_topics import TopicChoice, identities, places
from hybrid_source.tail_watermark import TailWatermark

logger: Final = logging.getLogger(__name__)

BATCH_ROWS: Final = 16_384
DISCOVERY_DEADLINE_S: Final = 5.0
BEHIND_S: Final = 5.0
"""Seconds between two looks at what lies behind the end of a bounded read, if silence may count there."""
_NONE: Final = Records((), None, (), {}, {})


class KafkaTailReader:
    """See :class:`hybrid_source.tail_protocols.OpenTail`.

    Guarantee: each committed record at or above the position it was opened at is handed out once, in offset order
    within its partition; records of aborted transactions never. A gap is an error or, by policy, an entry in the
    position.

    Args:
        cluster: The cluster.
        topics: Names the topics; asked again while the reader is open.
        found: The topics that it named at first; a change of one's identity is an error.
        offsets: Offset checks, with the gap policy.
        rows: Builds the requested columns.
        watermark: The tail's watermark, begun at the floor.
        position: Checked against the log.
        bounds: End offsets of a bounded read; None reads for ever.
        rate: Limit on rows per second.
        alignment: Limit on how far partitions drift apart in event time.
        clock: For discovery.
        discovery_s: Seconds between looks for new partitions.
        live: Read only these partitions of the position until others go live; None: all.
    """

    def __init__(
        self,
        cluster: KafkaCluster,
        topics: TopicChoice,
        found: Mapping[str, TopicIdentity],
        offsets: LogOffsets,
        rows: RowBuilder,
        watermark: TailWatermark,
        position: TailPosition,
        *,
        bounds: Bounds | None,
        rate: RateLimit,
        alignment: Alignment,
        clock: Clock,
        discovery_s: float,
        live: Collection[TopicPartition] | None = None,
    ) -> None:
        self._topics = topics
        self._found = found
        self._offsets = offsets
        self._rows = rows
        self._watermark = watermark
        self._at = position
        self._bounds = bounds
        self._rate = rate
        self._alignment = alignment
        self._clock = clock
        self._discovery_s = discovery_s
        self._discovered = clock.monotonic()
        self._lookout = KafkaMetadata(cluster, deadline=DISCOVERY_DEADLINE_S)
        self._log_ends: dict[TopicPartition, int] = {}
        self._behind: Mapping[TopicPartition, int] = {}
        self._look_behind = clock.monotonic()
        self._waiting = set(position.nexts if live is not None else ()).difference(live or ())
        self._reading = {at for at in position.nexts if at not in self._waiting and not self._is_done(at)}
        self._assignment = Assignment(cluster, self._nexts_of(self._reading))
        self.tombstones = 0
        """Null values met since the reader was opened; they give no row."""

    # ------------------------------------------------------------------------------------------------------ protocol

    def poll(self, timeout: float) -> TailBatch | None:
        """See :meth:`hybrid_source.tail_protocols.OpenTail.poll`.

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
            passed = self._bounds.passed(records.nexts) if self._bounds is not None else {}
            records = records.below(passed)
            if records.messages:
                rows = self._take(records)
            for at, end in passed.items():
                self._move(at, end)
            self._meet(events)
        self._settle()
        self._align()
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
        """See :attr:`hybrid_source.tail_protocols.OpenTail.finished`."""
        return self._bounds is not None and self._bounds.finished(self._at.nexts)

    @property
    def position(self) -> Json:
        """See :attr:`hybrid_source.tail_protocols.OpenTail.position`."""
        return self._at.to_json()

    @property
    def identities(self) -> Mapping[str, TopicIdentity]:
        """See :attr:`hybrid_source.tail_protocols.OpenTail.identities`."""
        return self._found

    def go_live(self, partitions: Collection[TopicPartition]) -> None:
        """See :meth:`hybrid_source.tail_protocols.OpenTail.go_live`."""
        new = self._waiting.intersection(partitions)
        self._waiting -= new
        for at in new:
            self._watermark.add(at)
        begun = [at for at in new if not self._is_done(at)]
        self._reading.update(begun)
        if begun:
            self._assignment.add(self._nexts_of(begun))

    def hold(self, limit: int | None) -> int | None:
        """See :meth:`hybrid_source.tail_protocols.OpenTail.hold`."""
        self._watermark.hold(limit)
        return self._watermark.advance(self._at_end)

    def lag(self) -> Sequence[Mapping[str, Json]]:
        """See :meth:`hybrid_source.tail_protocols.OpenTail.lag`."""
        return [
            {
                "topic": at.topic,
                "partition": at.partition,
                "next": offset,
                "end": max(offset, self._assignment.end(at) or offset),
            }
            for at, offset in self._at.nexts.items()
        ]

    def silent(self) -> Sequence[TopicPartition]:
        """See :meth:`hybrid_source.tail_protocols.OpenTail.silent`."""
        return self._watermark.silent(self._at_end)

    def close(self) -> None:
        """See :meth:`hybrid_source.tail_protocols.OpenTail.close`."""
        self._assignment.close()

    # ------------------------------------------------------------------------------------------------------- records

    def _split(self, messages: Sequence[Message]) -> tuple[Records, list[Message]]:
        errors = list(map(Message.error, messages))
        events: list[Message] = []
        if any(errors):
            events = [message for message, error in zip(messages, errors, strict=True) if error is not None]
            messages = [message for message, error in zip(messages, errors, strict=True) if error is None]
        return Records.of(messages, next(iter(self._found)) if len(self._found) == 1 else None), events

    def _take(self, records: Records) -> Rows:
        self._rate.take(len(records.messages))
        nexts = records.nexts
        for at in nexts:
            self._watermark.heard(at)
        rows = self._rows.build(records, self._watermark)
        self.tombstones += rows.tombstones
        times = self._watermark.max_event_times
        self._at = self._at.with_partitions(
            {at: PartitionState(after, times.get(at), self._first(records, at)) for at, after in nexts.items()}
        )
        return rows

    def _first(self, records: Records, at: TopicPartition) -> int | None:
        known = self._at.partitions[at].first
        return records.first(at) if known is None else known

    # -------------------------------------------------------------------------------------------------------- events

    def _meet(self, events: Sequence[Message]) -> None:
        for event in events:
            error, at, offset = event.error(), place(event), event.offset()
            if error is None or at is None:
                continue
            if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's public name for the event
                if offset is not None and at in self._reading:
                    self._reached(at, offset)
                continue
            self._meet_error(self._assignment.error(error, at), at)

    def _reached(self, at: TopicPartition, offset: int) -> None:
        # Only the event tells of markers and aborted records that lie between the last record and the end.
        if self._bounds is not None:
            offset = min(offset, self._bounds.ends.get(at, offset))
        self._log_ends[at] = offset
        self._move(at, offset)

    def _move(self, at: TopicPartition, offset: int) -> None:
        state = self._at.partitions[at]
        if offset > state.next:
            self._at = self._at.with_partitions({at: replace(state, next=offset)})

    def _meet_error(self, error: HeadraceError, at: TopicPartition) -> None:
        if isinstance(error, GapError):
            self._meet_gap(at)
        elif isinstance(error, NotFoundError):
            self._look_again(at.topic)
        elif isinstance(error, ExternalError):
            logger.warning("%s; the client keeps trying", error)
        else:
            raise error

    def _meet_gap(self, at: TopicPartition) -> None:
        held = self._lookout.ranges([at])[at]
        self._at = self._offsets.check(self._at, at, held)
        self._log_ends.pop(at, None)
        self._assignment.drop([at])
        self._assignment.add(self._nexts_of([at]))

    # ----------------------------------------------------------------------------------------------------- discovery

    def _discover(self) -> None:
        now = self._clock.monotonic()
        if now - self._discovered < self._discovery_s:
            return
        self._discovered = now
        try:
            found = self._topics.find(self._lookout)
            for topic in found.values():
                self._check_identity(topic)
            new = [at for at in places(found) if at not in self._at.partitions]
            if new or any(name not in found for name in self._found):
                self._at = self._offsets.checked(self._at, places(found))
        except UnavailableError as error:
            logger.warning("new partitions of %s cannot be looked for now: %s", self._topics, error)
            return
        except NotFoundError:
            for name in self._found:
                self._look_again(name)
            raise
        self._found = {**self._found, **identities(found)}
        for at in new:
            self._watermark.add(at)
        if new:
            logger.info("new partitions: %s", ", ".join(f"{topic}[{partition}]" for topic, partition in new))
            self._reading.update(new)
            self._assignment.add(self._nexts_of(new))

    def _look_again(self, topic: str) -> None:
        """See whether a topic is still there, and the same.

        Raises:
            IdentityError: It is not.
        """
        try:
            found = self._lookout.describe(topic)
        except NotFoundError as error:
            raise deleted(topic, sorted(at.partition for at in self._at.nexts if at.topic == topic)) from error
        self._check_identity(found)

    def _check_identity(self, found: TopicInfo) -> None:
        known = self._found.get(found.name)
        if known is None or known.topic_id is None or found.topic_id is None or found.topic_id == known.topic_id:
            return
        raise IdentityError(
            f"topic {found.name!r} was deleted and created again while it was read",
            detail=f"topic id {known.topic_id} before, {found.topic_id} now",
            hint="recorded offsets mean nothing in a recreated topic; start the job under a new uid, and reset the "
            "table's boundary with `headrace boundary reset`",
            code=RECREATED,
            context={"topic": found.name, "wanted": known.topic_id, "available": found.topic_id},
        )

    # ---------------------------------------------------------------------------------------------------------- ends

    def _settle(self) -> None:
        """Stop reading the partitions of a bounded read that are done; look at those that stand still."""
        if self._bounds is None:
            return
        nexts = self._at.nexts
        done = [at for at in self._reading if self._bounds.done(at, nexts[at])]
        if done:
            self._reading.difference_update(done)
            self._assignment.drop([at for at in done if at not in self._alignment.waiting])
        self._bounds.wait_for_transactions({at: nexts[at] for at in self._reading if self._stands_at_end(at)})

    def _align(self) -> None:
        """Let partitions wait, and go on, by unassigning and assigning them: what the client holds ready is dropped."""
        before = self._alignment.waiting
        behind = {at: self._at.partitions[at] for at in self._reading if not self._stands_at_end(at)}
        waiting = self._alignment.measure(
            {at: state.max_event_time for at, state in behind.items()},
            unheard=any(state.first is None for state in behind.values()),
            beside=self._watermark.held,
        )
        if halted := waiting - before:
            self._assignment.drop(sorted(halted))
        if resumed := (before - waiting) & self._reading:
            self._assignment.add(self._nexts_of(sorted(resumed)))

    def _is_done(self, at: TopicPartition) -> bool:
        return self._bounds is not None and self._bounds.done(at, self._at.partitions[at].next)

    def _stands_at_end(self, at: TopicPartition) -> bool:
        return self._log_ends.get(at) == self._at.partitions[at].next

    def _at_end(self, at: TopicPartition) -> bool:
        if at not in self._reading:
            return self._is_last(at)
        # Under an open transaction the client reports the end at the last stable offset, but records are to come.
        end = self._assignment.end(at)
        return self._stands_at_end(at) and end is not None and end <= self._at.partitions[at].next

    def _is_last(self, at: TopicPartition) -> bool:
        """Whether the log goes on behind the end of a bounded read; what comes there is read by a later run."""
        now = self._clock.monotonic()
        if now >= self._look_behind:
            done = [place for place in self._at.partitions if place not in self._reading | self._waiting]
            try:
                self._behind = self._lookout.latest(done)
            except UnavailableError as error:
                self._behind = {}
                logger.warning("whether %s goes on behind its end is not known: %s", self._topics, error)
            self._look_behind = self._clock.monotonic() + BEHIND_S
        return self._behind.get(at) == self._at.partitions[at].next

    def _nexts_of(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {at: self._at.partitions[at].next for at in partitions}
