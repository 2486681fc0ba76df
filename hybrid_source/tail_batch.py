"""Messages of one poll into columns. Python touches each message only through the client's own accessors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import polars as pl
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from headrace.kernel import columns as system
from hybrid_source.decode import Decoded

PICK: Final[dict[str, Callable[[Sequence[Message]], list[Any]]]] = {
    system.PARTITION: lambda messages: list(map(Message.partition, messages)),
    system.OFFSET: lambda messages: list(map(Message.offset, messages)),
    system.KEY: lambda messages: list(map(Message.key, messages)),
    system.TIMESTAMP: lambda messages: [
        None if kind == TIMESTAMP_NOT_AVAILABLE else at * 1000 for kind, at in map(Message.timestamp, messages)
    ],
}
"""How a metadata column is read from messages; timestamps in microseconds."""


@dataclass(frozen=True, slots=True)
class Records:
    """The records of one poll, without the client's events.

    Attributes:
        messages: In the order of consumption: each partition's by offset.
        partitions: Partition of each.
        nexts: Next offset by partition after these records.
    """

    messages: Sequence[Message]
    partitions: Sequence[int]
    nexts: Mapping[int, int]

    @classmethod
    def of(cls, messages: Sequence[Message]) -> Records:
        """Records of messages without events."""
        return cls._of(messages, cast("list[int]", PICK[system.PARTITION](messages)))

    @classmethod
    def _of(cls, messages: Sequence[Message], partitions: Sequence[int]) -> Records:
        last = dict(zip(partitions, messages, strict=True))
        return cls(messages, partitions, {partition: _offset(message) + 1 for partition, message in last.items()})

    def first(self, partition: int) -> int:
        """Offset of the first of these records that is of ``partition``, which must have one."""
        return _offset(self.messages[self.partitions.index(partition)])

    def below(self, ends: dict[int, int]) -> Records:
        """The records below an end offset, for the partitions that have one."""
        if all(after <= ends.get(partition, after) for partition, after in self.nexts.items()):
            return self
        kept = [
            (message, partition)
            for message, partition in zip(self.messages, self.partitions, strict=True)
            if partition not in ends or _offset(message) < ends[partition]
        ]
        return Records._of([message for message, _ in kept], [partition for _, partition in kept])

    def values(self) -> list[bytes | None]:
        """The payloads."""
        return list(map(Message.value, self.messages))

    def metadata(self, names: Sequence[str], topic: str, decoded: Decoded) -> list[pl.Series]:
        """Metadata columns (``columns.METADATA``) of the decoded rows, in the order of ``names``."""
        return [self._column(name, topic, decoded).alias(name) for name in names]

    def errors(self, decoded: Decoded, topic: str) -> pl.DataFrame | None:
        """The dead letters of a batch (``columns.ERRORS``), or None."""
        if not decoded.errors:
            return None
        failed = [self.messages[index] for index, _ in decoded.errors]
        data = {
            "topic": [topic] * len(failed),
            "partition": PICK[system.PARTITION](failed),
            "offset": PICK[system.OFFSET](failed),
            "timestamp": PICK[system.TIMESTAMP](failed),
            "key": PICK[system.KEY](failed),
            "value": [message.value() for message in failed],
            "reason": [reason for _, reason in decoded.errors],
        }
        return pl.DataFrame([_series(data[name], dtype).alias(name) for name, dtype in system.ERRORS.items()])

    def _column(self, name: str, topic: str, decoded: Decoded) -> pl.Series:
        dtype = system.METADATA[name]
        if name == system.TOPIC:
            return pl.repeat(topic, decoded.height, dtype=dtype, eager=True)
        if name == system.PARTITION:
            values: Sequence[Any] = self.partitions
            if decoded.kept is not None:
                values = [values[index] for index in decoded.kept]
            return _series(values, dtype)
        messages = self.messages
        if decoded.kept is not None:
            messages = [messages[index] for index in decoded.kept]
        return _series(PICK[name](messages), dtype)


def _series(values: Sequence[Any], dtype: pl.DataType) -> pl.Series:
    if isinstance(dtype, pl.Datetime):
        return pl.Series(values, dtype=pl.Int64).cast(dtype)
    return pl.Series(values, dtype=dtype)


def _offset(message: Message) -> int:
    offset = message.offset()
    if offset is None:
        raise ValueError("a consumed message has no offset")
    return offset
