"""The pause at the handover: from the last row of the history to the first one of the topic."""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import Any, Final

import polars as pl

from benchmarks.topic import PARTITIONS, records
from headrace.jobs.compile import compile_job
from headrace.jobs.config import Config
from headrace.jobs.parse import parse_job
from headrace.kernel.protocols import ReadRequest

POLL_S: Final = 0.1
_TYPES: Final = {
    "id": pl.Int64(),
    "name": pl.String(),
    "price": pl.Float64(),
    "qty": pl.Int32(),
    "ok": pl.Boolean(),
    "ts": pl.String(),
}


def pauses(folder: Path, config: Config, topic: str, rows: int, times: int) -> list[float]:
    """Hand over some times; gives the pauses in seconds.

    The first half of the topic's records is a history in Parquet. Measured is the source alone, driven as the runtime
    drives it: from the moment when the last split has been collected.

    Args:
        folder: For the history.
        config: The broker and a catalog.
        topic: As :func:`benchmarks.topic.produce` makes it.
        rows: How many records it has.
        times: How often.
    """
    each = rows // 2 // PARTITIONS
    lines = "\n".join(records(0, each * PARTITIONS)).encode()
    history = pl.read_ndjson(io.BytesIO(lines), schema=_TYPES | {"note": pl.String()}).drop("note")
    at = pl.col("ts").str.to_datetime("%Y-%m-%dT%H:%M:%S%.3fZ", time_unit="us", time_zone="UTC")
    history.with_columns(at).write_parquet(folder / "handover.parquet")
    spec = {
        "name": "handover",
        "sources": {"events": _source(folder, topic, each)},
        "sinks": [{"iceberg": {"table": "local.bench.nowhere", "create": True}}],
    }
    job = compile_job(parse_job(spec), config)
    return [_pause(job.sources["events"]) for _ in range(times)]


def _source(folder: Path, topic: str, each: int) -> dict[str, Any]:
    return {
        "history": {"parquet": str(folder / "handover.parquet"), "split_rows": max(1, each)},
        "tail": {"topic": topic},
        "boundary": {"offsets": dict.fromkeys(range(PARTITIONS), each)},
        "event_time": {"column": "ts", "out_of_orderness": "5s"},
    }


def _pause(source: Any) -> float:
    reader = source.open(ReadRequest(["id", "ts"], None, "caught-up"), None)
    try:
        ended = time.perf_counter()
        while True:
            batch = reader.poll(POLL_S)
            if batch is None or not batch.records:
                continue
            if batch.origin == "tail":
                return time.perf_counter() - ended
            batch.rows.collect(engine="streaming")
            ended = time.perf_counter()
    finally:
        reader.close()
