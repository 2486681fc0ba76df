"""The way on at the end of the history: what is asked for, what is taken, what may fail."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import polars as pl
import pytest

from headrace.jobs.compile import compile_job
from headrace.jobs.config import load_config
from headrace.jobs.loading import load_job_text
from headrace.kernel import columns as system
from headrace.kernel.boundary import Boundary, TopicPartition
from headrace.kernel.errors import AccessDeniedError, GapError, HeadraceError, InternalError, UnavailableError
from headrace.kernel.protocols import ReadRequest
from headrace.testing.clock import ManualClock
from headrace.testing.script import Script, ScriptedLog, World
from headrace.testing.stages import ScriptedHistory, ScriptedTail
from hybrid_source.handover_policy import HandoverPolicy
from hybrid_source.history_stage import LakeHistory
from hybrid_source.hybrid import HybridSource
from hybrid_source.hybrid_watermark import TailStartTimes
from hybrid_source.lake_versions import NewerVersion
from hybrid_source.resolution import OffsetNames, Resolution
from hybrid_source.run_ends import RunEnds
from hybrid_source.source_values import EventTime
from hybrid_source.ways_on import WaysOn

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.kernel.protocols import Json
    from hybrid_source.hybrid_reader import HybridReader
    from hybrid_source.tail_protocols import OpenTail

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
PAYLOAD = pl.Schema({"v": pl.Int64()})
CHANGELOG = """
name: j
sources:
  s:
    history: {{parquet: "{folder}"}}
    tail: {{topic: t}}
    changelog: {{key: [v]}}
sinks:
  - {{id: out, iceberg: {{table: lake.n.out, changes: append}}}}
"""


@dataclass(frozen=True, slots=True)
class Unreachable(ScriptedHistory):
    """A table whose catalog does not answer any more once the job runs."""

    def newest(self) -> Json:
        raise UnavailableError("the catalog does not answer")


@dataclass(frozen=True, slots=True)
class Restricted(ScriptedHistory):
    """A table of which the job reads some rows only."""

    @property
    def where(self) -> pl.Expr | None:
        return pl.col("v") > 1


@dataclass(frozen=True, slots=True)
class Overwritten(ScriptedHistory):
    """A table some of whose rows were overwritten since."""

    def changed(self, pin: Json, newest: Json) -> str:
        return "snapshot 7 is of operation overwrite" if newest != pin else ""


def source(script: Script, history: type[ScriptedHistory] = ScriptedHistory, **partitions: int) -> HybridSource:
    rows = {at: pl.DataFrame({"v": range(20)}, schema=PAYLOAD) for at in (P0, P1)[: partitions.get("count", 1)]}
    world = World(ScriptedLog(PAYLOAD, rows, EventTime("v")), script)
    schema = pl.Schema({**PAYLOAD, **system.SYSTEM})
    return HybridSource("s", schema, history(world), ScriptedTail(world), clock=ManualClock(), policy=script.policy)


def read(opened: HybridSource) -> tuple[list[int], list[str]]:
    """All values in their order, and what the source did."""
    reader = opened.open(ReadRequest(["v"]), None)
    found: list[int] = []
    while not reader.finished:
        batch = reader.poll(0)
        found += batch.rows.collect()["v"].to_list() if batch is not None else []
    return found, [switch["kind"] for switch in reader.position["switches"]]


def test_a_catalog_that_does_not_answer_stops_nothing_that_can_do_without() -> None:
    policy = HandoverPolicy(worthwhile=1, lag=1, lag_every_s=0.0)
    script = Script([{P0: 5}, {P0: 15}], commits=[1], policy=policy)
    assert read(source(script, Unreachable)) == (list(range(20)), ["handover"])
    truncated = replace(script, truncations=[(3, {P0: 9})])
    with pytest.raises(UnavailableError):
        read(source(truncated, Unreachable))


def test_a_version_whose_rows_were_changed_does_not_stand_for_the_topic(caplog: pytest.LogCaptureFixture) -> None:
    script = Script([{P0: 5}, {P0: 15}], commits=[1], policy=HandoverPolicy(worthwhile=1))
    assert read(source(script)) == (list(range(20)), ["chase", "handover"])
    assert not caplog.messages
    with caplog.at_level("WARNING"):
        found, switches = read(source(script, Overwritten))
    assert (found, switches[-1]) == (list(range(20)), "handover")
    assert "the newest snapshot is not read in the place of the topic: snapshot 7 is of operation overwrite" in (
        caplog.messages
    )


def test_what_the_topic_has_lost_is_not_taken_from_a_changed_version() -> None:
    script = Script([{P0: 5}, {P0: 15}], commits=[1], policy=HandoverPolicy(), truncations=[(2, {P0: 9})])
    assert read(source(script))[0] == list(range(20))
    with pytest.raises(GapError) as raised:
        read(source(script, Overwritten))
    assert "snapshot 7 is of operation overwrite" in raised.value.context["lake"]


def test_an_increment_of_a_restricted_history_is_left_to_the_topic() -> None:
    script = Script([{P0: 5}, {P0: 15}], commits=[1], offsets=False)
    assert read(source(script)) == (list(range(20)), ["chase", "handover"])
    assert read(source(script, Restricted)) == (list(range(20)), ["handover"])


def test_a_topic_that_was_closed_for_a_gap_is_not_taken_over_to() -> None:
    # Partition 0 is live; its gap shows after the way on was prepared, and before it is taken.
    script = Script(
        [{P0: 2, P1: 2}, {P0: 15, P1: 2}], [[0, 1], [2, 3]], [(0, 1), (1, 1)], commits=[7], truncations=[(7, {P0: 10})]
    )
    found, switches = read(source(script, count=2))
    assert sorted(found) == sorted([*range(20), *range(20)])
    assert switches == ["chase", "handover"]


def end_of(reader: HybridReader) -> None:
    while not reader.finished:
        reader.poll(0)


@pytest.mark.parametrize("truncated", [0, 1, 4])
def test_hyb_04_a_gap_that_the_lake_does_not_close_is_named_before_it_is_read_for_another(truncated: int) -> None:
    # Of partition 0 the table has what the topic has lost, of partition 1 it has not.
    script = Script(
        [{P0: 3, P1: 2}, {P0: 15, P1: 2}],
        [[0, 1], [2, 3]],
        [(0, 1), (1, 1)],
        commits=[truncated],
        truncations=[(truncated, {P0: 10, P1: 6})],
        policy=HandoverPolicy(per_partition=False),
    )
    opened = source(script, count=2)
    refusal = pytest.raises(GapError, match="partition 1: wanted offset 2 is gone, available are 6 to 20")
    if truncated == 0:
        with refusal as raised:
            opened.open(ReadRequest([system.OFFSET]), None)
    else:
        reader = opened.open(ReadRequest([system.OFFSET]), None)
        with refusal as raised:
            end_of(reader)
        assert "lake" not in reader.position
        with refusal as again:  # a restarted job names it as well
            end_of(opened.open(ReadRequest([system.OFFSET]), json.loads(json.dumps(reader.position))))
        assert_names_the_rule(again.value)
    assert "others" not in raised.value.context
    assert_names_the_rule(raised.value)
    assert "the newest snapshot covers t[0] up to 15 by rule 'script'" in raised.value.detail


def assert_names_the_rule(gap: GapError) -> None:
    facts = {name: gap.context[name] for name in ("topic", "partition", "wanted", "available", "rule")}
    assert facts == {"topic": "t", "partition": 1, "wanted": 2, "available": [6, 20], "rule": "script"}
    assert gap.detail.count("boundary by rule 'script': the script's cut") == 1
    assert gap.hint


def test_a_gap_of_a_tail_without_history_names_its_start() -> None:
    opened = replace(source(Script([{}], truncations=[(2, {P0: 9})])), history=None)
    reader = opened.open(ReadRequest([system.OFFSET]), None)
    for at in (None, reader.position):
        with pytest.raises(GapError) as raised:
            end_of(opened.open(ReadRequest([system.OFFSET]), at))
        assert raised.value.context["rule"] == "tail.start"
        assert "looked for in the lake" not in raised.value.detail


@pytest.mark.parametrize("truncated", [0, 1, 4])
def test_hyb_04_by_policy_only_what_the_lake_lacks_is_lost(truncated: int) -> None:
    # The topic loses partition 0 up to 10, which the table has, and partition 1 up to 6, which it has up to 2:
    # before the start, while the history is read, or behind it.
    script = Script(
        [{P0: 3, P1: 2}, {P0: 15, P1: 2}],
        [[0, 1], [2, 3]],
        [(0, 1), (1, 1)],
        commits=[truncated],
        truncations=[(truncated, {P0: 10, P1: 6})],
        on_gap="record",
    )
    opened = source(script, count=2)
    reader = opened.open(ReadRequest([system.PARTITION, system.OFFSET]), None)
    found: list[tuple[int, int]] = []
    while not reader.finished:
        batch = reader.poll(0)
        found += batch.rows.collect().rows() if batch is not None else []
    lost = [(gap["partition"], gap["first"], gap["next"]) for gap in reader.position["tail"]["lost"]]
    ((partition, first, after),) = lost
    assert (partition, after) == (1, 6)
    assert first >= 2
    kept = [*((0, offset) for offset in range(20)), *((1, offset) for offset in range(20) if not first <= offset < 6)]
    assert sorted(found) == kept
    with pytest.raises(GapError):
        read(source(replace(script, on_gap="fail"), count=2))


def test_a_gap_holds_the_watermark_between_two_looks_too() -> None:
    clock = ManualClock()
    script = Script([{P0: 5}], truncations=[(0, {P0: 9})], on_gap="record")
    opened = source(script)
    assert opened.tail is not None
    position = opened.tail.start(None, check=False)
    starts = TailStartTimes(opened.tail.strict(), EventTime("v", idle_us=1), clock)
    clock.advance(1_000_000)
    for _ in range(2):
        with pytest.raises(GapError):
            starts.cap(position, [P0])
        clock.advance(10)


def test_a_version_closes_a_gap_of_deletions() -> None:
    place: dict[str, object] = {"topic": "t", "partition": 0, "wanted": 3}
    newer = NewerVersion({}, Resolution(Boundary({}), "", ""), {P0: 8}, 5)
    for closed, more in ((8, {}), (8, {"needed": 8}), (9, {}), (9, {"needed": 9})):
        gap = GapError("gone", context={**place, "available": [closed, 20], **more})
        assert newer.leaves(gap) is (None if closed == 8 else gap)


@pytest.mark.parametrize("deletions", [True, False])
def test_a_state_does_not_stand_for_the_changes_of_a_topic(tmp_path: Path, *, deletions: bool) -> None:
    rows = pl.DataFrame({"v": [1], system.PARTITION: [0], system.OFFSET: [0], system.DELETED: [False]})
    folder = tmp_path / "rows"
    folder.mkdir()
    (rows if deletions else rows.drop(system.DELETED)).write_parquet(folder / "0.parquet")
    file = tmp_path / "headrace.toml"
    file.write_text(
        f'[kafka.default]\n"bootstrap.servers" = "localhost:1"\n'
        f'[catalogs.lake]\ntype = "sql"\nuri = "sqlite:///{tmp_path}/c.db"\nwarehouse = "file://{tmp_path}"\n'
    )
    job = compile_job(load_job_text(CHANGELOG.format(folder=folder), "job.yaml", environ={}), load_config(file))
    compiled = job.sources["s"]
    assert isinstance(compiled, HybridSource)
    lake = compiled.lake
    assert isinstance(lake, LakeHistory)
    found = Resolution(Boundary({}), "", "", columns=OffsetNames())
    assert bool(lake.refuses_replay(found)) != deletions
    assert not lake.refuses_replay(found, whole=True)


def test_a_run_has_not_ended_before_a_partition_that_its_position_does_not_know_yet() -> None:
    bound = RunEnds("caught-up", {P0: 5, P1: 3})
    assert not bound.reached({P0: 5})
    assert bound.reached({P0: 5, P1: 3, TopicPartition("t", 2): 9})
    assert RunEnds("caught-up", {P0: 5, P1: 0}).reached({P0: 7})


@dataclass(frozen=True, slots=True)
class Closed(ScriptedTail):
    """A topic that cannot be opened."""

    why: type[HeadraceError] = UnavailableError

    def open(self, *_: object, **__: object) -> OpenTail:
        raise self.why("the topic cannot be opened")


@pytest.mark.parametrize("why", [UnavailableError, AccessDeniedError])
def test_what_stands_in_the_way_is_told_ahead_and_met_when_it_is_due(
    why: type[HeadraceError], caplog: pytest.LogCaptureFixture
) -> None:
    opened = source(Script([{P0: 5}], policy=HandoverPolicy(chase=False)))
    assert isinstance(opened.tail, ScriptedTail)
    ways = WaysOn(opened, Closed(opened.tail.world, why=why), ReadRequest(["v"]))
    with caplog.at_level("WARNING"):
        ways.prepare(opened.plan(), None)
    assert any("the topic cannot be opened" in message for message in caplog.messages)
    with pytest.raises(why):
        ways.take(opened.plan(), None)


def test_a_fault_of_headrace_is_not_put_off() -> None:
    opened = source(Script([{P0: 5}], policy=HandoverPolicy(chase=False)))
    assert isinstance(opened.tail, ScriptedTail)
    with pytest.raises(InternalError):
        WaysOn(opened, Closed(opened.tail.world, why=InternalError), ReadRequest(["v"])).prepare(opened.plan(), None)
