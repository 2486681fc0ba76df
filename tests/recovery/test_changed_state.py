"""STA-01: what of a job may change while its operators hold state, and how state is dropped."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

import polars as pl
import pytest
import yaml

from headrace.cli import app, run_job
from headrace.kernel.errors import GraphChangedError, NotFoundError
from headrace.runtime import restarts
from headrace.runtime.graph import Graph, SinkNode, SourceNode, StatefulNode, Stream, TransformNode
from headrace.runtime.job import CheckpointPolicy, RunOptions
from headrace.runtime.observer import SilentObserver, StopSignal
from headrace.runtime.state_fit import drop_state
from headrace.state.stores import JobStore
from headrace.testing import (
    MemorySink,
    MemoryTable,
    ScriptedSource,
    SimulatedCrashError,
    StaticProgram,
    Tick,
    crash_at,
    memory_store,
)
from operators.stateless import Filter
from operators.union import Union
from operators.window import TumblingWindow

SCHEMA = pl.Schema({"t": pl.Datetime("us", "UTC"), "k": pl.String(), "v": pl.Int64()})
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE = 60_000_000


def source(name: str, ticks: int, schema: pl.Schema = SCHEMA) -> ScriptedSource:
    frames = [
        pl.DataFrame({"t": [EPOCH + timedelta(seconds=n)], "k": ["1"], "v": [n]}, schema=SCHEMA).cast(dict(schema))
        for n in range(ticks)
    ]
    return ScriptedSource(name, schema, [Tick(frame) for frame in frames])


def window(name: str = "w", size_us: int = MINUTE, by: str = "k") -> TumblingWindow:
    return TumblingWindow(name, "t", size_us, {"n": "count(*)"}, by=(by,))


def job(
    table: MemoryTable,
    *stateful: StatefulNode | TransformNode,
    where: str = "v >= 0",
    ticks: int = 2,
    schema: pl.Schema = SCHEMA,
) -> StaticProgram:
    """Sources a and b, a filter behind each, and what is given; the last node's rows are written."""
    filters = [TransformNode(f"keep-{name}", Stream(name), Filter(f"keep-{name}", where)) for name in "ab"]
    last = stateful[-1].id if stateful else "keep-a"
    nodes = [*(SourceNode(name, source(name, ticks, schema)) for name in "ab"), *filters, *stateful]
    return StaticProgram("job", Graph([*nodes, SinkNode("out", Stream(last), MemorySink("out", table), None)]))


def held(operator: TumblingWindow | None = None, feed: str = "keep-a") -> StatefulNode:
    operator = operator or window()
    return StatefulNode(operator.id, Stream(feed), operator)


def go(program: StaticProgram, store: JobStore, on_end: Literal["suspend", "drain"] = "suspend") -> None:
    policy = CheckpointPolicy(interval_us=0)
    restarts.run(program, store, policy, RunOptions("caught-up", on_end), SilentObserver(), StopSignal())


@pytest.fixture
def store() -> JobStore:
    """A job's store after a run that left one open window with two rows."""
    store = memory_store()
    go(job(MemoryTable(), held()), store)
    return store


def counts(table: MemoryTable) -> list[int]:
    return table.rows()["n"].to_list()


def test_sta_01_stateless_changes_restore(store: JobStore) -> None:
    table = MemoryTable()
    go(job(table, held(feed="keep-a"), where="v <> 3", ticks=4), store, "drain")
    assert counts(table) == [3]


@pytest.mark.parametrize(
    ("changed", "differences"),
    [
        ([held(window(size_us=5 * MINUTE))], ["w: changed from "]),
        ([held(window(by="v"))], ["w: changed from "]),
        ([], ["w: removed"]),
        ([held(feed="keep-b")], ["w: fed by source b instead of source a"]),
        (
            [held(window("before")), held(feed="before")],
            ["before: new", "w: fed by before instead of source a"],
        ),
        ([held(window("other"))], ["w: removed", "other: new"]),
        (
            [
                TransformNode("all", Stream("keep-a"), Union("all", SCHEMA), (Stream("keep-b"),)),
                held(feed="all"),
            ],
            ["w: fed by source a, source b instead of source a"],
        ),
    ],
    ids=["window size", "key", "removed", "other source", "inserted before it", "renamed", "further source"],
)
def test_sta_01_state_that_no_longer_fits_is_refused_with_the_list(
    store: JobStore, changed: Sequence[StatefulNode | TransformNode], differences: list[str]
) -> None:
    before = store.head.read()
    assert before is not None
    table = MemoryTable()
    with pytest.raises(GraphChangedError) as caught:
        go(job(table, *changed), store)
    found = caught.value.context["differences"]
    assert len(found) == len(differences)
    for got, wanted in zip(found, differences, strict=True):
        assert got.startswith(wanted)
    assert "--drop-state" in caught.value.hint
    assert table.committed == []
    now = store.head.read()
    assert now is not None
    assert now.record == before.record
    go(job(table, held(), ticks=4), store, "drain")
    assert counts(table) == [4]


def test_sta_01_all_keys_of_another_type_are_in_the_list() -> None:
    store = memory_store()
    both = [held(), held(window("w2"), "keep-b")]
    go(job(MemoryTable(), *both), store)
    with pytest.raises(GraphChangedError) as caught:
        go(job(MemoryTable(), *both, schema=pl.Schema({**SCHEMA, "k": pl.Int64()})), store)
    found = caught.value.context["differences"]
    assert [difference.partition(":")[0] for difference in found] == ["w", "w2"]
    assert "Int64" in found[0]


def test_sta_01_dropped_state_begins_empty_once_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "FIRST_PAUSE_S", 0.0)
    store = memory_store()
    go(job(MemoryTable(), held(window("w2"), "keep-b"), held()), store)
    table = MemoryTable()
    moved = [held(window("w2"), "keep-b"), held(feed="keep-b")]
    program = job(table, *moved, ticks=5)
    with pytest.raises(NotFoundError) as caught:
        drop_state(program, store, ["w", "wx"])
    assert caught.value.code == "OPERATOR_NOT_FOUND"
    assert "w, w2" in caught.value.hint
    drop_state(program, store, ["w"])
    with crash_at("before-prepare"), pytest.raises(SimulatedCrashError):
        go(program, store, "drain")
    go(job(MemoryTable(), *moved, ticks=4), store)
    go(program, store, "drain")
    assert counts(table) == [3]


def test_sta_01_a_decided_epoch_is_committed_although_state_is_dropped() -> None:
    table, store = MemoryTable(), memory_store()
    plain = SinkNode("plain", Stream("keep-a"), MemorySink("plain", table), "a")

    def with_plain(*stateful: StatefulNode) -> StaticProgram:
        program = job(MemoryTable(), *stateful)
        return StaticProgram("job", Graph([*program.fixed.nodes, plain]))

    with crash_at("after-head", 3), pytest.raises(SimulatedCrashError):
        go(with_plain(held()), store)
    done = table.rows().height
    drop_state(with_plain(held(window(size_us=5 * MINUTE))), store, ["w"])
    go(with_plain(held(window(size_us=5 * MINUTE))), store)
    assert done < 2
    assert table.rows()["v"].to_list() == [0, 1]


def test_state_of_a_job_that_never_ran_cannot_be_dropped() -> None:
    with pytest.raises(NotFoundError, match="no checkpoint"):
        drop_state(job(MemoryTable(), held()), memory_store(), ["w"])


def test_sta_01_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "headrace.toml").write_text(
        f'[catalogs.local]\ntype = "sql"\nuri = "sqlite:///{tmp_path}/c.db"\nwarehouse = "file://{tmp_path}/lake"\n'
    )
    frame = pl.DataFrame({"t": [EPOCH], "k": ["a"]}, schema={"t": SCHEMA["t"], "k": pl.String()})
    frame.write_parquet(tmp_path / "rows.parquet")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADRACE_CONFIG", raising=False)
    monkeypatch.setattr(run_job, "set_up_logging", lambda as_json: None)

    def headrace(size: str, *more: str) -> int:
        spec = {
            "name": "counts",
            "sources": {"s": {"history": {"parquet": f"{tmp_path}/*.parquet"}, "event_time": {"column": "t"}}},
            "steps": [{"id": "w", "window": {"tumbling": size, "by": ["k"], "aggregate": {"n": "count(*)"}}}],
            "sinks": [{"iceberg": {"table": "local.n.counts", "create": True}}],
        }
        Path("job.yaml").write_text(yaml.safe_dump(spec))
        return app.run(["run", "job.yaml", "--until", "caught-up", "--on-end", "suspend", *more])

    assert headrace("1m") == 0
    assert headrace("5m") == 2
    assert "w: changed from" in capsys.readouterr().err
    assert headrace("5m", "--drop-state", "v") == 2
    assert "no operator 'v' with state" in capsys.readouterr().err
    assert headrace("5m", "--drop-state", "w") == 0
    assert headrace("5m") == 0
