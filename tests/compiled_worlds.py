"""Compiled jobs over scripted streams: as simple as can be, and in random worlds."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from headrace.jobs.compile import CompiledJob
from headrace.kernel import columns
from headrace.runtime.graph import Graph, Node, SinkNode, SourceNode
from headrace.testing import MemorySink, MemoryTable, StaticProgram
from headrace.testing.script import Script, ScriptedLog
from headrace.testing.stages import scripted_source
from hybrid_source.hybrid import HybridSource
from tests.engine import random_crashes, run_to_end
from tests.worlds import random_log, random_script

STREAM: Mapping[str, Any] = {
    "tail": {"topic": "scripted", "schema": {"ts": "timestamp", "k": "string", "v": "long"}},
    "event_time": {"column": "ts", "out_of_orderness": "20s"},
}
"""A source of which the random logs are."""

Row = tuple[Any, ...]


def both_ways(job: CompiledJob, dice: random.Random) -> tuple[Sequence[Row], Sequence[Row]]:
    """What a job gives of random logs, run as it is simplest and in a random world.

    First all of its input is history, in one piece, with one instance of each operator. Then history, topic and the
    seam between them are anywhere, batches of any size, epochs end anywhere; it is killed and restored, with two
    instances of each operator and then with three.
    """
    logs = {stream: random_log(dice, most=15) for stream in job.sources}
    plain, wild = MemoryTable(), MemoryTable()
    pieces = {stream: scripted_source(log, _simplest(log)) for stream, log in logs.items()}
    run_to_end(_with_parts(job, pieces, plain), 10**6)
    scripts = {stream: replace(random_script(dice, log), until=None, on_gap="fail") for stream, log in logs.items()}
    pieces = {stream: scripted_source(log, scripts[stream]) for stream, log in logs.items()}
    crashes = [("after-head", dice.randint(1, 4)), *random_crashes(dice, 2)]
    run_to_end(_with_parts(job, pieces, wild), dice.randint(1, 30), crashes, [2, 3, 1])
    return _given_out(plain), _given_out(wild)


def _with_parts(job: CompiledJob, sources: Mapping[str, HybridSource], table: MemoryTable) -> StaticProgram:
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


def _given_out(table: MemoryTable) -> Sequence[tuple[Any, ...]]:
    """The rows of a table; of a changelog, those that it comes to."""
    rows = table.rows()
    if columns.WEIGHT in rows.columns:
        names = [name for name in rows.columns if name != columns.WEIGHT]
        rows = rows.group_by(names).agg(pl.col(columns.WEIGHT).sum()).filter(pl.col(columns.WEIGHT) != 0)
        assert (rows[columns.WEIGHT] > 0).all(), "a row was taken back too often"
    return sorted(rows.select(sorted(rows.columns)).rows(), key=repr)


def _simplest(log: ScriptedLog) -> Script:
    """Everything is history, in one split."""
    return Script([{at: log.end(at) for at in log.partitions}])
