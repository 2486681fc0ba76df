"""Jobs over the whole vocabulary give the same however they are run: ``jobs.yaml`` has them.

Each is run once as it is simplest: all of its input is history, in one piece, with one instance of each operator. Then
in random worlds: with history, topic and the seam between them anywhere, in batches of any size, with epochs that end
anywhere, killed and restored, checkpointed with two instances of each operator and restored with three. Streams that
only grow must give the same rows, changelogs must come to the same table.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from headrace.jobs.compile import CompiledJob, compile_job
from headrace.jobs.config import load_config
from headrace.jobs.parse import parse_job
from headrace.jobs.spec_steps import STEP_KINDS
from headrace.jobs.spec_yaml import read_yaml
from headrace.kernel import columns
from headrace.runtime.graph import Graph, Node, SinkNode, SourceNode
from headrace.testing import MemorySink, MemoryTable, StaticProgram
from headrace.testing.script import Script, ScriptedLog
from headrace.testing.stages import scripted_source
from hybrid_source.hybrid import HybridSource
from tests.engine import random_crashes, run_to_end
from tests.worlds import random_log, random_script

JOBS: Mapping[str, Mapping[str, Any]] = read_yaml(
    Path(__file__).with_name("jobs.yaml").read_text(), "jobs.yaml", {}
).value
EXAMPLES = max(1, int(os.environ.get("HEADRACE_EXAMPLES", "300")) // 100)
STREAM = {
    "tail": {"topic": "scripted", "schema": {"ts": "timestamp", "k": "string", "v": "long"}},
    "event_time": {"column": "ts", "out_of_orderness": "20s"},
}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], CompiledJob]:
    """Compiles a job of the file, once."""
    folder = tmp_path_factory.mktemp("golden")
    pl.DataFrame({"k": ["a", "b"], "name": ["Anna", "Ben"]}).write_parquet(folder / "names.parquet")
    config = load_config(state_path=folder / "state", cwd=folder, environ={"HEADRACE_KAFKA_BOOTSTRAP": "nowhere:1"})

    @cache
    def compile_named(name: str) -> CompiledJob:
        section = {"streams": ["a"], **JOBS[name]}
        job = {
            "name": name,
            "sources": dict.fromkeys(section.pop("streams"), STREAM),
            "sinks": [{"id": "out", "iceberg": {"table": "local.golden.out", "create": True, "changes": "append"}}],
            **section,
        }
        if "names" in str(section):
            job["tables"] = {"names": {"parquet": str(folder / "names.parquet")}}
        return compile_job(parse_job(job), config)

    return compile_named


def with_parts(job: CompiledJob, sources: Mapping[str, HybridSource], table: MemoryTable) -> StaticProgram:
    """A compiled job over other sources, and with its rows in memory."""
    nodes: list[Node] = []
    for node in job.graph(job.pin({})).nodes:
        match node:
            case SourceNode():
                source = replace(sources[node.id], name=node.id, schema=node.source.schema)
                nodes.append(replace(node, source=source))
            case SinkNode():
                nodes.append(replace(node, sink=MemorySink(node.id, table), covers=None))
            case _:
                nodes.append(node)
    return StaticProgram(job.uid, Graph(nodes))


def given_out(table: MemoryTable) -> Sequence[tuple[Any, ...]]:
    """The rows of a table; of a changelog, those that it comes to."""
    rows = table.rows()
    if columns.WEIGHT in rows.columns:
        names = [name for name in rows.columns if name != columns.WEIGHT]
        rows = rows.group_by(names).agg(pl.col(columns.WEIGHT).sum()).filter(pl.col(columns.WEIGHT) != 0)
        assert (rows[columns.WEIGHT] > 0).all(), "a row was taken back too often"
    return sorted(rows.select(sorted(rows.columns)).rows(), key=repr)


def simplest(log: ScriptedLog) -> Script:
    """Everything is history, in one split."""
    return Script([{at: log.end(at) for at in log.partitions}])


@pytest.mark.parametrize("name", JOBS)
@settings(max_examples=EXAMPLES, deadline=None, phases=[Phase.generate])  # a seed cannot be made smaller
@given(seed=st.integers(0, 2**63))
def test_the_output_is_the_same_however_a_job_is_run(
    compiled: Callable[[str], CompiledJob], name: str, seed: int
) -> None:
    job, dice = compiled(name), random.Random(seed)
    logs = {stream: random_log(dice, most=15) for stream in job.sources}
    plain, wild = MemoryTable(), MemoryTable()
    pieces = {stream: scripted_source(log, simplest(log)) for stream, log in logs.items()}
    run_to_end(with_parts(job, pieces, plain), 10**6)
    scripts = {stream: replace(random_script(dice, log), until=None, on_gap="fail") for stream, log in logs.items()}
    pieces = {stream: scripted_source(log, scripts[stream]) for stream, log in logs.items()}
    crashes = [("after-head", dice.randint(1, 4)), *random_crashes(dice, 2)]
    run_to_end(with_parts(job, pieces, wild), dice.randint(1, 30), crashes, [2, 3, 1])
    assert given_out(wild) == given_out(plain)


def test_every_step_is_in_a_job() -> None:
    steps = [step for job in JOBS.values() for step in job.get("steps", ())]
    # The streams have no structs; test_operators_nested.py has unnest.
    assert {kind for step in steps for kind in step} & {*STEP_KINDS} == {*STEP_KINDS} - {"unnest"}
    windows = {kind for step in steps for kind in step.get("window", ())}
    assert {"tumbling", "hopping", "cumulating", "session", "early"} <= windows
