"""The Headrace side: real jobs, compiled and run as ``headrace run`` does, in this process."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import polars as pl
from pyiceberg.catalog.sql import SqlCatalog

from benchmarks.by_hand import summary
from benchmarks.lake import TABLE, properties
from benchmarks.manifests import MANY, ROWS
from benchmarks.measure import Cost, measured
from benchmarks.topic import SCHEMA
from headrace.jobs.builder import Job
from headrace.jobs.compile import CompiledJob, compile_job
from headrace.jobs.config import Config
from headrace.jobs.run import run_job
from headrace.kernel.protocols import Json
from headrace.runtime import restarts
from headrace.runtime.graph import Graph, SinkNode
from headrace.runtime.job import RunOptions
from headrace.runtime.observer import EpochReport, Progress, SilentObserver, StopSignal
from headrace.state.stores import open_store
from headrace.testing import MemorySink, MemoryTable
from hybrid_source.boundary import BoundaryContext, auto_rules, resolve_boundary
from hybrid_source.iceberg_history import open_iceberg

_TO_THE_END: Final = RunOptions(until="caught-up")


class Epochs(SilentObserver):
    """Keeps the reports of epochs, and how many rows were in the state now and then."""

    def __init__(self) -> None:
        self.reports: list[EpochReport] = []
        self.state_rows: list[int] = []

    def on_progress(self, progress: Progress) -> None:
        self.state_rows.append(progress.state_rows)

    def on_epoch(self, report: EpochReport) -> None:
        self.reports.append(report)


def history(
    folder: str,
    every: str,
    aggregates: dict[str, str],
    by: list[str],
    snapshot: int,
    checkpoint: dict[str, Any],
) -> Cost:
    """Iceberg history, filter, window, Iceberg sink. Measured: compiling, planning, running, checkpoints, commits."""
    config = config_of(folder)
    name = f"j{uuid.uuid4().hex[:12]}"
    job = (
        Job(name)
        .source("requests", history={"table": TABLE, "snapshot": snapshot}, event_time={"column": "at"})
        .filter("status < 400")
        .window(every, by=by, aggregate=aggregates)
        .sink_iceberg(f"local.bench.{name}", create=True)
        .checkpoint(**checkpoint)
    )
    observer = Epochs()

    def work() -> int:
        return run_job(job.spec(), config, _TO_THE_END, observer, StopSignal()).records

    cost = measured(work)
    catalog = SqlCatalog("local", **config.catalogs["local"])
    found = pl.DataFrame(catalog.load_table(f"bench.{name}").scan().to_arrow())
    catalog.purge_table(f"bench.{name}")
    catalog.close()
    facts = summary(found, list(aggregates))
    if checkpoint:
        facts["epochs"] = [[epoch.run_s, epoch.checkpoint_s, epoch.commit_s] for epoch in observer.reports]
        facts["state_rows"] = observer.state_rows
    return replace(cost, facts=facts)


def tail(folder: str, bootstrap: str, topic: str, steps: str) -> Cost:
    """JSON tail, some steps, sink into memory. Measured: compiling, opening, running, checkpoints, commits."""
    config = config_of(folder, bootstrap)
    job = Job(f"j{uuid.uuid4().hex[:12]}").source(
        "events", tail={"topic": topic, "schema": SCHEMA}, event_time={"column": "ts", "out_of_orderness": "5s"}
    )
    job = STEPS[steps](job).sink_iceberg("local.bench.nowhere", create=True)
    table = MemoryTable()

    def work() -> int:
        program = IntoMemory(compile_job(job.spec(), config), table)
        store = open_store(program.job.store, config.object_stores)
        policy = program.job.policy
        return restarts.run(program, store, policy, _TO_THE_END, SilentObserver(), StopSignal()).records

    cost = measured(work)
    if not table.rows().height:
        raise RuntimeError("the job gave nothing")
    return cost


def boundary(folder: str, nexts: dict[str, int]) -> Cost:
    """The boundary of a table from the bounds in its manifests, by the rules of ``boundary: auto``.

    Raises:
        RuntimeError: It is not the right one.
    """
    catalog = SqlCatalog("local", **properties(Path(folder)))

    def work() -> int:
        history = open_iceberg(catalog.load_table(MANY.partition(".")[2]), MANY)
        found = resolve_boundary(auto_rules(None), BoundaryContext(history, "many")).boundary.topics["many"]
        if {str(number): covered.next for number, covered in found.partitions.items()} != nexts:
            raise RuntimeError(f"a wrong boundary: {found}")
        return sum(nexts.values()) // ROWS

    cost = measured(work)
    catalog.close()
    return cost


STEPS: Final[Mapping[str, Callable[[Job], Job]]] = {
    "window": lambda job: job.filter("qty < 500").window(
        "1m", by=["ok"], aggregate={"n": "count(*)", "total": "sum(id)"}
    ),
    "columns": lambda job: job.filter("qty < 500").select(["id", "qty", "price"]),
    "all": lambda job: job.filter("qty < 500"),
}
"""What the job does with the rows: a window that needs four columns, three columns passed on, or all six."""


@dataclass(frozen=True, slots=True)
class IntoMemory:
    """A compiled job whose sinks are replaced by one in memory; see :class:`headrace.runtime.job.Program`."""

    job: CompiledJob
    table: MemoryTable = field(repr=False)

    @property
    def uid(self) -> str:
        return self.job.uid

    def pin(self, recorded: Mapping[str, Json]) -> Mapping[str, Json]:
        return self.job.pin(recorded)

    def graph(self, pins: Mapping[str, Json]) -> Graph:
        nodes = self.job.graph(pins).nodes
        return Graph(
            [
                replace(node, sink=MemorySink(node.id, self.table)) if isinstance(node, SinkNode) else node
                for node in nodes
            ]
        )


def config_of(folder: str, bootstrap: str = "") -> Config:
    """The broker and the catalog of a benchmark."""
    root = Path(folder)
    return Config(
        kafka={"default": {"bootstrap.servers": bootstrap}} if bootstrap else {},
        catalogs={"local": properties(root)},
        state_path=root / "state",
    )
