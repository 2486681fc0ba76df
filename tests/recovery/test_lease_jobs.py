"""Jobs hold leases while they need their pinned snapshots: against expiry, crashes, refusals."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from catalog.catalogs import Catalogs, TableName
from catalog.leases import DAY_US, TTL_US, Lease, find_leases, take
from catalog.tables import load_or_create
from headrace.cli.app import run as cli
from headrace.jobs import leases
from headrace.jobs.compile import compile_job
from headrace.jobs.config import Config, load_config
from headrace.jobs.parse import parse_job
from headrace.jobs.planning import plan_job
from headrace.jobs.run import run_job
from headrace.kernel import crash
from headrace.kernel.errors import AccessDeniedError, ExitCode, UnavailableError, UserError
from headrace.runtime.job import RunOptions, RunResult
from headrace.runtime.observer import Event, SilentObserver, StopSignal
from headrace.testing import ManualClock, SimulatedCrashError, crash_at
from hybrid_source.history import HistoryPlan, HistoryQuery
from hybrid_source.iceberg_history import IcebergHistory

ROWS = pl.DataFrame({"k": ["a", "b"] * 50, "v": range(100)})
NAMES = pl.DataFrame({"k": ["a", "b"], "name": ["one", "two"]})
EVENTS, LOOKUP, OUT = "local.ns.events", "local.ns.names", "local.ns.out"


class Listener(SilentObserver):
    """Keeps the events."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)


@dataclass
class Bench:
    """Jobs on a local catalog in this process."""

    folder: Path
    listener: Listener = field(default_factory=Listener)

    @property
    def config(self) -> Config:
        return load_config(self.folder / "headrace.toml", environ={})

    def append(self, name: str, rows: pl.DataFrame) -> None:
        catalogs = Catalogs(self.config.catalogs)
        load_or_create(catalogs, name, rows.schema).append(rows.to_arrow(compat_level=pl.CompatLevel.oldest()))
        catalogs.close()

    def table(self, name: str) -> Any:
        return Catalogs(self.config.catalogs).load(name)

    def leases(self, name: str = EVENTS) -> Sequence[Lease]:
        return find_leases(self.table(name))

    def expire(self, name: str = EVENTS) -> None:
        table = self.table(name)
        heads = {ref.snapshot_id for ref in table.metadata.refs.values()}
        table.maintenance.expire_snapshots().by_ids(
            [snapshot.snapshot_id for snapshot in table.snapshots() if snapshot.snapshot_id not in heads]
        ).commit()

    def spec(self, **history: Any) -> dict[str, Any]:
        return {
            "name": "leasing",
            "sources": {"events": {"history": {"table": EVENTS, "split_rows": 10, **history}}},
            "tables": {"names": {"table": LOOKUP}},
            "steps": [{"lookup": {"table": "names", "on": "k"}}],
            "sinks": [{"iceberg": {"table": OUT, "create": True}}],
            "checkpoint": {"rows": 10},
        }

    def run(self, spec: dict[str, Any], clock: ManualClock | None = None) -> RunResult:
        return run_job(parse_job(spec), self.config, RunOptions("caught-up"), self.listener, StopSignal(), clock)

    def rows(self) -> int:
        return int(self.table(OUT).scan().to_arrow().num_rows)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    (tmp_path / "headrace.toml").touch()
    made = Bench(tmp_path)
    for begin in range(0, 100, 20):
        made.append(EVENTS, ROWS[begin : begin + 20])
    made.append(LOOKUP, NAMES)
    return made


def at(point: str, nth: int, action: Any) -> Any:
    """Call ``action`` the nth time that a crash point is passed."""
    passed: list[str] = []

    def hook(name: str) -> None:
        if name == point:
            passed.append(name)
            if len(passed) == nth:
                action()

    return crash.install(hook)


def test_expiry_while_the_history_is_read_does_no_harm(bench: Bench) -> None:
    seen: list[Sequence[Lease]] = []

    def others() -> None:
        seen.extend((bench.leases(), bench.leases(LOOKUP)))
        bench.append(EVENTS, ROWS)
        bench.append(LOOKUP, NAMES)
        bench.expire()
        bench.expire(LOOKUP)

    pinned = bench.table(EVENTS).current_snapshot().snapshot_id
    uninstall = at("after-head", 3, others)
    try:
        with crash_at("after-commit", 4), pytest.raises(SimulatedCrashError):
            bench.run(bench.spec())
    finally:
        uninstall()
    assert [(lease.snapshot_id, lease.job, lease.holder) for lease in seen[0]] == [(pinned, "leasing", "events")]
    assert [lease.holder for lease in seen[1]] == ["names"]
    assert bench.run(bench.spec()).status == "suspended"
    assert bench.rows() == 100
    assert not bench.leases()  # the source has ended for good
    assert [lease.holder for lease in bench.leases(LOOKUP)] == ["names"]  # a further run loads it again
    assert not bench.listener.events or all(event.code != "lease" for event in bench.listener.events)


def test_snp_01_without_a_lease_the_same_expiry_ends_the_job(bench: Bench) -> None:
    spec = bench.spec(lease="off")
    with crash_at("after-commit", 4), pytest.raises(SimulatedCrashError):
        bench.run(spec)
    assert not bench.leases()
    bench.append(EVENTS, ROWS)
    bench.expire()
    with pytest.raises(Exception, match="no longer available"):
        bench.run(spec)


def test_a_crash_between_lease_and_first_checkpoint_leaves_one_lease(bench: Bench) -> None:
    with crash_at("after-record"), pytest.raises(SimulatedCrashError):
        bench.run(bench.spec())
    (stray,) = bench.leases()
    with crash_at("after-record", 2), pytest.raises(SimulatedCrashError):
        bench.run(bench.spec())
    assert [lease.name for lease in bench.leases()] == [stray.name]
    bench.append(EVENTS, ROWS)  # nothing is decided yet for a job under another state folder: it pins the newer one
    spec = {**bench.spec(), "checkpoint": {"rows": 10, "store": str(bench.folder / "other")}, "steps": []}
    spec["sinks"] = [{"iceberg": {"table": f"{OUT}2", "create": True}}]
    with crash_at("after-commit", 2), pytest.raises(SimulatedCrashError):
        bench.run(spec)
    assert len(bench.leases()) == 2
    bench.run(spec)  # as many checkpoints as are retained go by without a need for the first one
    assert not bench.leases()


def test_a_snapshot_is_leased_before_its_files_are_planned(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, leased = IcebergHistory.plan, []

    def planning(history: IcebergHistory, query: HistoryQuery) -> HistoryPlan:
        if history.name == EVENTS:
            leased.append([lease.snapshot_id for lease in bench.leases()])
        return plan(history, query)

    monkeypatch.setattr(IcebergHistory, "plan", planning)
    pinned = bench.table(EVENTS).current_snapshot().snapshot_id
    bench.run(bench.spec())
    assert leased
    assert all(found == [pinned] for found in leased)


def test_a_job_that_cannot_be_planned_leaves_no_lease(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(history: IcebergHistory, query: HistoryQuery) -> HistoryPlan:
        assert bench.leases()
        raise UserError(f"{history.name} cannot be read: {query}", code="TABLE_UNSUPPORTED")

    monkeypatch.setattr(IcebergHistory, "plan", refusing)
    with pytest.raises(UserError, match="cannot be read"):
        bench.run({**bench.spec(), "tables": {}, "steps": []})
    assert not bench.leases()


def test_two_jobs_hold_two_leases_and_a_plan_holds_none(bench: Bench) -> None:
    plan = plan_job(compile_job(parse_job(bench.spec()), bench.config)).to_json()
    assert not bench.leases()
    for name in ("one", "two"):
        spec = {**bench.spec(), "name": name, "sinks": [{"iceberg": {"table": f"{OUT}-{name}", "create": True}}]}
        with crash_at("after-commit", 2), pytest.raises(SimulatedCrashError):
            bench.run(spec)
    assert {lease.job for lease in bench.leases()} == {"one", "two"}
    assert plan["sources"][0]["history"]["lease"].startswith("headrace-lease-")
    off = plan_job(compile_job(parse_job(bench.spec(lease="off")), bench.config)).sources[0].history
    assert off is not None
    assert off.lease is None


def test_every_stage_of_a_history_is_leased_as_it_says(bench: Bench) -> None:
    names = [f"local.ns.old{number}" for number in range(3)]
    for name in names:
        bench.append(name, ROWS)
    stages = [{"table": names[0]}, {"table": names[1], "lease": "off"}, {"table": names[2], "split_rows": 10}]
    spec = {**bench.spec(), "sources": {"events": {"history": stages}}}
    with crash_at("after-commit"), pytest.raises(SimulatedCrashError):
        bench.run(spec)
    assert [[lease.holder for lease in bench.leases(name)] for name in names] == [["events"], [], ["events"]]
    bench.run(spec)
    assert not any(bench.leases(name) for name in names)
    assert bench.rows() == 300


def test_a_catalog_that_takes_no_tags_is_a_warning(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AccessDeniedError("cannot commit to table local.ns.events", hint="check the rights")

    monkeypatch.setattr(leases, "take", refuse)
    bench.run(bench.spec())
    assert bench.rows() == 100
    warned = [event for event in bench.listener.events if event.code == "lease"]
    assert len(warned) == 2  # once for each table
    assert "not safe from expiry" in warned[0].message
    assert warned[0].context["code"] == "ACCESS_DENIED"


def test_leases_are_renewed_daily_and_tried_again_hourly(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    job = compile_job(parse_job(bench.spec()), bench.config)
    clock, taken, refusing = ManualClock(bench.table(EVENTS).current_snapshot().timestamp_ms * 1000), [], [True]

    def taking(*given: Any) -> None:
        taken.append(given[2].holder)
        if refusing[0]:
            raise UnavailableError("no answer")
        take(*given)

    monkeypatch.setattr(leases, "take", taking)
    kept, positions = leases.JobLeases(job, clock), {"events": job.sources["events"].plan().to_json()}

    def keep() -> int:
        taken.clear()
        return len(kept.keep(positions, {}, decided=False))

    assert (keep(), taken) == (1, ["events"])
    assert (keep(), taken) == (0, [])
    clock.advance(DAY_US // 24)
    refusing[0] = False
    assert (keep(), taken) == (0, ["events"])
    clock.advance(DAY_US - 1_000_000)
    assert (keep(), taken) == (0, [])
    clock.advance(1_000_000)
    assert (keep(), taken) == (0, ["events"])
    (lease,) = bench.leases()
    assert lease.until_us == clock.now_us() // 1000 * 1000 + TTL_US
    job.catalogs.close()


def test_stale_leases_are_listed_and_removed(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--config", str(bench.folder / "headrace.toml")]
    catalogs, name = Catalogs(bench.config.catalogs), TableName.parse(EVENTS)
    snapshot = bench.table(EVENTS).current_snapshot()
    now = snapshot.timestamp_ms * 1000
    dead, live = (Lease.of(job, "events", snapshot.snapshot_id, now) for job in ("dead", "live"))
    take(catalogs, name, replace(dead, until_us=now + 1000))
    take(catalogs, name, replace(live, until_us=now + 9 * DAY_US))
    assert cli(["lease", "list", EVENTS, "--json", *options]) == ExitCode.OK
    listed = {found["job"]: found for found in json.loads(capsys.readouterr().out)["leases"]}
    assert {job: found["stale"] for job, found in listed.items()} == {"dead": True, "live": False}
    assert cli(["lease", "list", EVENTS, *options]) == ExitCode.OK
    assert "job dead, events, stale since" in capsys.readouterr().out
    for wrong in ([], ["x", "--all-stale"]):
        assert cli(["lease", "release", EVENTS, *wrong, *options]) == ExitCode.USER
    assert cli(["lease", "release", EVENTS, "x", *options]) == ExitCode.USER
    assert "LEASE_NOT_FOUND" in capsys.readouterr().err
    assert cli(["lease", "release", EVENTS, "--all-stale", *options]) == ExitCode.OK
    assert capsys.readouterr().out.split() == ["released", dead.name]
    assert [lease.job for lease in bench.leases()] == ["live"]
    assert cli(["lease", "release", EVENTS, live.name, *options]) == ExitCode.OK
    assert not bench.leases()
    assert cli(["lease", "release", EVENTS, "--all-stale", *options]) == ExitCode.OK
    assert "no stale leases" in capsys.readouterr().out.splitlines()[-1]
    catalogs.close()
