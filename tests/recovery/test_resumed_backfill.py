"""A backfill that failed goes on from its checkpoint, and appends nothing twice: the real planner, runner and store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from catalog.catalogs import Catalogs
from headrace.jobs.backfill import BackfillRequest
from headrace.jobs.checking import CompilingPlanner
from headrace.jobs.config import Config, load_config
from headrace.jobs.records import Job
from headrace.jobs.service import JobService
from headrace.jobs.states import JobState
from headrace.jobs.store import JobStore
from headrace.jobs.stored import run_stored
from headrace.kernel.errors import HeadraceError, UserError
from headrace.runtime.observer import EpochReport, SilentObserver, StopSignal
from hybrid_source.splits import SplitTarget

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
FILES = 9
PER_FILE = 10


class Epochs(SilentObserver):
    """Counts what is committed, and does something at the first epoch."""

    def __init__(self, action: Callable[[], object]) -> None:
        self.records = 0
        self._action = action

    def on_epoch(self, report: EpochReport) -> None:
        if not self.records:
            self._action()
        self.records += report.records


@dataclass
class Bench:
    folder: Path
    config: Config
    store: JobStore
    service: JobService

    def fail(self, job: Job) -> int:
        """Run until a file of the history is missing; gives the committed input records."""
        last, aside = self.folder / "in" / f"{FILES - 1}.parquet", self.folder / "aside.parquet"
        state, committed = self.run(job, lambda: last.rename(aside))
        aside.rename(last)
        assert state is JobState.FAILED
        return committed

    def run(self, job: Job, action: Callable[[], object] = lambda: None) -> tuple[JobState, int]:
        """What a worker does, in this process: the state it ends in, and the input records it has committed."""
        found: Job | None = job
        for state in (JobState.STARTING, JobState.RUNNING):
            assert found is not None
            found = self.store.transition(found, state, "test")
        assert found is not None
        observer, end = Epochs(action), JobState.FINISHED
        try:
            run_stored(found, self.config, observer, StopSignal())
        except HeadraceError:
            end = JobState.FAILED
        self.store.transition(found, end, "test")
        return end, observer.records

    def ids(self) -> list[int]:
        catalogs = Catalogs({"local": self.config.catalog("local")})
        try:
            return sorted(catalogs.load("local.demo.part").scan().to_arrow()["n"].to_pylist())
        finally:
            catalogs.close()


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    # Each file is a split of its own.
    monkeypatch.setattr(SplitTarget.__init__, "__defaults__", (PER_FILE, 1 << 20))
    (tmp_path / "in").mkdir()
    for number in range(FILES):
        first = number * PER_FILE
        times = [EPOCH + timedelta(minutes=n) for n in range(first, first + PER_FILE)]
        frame = pl.DataFrame({"ts": times, "n": range(first, first + PER_FILE)})
        frame.with_columns(pl.col("n").cast(pl.Int64)).write_parquet(tmp_path / "in" / f"{number}.parquet")
    (tmp_path / "headrace.toml").write_text(f'[state]\npath = "{tmp_path}/state"\n')
    config = load_config(tmp_path / "headrace.toml")
    store = JobStore.connect(f"sqlite:///{tmp_path}/jobs.db")
    yield Bench(tmp_path, config, store, JobService(store, CompilingPlanner(config), lambda: None))
    store.database.close()


def request(bench: Bench, **more: Any) -> BackfillRequest:
    job = {
        "name": "copy",
        "sources": {"s": {"history": {"parquet": f"{bench.folder}/in/*.parquet"}, "event_time": {"column": "ts"}}},
        "steps": [{"filter": "n >= 0"}],
        "sinks": [{"iceberg": {"table": "local.demo.copy", "create": True}}],
        "checkpoint": {"rows": PER_FILE},
    }
    wanted = {"job": job, "from": EPOCH, "target": "local.demo.part", "create": True}
    return BackfillRequest.model_validate({**wanted, **more})


def test_a_failed_backfill_goes_on_from_its_checkpoint(bench: Bench) -> None:
    first = bench.service.create_backfill(request(bench)).job
    committed = bench.fail(first)
    assert 0 < committed < FILES * PER_FILE
    assert bench.ids() == list(range(committed))
    resumed = bench.service.resume(first.id, key="once").job
    assert (resumed.id != first.id, resumed.uid, resumed.plan) == (True, first.uid, first.plan)
    assert bench.service.resume(first.id, key="once").replayed
    for busy in (first.id, resumed.id):
        with pytest.raises(UserError) as caught:
            bench.service.resume(busy)
        assert (caught.value.code, caught.value.context["job_id"]) == ("JOB_ACTIVE", resumed.id)
    with pytest.raises(UserError) as caught:
        bench.service.create_backfill(request(bench))
    assert caught.value.code == "BACKFILL_OVERLAPS"
    assert bench.run(resumed) == (JobState.FINISHED, FILES * PER_FILE - committed)
    assert bench.ids() == list(range(FILES * PER_FILE))
    for over in (first.id, resumed.id):
        with pytest.raises(UserError) as caught:
            bench.service.resume(over)
        assert (caught.value.code, caught.value.context["job_id"]) == ("JOB_OVER", resumed.id)
    job, past = bench.service.get(resumed.id)
    assert job.backfill == first.backfill
    assert past[0].reason == f"goes on after {first.id}"


def test_a_backfill_whose_checkpoint_is_gone_does_not_append_again(bench: Bench) -> None:
    first = bench.service.create_backfill(request(bench)).job
    bench.fail(first)
    (bench.folder / "state" / "jobs").rename(bench.folder / "gone")
    resumed = bench.service.resume(first.id).job
    with pytest.raises(UserError) as caught:
        run_stored(resumed, bench.config, SilentObserver(), StopSignal())
    assert caught.value.code == "SINK_HAS_COMMITS"
