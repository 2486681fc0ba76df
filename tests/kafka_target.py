"""A job's Kafka sink into a topic of its own, for tests."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from headrace.kafka import KafkaCluster
from headrace.kernel.protocols import Entry, EpochId, SinkContext
from headrace.sinks import commit_marker
from headrace.sinks.kafka import KafkaSink, KafkaSinkWriter
from headrace.state.stores import JobStore, open_store

if TYPE_CHECKING:
    from tests.kafka import KafkaHelper

SCHEMA = pl.Schema({"k": pl.String, "n": pl.Int64, "d": pl.Decimal(38, 2)})


def rows(*numbers: int) -> pl.DataFrame:
    return pl.DataFrame(
        {"k": [f"k{n % 3}" for n in numbers], "n": list(numbers), "d": [Decimal(n) for n in numbers]}, schema=SCHEMA
    )


@dataclass
class Target:
    """A job with one Kafka sink into a topic of its own."""

    kafka: KafkaHelper
    folder: Path
    job: str
    topic: str
    writers: list[KafkaSinkWriter] = field(default_factory=list)

    @property
    def store(self) -> JobStore:
        return open_store(str(self.folder))

    def cluster(self, **options: Any) -> KafkaCluster:
        return KafkaCluster(
            "test",
            {"bootstrap.servers": self.kafka.bootstrap, **{k.replace("_", "."): v for k, v in options.items()}},
        )

    def sink(self, **options: Any) -> KafkaSink:
        return KafkaSink("out", self.cluster(**options), self.topic, ("k",))

    def writer(
        self,
        sink: KafkaSink | None = None,
        *,
        lineage: str = "lineage",
        entry: Entry = Entry.GOES_ON,
        decided: int | None = None,
        **options: Any,
    ) -> KafkaSinkWriter:
        """An open writer that has not recovered yet."""
        if decided is None and entry is not Entry.BEGINS:
            decided = 0 if entry is Entry.RESTORED else sys.maxsize  # whatever stands here was decided
        context = SinkContext(self.job, lineage, self.store.blobs, decided, entry is Entry.RESTORED)
        writer = (sink or self.sink(**options)).open(SCHEMA, context)
        self.writers.append(writer)
        return writer

    def ready(self, **options: Any) -> KafkaSinkWriter:
        writer = self.writer(**options)
        writer.recover(None)
        return writer

    def epoch(self, number: int, attempt: str = "a", lineage: str = "lineage") -> EpochId:
        return EpochId(self.job, lineage, number, attempt)

    def visible(self) -> list[int]:
        return sorted(json.loads(value or b"")["n"] for value in self.kafka.values(self.topic))

    def open_transaction(self) -> bool:
        """Whether a transaction holds back the topic's last stable offset."""
        return any(
            self.kafka.watermarks(self.topic, partition)[1]
            < self.kafka.watermarks(self.topic, partition, isolation="read_uncommitted")[1]
            for partition in self.kafka.partitions(self.topic)
        )


@pytest.fixture
def target(kafka: KafkaHelper, tmp_path: Path) -> Iterator[Target]:
    target = Target(kafka, tmp_path / "store", f"job-{uuid.uuid4().hex[:8]}", kafka.topic(2, prefix="out"))
    yield target
    for writer in target.writers:
        writer.close()


def marker_partition(target: Target) -> int:
    return commit_marker.ensure_marker_topic(target.cluster(), target.job, "out", 0)


def prepared(writer: KafkaSinkWriter, epoch: EpochId, frame: pl.DataFrame) -> dict[str, Any]:
    writer.write(frame)
    found = writer.prepare(epoch, None)
    assert found is not None
    # Pre-commits go through the checkpoint record.
    return dict(json.loads(json.dumps(found)))
