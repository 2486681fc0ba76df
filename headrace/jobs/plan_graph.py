"""A job's graph for people: nodes, what flows between them, what is pushed down, what runs as one plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class GraphNode:
    """A node.

    Attributes:
        id: Its id in the job.
        role: What it is. ``state`` is a step that holds state.
        kind: Which kind of source, step or sink.
        determinism: What a step promises.
        reads: What is pushed down into a source's history and its tail, or below a step with state: columns (of a step
            only where it has others that nobody needs), and the predicates on rows.
        key: Of a step with state, by what it is dealt out to instances; none: there is one.
        instances: How many instances there are of a step with state.
    """

    id: str
    role: Literal["source", "step", "state", "sink"]
    kind: str
    determinism: str | None = None
    reads: Sequence[str] = ()
    key: Sequence[str] = ()
    instances: int = 1


@dataclass(frozen=True, slots=True)
class GraphEdge:
    """Rows on their way.

    Attributes:
        start: The node that gives them.
        port: By which of its ports.
        end: The node that takes them.
        exchange: Partials of them are dealt out by key; else they stay where they are.
    """

    start: str
    port: str
    end: str
    exchange: bool


@dataclass(frozen=True, slots=True)
class Segment:
    """What runs as one lazy plan over the rows of a batch.

    Attributes:
        start: The source or the step with state whose rows they are; with a port other than ``main``, ``ID.PORT``.
        steps: The steps without state.
        partials: Steps with state whose stateless part (filters on lateness, partial aggregates) belongs to it.
        sinks: Where rows leave it.
    """

    start: str
    steps: Sequence[str]
    partials: Sequence[str]
    sinks: Sequence[str]


@dataclass(frozen=True, slots=True)
class PlanGraph:
    """The graph; nodes are in topological order."""

    nodes: Sequence[GraphNode] = ()
    edges: Sequence[GraphEdge] = ()
    segments: Sequence[Segment] = ()
