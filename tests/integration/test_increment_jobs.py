"""Jobs on the increments of a table without offsets, and on tables that upserting writers keep; on each catalog."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from headrace.jobs.loading import load_job
from headrace.jobs.run import run_job
from headrace.kernel.columns import WEIGHT
from headrace.kernel.errors import DataError
from headrace.runtime.job import RunOptions
from headrace.runtime.observer import SilentObserver, StopSignal
from headrace.testing import SimulatedCrashError, crash_at
from hybrid_source.iceberg_increments import CHANGED
from tests.history_tables import add_deletes, equality_deletes
from tests.jobs import Site
from tests.lake import compact

if TYPE_CHECKING:
    from pyiceberg.table import Table

ROWS = pl.Schema({"id": pl.Int64(), "k": pl.String(), "v": pl.Int64()})

pytestmark = pytest.mark.services


def rows(*given: tuple[int, str, int]) -> pl.DataFrame:
    return pl.DataFrame(given, schema=ROWS, orient="row")


def run(site: Site, spec: dict[str, Any], crash: tuple[str, int] | None = None) -> None:
    """Run to the newest snapshot, after a run that dies at a crash point."""
    job, options = load_job(site.job(spec)), RunOptions("caught-up", "suspend")
    if crash is not None:
        with crash_at(*crash), pytest.raises(SimulatedCrashError):
            run_job(job, site.config, options, SilentObserver(), StopSignal())
    run_job(job, site.config, options, SilentObserver(), StopSignal())


def increments(site: Site, name: str, on_change: str, **source: Any) -> dict[str, Any]:
    tail = {"table": site.name("t"), "interval": "50ms", "on_change": on_change, **source.pop("tail", {})}
    sink = {"table": site.name(name), "create": True, **({"changes": "append"} if on_change == "changelog" else {})}
    return {
        "name": name,
        "sources": {"rows": {"tail": tail, **source}},
        "sinks": [{"iceberg": sink}],
        "checkpoint": {"interval": "1h", "rows": 1},
    }


def upsert(table: Table, new: pl.DataFrame) -> None:
    """As Flink does it: the keys are deleted in all older files, and the rows are added in the same snapshot."""
    add_deletes(table, equality_deletes(table, new, ["id"]), rows=new)


def test_increments_alone_by_policy(any_site: Site) -> None:
    site = any_site
    site.table("t", rows((1, "a", 1), (2, "a", 2)))
    table = site.catalogs.load(site.name("t"))
    first = table.current_snapshot().snapshot_id
    run(site, increments(site, "out", "fail"))
    site.table("t", rows((3, "b", 3)))
    site.table("t", rows((4, "b", 4)))
    compact(table.refresh())
    run(site, increments(site, "out", "fail"), ("after-head", 2))
    assert sorted(site.read("out")["id"]) == [3, 4]  # none that was there before, and each once
    table.refresh().delete("id = 3")
    site.table("t", rows((5, "a", 5)))
    with pytest.raises(DataError) as caught:
        run(site, increments(site, "out", "fail"))
    assert caught.value.code == CHANGED
    assert sorted(site.read("out")["id"]) == [3, 4]
    table.refresh().overwrite(rows((1, "a", 10)).to_arrow(compat_level=pl.CompatLevel.oldest()), "id = 1")
    run(site, increments(site, "out", "skip"), ("after-prepare", 1))
    assert sorted(site.read("out")["id"]) == [1, 3, 4, 5]  # pyiceberg overwrites in two snapshots: the second appends
    run(site, increments(site, "changes", "changelog", tail={"since": first}), ("after-commit", 2))
    net = site.read("changes").group_by(list(ROWS)).agg(pl.col(WEIGHT).sum()).filter(pl.col(WEIGHT) != 0)
    assert sorted(net.rows()) == [(1, "a", 1, -1), (1, "a", 10, 1), (4, "b", 4, 1), (5, "a", 5, 1)]


def test_a_table_that_is_upserted_runs_as_changes_through_an_aggregate(any_site: Site) -> None:
    site = any_site
    site.table("t", rows((1, "a", 1), (2, "a", 2), (3, "b", 3)))
    table = site.catalogs.load(site.name("t"))
    upsert(table, rows((2, "b", 20)))
    topic = site.kafka.topic()
    spec = increments(site, "mirror", "changelog", history={"table": site.name("t"), "split_rows": 1})
    spec["steps"] = [{"id": "totals", "aggregate": {"by": "k", "aggregate": {"n": "count(*)", "s": "sum(v)"}}}]
    spec["sinks"] = [{"kafka": {"topic": topic, "key": ["k"]}}]

    def totals() -> dict[str, tuple[int, int] | None]:
        last = {message.key(): json.loads(message.value() or b"null") for message in site.kafka.drain(topic)}
        return {(key or b"").decode(): row and (row["n"], row["s"]) for key, row in last.items()}

    run(site, spec, ("after-commit", 2))
    assert totals() == {"a": (1, 1), "b": (2, 23)}
    upsert(table.refresh(), rows((3, "a", 30), (4, "b", 4)))
    upsert(table.refresh(), rows((1, "c", 100)))
    run(site, spec, ("after-head", 1))
    assert totals() == {"a": (1, 30), "b": (2, 24), "c": (1, 100)}


def test_the_state_of_an_upserted_table_then_its_compacted_topic(any_site: Site) -> None:
    """The history is what the table holds by key; the topic goes on with versions and tombstones."""
    site = any_site
    site.table("t", rows((1, "a", 1), (2, "b", 2), (3, "a", 3)))
    table = site.catalogs.load(site.name("t"))
    upsert(table, rows((1, "a", 10)))
    add_deletes(table.refresh(), equality_deletes(table, rows((3, "", 0)), ["id"]))
    topic = site.kafka.topic(config={"cleanup.policy": "compact"})
    for key, value in [(1, (1, "a", 1)), (3, (3, "a", 3)), (2, (2, "b", 2)), (1, (1, "a", 10)), (3, None)]:
        produce(site, topic, key, value)
    source = {
        "history": {"table": site.name("t"), "split_rows": 1},
        "tail": {"topic": topic},
        "changelog": {"key": "id"},
        "boundary": {"offsets": {0: 5}},
    }
    spec = {
        "name": "state",
        "sources": {"rows": source},
        "sinks": [{"iceberg": {"table": site.name("out"), "create": True, "changes": "append"}}],
        "checkpoint": {"interval": "1h", "rows": 1},
    }
    run(site, spec, ("after-commit", 2))
    for key, value in [(2, None), (4, (4, "b", 4)), (1, (1, "c", 11))]:
        produce(site, topic, key, value)
    run(site, spec, ("after-prepare", 1))
    net = site.read("out").group_by(list(ROWS)).agg(pl.col(WEIGHT).sum()).filter(pl.col(WEIGHT) != 0)
    assert sorted(net.rows()) == [(1, "c", 11, 1), (4, "b", 4, 1)]


def produce(site: Site, topic: str, key: int, value: tuple[int, str, int] | None) -> None:
    record = None if value is None else json.dumps(dict(zip(ROWS, value, strict=True))).encode()
    site.kafka.produce(topic, [record], key=json.dumps(key).encode())
