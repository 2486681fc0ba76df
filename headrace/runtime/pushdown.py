"""What a graph pushes down into its sources."""

from __future__ import annotations

from typing import Literal

from headrace.kernel.protocols import ReadRequest
from headrace.runtime.graph import Graph
from hybrid_source.pushdown import probe


def requests(graph: Graph, until: Literal["caught-up"] | None) -> dict[str, ReadRequest]:
    """Probe the plans over each source: which columns they need, which predicate they all imply."""
    out: dict[str, ReadRequest] = {}
    for node in graph.sources():
        pushed = probe(graph.pipeline(node.id), node.source.schema)
        out[node.id] = ReadRequest(pushed.columns, pushed.predicate, until)
    return out
