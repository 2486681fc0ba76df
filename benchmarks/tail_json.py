"""CPU time per row of the JSON tail, against a bare consume loop over the same topic.

Run: ``python benchmarks/tail_json.py BOOTSTRAP [ROWS]``. The target is a ratio (bare / tail) of at least 0.6.
"""

from __future__ import annotations

import json
import random
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import polars as pl
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.kafka import KafkaCluster, KafkaMetadata
from headrace.kernel.protocols import ReadRequest
from hybrid_source.hybrid import EventTime
from hybrid_source.tail import KafkaTail
from hybrid_source.tail_assignment import Assignment
from hybrid_source.tail_reader import BATCH_ROWS

SCHEMA = pl.Schema(
    {
        "id": pl.Int64(),
        "name": pl.String(),
        "price": pl.Float64(),
        "qty": pl.Int32(),
        "ok": pl.Boolean(),
        "ts": pl.Datetime("us", "UTC"),
    }
)


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU time (all threads of the process) and wall time of one reading of a topic."""

    rows: int
    cpu_s: float
    wall_s: float

    @property
    def cpu_us_per_row(self) -> float:
        return self.cpu_s / self.rows * 1e6


def produce(bootstrap: str, rows: int, partitions: int = 4) -> str:
    """A new topic with random flat records of about 180 bytes."""
    topic = f"bench-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 50,
            "compression.type": "lz4",
            "queue.buffering.max.messages": 2_000_000,
        }
    )
    pick = random.Random(7)
    start = datetime(2026, 1, 1)  # noqa: DTZ001 - written with a Z below
    for index in range(rows):
        record = {
            "id": pick.randrange(10**12),
            "name": f"user-{pick.randrange(10**6)}",
            "price": round(pick.random() * 1000, 2),
            "qty": pick.randrange(1000),
            "ok": pick.random() < 0.5,
            "ts": (start + timedelta(milliseconds=index)).isoformat(timespec="milliseconds") + "Z",
            "note": "x" * 60,
        }
        producer.produce(topic, json.dumps(record).encode(), partition=index % partitions)
        if index % 50_000 == 0:
            producer.poll(0)
    producer.flush(120)
    return topic


def bare(cluster: KafkaCluster, topic: str) -> Cost:
    """Consume to the end and touch nothing."""
    metadata = KafkaMetadata(cluster)
    partitions = metadata.describe(topic).partitions
    rows = sum(metadata.latest(topic, partitions).values())
    assignment = Assignment(cluster, topic, dict.fromkeys(partitions, 0))

    def read() -> None:
        seen = 0
        while seen < rows:
            seen += len(assignment.consume(BATCH_ROWS, 0.1))

    cost = _timed(rows, read)
    assignment.close()
    return cost


def tail(cluster: KafkaCluster, topic: str, columns: Sequence[str], event_time: str | None = "ts") -> Cost:
    """Read the topic to its end through the tail."""
    source = KafkaTail(cluster, topic, SCHEMA, EventTime(event_time) if event_time else None)
    position = source.start(None)
    reader = source.open(ReadRequest(columns=columns, until="caught-up"), position, None)
    seen = 0

    def read() -> None:
        nonlocal seen
        while not reader.finished:
            batch = reader.poll(0.1)
            seen += batch.records if batch is not None else 0

    cost = _timed(1, read)
    reader.close()
    return Cost(seen, cost.cpu_s, cost.wall_s)


def ratio(cluster: KafkaCluster, topic: str, columns: Sequence[str], event_time: str | None = "ts") -> float:
    """CPU of the bare loop over CPU of the tail, best of three each."""
    plain = min(bare(cluster, topic).cpu_us_per_row for _ in range(3))
    ours = min(tail(cluster, topic, columns, event_time).cpu_us_per_row for _ in range(3))
    return plain / ours


def _timed(rows: int, work: Callable[[], None]) -> Cost:
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return Cost(rows, time.process_time() - cpu, time.perf_counter() - wall)


def main() -> None:
    bootstrap, rows = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 500_000
    cluster = KafkaCluster("bench", {"bootstrap.servers": bootstrap})
    topic = produce(bootstrap, rows)
    for _ in range(2):
        cost = bare(cluster, topic)
        print(f"bare           {cost.cpu_us_per_row:6.2f} us/row {cost.rows / cost.wall_s / 1e3:8.0f} krows/s")
        for columns, event_time in ((["id", "qty"], None), (["id", "qty"], "ts"), (list(SCHEMA), "ts")):
            cost = tail(cluster, topic, columns, event_time)
            label = f"{len(columns)} of {len(SCHEMA)}{' + time' if event_time else ''}"
            print(f"tail {label:10s}{cost.cpu_us_per_row:6.2f} us/row {cost.rows / cost.wall_s / 1e3:8.0f} krows/s")


if __name__ == "__main__":
    main()
