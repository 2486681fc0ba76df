"""One job uid in two state folders: two lineages, one topic. What one has written the other never writes again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from catalog.catalogs import Catalogs, TableName
from headrace.kernel.errors import DataError, FencedError, SupersededError, UserError
from headrace.kernel.protocols import Entry, Position, ReadRequest, SinkContext
from headrace.runtime import restarts
from headrace.runtime.graph import Graph, SinkNode, SourceNode, Stream
from headrace.runtime.job import CheckpointPolicy, RunOptions
from headrace.runtime.observer import SilentObserver, StopSignal
from headrace.sinks.iceberg import IcebergSink
from headrace.testing import ScriptedSource, StaticProgram, Tick, memory_store
from headrace.testing.sources import ScriptedReader
from tests.kafka_target import SCHEMA, prepared, rows
from tests.lake import Lake

if TYPE_CHECKING:
    from headrace.sinks.kafka import KafkaSinkWriter
    from tests.kafka_target import Target
    from tests.services import CatalogCase

pytestmark = pytest.mark.services


def began(target: Target, lineage: str, **options: Any) -> KafkaSinkWriter:
    writer = target.writer(lineage=lineage, entry=Entry.BEGINS, **options)
    writer.recover(None)
    return writer


def commit(target: Target, writer: KafkaSinkWriter, lineage: str, epoch: int, *numbers: int) -> None:
    writer.commit(prepared(writer, target.epoch(epoch, lineage=lineage), rows(*numbers)))


def test_a_job_that_lost_its_state_is_refused_and_the_other_goes_on(target: Target) -> None:
    first = began(target, "L1")
    commit(target, first, "L1", 1, 1)
    with pytest.raises(UserError, match="has committed before") as caught:
        target.writer(lineage="L2", entry=Entry.BEGINS)
    assert caught.value.code == "SINK_HAS_COMMITS"
    assert "another uid" in caught.value.hint
    commit(target, first, "L1", 2, 2)
    assert target.visible() == [1, 2]


def test_a_commit_between_the_check_and_the_fence_is_seen(target: Target) -> None:
    first = began(target, "L1")
    second = target.writer(lineage="L2", entry=Entry.BEGINS)
    commit(target, first, "L1", 1, 1)
    with pytest.raises(UserError) as caught:
        second.recover(None)
    assert caught.value.code == "SINK_HAS_COMMITS"
    again = target.writer(lineage="L1")
    again.recover(None)
    commit(target, again, "L1", 2, 2)
    assert target.visible() == [1, 2]


@pytest.mark.parametrize("opened", ["before the newer one", "after the newer one"])
def test_kaf_05_an_older_lineage_that_runs_never_commits_after_a_newer_one(target: Target, opened: str) -> None:
    older = began(target, "L1")
    decided = prepared(older, target.epoch(1, lineage="L1"), rows(1))
    recovering = target.writer(lineage="L1")
    newer = began(target, "L2")
    commit(target, newer, "L2", 1, 1)
    with pytest.raises(FencedError):
        older.commit(decided)
    older.close()
    with pytest.raises(SupersededError, match="with a state of its own"):
        (recovering if opened.startswith("before") else target.writer(lineage="L1")).recover(decided)
    again = target.writer(lineage="L2")
    again.recover(None)
    commit(target, again, "L2", 2, 2)
    assert target.visible() == [1, 2]


def test_a_recreated_topic_is_begun_anew(target: Target) -> None:
    older = began(target, "L1")
    commit(target, older, "L1", 1, 1)
    target.kafka.delete_topic(target.topic)
    target.kafka.topic_named(target.topic, 2)
    newer = began(target, "L2")
    commit(target, newer, "L2", 1, 1)
    with pytest.raises(SupersededError):
        target.writer(lineage="L1")
    assert target.visible() == [1]


def test_what_was_written_before_to_another_topic_is_not_forgotten(target: Target) -> None:
    commit(target, began(target, "L1"), "L1", 1, 1)
    elsewhere = replace(target.sink(), topic=target.kafka.topic(prefix="elsewhere"))
    second = began(target, "L2", sink=elsewhere)
    second.commit(prepared(second, target.epoch(1, lineage="L2"), rows(1)))
    with pytest.raises(UserError) as caught:
        target.writer(lineage="L3", entry=Entry.BEGINS)
    assert caught.value.code == "SINK_HAS_COMMITS"


def test_sta_02_a_restored_lineage_goes_on_unless_more_was_written_than_it_knows(target: Target) -> None:
    older = began(target, "L1")
    commit(target, older, "L1", 1, 1)
    commit(target, older, "L1", 2, 2)
    with pytest.raises(UserError) as caught:
        target.sink().open(SCHEMA, SinkContext(target.job, "L2", target.store.blobs, 1, restored=True))
    assert caught.value.code == "SINK_HAS_COMMITS"
    restored = target.sink().open(SCHEMA, SinkContext(target.job, "L2", target.store.blobs, 2, restored=True))
    target.writers.append(restored)
    restored.recover(None)
    commit(target, restored, "L2", 3, 3)
    with pytest.raises(SupersededError):
        target.writer(lineage="L1")
    assert target.visible() == [1, 2, 3]


@dataclass(frozen=True, slots=True)
class Interrupted:
    """A scripted source during whose second batch something happens."""

    script: ScriptedSource
    action: Callable[[], None]

    @property
    def name(self) -> str:
        return self.script.name

    @property
    def schema(self) -> pl.Schema:
        return self.script.schema

    def begin(self) -> Position:
        return self.script.begin()

    def open(self, request: ReadRequest, position: Position | None) -> ScriptedReader:
        reader = self.script.open(request, position)
        poll = reader.poll

        def interrupted(timeout: float) -> Any:
            if reader.position["next"] == 1:
                self.action()
            return poll(timeout)

        reader.poll = interrupted  # type: ignore[method-assign]
        return reader


def test_snk_03_two_whole_jobs_of_one_uid_write_each_row_once(
    target: Target, open_catalog: Callable[[str], CatalogCase]
) -> None:
    case = open_catalog("local")
    catalogs = Catalogs({"lake": case.properties})
    lake = Lake(catalogs, TableName("lake", (case.namespace,), "t"))
    script = ScriptedSource("s", SCHEMA, [Tick(rows(number)) for number in range(3)])

    def go(source: Any) -> None:
        table = IcebergSink("table", catalogs, str(lake.name), create=True)
        sinks = [SinkNode("out", Stream("s"), target.sink(), "s"), SinkNode("table", Stream("s"), table, "s")]
        job = StaticProgram(target.job, Graph([SourceNode("s", source), *sinks]))
        policy = CheckpointPolicy(interval_us=10**12)
        restarts.run(job, memory_store(), policy, RunOptions("caught-up"), SilentObserver(), StopSignal())

    done: list[None] = []

    def second_job() -> None:
        if not done:
            done.append(None)
            go(script)

    with pytest.raises(SupersededError):
        go(Interrupted(script, second_job))
    assert target.visible() == [0, 1, 2]
    assert sorted(lake.table().scan().to_arrow()["n"].to_pylist()) == [0, 1, 2]
    with pytest.raises(UserError) as caught:
        go(script)
    assert caught.value.code == "SINK_HAS_COMMITS"
    catalogs.close()


def test_a_job_whose_head_was_set_back_is_refused(target: Target) -> None:
    """Its next epochs would have the numbers of those that are there, and count as committed."""
    writer = target.ready(lineage="L1")
    commit(target, writer, "L1", 1, 1)
    opened_before = target.writer(lineage="L1", decided=1)
    commit(target, writer, "L1", 2, 2)
    writer.close()
    with pytest.raises(DataError) as caught:
        target.writer(lineage="L1", decided=1)
    assert caught.value.code == "CHECKPOINT_SET_BACK"
    opened_before.recover(None)
    opened_before.write(rows(9))
    with pytest.raises(DataError) as caught:
        opened_before.prepare(target.epoch(2, "other", lineage="L1"), None)
    assert caught.value.code == "CHECKPOINT_SET_BACK"
    opened_before.close()
    again = target.writer(lineage="L1", decided=2)
    again.recover(None)
    commit(target, again, "L1", 3, 3)
    assert target.visible() == [1, 2, 3]


def test_what_a_writer_has_committed_itself_does_not_set_its_head_back(target: Target) -> None:
    writer = target.writer(lineage="L1", decided=0)
    writer.recover(None)
    commit(target, writer, "L1", 1, 1)
    late = prepared(writer, target.epoch(2, lineage="L1"), rows(2))
    writer.recover(late)  # as after a commit without an answer
    commit(target, writer, "L1", 3, 3)
    assert target.visible() == [1, 2, 3]
