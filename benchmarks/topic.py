"""The tail that is measured: flat JSON records of about 190 bytes in a topic on a real broker."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Final

import polars as pl
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # not in its __all__

SCHEMA: Final = {
    "id": "bigint",
    "name": "string",
    "price": "double",
    "qty": "int",
    "ok": "boolean",
    "ts": "timestamptz",
}
PARTITIONS: Final = 4
_START: Final = datetime(2026, 1, 1, tzinfo=UTC)
_SLICE: Final = 100_000


def produce(bootstrap: str, rows: int) -> str:
    """A new topic with ``rows`` records, by turns over its partitions; gives its name."""
    topic = f"bench-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 50,
            "compression.type": "lz4",
            "queue.buffering.max.messages": 2 * _SLICE,
        }
    )
    for first in range(0, rows, _SLICE):
        for index, value in enumerate(records(first, min(_SLICE, rows - first))):
            producer.produce(topic, value, partition=index % PARTITIONS)
        producer.flush(120)
    return topic


def records(first: int, rows: int) -> list[str]:
    """JSON texts of some records; each is one millisecond after the one before."""
    index = pl.int_range(first, first + rows, dtype=pl.Int64)
    at = pl.lit(_START).dt.cast_time_unit("ms") + pl.duration(milliseconds=index, time_unit="ms")
    record = pl.struct(
        id=(index.hash(1) % 10**12).cast(pl.Int64),
        name="user-" + (index.hash(2) % 1_000_000).cast(pl.String),
        price=(index.hash(3) % 100_000) / 100,
        qty=(index.hash(4) % 1000).cast(pl.Int32),
        ok=index.hash(5) % 2 == 0,
        ts=at.dt.strftime("%Y-%m-%dT%H:%M:%S%.3fZ"),
        note=pl.lit("x" * 60),
    )
    return pl.select(record.struct.json_encode().alias("json"))["json"].to_list()
