"""Messages of one poll into columns. Python touches each message only through the client's own accessors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import polars as pl
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from headrace.kernel import columns as system
from headrace.kernel.boundary import TopicPartition
from hybrid_source.decode import Decoded

_NO_TIMESTAMP: Final = -1
"""What Kafka's protocol has for it."""
_LAST_MS: Final = (2**63 - 1) // 1000
"""Producers that take microseconds or nanoseconds for milliseconds write times beyond any calendar."""

PICK: Final[dict[str, Callable[[Sequence[Message]], list[Any]]]] = {
    system.TOPIC: lambda messages: list(map(Message.topic, messages)),
    system.PARTITION: lambda messages: list(map(Message.partition, messages)),
    system.OFFSET: lambda messages: list(map(Message.offset, messages)),
    system.KEY: lambda messages: list(map(Message.key, messages)),
    system.TIMESTAMP: lambda messages: [
        None if kind == TIMESTAMP_NOT_AVAILABLE or at == _NO_TIMESTAMP or at > _LAST_MS else at * 1000
        for kind, at in map(Message.timestamp, messages)
    ],
}
"""How a metadata column is read from messages; timestamps in microseconds, null where there is none that fits them."""


@dataclass(frozen=True, slots=True)
class Records:
    """The records of one poll, without the client's events.

    Attributes:
        messages: In the order of consumption: each partition's by offset.
        topic: The topic that all of them are of; None: they may be of several.
        slots: For each a small number that stands for its partition, among these records only. Of one topic it is the
            partition's own, so that nothing has to be looked up record by record.
        places: What each of the slots stands for.
        nexts: Next offset by partition after these records.
    """

    messages: Sequence[Message]
    topic: str | None
    slots: Sequence[int]
    places: Mapping[int, TopicPartition]
    nexts: Mapping[TopicPartition, int]

    @classmethod
    def of(cls, messages: Sequence[Message], topic: str | None) -> Records:
        """Records of messages without events.

        Args:
            messages: In the order of consumption.
            topic: The topic that all of them are of; None: they may be of several.
        """
        partitions = cast("list[int]", PICK[system.PARTITION](messages))
        if topic is not None:
            return cls._of(messages, topic, partitions, {})
        pairs = list(zip(PICK[system.TOPIC](messages), partitions, strict=True))
        places = {slot: TopicPartition(*pair) for slot, pair in enumerate(dict.fromkeys(pairs))}
        numbers: dict[tuple[str, int], int] = {place: slot for slot, place in places.items()}
        return cls._of(messages, None, [numbers[pair] for pair in pairs], places)

    @classmethod
    def _of(
        cls,
        messages: Sequence[Message],
        topic: str | None,
        slots: Sequence[int],
        places: Mapping[int, TopicPartition],
    ) -> Records:
        last = dict(zip(slots, messages, strict=True))
        if topic is not None:
            places = {slot: TopicPartition(topic, slot) for slot in last}
        nexts = {places[slot]: _offset(message) + 1 for slot, message in last.items()}
        return cls(messages, topic, slots, places, nexts)

    def first(self, at: TopicPartition) -> int:
        """Offset of the first of these records that is of ``at``, which must have one."""
        slot = next(slot for slot, place in self.places.items() if place == at)
        return _offset(self.messages[self.slots.index(slot)])

    def below(self, ends: Mapping[TopicPartition, int]) -> Records:
        """The records below an end offset, for the partitions that have one."""
        if all(after <= ends.get(at, after) for at, after in self.nexts.items()):
            return self
        limits = {slot: ends[at] for slot, at in self.places.items() if at in ends}
        kept = [
            (message, slot)
            for message, slot in zip(self.messages, self.slots, strict=True)
            if slot not in limits or _offset(message) < limits[slot]
        ]
        return Records._of([message for message, _ in kept], self.topic, [slot for _, slot in kept], self.places)

    def values(self) -> list[bytes | None]:
        """The payloads."""
        return list(map(Message.value, self.messages))

    def decoded_slots(self, decoded: Decoded) -> pl.Series:
        """The slots of the decoded rows (Int32)."""
        return pl.Series(_kept(self.slots, decoded), dtype=pl.Int32)

    def keys(self) -> list[bytes | None]:
        """The keys."""
        return list(map(Message.key, self.messages))

    def metadata(self, names: Sequence[str], decoded: Decoded) -> list[pl.Series]:
        """Metadata columns (``columns.METADATA``) of the decoded rows, in the order of ``names``."""
        return [self._column(name, decoded).alias(name) for name in names]

    def errors(self, decoded: Decoded) -> pl.DataFrame | None:
        """The dead letters of a batch (``columns.ERRORS``), or None."""
        if not decoded.errors:
            return None
        failed = [self.messages[index] for index, _ in decoded.errors]
        data = {
            "topic": PICK[system.TOPIC](failed),
            "partition": PICK[system.PARTITION](failed),
            "offset": PICK[system.OFFSET](failed),
            "timestamp": PICK[system.TIMESTAMP](failed),
            "key": PICK[system.KEY](failed),
            "value": [message.value() for message in failed],
            "reason": [reason for _, reason in decoded.errors],
        }
        return pl.DataFrame([_series(data[name], dtype).alias(name) for name, dtype in system.ERRORS.items()])

    def _column(self, name: str, decoded: Decoded) -> pl.Series:
        dtype = system.METADATA[name]
        if self.topic is not None and name == system.TOPIC:
            return pl.repeat(self.topic, decoded.height, dtype=dtype, eager=True)
        if self.topic is not None and name == system.PARTITION:
            return _series(_kept(self.slots, decoded), dtype)
        return _series(PICK[name](_kept(self.messages, decoded)), dtype)


def _kept(values: Sequence[Any], decoded: Decoded) -> Sequence[Any]:
    return values if decoded.kept is None else [values[index] for index in decoded.kept]


def _series(values: Sequence[Any], dtype: pl.DataType) -> pl.Series:
    if isinstance(dtype, pl.Datetime):
        return pl.Series(values, dtype=pl.Int64).cast(dtype)
    return pl.Series(values, dtype=dtype)


def _offset(message: Message) -> int:
    offset = message.offset()
    if offset is None:
        raise ValueError("a consumed message has no offset")
    return offset
