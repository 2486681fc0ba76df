"""Beyond the single switch, on the real broker and a real catalog: chase, switch back, partition by partition, stages.

Jobs run in this process and die at crash points; between two runs the topic is archived further (by Headrace's own
archive job), goes on in transactions, some of which are aborted, and forgets what the table has. Random worlds with all
of it: test_cut_invariance_services.py.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from catalog.boundary_record import find_boundary
from headrace.jobs import compile_sources
from headrace.jobs.archive import archive_job
from headrace.jobs.compile import compile_job
from headrace.jobs.loading import load_job
from headrace.jobs.run import run_job
from headrace.jobs.seam import prove_seam
from headrace.kernel import columns as system
from headrace.kernel.boundary import TopicPartition
from headrace.kernel.errors import GapError
from headrace.runtime.job import RunOptions
from headrace.runtime.observer import SilentObserver, StopSignal
from headrace.testing import SimulatedCrashError, crash_at
from hybrid_source import history_stage, tail_reader
from hybrid_source.handover_policy import HandoverPolicy
from hybrid_source.lake_tail import LakeTail
from tests.broker_worlds import BOUND_S, ROWS, Told
from tests.jobs import START, Site, assert_same, encoded

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.kernel.until import Until

TYPES = {"id": "int64", "k": "string", "at": "timestamptz", "v": "int64"}

pytestmark = [pytest.mark.services, pytest.mark.timeout(900)]


@dataclass
class World:
    """A topic that grows, its archive, and a job over both."""

    site: Site
    partitions: int
    seed: int
    told: Told = field(default_factory=Told)
    committed: list[pl.DataFrame] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        self.topic = self.site.kafka.topic(self.partitions)
        self.table = f"archive_{self.topic}"
        self.newest = [self.dice.randint(0, 100) for _ in range(self.partitions)]
        self.ids = iter(range(10**6))

    def grow(self, most: int = 12) -> None:
        """Further records in every partition: plain ones, committed and aborted transactions."""
        for partition in range(self.partitions):
            rows = self.rows(partition, self.dice.randint(0, most))
            how = self.dice.choice(["plain", "commit", "abort"])
            if how == "plain":
                self.site.kafka.produce(self.topic, encoded(rows), partition=partition)
            elif rows.height:
                with self.site.kafka.transaction() as transaction:
                    last = transaction.produce(self.topic, encoded(rows), partition=partition)[-1]
                    if how == "commit":
                        transaction.commit()
                self.site.kafka.settle(self.topic, last + 2, partition)
            if how != "abort":
                self.committed.append(rows)

    def rows(self, partition: int, count: int) -> pl.DataFrame:
        rows = []
        for _ in range(count):
            at = self.newest[partition] + self.dice.randint(-BOUND_S, 30)
            self.newest[partition] = max(self.newest[partition], at)
            rows.append(
                (next(self.ids), self.dice.choice("abc"), START + timedelta(seconds=at), self.dice.randint(-5, 5))
            )
        return pl.DataFrame(rows, schema=ROWS, orient="row")

    def archive(self, *, partition_by: tuple[str, ...] = ()) -> list[int]:
        """Archive up to the topic's end; gives the boundary, which does not move where there are no rows to commit."""
        name = self.site.name(self.table)
        spec = archive_job(self.topic, name, TYPES, partition_by=partition_by)
        run_job(spec, self.site.config, RunOptions("caught-up", "suspend"), SilentObserver(), StopSignal())
        table = self.site.catalogs.load(name)
        snapshot = table.current_snapshot()
        found = find_boundary(table, snapshot.snapshot_id if snapshot is not None else None)
        nexts = found.boundary.nexts if found is not None else {}
        return [nexts.get(TopicPartition(self.topic, partition), 0) for partition in range(self.partitions)]

    def add_partition(self) -> None:
        """The topic gets one more partition, whose rows are late for nobody."""
        self.partitions += 1
        self.site.kafka.add_partition(self.topic, self.partitions)
        self.newest.append(max(self.newest) + BOUND_S)

    def forget(self, below: list[int]) -> None:
        """The topic loses what lies below these offsets."""
        self.site.kafka.delete_records(self.topic, {p: offset for p, offset in enumerate(below) if offset})

    def job(self, **source: Any) -> Path:
        aggregate = {"n": "count(*)", "s": "sum(v)", "lo": "min(v)", "hi": "max(v)", "mean": "avg(v)"}
        read = {
            "history": {"table": self.site.name(self.table), "split_rows": 5},
            "tail": {"topic": self.topic, "transaction_wait": "30s"},
            "event_time": {"column": "at", "out_of_orderness": f"{BOUND_S}s"},
            **source,
        }
        sinks = [
            {"iceberg": {"table": self.site.name(f"windows_{self.topic}"), "create": True}, "from": "w"},
            {"iceberg": {"table": self.site.name(f"plain_{self.topic}"), "create": True}, "from": "keep"},
        ]
        steps = [
            {"id": "keep", "select": list(ROWS)},
            {"id": "w", "window": {"tumbling": "30s", "by": ["k"], "aggregate": aggregate}},
        ]
        checkpoint = {"interval": "1h", "rows": 5}
        name = f"job-{self.topic}"
        return self.site.job(
            {"name": name, "sources": {"log": read}, "steps": steps, "sinks": sinks, "checkpoint": checkpoint}
        )

    def run(
        self, job: Path, *, die: tuple[str, int] | None = None, end: str = "suspend", until: Until | None = "caught-up"
    ) -> None:
        options = RunOptions(until, end)  # type: ignore[arg-type] # a literal
        if die is None:
            run_job(load_job(job), self.site.config, options, self.told, StopSignal())
            return
        with crash_at(*die):
            try:
                run_job(load_job(job), self.site.config, options, self.told, StopSignal())
            except SimulatedCrashError:
                return

    def finish(self, job: Path) -> None:
        """Run to the end of the run that was interrupted, check what it gave, and then to the topic's end."""
        self.run(job)
        self.run(job, end="drain")
        self.check(job)

    def check_rows(self) -> None:
        assert_same(self.site.read(f"plain_{self.topic}"), pl.concat(self.committed), "rows")

    def check(self, job: Path) -> None:
        compiled = compile_job(load_job(job), self.site.config)
        assert prove_seam(compiled).exact
        compiled.catalogs.close()
        self.check_rows()
        windows = (
            pl.concat(self.committed)
            .group_by(pl.col("at").dt.truncate("30s").alias("window_start"), "k")
            .agg(
                n=pl.len().cast(pl.Int64),
                s=pl.col("v").sum(),
                lo=pl.col("v").min(),
                hi=pl.col("v").max(),
                mean=pl.col("v").mean(),
            )
        )
        assert_same(self.site.read(f"windows_{self.topic}"), windows, "windows")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small polls, windows and thresholds, so that a few rows are many steps."""
    monkeypatch.setattr(tail_reader, "BATCH_ROWS", 4)
    monkeypatch.setattr(history_stage, "LakeTail", partial(LakeTail, window_rows=7))
    monkeypatch.setattr(compile_sources, "HandoverPolicy", partial(HandoverPolicy, worthwhile=1, lag_every_s=0))


def test_a_chase_reads_what_the_topic_has_forgotten(any_site: Site) -> None:
    world = World(any_site, 2, seed=1)
    world.grow(30)
    world.archive()
    job = world.job()
    world.run(job, die=("after-commit", 1), until=None)
    world.grow(30)
    world.forget(world.archive())
    world.grow()
    world.finish(job)
    assert world.told.codes.count("chase") >= 1
    assert "handover" in world.told.codes


def test_without_a_newer_snapshot_the_gap_is_refused(site: Site) -> None:
    world = World(site, 2, seed=2)
    world.grow(30)
    world.archive()
    job = world.job()
    world.run(job, die=("after-commit", 1))
    world.grow(30)
    ends = [site.kafka.watermarks(world.topic, partition)[1] for partition in range(2)]
    world.forget(ends)
    world.run(job)  # to the ends that the interrupted run had taken: the table has all of it
    with pytest.raises(GapError, match=f"topic '{world.topic}' partition"):
        world.run(job)


def test_a_tail_whose_offsets_are_gone_goes_back_to_the_lake_and_on_in_the_topic(any_site: Site) -> None:
    world = World(any_site, 2, seed=3)
    world.grow()
    world.archive()
    job = world.job(handover={"chase": "off"})
    world.run(job)
    assert "switch-back" not in world.told.codes
    world.grow(30)
    world.forget(world.archive())
    world.grow()
    world.run(job, die=("after-commit", 2))
    world.finish(job)
    assert world.told.codes.count("switch-back") == 1


@pytest.mark.parametrize("moment", ["history", "tail"])
def test_hyb_09_what_the_topic_has_forgotten_of_an_added_partition_is_read_from_the_table(
    site: Site, moment: str
) -> None:
    world = World(site, 1, seed=11)
    world.grow(30)
    world.grow(30)
    world.archive()
    job = world.job(handover={"chase": "off"})
    if moment == "history":
        world.run(job, die=("after-commit", 1), until=None)
    else:
        world.run(job)
    world.add_partition()
    site.kafka.produce(world.topic, encoded(added := world.rows(1, 20)), partition=1)
    world.committed.append(added)
    world.forget(world.archive())
    world.grow()
    world.finish(job)
    assert world.told.codes.count("chase" if moment == "history" else "switch-back") == 1


def test_a_tail_that_falls_behind_goes_back_to_the_lake(site: Site) -> None:
    world = World(site, 2, seed=4)
    world.grow()
    world.archive()
    job = world.job(handover={"chase": "off", "switch_back": {"lag": 3}})
    world.run(job)
    world.grow(40)
    world.grow(40)
    world.archive()
    world.finish(job)
    assert "switch-back" in world.told.codes


def test_hyb_04_by_policy_only_what_neither_topic_nor_table_has_is_lost(site: Site) -> None:
    world = World(site, 2, seed=9)
    rows = [world.rows(partition, 60) for partition in range(2)]

    def produce(begin: int, end: int) -> None:
        for partition in range(2):
            site.kafka.produce(world.topic, encoded(rows[partition][begin:end]), partition=partition)

    produce(0, 20)
    world.archive()
    job = world.job(tail={"topic": world.topic, "on_gap": "record"})
    world.run(job, die=("after-commit", 1), until=None)
    produce(20, 40)
    world.archive()
    produce(40, 60)
    world.forget([40, 50])
    world.run(job, end="drain")
    world.committed = [rows[0], rows[1][:40], rows[1][50:]]
    world.check_rows()
    (seam,) = prove_seam(compile_job(load_job(job), site.config)).sources
    assert [list(partition.lost) for partition in seam.partitions] == [[], [(40, 50)]]
    assert "chase" in world.told.codes


def test_partitions_go_live_one_by_one(site: Site) -> None:
    world = World(site, 3, seed=5)
    world.newest = [0, 1000, 2000]  # so that the history of partition 2 is the last to be read
    world.grow(20)
    world.grow(20)
    world.archive(partition_by=(system.PARTITION,))
    world.grow(20)
    job = world.job(handover={"chase": "off"})
    world.run(job, die=("after-commit", 3))
    world.finish(job)
    assert "partition-live" in world.told.codes


def test_an_old_archive_then_a_table_then_the_topic(site: Site) -> None:
    world = World(site, 2, seed=6)
    world.grow(30)
    world.archive()
    # The old archive and the table overlap: offsets decide whose rows are read.
    old, held = site.folder / "old.parquet", site.read(world.table)
    held.filter(pl.col(system.OFFSET) < 20).write_parquet(old)
    recent = site.table(f"recent_{world.topic}", held.filter(pl.col(system.OFFSET) >= 10))
    world.grow()
    job = world.job(history=[{"parquet": str(old)}, {"table": recent, "split_rows": 5}])
    world.run(job, die=("after-commit", 1))
    world.finish(job)


def test_rows_of_the_history_are_late_as_they_were_in_the_topic(site: Site) -> None:
    """One log with late rows, cut at three places: the same rows are late each time."""
    late = []
    for cut in range(3):
        world = World(site, 1, seed=7)
        rows = world.rows(0, 20)
        behind = rows.with_columns(at=pl.when(pl.col("id") % 7 == 5).then(pl.lit(START)).otherwise("at"))
        first, second = behind[: 10 * cut], behind[10 * cut :]
        site.kafka.produce(world.topic, encoded(first))
        world.archive()
        site.kafka.produce(world.topic, encoded(second))
        job = world.job(late={"history": "as_live"}, handover={"chase": "off"})
        text = job.read_text(encoding="utf-8")
        late_sink = f"- from: w.late\n  iceberg:\n    create: true\n    table: {site.name(f'late_{world.topic}')}\n"
        job.write_text(text.replace("sinks:\n", f"sinks:\n{late_sink}"), encoding="utf-8")
        world.run(job, die=("after-commit", 1))
        world.run(job, end="drain")
        late.append(site.read(f"late_{world.topic}")["id"].sort().to_list())
    assert late[0] == late[1] == late[2]
    assert late[0]


MODES: dict[str, dict[str, Any]] = {
    "chase": {},
    "switch-back": {"handover": {"chase": "off", "switch_back": {"lag": 1}}},
    "as-live": {"late": {"history": "as_live"}},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("forgets", [False, True], ids=["kept", "forgotten"])
def test_an_interrupted_run_ends_where_it_was_to_end_whatever_it_reads(site: Site, mode: str, *, forgets: bool) -> None:
    world = World(site, 2, seed=8)
    world.grow(20)
    world.archive()
    world.grow(20)
    world.grow(20)
    job = world.job(**MODES[mode])
    world.run(job, die=("after-commit", 1))
    committed, world.committed = world.committed, []
    world.grow(20)
    world.grow(20)
    archived = world.archive()  # the table leads beyond the end of the run
    if forgets:
        world.forget(archived)
    later, world.committed = world.committed, committed
    world.run(job, die=("after-head", 2))
    world.run(job)
    world.check_rows()
    assert {"chase", "switch-back"} & set(world.told.codes)
    world.committed = [*committed, *later]
    world.run(job, end="drain")
    world.check(job)
