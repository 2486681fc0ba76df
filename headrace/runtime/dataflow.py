"""The part of a job behind the first segments: state, sinks, and the way of rows and watermarks between them.

Used by one thread. Knows nothing of epochs, threads or where rows come from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Literal

import polars as pl

from headrace.kernel.boundary import Boundary
from headrace.kernel.protocols import (
    ERRORS,
    MAIN,
    Emission,
    EpochId,
    OperatorInstance,
    OperatorState,
    PreCommit,
    SinkContext,
    SinkWriter,
    Ticks,
)
from headrace.runtime.graph import Graph, Leg, Role, SourceNode, StatefulNode, Stream
from headrace.runtime.schemas import Schemas
from operators.errors import computing


@dataclass(frozen=True, slots=True)
class LegResult:
    """A collected :class:`~headrace.runtime.graph.Leg`."""

    role: Role
    node: str
    frame: pl.DataFrame


def collect(legs: list[Leg], *, streaming: bool) -> list[LegResult]:
    """Run several legs over one batch as one query, so that what they share is read and computed once."""
    if not legs:
        return []
    engine: Literal["streaming", "in-memory"] = "streaming" if streaming else "in-memory"
    with computing("job"):
        if len(legs) == 1:
            frames = [legs[0].rows.collect(engine=engine)]
        else:
            frames = pl.collect_all([leg.rows for leg in legs], engine=engine)
    return [LegResult(leg.role, leg.node, frame) for leg, frame in zip(legs, frames, strict=True)]


@dataclass(slots=True)
class Counters:
    """What has passed since the dataflow was opened."""

    rows_out: Counter[str] = field(default_factory=Counter)
    late_rows: int = 0
    error_rows: int = 0


class Dataflow:
    """Open operators and sinks of a graph.

    Args:
        graph: The job.
        schemas: The schemas of its streams.
        operators: Its stateful operators, open, by id.
    """

    def __init__(self, graph: Graph, schemas: Schemas, operators: Mapping[str, OperatorInstance]) -> None:
        self._graph = graph
        self._operators = operators
        self._schemas = schemas
        self._ticking = [
            (node.id, instance)
            for node in reversed(graph.stateful())
            if isinstance(instance := operators[node.id], Ticks)
        ]
        self._watermarks: dict[str, int] = {}
        self._ended: set[str] = set()
        self._writers: dict[str, SinkWriter] = {}
        self.counters = Counters()

    def open_sinks(self, context: SinkContext, pre_commits: Mapping[str, PreCommit]) -> None:
        """Open every sink, fence its predecessors and finish what the last record decided, in commit order."""
        for node in self._graph.sinks():
            writer = node.sink.open(self._schemas.sinks[node.id], context)
            self._writers[node.id] = writer
        # All are fenced before any is finished: a zombie's open transaction in one must not hold up another's.
        for node in self._graph.sinks():
            self._writers[node.id].recover(None)
        for node in self._graph.sinks():
            if node.id in pre_commits:
                self._writers[node.id].recover(pre_commits[node.id])

    def accept(self, results: list[LegResult]) -> None:
        """Take in the collected legs of one batch."""
        for result in results:
            match result.role:
                case "sink":
                    self._write(result.node, result.frame)
                case "partial":
                    if result.frame.height:
                        self._route(result.node, self._operators[result.node].process(result.frame))
                case "late-count":
                    self.counters.late_rows += int(result.frame.item())

    def accept_errors(self, source_id: str, errors: pl.DataFrame) -> None:
        """Route dead letters of a source."""
        self.counters.error_rows += errors.height
        self._route(source_id, {ERRORS: errors})

    def advance(self, source_watermarks: Mapping[str, int]) -> None:
        """Let the watermarks of the sources run through the stateful operators."""
        outgoing: dict[str, int] = {}
        for node in self._graph.stateful():
            incoming = self._incoming(node, source_watermarks, outgoing)
            if incoming is None:
                continue
            operator = self._operators[node.id]
            if incoming > self._watermarks.get(node.id, incoming - 1):
                self._watermarks[node.id] = incoming
                self._route(node.id, operator.advance(incoming))
            outgoing[node.id] = operator.outgoing_watermark(incoming)

    def tick(self, now_us: int) -> bool:
        """Let the wall clock run through the operators that go by it; says whether one gave something out.

        The lowest ones first, so that each knows the time when rows come to it.
        """
        moved = False
        for node_id, instance in self._ticking:
            emission = instance.tick(now_us)
            moved = moved or bool(emission)
            self._route(node_id, emission)
        return moved

    def end(self, source_id: str, source_watermarks: Mapping[str, int]) -> None:
        """A source has ended. If it can never go on, what it is united with waits for it no longer."""
        node = self._graph.node(source_id)
        if isinstance(node, SourceNode) and node.bounded:
            self._ended.add(source_id)
            self.advance(source_watermarks)

    def _incoming(
        self, node: StatefulNode, source_watermarks: Mapping[str, int], outgoing: Mapping[str, int]
    ) -> int | None:
        upstream = self._graph.upstream(node)
        waited_for = [above for above in upstream if above.id not in self._ended] or upstream
        marks = [
            (source_watermarks if isinstance(above, SourceNode) else outgoing).get(above.id) for above in waited_for
        ]
        known = [mark for mark in marks if mark is not None]
        return min(known) if len(known) == len(marks) else None

    def drain(self) -> None:
        """The input has ended: every operator gives out what it holds, upstream first."""
        for node in self._graph.stateful():
            self._route(node.id, self._operators[node.id].drain())

    def _route(self, node_id: str, emission: Emission) -> None:
        for port, frame in emission.items():
            if not frame.height:
                continue
            stream = Stream(node_id, port)
            if port != MAIN and not self._graph.has_consumers(stream):
                continue
            self.accept(collect(self._graph.legs(stream, frame.lazy(), maybe_late=False), streaming=False))

    def _write(self, sink_id: str, frame: pl.DataFrame) -> None:
        if frame.height:
            self._writers[sink_id].write(frame)
            self.counters.rows_out[sink_id] += frame.height

    def prepare(self, epoch: EpochId, coverage: Mapping[str, Boundary | None]) -> dict[str, PreCommit]:
        """Prepare every sink, in commit order; sinks with nothing to commit are left out."""
        out: dict[str, PreCommit] = {}
        for node in self._graph.sinks():
            pre_commit = self._writers[node.id].prepare(epoch, coverage.get(node.covers) if node.covers else None)
            if pre_commit is not None:
                out[node.id] = pre_commit
        return out

    def commit(self, sink_id: str, pre_commit: PreCommit) -> None:
        """Commit one prepared sink."""
        self._writers[sink_id].commit(pre_commit)

    def snapshot(self) -> dict[str, OperatorState]:
        """The states of all stateful operators."""
        return {operator_id: operator.snapshot() for operator_id, operator in self._operators.items()}

    def state_rows(self) -> int:
        """Rows held in state, for progress displays."""
        return sum(operator.rows_held() for operator in self._operators.values())

    def close(self, *, abort: bool) -> None:
        """Close every sink; with ``abort`` the rows of the current epoch are thrown away first."""
        with ExitStack() as closing:  # all of them, whatever one says
            for writer in self._writers.values():
                closing.callback(writer.close)
                if abort:
                    closing.callback(writer.abort)
