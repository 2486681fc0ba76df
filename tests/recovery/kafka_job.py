"""A job from a scripted source into two topics; as a program, so that it can be killed. Argument: the spec as JSON."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, field
from typing import Any

import polars as pl

from headrace.kafka import KafkaCluster
from headrace.runtime.graph import Graph, SinkNode, SourceNode, Stream
from headrace.runtime.job import CheckpointPolicy, RunOptions, RunResult
from headrace.runtime.observer import SilentObserver, StopSignal
from headrace.runtime.restarts import run
from headrace.sinks.kafka import KafkaSink
from headrace.state.stores import open_store
from headrace.testing import ScriptedSource, StaticProgram, Tick

SCHEMA = pl.Schema({"k": pl.String(), "n": pl.Int64()})
ROWS = 3


@dataclass(frozen=True)
class KafkaJob:
    uid: str
    bootstrap: str
    store: str
    topics: list[str]
    epochs: int
    options: dict[str, Any] = field(default_factory=dict)

    def run(self) -> RunResult:
        cluster = KafkaCluster("test", {"bootstrap.servers": self.bootstrap, **self.options})
        frames = [
            pl.DataFrame({"k": ["a", "b", "c"], "n": range(at * ROWS, (at + 1) * ROWS)}, schema=SCHEMA)
            for at in range(self.epochs)
        ]
        source = ScriptedSource("s", SCHEMA, [Tick(frame) for frame in frames])
        sinks = [
            SinkNode(f"out-{number}", Stream("s"), KafkaSink(f"out-{number}", cluster, topic, ("k",)), covers="s")
            for number, topic in enumerate(self.topics)
        ]
        return run(
            StaticProgram(self.uid, Graph([SourceNode("s", source), *sinks])),
            open_store(self.store),
            CheckpointPolicy(interval_us=0, timeout_s=60),
            RunOptions(until="caught-up"),
            SilentObserver(),
            StopSignal(),
        )

    def dump(self) -> str:
        return json.dumps(asdict(self))


if __name__ == "__main__":
    KafkaJob(**json.loads(sys.argv[1])).run()
