"""A job over a history and a topic that is to be refused, what is visible of it, and what a refusal must say."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import polars as pl
import pytest

from catalog.catalogs import TableName
from catalog.commit import set_boundary
from catalog.tables import load_or_create
from headrace.jobs.compile import compile_job
from headrace.jobs.loading import load_job
from headrace.jobs.planning import plan_job
from headrace.jobs.run import run_job
from headrace.kernel import columns as system
from headrace.kernel.boundary import Boundary, PartitionRange, TopicBoundary
from headrace.runtime.job import RunOptions
from headrace.runtime.observer import SilentObserver, StopSignal
from headrace.testing import SimulatedCrashError, crash_at
from tests.jobs import Site, once_at, readings, source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

PART = 10


@dataclass(frozen=True)
class Expect:
    """What a refusal must say.

    Attributes:
        code: Its code.
        topic: The topic it names; empty: it is of a table or of the job.
        partition: The partition; None: it is of no single one.
        wanted: In the context as it is, and in the text; None: there is no such thing.
        available: Likewise.
        rule: The rule that was tried; empty: no rule decides.
        says: Further words of the text.
    """

    code: str
    topic: str = ""
    partition: int | None = None
    wanted: Any = None
    available: Any = None
    rule: str = ""
    says: tuple[str, ...] = ()


@dataclass
class Bench:
    """A good job in small, ways to spoil it, and what is visible in its sinks."""

    site: Site
    during: AbstractContextManager[None] = field(default_factory=nullcontext)
    until: Literal["caught-up"] | None = "caught-up"
    seen: tuple[int, list[bytes | None]] = (0, [])

    def __post_init__(self) -> None:
        self.rows = readings(40)
        self.topic, self.target = self.site.kafka.topic(2, config={"retention.ms": "-1"}), self.site.kafka.topic()
        self.site.produce(self.topic, self.rows, 2)
        self.history = self.site.table("history", self.rows[:20])
        self.spec: dict[str, Any] = {
            "name": "refused",
            "sources": {"readings": source(self.topic, self.history, boundary={"offsets": {0: 10, 1: 10}})},
            "sinks": [
                {"iceberg": {"table": self.site.name("out"), "create": True}, "from": "readings"},
                {"kafka": {"topic": self.target, "key": ["id"]}, "from": "readings"},
            ],
            "checkpoint": {"interval": "1h"},
        }

    @property
    def read(self) -> dict[str, Any]:
        found: dict[str, Any] = self.spec["sources"]["readings"]
        return found

    def reads(self, topic: str | list[str] | None = None, history: Any = None, **more: Any) -> None:
        """Another source in the job."""
        found = source("", None, **more)
        found["tail"]["topic"] = self.topic if topic is None else topic
        if history is not None:
            found["history"] = history
        self.spec["sources"]["readings"] = found

    def run(self) -> None:
        """Run the job in this process."""
        job = load_job(self.site.job(self.spec))
        run_job(job, self.site.config, RunOptions(self.until), SilentObserver(), StopSignal())

    def plan(self) -> None:
        """Plan the job in this process."""
        plan_job(compile_job(load_job(self.site.job(self.spec)), self.site.config))

    def visible(self) -> tuple[int, list[bytes | None]]:
        """Snapshots of the table, and the records that read_committed gives."""
        there = self.site.catalog.client.table_exists(self.site.catalog.identifier("out"))
        return self.site.snapshots("out") if there else 0, self.site.kafka.values(self.target)

    def ran(self) -> None:
        """The job has caught up; what is refused is that it goes on."""
        self.run()
        self.seen = self.visible()
        assert len(self.seen[1]) >= 1

    def killed_in_history(self) -> None:
        """The job was killed when it had committed one of the two files of its history."""
        self.history = self.site.table("history", self.rows[20:30])
        self.read["history"] = {"table": self.history, "split_rows": 10}
        self.read["boundary"] = {"offsets": {0: 15, 1: 15}}
        self.spec["checkpoint"] |= {"rows": 10}
        with crash_at("after-commit"), pytest.raises(SimulatedCrashError):
            self.run()
        self.seen = self.visible()
        assert self.seen[0] >= 1

    def long(self, rows: pl.DataFrame) -> None:
        """A history of one file with ten rows in each split, of which the job reads a few ahead of what it commits."""
        name, target = self.site.name("long"), "write.parquet.row-group-limit"
        made = load_or_create(self.site.catalogs, name, rows.schema)
        with made.transaction() as transaction:
            transaction.set_properties({target: str(PART)})
        made.append(rows.to_arrow(compat_level=pl.CompatLevel.oldest()))
        self.history = name
        self.read["history"] = {"table": name, "split_rows": PART}
        self.spec["checkpoint"] |= {"rows": PART}

    def once_committed(self, action: Callable[[], None]) -> None:
        """Do something while the job runs: when it has committed the first part of its history."""
        self.during = self.commits_first(action)

    @contextmanager
    def commits_first(self, action: Callable[[], None]) -> Iterator[None]:
        def spoil() -> None:
            self.seen = self.visible()
            action()

        with once_at("after-commit", spoil):
            yield

    def records(self, covered: dict[str, int], topic_id: str | None = None) -> None:
        """A record in the table: what it covers by topic, of partition 0."""
        topics = {topic: TopicBoundary({0: PartitionRange(0, next_)}, topic_id) for topic, next_ in covered.items()}
        set_boundary(self.site.catalogs, TableName.parse(self.history), Boundary(topics))


def placed(rows: pl.DataFrame, topic: str | None, *, first: int = 0) -> pl.DataFrame:
    """Rows of partition 0 with their topic and offset."""
    return rows.with_columns(
        pl.lit(topic, pl.String).alias(system.TOPIC),
        pl.lit(0, pl.Int32).alias(system.PARTITION),
        pl.Series(system.OFFSET, range(first, first + rows.height), pl.Int64),
    )
