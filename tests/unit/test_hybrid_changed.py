"""A hybrid source that is opened at a position of another definition."""

from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

from headrace.jobs.compile import compile_job
from headrace.jobs.config import load_config
from headrace.jobs.loading import load_job_text
from headrace.kernel import columns as system
from headrace.kernel.boundary import TopicPartition
from headrace.kernel.errors import IdentityError, SpecError
from headrace.kernel.protocols import ReadRequest
from headrace.testing.script import Script, ScriptedLog, World
from headrace.testing.stages import ScriptedHistory, ScriptedTail
from hybrid_source.hybrid import EventTime, HybridSource
from tests.history_tables import open_catalog

PAYLOAD = pl.Schema({"at": pl.Datetime("us")})
ROWS = pl.DataFrame({"at": [0, 1]}, schema={"at": pl.Int64}).cast(PAYLOAD)
SPEC = """
name: j
sources:
  s: {tail: {topic: t, schema: {id: int64}}}
sinks:
  - {id: good, iceberg: {table: lake.n.good}}
  - {id: broken, iceberg: {table: lake.n.broken}, from: s.errors}
"""


def source(topic: str | None, *, history: bool = False) -> HybridSource:
    at = TopicPartition(topic or "none", 0)
    log = ScriptedLog(PAYLOAD, {at: ROWS}, EventTime("at"))
    world = World(log, Script([{at: 1}], [[0]]))
    stage = ScriptedHistory(world) if history else None
    tail = ScriptedTail(world) if topic else None
    return HybridSource("s", PAYLOAD, stage, tail, log.event_time)


def test_offsets_of_one_topic_are_not_used_in_another() -> None:
    position = source("first").plan().to_json()
    with pytest.raises(IdentityError, match="offsets are of topic 'first'") as caught:
        source("second").open(ReadRequest(), position)
    assert caught.value.code == "TOPIC_CHANGED"


@pytest.mark.parametrize("read", [0, 2])
def test_a_tail_that_the_position_does_not_know_is_refused(read: int) -> None:
    reader = source(None, history=True).open(ReadRequest(), None)
    for _ in range(read):
        reader.poll(0)
    assert reader.finished == (read == 2)
    with pytest.raises(SpecError, match="was started without a tail"):
        source("first", history=True).open(ReadRequest(), reader.position)


def test_dead_letters_cover_nothing_of_their_topic(tmp_path) -> None:
    file = tmp_path / "headrace.toml"
    file.write_text(
        f'[kafka.default]\n"bootstrap.servers" = "localhost:1"\n'
        f'[catalogs.lake]\ntype = "sql"\nuri = "sqlite:///{tmp_path}/c.db"\nwarehouse = "file://{tmp_path}"\n'
    )
    graph = compile_job(load_job_text(SPEC, "job.yaml", environ={}), load_config(file)).sketch()
    assert {node.id: node.covers for node in graph.sinks()} == {"good": "s", "broken": None}


def test_a_table_with_a_column_of_weights_is_not_followed_as_a_changelog(tmp_path: Path) -> None:
    open_catalog(tmp_path).create_table("ns.t", pa.schema([("id", pa.int64()), (system.WEIGHT, pa.int32())]))
    file = tmp_path / "headrace.toml"
    file.write_text(
        f'[catalogs.local]\ntype = "sql"\nuri = "sqlite:///{tmp_path}/catalog.db"\nwarehouse = "file://{tmp_path}"\n'
    )
    spec = """
name: j
sources: {s: {tail: {table: local.ns.t, on_change: changelog}}}
sinks: [{iceberg: {table: local.ns.out, changes: append}}]
"""
    with pytest.raises(SpecError, match=r"has a column .* of its own") as refused:
        compile_job(load_job_text(spec, "job.yaml", environ={}), load_config(file))
    assert refused.value.code == "COLUMN_CLASH"
