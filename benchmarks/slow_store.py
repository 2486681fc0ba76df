"""A history of many splits in an object store that takes its time: what reading several at once is worth.

The store is the dev stack's, behind a proxy that holds up every request as a distant store would.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import polars as pl
from pyiceberg.catalog.sql import SqlCatalog

from benchmarks.lake import requests
from headrace.kernel.protocols import ReadRequest
from hybrid_source.history_stage import LakeHistory
from hybrid_source.hybrid import HybridSource
from hybrid_source.iceberg_history import open_iceberg
from hybrid_source.splits import SplitTarget
from infra import dev

DELAY_S: Final = 0.04
_TABLE: Final = "bench.slow"
_CHUNK: Final = 1 << 16


def seconds(folder: Path, s3: dev.S3, files: int, rows: int, concurrencies: tuple[int, ...]) -> Iterator[float]:
    """How long the whole history takes, a split for each file, for each concurrency.

    Args:
        folder: For the catalog.
        s3: The store.
        files: Data files.
        rows: Rows in each.
        concurrencies: What is measured, in this order.
    """
    with _delayed(s3.endpoint) as endpoint:
        properties = {
            "uri": f"sqlite:///{folder}/slow.db",
            "warehouse": f"s3://{s3.bucket}/slow-{time.time_ns()}",
            "s3.endpoint": s3.endpoint,
            "s3.access-key-id": s3.access_key,
            "s3.secret-access-key": s3.secret_key,
            "s3.region": s3.region,
        }
        _build(properties, files, rows)
        for concurrency in concurrencies:
            yield _read({**properties, "s3.endpoint": endpoint}, rows, concurrency)


def _build(properties: dict[str, str], files: int, rows: int) -> None:
    catalog = SqlCatalog("slow", **properties)
    catalog.create_namespace_if_not_exists("bench")
    arrow = [requests(day, rows).to_arrow(compat_level=pl.CompatLevel.oldest()) for day in range(files)]
    table = catalog.create_table(_TABLE, arrow[0].schema)
    with table.transaction() as transaction:
        for part in arrow:
            transaction.append(part.cast(table.schema().as_arrow()))
    catalog.close()


def _read(properties: dict[str, str], rows: int, concurrency: int) -> float:
    catalog = SqlCatalog("slow", **properties)
    table = catalog.load_table(_TABLE)
    history = LakeHistory(lambda pin: open_iceberg(table, _TABLE, pin=pin), event_time="at", target=SplitTarget(rows))
    source = HybridSource("slow", open_iceberg(table, _TABLE).schema, history, concurrency=concurrency)
    began = time.perf_counter()
    reader = source.open(ReadRequest(["site", "amount"], compute=_collected), None)
    while not reader.finished:
        reader.poll(1.0)
    reader.close()
    catalog.close()
    return time.perf_counter() - began


def _collected(rows: pl.LazyFrame, *_: Any, **__: Any) -> pl.DataFrame:
    return rows.group_by("site").agg(pl.col("amount").sum()).collect(engine="streaming")


@contextmanager
def _delayed(endpoint: str) -> Iterator[str]:
    """A proxy in front of an HTTP endpoint; what a client sends arrives late."""
    to, loop = urlsplit(endpoint), asyncio.new_event_loop()
    bound: list[int] = []
    ready = threading.Event()
    open_: set[asyncio.Task[None]] = set()

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: float) -> None:
        with suppress(ConnectionError, asyncio.CancelledError):
            while data := await reader.read(_CHUNK):
                await asyncio.sleep(delay)
                writer.write(data)
                await writer.drain()
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            open_.add(task)
            task.add_done_callback(open_.discard)
        there, back = await asyncio.open_connection(to.hostname, to.port)
        with suppress(asyncio.CancelledError):
            await asyncio.gather(pipe(reader, back, DELAY_S), pipe(there, writer, 0))

    async def serve() -> None:
        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        bound.append(server.sockets[0].getsockname()[1])
        ready.set()
        with suppress(asyncio.CancelledError):
            await server.serve_forever()
        for one in open_:
            one.cancel()
        await asyncio.gather(*open_, return_exceptions=True)

    task = loop.create_task(serve())
    thread = threading.Thread(target=lambda: loop.run_until_complete(task), daemon=True)
    thread.start()
    ready.wait()
    try:
        yield f"http://127.0.0.1:{bound[0]}"
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()
        loop.close()
