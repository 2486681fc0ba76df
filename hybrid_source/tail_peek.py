"""A look at what partitions begin with, by a consumer of its own."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

import polars as pl
from confluent_kafka import KafkaError, Message

from headrace.kafka import KafkaCluster
from headrace.kernel.boundary import TopicPartition
from hybrid_source.decode import Decoder
from hybrid_source.tail_assignment import Assignment, place
from hybrid_source.tail_batch import Records
from hybrid_source.tail_rows import event_times

logger: Final = logging.getLogger(__name__)

PEEK_DEADLINE_S: Final = 10.0
PEEK_ROWS: Final = 500

Timeless = dict[tuple[TopicPartition, int], int]
"""Offsets, from a partition and offset to there, whose records have no event time; records never change."""


@dataclass(frozen=True, slots=True)
class Peek:
    """Reads partitions until each has given an event time, or has ended without.

    Attributes:
        cluster: The cluster.
        decoder: Makes the decoder for some of the payload columns.
        schema: The payload columns.
        column: The event-time column.
        timeless: What earlier peeks passed over; this one adds to it.
    """

    cluster: KafkaCluster
    decoder: Callable[[pl.Schema], Decoder]
    schema: pl.Schema
    column: str
    timeless: Timeless

    def __call__(
        self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | None]:
        """What the partitions begin with; see :data:`hybrid_source.tail_protocols.Begins`.

        Args:
            starts: Where to begin, by partition.
            ends: The high watermark of each: at an end below it records of an open transaction are still to come.
        """
        decoder = self.decoder(pl.Schema({self.column: self.schema[self.column]}))
        found: dict[TopicPartition, int | None] = {}
        left, deadline = set(starts), time.monotonic() + PEEK_DEADLINE_S
        begins = {at: self.timeless.get((at, start), start) for at, start in starts.items()}
        assignment = Assignment(self.cluster, begins)
        try:
            while left and time.monotonic() < deadline:
                messages = assignment.consume(PEEK_ROWS, 0.1)
                batch = Records.of([message for message in messages if message.error() is None], None)
                found |= {at: first for at, first in _first_times(batch, decoder, self.column).items() if at in left}
                left -= found.keys()
                self.timeless.update({(at, starts[at]): after for at, after in batch.nexts.items() if at in left})
                for message in messages:
                    error, at = message.error(), place(message)
                    if error is not None and at in left:
                        left.discard(at)  # by a gap, too: what it goes on with is not known
                        if _ends(message, error, ends[at]):
                            found[at] = None
        finally:
            assignment.close()
        if left:
            logger.warning("no event time yet of %s: %.0f s were not enough", _listed(left), PEEK_DEADLINE_S)
        return found


def _ends(message: Message, error: KafkaError, end: int) -> bool:
    offset = message.offset()
    return error.code() == KafkaError._PARTITION_EOF and offset is not None and offset >= end  # noqa: SLF001 - its public name


def _first_times(records: Records, decoder: Decoder, column: str) -> dict[TopicPartition, int]:
    if not records.messages:
        return {}
    decoded = decoder.decode(records.values())
    rows = pl.DataFrame({"slot": records.decoded_slots(decoded), "time": event_times(decoded.frame[column])})
    firsts = rows.drop_nulls("time").unique("slot", keep="first", maintain_order=True).iter_rows()
    return {records.places[slot]: at for slot, at in firsts}


def _listed(partitions: Collection[TopicPartition]) -> str:
    return ", ".join(f"{topic}[{partition}]" for topic, partition in sorted(partitions))
