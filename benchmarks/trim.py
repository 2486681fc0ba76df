"""Leaving out what the tail will give: one look-up for a row, however many topics the source reads."""

from __future__ import annotations

import time
from typing import Final

import polars as pl

from headrace.kernel import columns as system
from hybrid_source.history_rows import Trim
from hybrid_source.resolution import OffsetNames

_PARTITIONS: Final = 8


def seconds(rows: int, topics: int) -> float:
    """How long the trim of a history takes that has its rows of all topics in turn; half of them are left out.

    Raises:
        RuntimeError: Other rows stay than should.
    """
    number = pl.int_range(rows, eager=True)
    names = [f"topic-{topic:04}" for topic in range(topics)]
    frame = pl.DataFrame(
        {
            system.TOPIC: pl.Series(names).gather(number % topics),
            system.PARTITION: (number // topics % _PARTITIONS).cast(pl.Int32),
            system.OFFSET: number // (topics * _PARTITIONS),
        }
    )
    next_ = rows // (topics * _PARTITIONS) // 2
    nexts = dict.fromkeys(range(_PARTITIONS), next_)
    predicate = Trim(dict.fromkeys(names, nexts), OffsetNames(topic=system.TOPIC)).predicate(frame.schema)
    began = time.perf_counter()
    stayed = frame.lazy().filter(True if predicate is None else predicate).select(pl.len())
    found = stayed.collect(engine="streaming").item()
    took = time.perf_counter() - began
    if found != next_ * topics * _PARTITIONS:
        raise RuntimeError(f"{found} rows stay of {rows}")
    return took
