"""Cut-invariance on the real broker and a real catalog: random data, cuts, files, batches, epochs and crashes.

As test_cut_invariance.py, with Iceberg and Kafka instead of scripted parts. The examples share their topics: one begins
where the one before has ended.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from catalog.catalogs import TableName
from catalog.commit import set_boundary
from catalog.tables import load_or_create
from headrace.jobs.loading import load_job
from headrace.jobs.run import run_job
from headrace.kernel import columns as system
from headrace.kernel.boundary import Boundary, PartitionRange, TopicBoundary
from headrace.runtime.job import RunOptions
from headrace.runtime.observer import SilentObserver, StopSignal
from headrace.testing import CRASH_POINTS, SimulatedCrashError, crash_at
from hybrid_source import tail_reader
from tests.jobs import START, Site, assert_same, encoded, from_records

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hypothesis.strategies import DrawFn

PARTITIONS = 3
BOUND_S = 20
ROWS = pl.Schema({"id": pl.Int64(), "k": pl.String(), "at": pl.Datetime("us", "UTC"), "v": pl.Int64()})
OFFSETS = {system.PARTITION: pl.Int32(), system.OFFSET: pl.Int64()}

pytestmark = [pytest.mark.services, pytest.mark.timeout(3600)]
few = settings(
    max_examples=30,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # an example takes seconds: no time to shrink
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
many = settings(few, max_examples=300)


@dataclass(frozen=True, slots=True)
class Way:
    """A log, and a way to run a job over it.

    Attributes:
        partitions: Rows in offset order; a row lies at most BOUND_S behind an earlier one of its partition.
        cut: How many rows of each partition are history.
        rule: How the boundary is made known.
        files: File of the history for each row, in turn.
        split_rows: Rows per split.
        batch_rows: Records per poll of the tail, at most.
        epoch_rows: Rows per epoch.
        crashes: Crash points and how often they are passed, one run each.
    """

    partitions: list[pl.DataFrame]
    cut: list[int]
    rule: str
    files: list[int]
    split_rows: int
    batch_rows: int
    epoch_rows: int
    crashes: list[tuple[str, int]]

    @property
    def rows(self) -> pl.DataFrame:
        return pl.concat(self.partitions)


@st.composite
def ways(draw: DrawFn) -> Way:
    ids = itertools.count()
    partitions = []
    for _ in range(PARTITIONS):
        newest, rows = draw(st.integers(0, 200)), []
        for _ in range(draw(st.integers(0, 25))):
            at = newest + draw(st.integers(-BOUND_S, 30))
            newest = max(newest, at)
            key, value = draw(st.sampled_from("abc")), draw(st.integers(-5, 5))
            rows.append((next(ids), key, START + timedelta(seconds=at), value))
        partitions.append(pl.DataFrame(rows, schema=ROWS, orient="row"))
    cut = [draw(st.integers(0, rows.height)) for rows in partitions]
    # Columns say nothing of a partition without rows; it would be read from its beginning, with other examples' rows.
    rules = ["stated", "recorded", "columns"] if all(cut) else ["stated", "recorded"]
    return Way(
        partitions,
        cut,
        draw(st.sampled_from(rules)),
        draw(st.lists(st.integers(0, 2), min_size=1, max_size=5)),
        draw(st.integers(1, 40)),
        draw(st.integers(1, 20)),
        draw(st.integers(5, 40)),
        draw(st.lists(st.tuples(st.sampled_from(CRASH_POINTS), st.integers(1, 3)), max_size=2)),
    )


class Bench:
    """Runs ways on one broker and one catalog."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.topic, self.target = site.kafka.topic(PARTITIONS), site.kafka.topic()
        self.numbers: Iterator[int] = itertools.count()

    def check(self, way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
        number = next(self.numbers)
        site, written = self.site, self.site.kafka.watermarks(self.target)[1]
        spec = self.spec(way, number)
        with monkeypatch.context() as patched:
            patched.setattr(tail_reader, "BATCH_ROWS", way.batch_rows)
            self.run(spec, way.crashes)
        kept = way.rows.filter(pl.col("v") != 0)
        windows = kept.group_by(pl.col("at").dt.truncate("30s").alias("window_start"), "k").agg(
            n=pl.len().cast(pl.Int64),
            s=pl.col("v").sum(),
            lo=pl.col("v").min(),
            hi=pl.col("v").max(),
            mean=pl.col("v").mean(),
        )
        values = [message.value() for message in site.kafka.drain(self.target, start=written)]
        told = from_records(values) if values else windows.clear()
        assert_same(told, windows, "windows in Kafka")
        assert_same(site.read(f"windows{number}"), windows, "windows in Iceberg")
        assert_same(site.read(f"plain{number}"), kept, "rows in Iceberg")

    def run(self, spec: dict[str, Any], crashes: list[tuple[str, int]]) -> None:
        job, config = load_job(self.site.job(spec)), self.site.config

        def go() -> str:
            return run_job(job, config, RunOptions("caught-up"), SilentObserver(), StopSignal()).status

        for point, nth in crashes:
            with crash_at(point, nth):
                try:
                    go()
                except SimulatedCrashError:
                    continue
        assert go() == "finished"

    def spec(self, way: Way, number: int) -> dict[str, Any]:
        begins = [self.site.kafka.watermarks(self.topic, partition)[1] for partition in range(PARTITIONS)]
        for partition, rows in enumerate(way.partitions):
            self.site.kafka.produce(self.topic, encoded(rows), partition=partition)
        nexts = {partition: begins[partition] + way.cut[partition] for partition in range(PARTITIONS)}
        history = self.history(way, number, begins)
        source: dict[str, Any] = {
            "history": {"table": history, "split_rows": way.split_rows},
            "tail": {"topic": self.topic},
            "event_time": {"column": "at", "out_of_orderness": f"{BOUND_S}s"},
        }
        if way.rule == "stated":
            source["boundary"] = {"offsets": nexts}
        elif way.rule == "recorded":
            ranges = {partition: PartitionRange(begins[partition], offset) for partition, offset in nexts.items()}
            name = TableName.parse(history)
            set_boundary(self.site.catalogs, name, Boundary({self.topic: TopicBoundary(ranges, None)}, None))
        aggregate = {"n": "count(*)", "s": "sum(v)", "lo": "min(v)", "hi": "max(v)", "mean": "avg(v)"}
        return {
            "name": f"cut-{number}",
            "sources": {"log": source},
            "steps": [
                {"id": "keep", "filter": "v <> 0"},
                {"id": "w", "window": {"tumbling": "30s", "by": ["k"], "aggregate": aggregate}},
            ],
            "sinks": [
                {"iceberg": {"table": self.site.name(f"windows{number}"), "create": True}},
                {"kafka": {"topic": self.target}, "from": "w"},
                {"iceberg": {"table": self.site.name(f"plain{number}"), "create": True}, "from": "keep"},
            ],
            "checkpoint": {"interval": "1h", "rows": way.epoch_rows},
        }

    def history(self, way: Way, number: int, begins: list[int]) -> str:
        """The rows below the cut, in files; under the rule ``columns`` with the offsets that they have in the topic."""
        name = f"history{number}"
        parts = [
            rows[: way.cut[partition]].with_columns(
                pl.lit(partition, pl.Int32).alias(system.PARTITION),
                pl.int_range(begins[partition], begins[partition] + way.cut[partition]).alias(system.OFFSET),
            )
            for partition, rows in enumerate(way.partitions)
        ]
        rows = pl.concat(parts).sort(system.OFFSET)
        if way.rule != "columns":
            rows = rows.drop(OFFSETS)
        load_or_create(self.site.catalogs, self.site.name(name), rows.schema)
        turns = list(itertools.islice(itertools.cycle(way.files), rows.height))
        for file in sorted(set(turns)):
            self.site.table(name, rows.filter(pl.Series(turns) == file))
        return self.site.name(name)


@pytest.fixture
def bench(site: Site) -> Bench:
    return Bench(site)


@few
@given(way=ways())
def test_output_is_the_same_for_every_way(bench: Bench, monkeypatch: pytest.MonkeyPatch, way: Way) -> None:
    bench.check(way, monkeypatch)


@pytest.mark.full
@many
@given(way=ways())
def test_output_is_the_same_for_many_more_ways(bench: Bench, monkeypatch: pytest.MonkeyPatch, way: Way) -> None:
    bench.check(way, monkeypatch)
