"""A compiled job as a graph of values: sources, stateless chains, stateful operators, sinks.

Nodes name their input as a :class:`Stream`; the order of ``Graph.nodes`` is topological. The graph knows nothing of
threads or epochs; it answers one question: which frames do the consumers of a stream want, given its rows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import polars as pl

from headrace.kernel import columns
from headrace.kernel.errors import InternalError
from headrace.kernel.protocols import LATE, MAIN, Sink, Source, StatefulOperator, Transform

Role: TypeAlias = Literal["sink", "partial", "late-count"]


@dataclass(frozen=True, slots=True)
class Stream:
    """An edge: a node's output port."""

    node: str
    port: str = MAIN

    def __str__(self) -> str:
        return self.node if self.port == MAIN else f"{self.node}.{self.port}"


@dataclass(frozen=True, slots=True)
class SourceNode:
    """A source; ports ``main`` and ``errors``. One that is ``bounded`` can never go on once it has ended."""

    id: str
    source: Source
    bounded: bool = False


@dataclass(frozen=True, slots=True)
class TransformNode:
    """One stateless operator; ``others`` are further streams whose rows it takes as it takes those of ``input``."""

    id: str
    input: Stream
    transform: Transform
    others: Sequence[Stream] = ()


@dataclass(frozen=True, slots=True)
class StatefulNode:
    """One stateful operator; ports as the operator names them.

    Attributes:
        id: Stable id.
        input: What it reads.
        operator: The operator.
        conditions: Predicates that stand behind it and are tested before it (:mod:`headrace.runtime.optimiser`).
        columns: The columns that it gives out, where it has others that nobody behind it needs; None: all.
    """

    id: str
    input: Stream
    operator: StatefulOperator
    conditions: Sequence[str] = ()
    columns: Sequence[str] | None = None

    @property
    def fingerprint(self) -> str:
        """What its state depends on: the operator's definition, and of which rows it holds something.

        Which columns it holds is checked when the state is opened.
        """
        rows = f", of rows where {' and '.join(self.conditions)}" if self.conditions else ""
        return f"{self.operator.fingerprint}{rows}"


@dataclass(frozen=True, slots=True)
class SinkNode:
    """A sink. ``covers`` names the source whose offsets its rows stand for, one to one; None behind state."""

    id: str
    input: Stream
    sink: Sink
    covers: str | None


Node: TypeAlias = SourceNode | TransformNode | StatefulNode | SinkNode


@dataclass(frozen=True, slots=True)
class Leg:
    """One frame that a stream's consumers want: rows for a sink, partials for an operator, or a count of late rows."""

    role: Role
    node: str
    rows: pl.LazyFrame


@dataclass(frozen=True, slots=True)
class Graph:
    """A job's nodes in topological order."""

    nodes: Sequence[Node]

    def sources(self) -> list[SourceNode]:
        """The sources, in order."""
        return [node for node in self.nodes if isinstance(node, SourceNode)]

    def stateful(self) -> list[StatefulNode]:
        """The stateful operators, in topological order."""
        return [node for node in self.nodes if isinstance(node, StatefulNode)]

    def sinks(self) -> list[SinkNode]:
        """The sinks, in commit order."""
        found = [node for node in self.nodes if isinstance(node, SinkNode)]
        return sorted(found, key=lambda node: node.sink.commit_order)

    def node(self, node_id: str) -> Node:
        """The node of that id."""
        for node in self.nodes:
            if node.id == node_id:
                return node
        raise InternalError(f"graph has no node {node_id!r}")

    def consumers(self, stream: Stream) -> Iterator[TransformNode | StatefulNode | SinkNode]:
        """Who reads a stream."""
        for node in self.nodes:
            if not isinstance(node, SourceNode) and stream in _streams(node):
                yield node

    def has_consumers(self, stream: Stream) -> bool:
        """Whether anybody reads a stream."""
        return next(self.consumers(stream), None) is not None

    def legs(self, stream: Stream, rows: pl.LazyFrame, *, maybe_late: bool) -> list[Leg]:
        """What the consumers of ``stream`` want of ``rows``, as lazy plans up to the next sink or stateful operator.

        Args:
            stream: The stream.
            rows: Its rows.
            maybe_late: Rows may be late; else the late ports are not evaluated.
        """
        out: list[Leg] = []
        for consumer in self.consumers(stream):
            match consumer:
                case TransformNode():
                    derived = consumer.transform.apply(rows)
                    out += self.legs(Stream(consumer.id), derived, maybe_late=maybe_late)
                case StatefulNode():
                    out.append(Leg("partial", consumer.id, consumer.operator.partial(rows)))
                    if maybe_late:
                        out += self._late_legs(consumer, rows)
                case SinkNode():
                    out.append(Leg("sink", consumer.id, rows.drop(columns.ROW_WATERMARK, strict=False)))
        return out

    def _late_legs(self, node: StatefulNode, rows: pl.LazyFrame) -> list[Leg]:
        late = node.operator.late(rows)
        count = Leg("late-count", node.id, late.select(pl.len()))
        return [count, *self.legs(Stream(node.id, LATE), late, maybe_late=False)]

    def left_out(self, stream: Stream, rows: pl.LazyFrame, partials: Mapping[str, Sequence[pl.DataFrame]]) -> list[Leg]:
        """The late legs of those operators whose partials show that they left rows out.

        Args:
            stream: The stream.
            rows: Its rows, whose legs have been collected with ``maybe_late=False``.
            partials: What was collected, by operator; several where the rows reach it on several ways.
        """
        out: list[Leg] = []
        for consumer in self.consumers(stream):
            if isinstance(consumer, TransformNode):
                out += self.left_out(Stream(consumer.id), consumer.transform.apply(rows), partials)
            elif isinstance(consumer, StatefulNode) and any(map(consumer.operator.leaves_out, partials[consumer.id])):
                out += self._late_legs(consumer, rows)
        return out

    def pipeline(self, source_id: str) -> Callable[[pl.LazyFrame], list[pl.LazyFrame]]:
        """The lazy plans over one source's rows, for probing what they push down.

        Given rows without ``_row_watermark``, so that lateness, which must be seen to be counted, is not pushed down;
        for the consumers of a late port any row may be late.
        """
        return lambda rows: list(self._probes(Stream(source_id), rows))

    def _probes(self, stream: Stream, rows: pl.LazyFrame) -> Iterator[pl.LazyFrame]:
        for consumer in self.consumers(stream):
            match consumer:
                case TransformNode():
                    yield from self._probes(Stream(consumer.id), consumer.transform.apply(rows))
                case StatefulNode():
                    yield consumer.operator.partial(rows)
                    yield from self._probes(Stream(consumer.id, LATE), rows)
                case SinkNode():
                    yield rows

    def judges_lateness(self, source_id: str) -> bool:
        """Whether some stateful operator reads this source's rows."""
        return any(source_id in self._origins(node) for node in self.stateful())

    def _origins(self, node: Node) -> set[str]:
        if isinstance(node, SourceNode):
            return {node.id}
        return {origin for stream in _streams(node) for origin in self._origins(self.node(stream.node))}

    def upstream(self, node: StatefulNode) -> list[SourceNode | StatefulNode]:
        """The nearest sources and stateful operators above a stateful operator: whose watermarks it waits for."""
        found: dict[str, SourceNode | StatefulNode] = {}
        waiting = [node.input]
        while waiting:
            current = self.node(waiting.pop().node)
            if isinstance(current, TransformNode):
                waiting += _streams(current)
            elif not isinstance(current, SinkNode):
                found[current.id] = current
        return list(found.values())

    def inputs(self, node: StatefulNode) -> tuple[str, ...]:
        """What feeds a stateful operator, whatever stateless steps lie in between: ports of sources and operators."""
        return self.feeds(node.input)

    def feeds(self, stream: Stream) -> tuple[str, ...]:
        """What a stream's rows come from, whatever stateless steps lie in between: ports of sources and operators."""
        found: set[str] = set()
        waiting = [stream]
        while waiting:
            stream = waiting.pop()
            current = self.node(stream.node)
            if isinstance(current, TransformNode):
                waiting += _streams(current)
            else:
                found.add(f"source {stream}" if isinstance(current, SourceNode) else str(stream))
        return tuple(sorted(found))

    def fingerprint(self) -> str:
        """A digest of the stateful part: ids, definitions and what feeds them. Stateless changes keep it."""
        parts = [[node.id, node.fingerprint, self.inputs(node)] for node in self.stateful()]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _streams(node: TransformNode | StatefulNode | SinkNode) -> list[Stream]:
    """What a node reads."""
    return [node.input, *(node.others if isinstance(node, TransformNode) else ())]
