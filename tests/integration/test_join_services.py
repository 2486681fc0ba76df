"""Joins of two hybrid sources from end to end: history in Iceberg and a topic on both sides, killed on the way."""

from __future__ import annotations

import signal
from datetime import timedelta
from typing import TYPE_CHECKING

import polars as pl
import pytest

from headrace.kernel import columns
from tests.jobs import assert_same, readings, source

if TYPE_CHECKING:
    from tests.jobs import Site

pytestmark = pytest.mark.services

PARTITIONS = 2
BOTH = {"left": "a", "right": "b", "on": "sensor", "right_prefix": "b_"}


def expected(left: pl.DataFrame, right: pl.DataFrame) -> dict[str, pl.DataFrame]:
    other = right.rename({name: f"b_{name}" for name in right.columns if name != "sensor"})
    pairs = left.join(other, on="sensor", how="inner")
    near = pairs.filter((pl.col("at") - pl.col("b_at")).is_between(timedelta(seconds=-20), timedelta(seconds=10)))
    alone = left.join(near, on="id", how="anti")
    higher = pairs.filter(pl.col("v") > pl.col("b_v"))
    held = left.sort("at").join_asof(
        other.sort("b_at"), left_on="at", right_on="b_at", by="sensor", check_sortedness=False, coalesce=False
    )
    return {
        "near": pl.concat([near, alone], how="diagonal"),
        "held": held,
        "none": left.join(higher, on="id", how="anti"),
    }


def test_joins_of_hybrid_sources_survive_a_kill_and_equal_one_batch_computation(site: Site) -> None:
    rows = {"a": readings(160, seed=1), "b": readings(120, seed=2)}
    topics = {name: site.kafka.topic(PARTITIONS) for name in rows}
    for name, topic in topics.items():
        site.produce(topic, rows[name][:80], PARTITIONS)
        site.archive(topic, f"archive_{name}")
        site.produce(topic, rows[name][80:], PARTITIONS)
    job = site.job(
        {
            "name": f"joins-{topics['a']}",
            "sources": {name: source(topic, site.name(f"archive_{name}")) for name, topic in topics.items()},
            "steps": [
                {"id": "near", "join": {**BOTH, "how": "left", "within": {"lower": "-20s", "upper": "10s"}}},
                {"id": "held", "join": {**BOTH, "how": "left", "as_of": "backward"}},
                {"id": "none", "join": {**BOTH, "how": "anti", "where": "v > b_v"}},
            ],
            "sinks": [
                {"iceberg": {"table": site.name("near"), "create": True}, "from": "near"},
                {"iceberg": {"table": site.name("held"), "create": True}, "from": "held"},
                {"iceberg": {"table": site.name("none"), "create": True, "changes": "append"}, "from": "none"},
            ],
            "checkpoint": {"rows": 40},
        }
    )
    assert site.run(job, "--until", "caught-up", crash="after-prepare:3").end() == -signal.SIGKILL
    site.finish(job)
    wanted = expected(rows["a"], rows["b"])
    assert_same(site.read("near"), wanted["near"], "interval join")
    assert_same(site.read("held"), wanted["held"], "temporal join")
    changes = site.read("none").group_by(rows["a"].columns).agg(pl.col(columns.WEIGHT).sum())
    left = changes.filter(pl.col(columns.WEIGHT) != 0)
    assert left[columns.WEIGHT].to_list() == [1] * left.height
    assert_same(left.drop(columns.WEIGHT), wanted["none"], "anti join")
