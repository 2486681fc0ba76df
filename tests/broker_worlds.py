"""Random worlds on the real broker and a real catalog: all that may happen to a job over a table and a topic.

A world has a topic (transactions, some of them aborted; rows out of order within the bound, and late ones; a partition
that may stay empty, and one that may be added at any time), a table that grows over it (each version covers any
offsets, also inside a hole; compacted at times) and a job over both that is killed at crash points, while the table
grows and the topic forgets. What the job must have written is one plain batch computation over all rows.
"""

from __future__ import annotations

import itertools
import random
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import polars as pl
from confluent_kafka import Consumer, Producer, TopicPartition

from catalog import boundary_record
from catalog.tables import load_or_create
from headrace.jobs.compile import compile_job
from headrace.jobs.loading import load_job
from headrace.jobs.run import run_job
from headrace.jobs.seam import prove_seam
from headrace.kernel import columns as system
from headrace.kernel import crash
from headrace.kernel.boundary import Boundary, PartitionRange, TopicBoundary
from headrace.runtime.job import RunOptions
from headrace.runtime.observer import SilentObserver, StopSignal
from headrace.testing import CRASH_POINTS, SimulatedCrashError, crash_at
from infra.dev.process import wait_until
from tests.history_tables import append_files
from tests.jobs import START, Site, assert_same, encoded, from_records
from tests.kafka import SECONDS, Transaction, write
from tests.lake import compact

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from headrace.kernel.until import Until
    from headrace.runtime.observer import Event

PARTITIONS = 3
BOUND_S = 20
WINDOW_S = 30
ROWS = pl.Schema({"id": pl.Int64(), "k": pl.String(), "at": pl.Datetime("us", "UTC"), "v": pl.Int64()})
PLACES = {system.PARTITION: pl.Int32(), system.OFFSET: pl.Int64()}
LATE = "z"
"""Key of the rows that lie further behind than the bound allows, and of those of an added partition, which may."""


@dataclass
class Told(SilentObserver):
    """Remembers the events of its runs."""

    codes: list[str] = field(default_factory=list)

    def on_event(self, event: Event) -> None:
        self.codes.append(event.code)


class Bench:
    """What the worlds on one catalog share: clients, and a topic for results."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.results = site.kafka.topic()
        self.plain = Producer(site.kafka.config(linger_ms=0))
        self.seen: list[str] = []
        self._transactional: Producer | None = None
        self._looking = Consumer(site.kafka.config(group_id="worlds", enable_auto_commit=False))

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """One transaction of a producer that goes on; aborted unless it was committed."""
        if self._transactional is None:
            self._transactional = self.site.kafka.begin().producer
        else:
            self._transactional.begin_transaction()
        transaction = Transaction(self._transactional)
        try:
            yield transaction
        finally:
            if transaction.open:
                transaction.abort()

    def end(self, topic: str, partition: int = 0) -> int:
        """The end of a partition, exclusive, markers included."""
        at = TopicPartition(topic, partition)
        return int(self._looking.get_watermark_offsets(at, timeout=SECONDS, cached=False)[1])

    def learn(self, topic: str, partitions: int) -> None:
        """Let all clients know the partitions of a topic that has more of them now."""
        for client in (self.plain, self._transactional, self._looking):
            if client is not None:
                found = partial(client.list_topics, topic, timeout=SECONDS)
                assert wait_until(lambda found=found: len(found().topics[topic].partitions) == partitions, SECONDS)

    def close(self) -> None:
        self._looking.close()


@dataclass(frozen=True, slots=True)
class Ways:
    """How one job is set up.

    Attributes:
        rule: How the boundary is made known: ``recorded``, ``columns`` or ``stated``.
        offsets: Rows of the table carry partition and offset.
        as_live: Rows of the history are late as they were in the topic.
        partitioned: The table is partitioned by the topic's partition.
        late: Share of rows that lie behind the bound.
        silent: The partition that has no rows, at first or ever.
        windows_in_kafka: The windows go to a topic, too.
    """

    rule: str
    offsets: bool
    as_live: bool
    partitioned: bool
    late: float
    silent: int | None
    windows_in_kafka: bool

    @classmethod
    def thrown(cls, dice: random.Random) -> Ways:
        rule = dice.choice(["recorded", "recorded", "recorded", "columns", "stated"])
        offsets = rule == "columns" or dice.random() < 0.6
        return cls(
            rule,
            offsets,
            offsets and dice.random() < 0.2,
            offsets and dice.random() < 0.4,
            dice.choice([0, 0.1]),
            dice.choice([None, dice.randrange(PARTITIONS)]),
            dice.random() < 0.4,
        )


class World:
    """See the module. Everything that happens is thrown with one seed."""

    def __init__(self, bench: Bench, seed: int) -> None:
        self.bench, self.site = bench, bench.site
        self.dice = random.Random(seed)
        self.ways = Ways.thrown(self.dice)
        self.told = Told()
        self.topic = self.site.kafka.topic(PARTITIONS)
        self.table = f"history_{self.topic}"
        self.partitions = PARTITIONS
        self.newest = [self.dice.randint(0, 150) for _ in range(PARTITIONS + 1)]
        self.ids = itertools.count()
        self.log = pl.DataFrame(schema=pl.Schema({**ROWS, **PLACES}))
        self.ends, self.cuts = [0] * (PARTITIONS + 1), [[0] * (PARTITIONS + 1)]
        self.begin = self.cuts[0]
        self.written = bench.end(bench.results)

    # ----------------------------------------------------------------------------------------------------- what happens

    def grow(self, most: int) -> None:
        """Further records, in bursts: plain ones, committed and aborted transactions over the partitions."""
        for _ in range(self.dice.randint(1, 3)):
            how = self.dice.choice(["plain", "commit", "commit", "abort"])
            burst = {
                at: self.rows(at, self.dice.randint(0, most)) for at in range(self.partitions) if at != self.ways.silent
            }
            burst = {at: rows for at, rows in burst.items() if rows.height}
            if how == "plain":
                self._wrote(burst, {at: self._write(self.bench.plain, rows, at) for at, rows in burst.items()})
            elif burst:
                with self.bench.transaction() as transaction:
                    offsets = {at: self._write(transaction.producer, rows, at) for at, rows in burst.items()}
                    if how == "commit":
                        transaction.commit()
                self._wrote(burst if how == "commit" else {}, offsets, marker=1)

    def _write(self, producer: Producer, rows: pl.DataFrame, at: int) -> list[int]:
        return write(producer, ({"topic": self.topic, "partition": at, "value": value} for value in encoded(rows)))

    def _wrote(self, burst: dict[int, pl.DataFrame], offsets: dict[int, list[int]], marker: int = 0) -> None:
        for at, rows in burst.items():
            placed = rows.with_columns(
                pl.lit(at, pl.Int32).alias(system.PARTITION), pl.Series(system.OFFSET, offsets[at], pl.Int64)
            )
            self.log = pl.concat([self.log, placed])
        for at, numbers in offsets.items():
            end = self.ends[at] = numbers[-1] + 1 + marker
            assert wait_until(lambda at=at, end=end: self.bench.end(self.topic, at) >= end, SECONDS)

    def rows(self, partition: int, count: int) -> pl.DataFrame:
        """A row lies at most BOUND_S behind an earlier one; but for those that are late by a window and more."""
        rows = []
        for _ in range(count):
            newest, key = self.newest[partition], self.dice.choice("abc")
            if self.dice.random() < self.ways.late:
                at, key = newest - BOUND_S - WINDOW_S - self.dice.randint(1, 100), LATE
            elif partition == PARTITIONS:
                at, key = newest + self.dice.randint(-BOUND_S, 30), LATE
                self.newest[partition] = max(newest, at)
            else:
                at = newest + self.dice.randint(-BOUND_S, 30)
                self.newest[partition] = max(newest, at)
            rows.append((next(self.ids), key, START + timedelta(seconds=at), self.dice.randint(-5, 5)))
        return pl.DataFrame(rows, schema=ROWS, orient="row")

    def archive(self) -> None:
        """A newer version of the table: up to any offsets, also inside a hole, in some files; compacted at times."""
        before = self.cuts[-1]
        cut = [self.dice.choice([end, self.dice.randint(low, end)]) for low, end in zip(before, self.ends, strict=True)]
        schema = {**ROWS, **(PLACES if self.ways.offsets else {})}
        by = (system.PARTITION,) if self.ways.partitioned else ()
        table = load_or_create(self.site.catalogs, self.site.name(self.table), schema, by)
        added = self._between(before, cut).select(*schema)
        ranges = {partition: PartitionRange(0, offset) for partition, offset in enumerate(cut[: self.partitions])}
        record = boundary_record.write(table, Boundary({self.topic: TopicBoundary(ranges, None)}, None))
        facts = {boundary_record.BOUNDARY: record} if self.ways.rule == "recorded" else {}
        if by and added.height:
            table.append(added.to_arrow(compat_level=pl.CompatLevel.oldest()), snapshot_properties=facts)
        else:
            turns = pl.Series([self.dice.randrange(3) for _ in range(added.height)], dtype=pl.Int64)
            files = [added.filter(turns == turn) for turn in range(3)] if added.height else []
            append_files(table, *(file for file in files if file.height), facts=facts)
        if not by and self.dice.random() < 0.2 and table.refresh().current_snapshot().summary["total-records"] != "0":
            compact(table)
        self.cuts.append(cut)

    def _between(self, low: list[int], high: list[int]) -> pl.DataFrame:
        at, offset = pl.col(system.PARTITION).cast(pl.Int64), pl.col(system.OFFSET)
        places = list(range(PARTITIONS + 1))
        lows, highs = (at.replace_strict(places, ends, return_dtype=pl.Int64) for ends in (low, high))
        return self.log.filter((offset >= lows) & (offset < highs))

    def forget(self) -> None:
        """The topic loses some of what a job can read from the table."""
        if not self.ways.offsets or self.ways.rule == "stated":
            return
        reach = self.cuts[-1]
        if self.ways.rule == "columns":  # which lead to the last row, not to the end of a hole behind it
            # Nor do they say that nothing lay before the first row, where the job has not begun with it.
            begun, (first, last) = self._bounds(self.begin)[0], self._bounds(reach)
            known = [at for at in last if at in begun or first[at] == 0]
            reach = [last[at] + 1 if at in known else 0 for at in range(self.partitions)]
        below = {at: self.dice.randint(0, end) for at, end in enumerate(reach[: self.partitions])}
        self.site.kafka.delete_records(self.topic, {at: offset for at, offset in below.items() if offset})

    def _bounds(self, cut: list[int]) -> tuple[dict[int, int], dict[int, int]]:
        """The first and the last row's offset of each partition that a version has rows of."""
        held = self._between(self.cuts[0], cut).group_by(system.PARTITION)
        offset = pl.col(system.OFFSET)
        return dict(held.agg(offset.min()).rows()), dict(held.agg(offset.max()).rows())

    def happen(self) -> None:
        """Some of it, at any time."""
        if self.partitions == PARTITIONS and self.dice.random() < 0.2:
            self.partitions += 1
            self.site.kafka.add_partition(self.topic, self.partitions)
            self.bench.learn(self.topic, self.partitions)
        if self.dice.random() < 0.6:
            self.grow(5)
        if self.dice.random() < 0.9:
            self.archive()
        if self.dice.random() < 0.6:
            self.forget()

    # ---------------------------------------------------------------------------------------------------------- the job

    @property
    def points(self) -> list[str]:
        """The crash points that the job passes."""
        return [one for one in CRASH_POINTS if self.ways.windows_in_kafka or not one.startswith("kafka")]

    def job(self) -> Path:
        aggregate = {"n": "count(*)", "s": "sum(v)", "lo": "min(v)", "hi": "max(v)", "mean": "avg(v)"}
        dice, ways, table = self.dice, self.ways, self.site.name(self.table)
        # A run that dies before anything is decided begins again, with a table that may have grown.
        pinned = self.site.catalogs.load(table).current_snapshot().snapshot_id
        read: dict[str, Any] = {
            "history": {"table": table, "snapshot": pinned, "split_rows": dice.randint(1, 30)},
            "tail": {"topic": self.topic, "transaction_wait": "30s"},
            "event_time": {"column": "at", "out_of_orderness": f"{BOUND_S}s"},
            "handover": {
                "chase": dice.choice(["auto", "auto", "auto", "off"]),
                "per_partition": dice.random() < 0.8,
                "switch_back": {"lag": dice.choice(["off", 3]), "on_truncation": True},
            },
        }
        if ways.as_live:
            read["late"] = {"history": "as_live"}
        self.begin = self.cuts[-1]
        if ways.rule == "stated":
            if ways.offsets and dice.random() < 0.5:  # of what the table has, some is left to the topic
                self.begin = [dice.randint(0, end) for end in self.begin]
            read["boundary"] = {"offsets": dict(enumerate(self.begin[: self.partitions]))}
        ports = {"windows": "w", "late": "w.late", "plain": "keep"}
        sinks: list[dict[str, Any]] = [
            {"iceberg": {"table": self.site.name(f"{name}_{self.topic}"), "create": True}, "from": port}
            for name, port in ports.items()
        ]
        if ways.windows_in_kafka:
            sinks.append({"kafka": {"topic": self.bench.results}, "from": "w"})
        steps = [
            {"id": "keep", "filter": "v <> 0"},
            {"id": "w", "window": {"tumbling": f"{WINDOW_S}s", "by": ["k"], "aggregate": aggregate}},
        ]
        checkpoint = {"interval": "1h", "rows": dice.randint(5, 25)}
        name = f"job-{self.topic}"
        return self.site.job(
            {"name": name, "sources": {"log": read}, "steps": steps, "sinks": sinks, "checkpoint": checkpoint}
        )

    def run(self, job: Path, end: str = "suspend", until: Until = "caught-up") -> None:
        options = RunOptions(until, end)  # type: ignore[arg-type] # a literal
        run_job(load_job(job), self.site.config, options, self.told, StopSignal())

    def die(self, job: Path) -> None:
        """Run until a crash point, if it is passed; things may happen at another one."""
        dice = self.dice
        until = dice.choice(["caught-up", datetime.now(UTC)])  # a time is another end, a run to it not the same one
        happens = dice.choice(self.points) if dice.random() < 0.8 else ""
        with once(happens, self.happen), crash_at(dice.choice(self.points), dice.randint(1, 3)):
            try:
                self.run(job, until=until)
            except SimulatedCrashError:
                self.told.codes.append("died")

    def live(self) -> None:
        """All of it, then what must have come of it."""
        self.grow(10)
        self.archive()
        self.grow(6)
        job = self.job()
        for _ in range(self.dice.randint(1, 2)):
            self.die(job)
            self.happen()
        self.run(job)
        self.run(job, end="drain")
        self.check(job)

    # ----------------------------------------------------------------------------------------------- what must be right

    def check(self, job: Path) -> None:
        """Every row once, and every window; a late row once, in its window or as a late one."""
        compiled = compile_job(load_job(job), self.site.config)
        assert prove_seam(compiled).exact
        compiled.catalogs.close()
        kept = self.log.filter(pl.col("v") != 0).select(*ROWS)
        assert_same(self.site.read(f"plain_{self.topic}"), kept, "rows")
        late = self.site.read(f"late_{self.topic}").select(*ROWS)
        assert_same(late, kept.filter(pl.col("id").is_in(late["id"].to_list())), "late rows")
        must, may = self.lateness()
        found = set(late["id"].to_list())
        assert must <= found <= may, f"late: {sorted(must - found)} were not, {sorted(found - may)} were"
        windows = (
            kept.filter(~pl.col("id").is_in(late["id"].to_list()))
            .group_by(pl.col("at").dt.truncate(f"{WINDOW_S}s").alias("window_start"), "k")
            .agg(
                n=pl.len().cast(pl.Int64),
                s=pl.col("v").sum(),
                lo=pl.col("v").min(),
                hi=pl.col("v").max(),
                mean=pl.col("v").mean(),
            )
        )
        assert_same(self.site.read(f"windows_{self.topic}"), windows, "windows in Iceberg")
        if self.ways.windows_in_kafka:
            values = [message.value() for message in self.site.kafka.drain(self.bench.results, start=self.written)]
            told = from_records(values) if values else windows.clear()
            assert_same(told, windows, "windows in Kafka")

    def lateness(self) -> tuple[set[int], set[int]]:
        """The rows that must be late, and those that may be.

        Those of the history never are, unless it is read as the topic. A row of the topic is where earlier rows of its
        partition that are no history have let the watermark pass its window; rows of the history may, too.
        """
        begin = self.cuts[0] if self.ways.as_live else self.begin
        live = self._between(begin, self.ends).sort(system.PARTITION, system.OFFSET)
        earlier = pl.col("at").cum_max().shift(1).over(system.PARTITION) - timedelta(seconds=BOUND_S)
        passed = pl.col("at").dt.truncate(f"{WINDOW_S}s") + timedelta(seconds=WINDOW_S) < earlier
        may = live.filter((pl.col("k") == LATE) & (pl.col("v") != 0))
        # Without offsets later versions are read as history.
        sure = (
            live if self.ways.offsets else self._between(self.cuts[-1], self.ends).sort(system.PARTITION, system.OFFSET)
        )
        must = sure.filter(passed & (pl.col("k") == LATE) & (pl.col("v") != 0))
        return set(must["id"].to_list()), set(may["id"].to_list())


@contextmanager
def once(point: str, action: Callable[[], None]) -> Iterator[None]:
    """Run ``action`` the first time that a crash point is passed, if it is."""
    left = [action]

    def hook(name: str) -> None:
        if name == point and left:
            left.pop()()

    uninstall = crash.install(hook)
    try:
        yield
    finally:
        uninstall()
