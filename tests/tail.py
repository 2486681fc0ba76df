"""What tests of the Kafka tail share."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from headrace.kafka import KafkaCluster
from headrace.kernel.protocols import ReadRequest
from hybrid_source.tail import KafkaTail
from hybrid_source.tail_protocols import OpenTail, TailBatch
from hybrid_source.tail_topics import TopicChoice, TopicList
from tests.kafka import KafkaHelper

SCHEMA = pl.Schema({"v": pl.Int64(), "t": pl.Datetime("us", "UTC"), "s": pl.String()})
CAUGHT_UP = ReadRequest(until="caught-up")
LIMIT_S = 30.0
MINUTE = 60_000_000
KEPT = {"retention.ms": "-1"}
"""For records whose timestamps are old."""


@dataclass
class Read:
    """What a reader gave."""

    batches: list[TailBatch] = field(default_factory=list)

    @property
    def rows(self) -> pl.DataFrame:
        return pl.concat([batch.rows for batch in self.batches])

    @property
    def errors(self) -> pl.DataFrame:
        return pl.concat([batch.errors for batch in self.batches if batch.errors is not None])

    def column(self, name: str = "v") -> list[Any]:
        return self.rows[name].to_list()

    @property
    def position(self) -> dict[str, dict[str, Any]]:
        """The states of the last position, by topic and partition."""
        return self.batches[-1].position["topics"]

    @property
    def nexts(self) -> dict[str, int]:
        """Next offset by partition, of the only topic."""
        (partitions,) = self.batches[-1].position["topics"].values()
        return {key: state["next"] for key, state in partitions.items()}


def tail_of(kafka: KafkaHelper, topic: str | TopicChoice, **options: Any) -> KafkaTail:
    cluster = KafkaCluster("test", {"bootstrap.servers": kafka.bootstrap})
    return KafkaTail(cluster, TopicList((topic,)) if isinstance(topic, str) else topic, SCHEMA, **options)


def read_until(
    reader: OpenTail, enough: Callable[[Read], bool], timeout: float = 0.2, seconds: float = LIMIT_S
) -> Read:
    read = Read()
    deadline = time.monotonic() + seconds
    while not enough(read):
        assert time.monotonic() < deadline, f"not enough in time: {read}"
        batch = reader.poll(timeout)
        if batch is not None:
            read.batches.append(batch)
    return read


def opened(tail: KafkaTail, request: ReadRequest, position: Any) -> OpenTail:
    """A tail to where the request ends."""
    return tail.open(request, position, None, ends=tail.ends(request.until) if request.until is not None else None)


def read_bounded(tail: KafkaTail, position: Any = None, request: ReadRequest = CAUGHT_UP) -> Read:
    reader = opened(tail, request, tail.start(None) if position is None else position)
    try:
        return read_until(reader, lambda _: reader.finished)
    finally:
        reader.close()


def values(*numbers: int) -> list[bytes | None]:
    return [json.dumps({"v": number}).encode() for number in numbers]


def at(topic: str, **nexts: int) -> dict[str, Any]:
    """A position: ``at("t", p0=5)``."""
    partitions = {key.removeprefix("p"): {"next": offset} for key, offset in nexts.items()}
    return {"version": 1, "topics": {topic: partitions}}


def events(*minutes: float | None) -> list[bytes | None]:
    return [
        json.dumps(
            {"v": index, "t": None if minute is None else f"1970-01-01T00:{int(minute):02}:{int(minute % 1 * 60):02}Z"}
        ).encode()
        for index, minute in enumerate(minutes)
    ]
