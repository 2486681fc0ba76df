"""Compacted topics from end to end: archived version by version, read as changelogs over history and tail, upserted."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from headrace.kernel import columns

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.jobs import Site

pytestmark = pytest.mark.services

COMPACT = {"cleanup.policy": "compact"}
SCHEMA = {"k": "string", "g": "string", "v": "int64"}
DAYS_MS = 86_400_000
PARTITIONS = 2

Versions = list[tuple[str, "tuple[str, int] | None"]]

FIRST: Versions = [
    ("a", ("x", 1)),
    ("b", ("x", 2)),
    ("c", ("y", 3)),
    ("d", ("y", 4)),
    ("a", ("y", 10)),
    ("b", None),
]
SECOND: Versions = [("c", None), ("e", ("x", 5)), ("b", ("z", 6)), ("a", ("y", 11)), ("gone", None), ("f", ("x", 1))]
THIRD: Versions = [("f", None), ("e", ("y", 7)), ("d", ("y", 4)), ("b", None)]


def produce(site: Site, topic: str, versions: Versions, *, timestamp_ms: int = 0) -> None:
    for key, value in versions:
        row = None if value is None else json.dumps({"k": key, "g": value[0], "v": value[1]}).encode()
        partition = ord(key[0]) % PARTITIONS
        site.kafka.produce(topic, [row], partition=partition, key=key.encode(), timestamp_ms=timestamp_ms)


def held(*parts: Versions) -> dict[str, tuple[str, int]]:
    newest = {key: value for part in parts for key, value in part}
    return {key: value for key, value in newest.items() if value is not None}


def upserted(site: Site, topic: str) -> dict[str, Any]:
    """The final table of an upsert topic, as a consumer that follows deletions sees it."""
    table: dict[str, Any] = {}
    for message in site.kafka.drain(topic):
        key = (message.key() or b"").decode()
        if message.value() is None:
            table.pop(key, None)
        else:
            table[key] = json.loads(message.value())
    return table


def changelog_job(site: Site, topic: str, history: str | None, *, current: str, totals: str) -> dict[str, Any]:
    source: dict[str, Any] = {"tail": {"topic": topic}, "changelog": {"key": "k"}}
    if history is None:
        source["tail"]["schema"] = SCHEMA
    else:
        source["history"] = {"table": history}
    return {
        "name": f"job-{topic}",
        "sources": {"rows": source},
        "steps": [
            {"id": "big", "filter": "v > 1"},
            {"id": "totals", "aggregate": {"by": "g", "aggregate": {"n": "count(*)", "total": "sum(v)"}}},
        ],
        "sinks": [
            {"kafka": {"topic": current, "key": ["k"]}, "from": "big"},
            {"kafka": {"topic": totals, "key": ["g"]}, "from": "totals"},
            {"iceberg": {"table": site.name("changes"), "create": True, "changes": "append"}, "from": "big"},
        ],
    }


def check(site: Site, job: Mapping[str, Any], rows: Mapping[str, tuple[str, int]]) -> None:
    current, totals = (sink["kafka"]["topic"] for sink in job["sinks"][:2])
    big = {key: (g, v) for key, (g, v) in rows.items() if v > 1}
    assert upserted(site, current) == {key: {"k": key, "g": g, "v": v} for key, (g, v) in big.items()}
    groups = sorted({g for g, _ in big.values()})
    wanted = {g: [v for other, v in big.values() if other == g] for g in groups}
    assert upserted(site, totals) == {g: {"g": g, "n": len(v), "total": sum(v)} for g, v in wanted.items()}
    changes = site.read("changes").group_by("k", "g", "v").agg(pl.col(columns.WEIGHT).sum())
    left = changes.filter(pl.col(columns.WEIGHT) != 0)
    assert left[columns.WEIGHT].to_list() == [1] * left.height
    assert sorted(left.select("k", "g", "v").rows()) == sorted((key, g, v) for key, (g, v) in big.items())


@pytest.mark.parametrize("with_history", [True, False])
def test_kaf_02_a_compacted_topic_as_a_changelog(site: Site, with_history: bool) -> None:
    topic = site.kafka.topic(PARTITIONS, config=COMPACT)
    current, totals = site.kafka.topic(config=COMPACT), site.kafka.topic(config=COMPACT)
    produce(site, topic, FIRST)
    if with_history:
        arguments = ("--schema", "k: string, g: string, v: int64", "--changelog-key", "k", "--until", "caught-up")
        site.cli("archive", topic, site.name("archive"), *arguments)
        archived = site.read("archive")
        assert archived.height == len(FIRST)
        assert archived.filter(columns.DELETED).select("k", "v").rows() == [("b", None)]
    produce(site, topic, SECOND)
    history = site.name("archive") if with_history else None
    job = changelog_job(site, topic, history, current=current, totals=totals)
    path = site.job(job)
    site.finish(path, "--on-end", "suspend")
    check(site, job, held(FIRST, SECOND))
    produce(site, topic, THIRD)
    site.finish(path, "--on-end", "suspend")
    check(site, job, held(FIRST, SECOND, THIRD))
    assert any(message.value() is None for message in site.kafka.drain(current)), "a delete leaves as a null value"


def test_a_compacted_topic_is_not_read_row_by_row_without_being_told(site: Site) -> None:
    topic = site.kafka.topic(PARTITIONS, config={"cleanup.policy": "compact,delete"})
    produce(site, topic, FIRST)
    source: dict[str, Any] = {"tail": {"topic": topic, "schema": SCHEMA}}
    job = {"name": "rows", "sources": {"s": source}, "sinks": [{"iceberg": {"table": site.name("t"), "create": True}}]}
    error = site.fails(site.job(job), 2)
    assert error["code"] == "TOPIC_COMPACTED"
    assert topic in error["message"]
    source["changelog"] = False
    site.finish(site.job(job))
    assert site.read("t").height == len([value for _, value in FIRST if value is not None])


def test_a_boundary_older_than_the_retention_of_tombstones_is_a_gap(site: Site) -> None:
    topic = site.kafka.topic(PARTITIONS, config={**COMPACT, "delete.retention.ms": str(DAYS_MS)})
    old = int(time.time() * 1000) - 10 * DAYS_MS
    produce(site, topic, FIRST, timestamp_ms=old)
    history = site.table("state", pl.DataFrame([("a", "x", 1)], schema=["k", "g", "v"], orient="row"))
    job = changelog_job(site, topic, history, current=site.kafka.topic(), totals=site.kafka.topic())
    job["sources"]["rows"]["boundary"] = {"offsets": {0: 1, 1: 1}}
    error = site.fails(site.job(job), 4)
    assert error["code"] == "TOMBSTONES_GONE"
    assert {"wanted", "needed", "topic", "partition"} <= error["context"].keys()
    assert site.kafka.values(job["sinks"][0]["kafka"]["topic"]) == []
    # From the start of the topic nothing is known that an old tombstone could have deleted.
    afresh = changelog_job(site, topic, None, current=f"{topic}-c", totals=f"{topic}-t")
    for sink in afresh["sinks"][:2]:
        sink["kafka"]["create"] = True
    site.finish(site.job({**afresh, "name": "afresh"}))
    check(site, afresh, held(FIRST))
