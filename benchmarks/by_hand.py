"""What one would write without Headrace. Imports nothing of it."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
from confluent_kafka import Consumer, TopicPartition
from pyiceberg.catalog.sql import SqlCatalog

from benchmarks.lake import properties
from benchmarks.manifests import MANY
from benchmarks.measure import Cost, measured


def history(files: list[str], every: str, aggregates: dict[str, str], by: list[str], folder: str) -> Cost:
    """Polars streaming over the same files: filter, window, aggregate, result to a Parquet file."""
    target = Path(folder) / f"by-hand-{uuid.uuid4().hex}.parquet"

    def work() -> int:
        result = (
            pl.scan_parquet(files)
            .filter(pl.col("status") < 400)
            .group_by(*by, window_start=pl.col("at").dt.truncate(every))
            .agg(pl.sql_expr(text).alias(name) for name, text in aggregates.items())
            .collect(engine="streaming")
        )
        result.write_parquet(target)
        return 0

    cost = measured(work)
    facts = summary(pl.read_parquet(target), list(aggregates))
    target.unlink()
    rows = pl.scan_parquet(files).select(pl.len()).collect().item()
    return replace(cost, rows=rows, facts=facts)


def summary(found: pl.DataFrame, names: list[str]) -> dict[str, Any]:
    """Facts of a result by which two ways to it are compared: its height, and a sum for each aggregate.

    To nine digits: Polars adds floats in the order in which its threads get to them.
    """
    return {"windows": found.height, **{name: f"{found[name].sum():.9g}" for name in names}}


def manifests(folder: str) -> Cost:
    """PyIceberg's own plan of a table's files: what any reader pays that learns which files there are."""
    catalog = SqlCatalog("local", **properties(Path(folder)))

    def work() -> int:
        return len(list(catalog.load_table(MANY.partition(".")[2]).scan().plan_files()))

    cost = measured(work)
    catalog.close()
    return cost


def tail(bootstrap: str, topic: str) -> Cost:
    """A bare consume loop: to the end of the topic, touching nothing of the records."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bare",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
    rows = sum(consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=30)[1] for number in partitions)

    def work() -> int:
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        seen = 0
        while seen < rows:
            seen += len(consumer.consume(10_000, 0.1))
        return seen

    cost = measured(work)
    consumer.close()
    return cost
