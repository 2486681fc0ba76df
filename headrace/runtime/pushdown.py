"""What a graph pushes down into its sources."""

from __future__ import annotations

import polars as pl

from headrace.kernel import columns
from headrace.kernel.protocols import ReadRequest
from headrace.kernel.until import Until
from headrace.runtime.graph import Graph
from hybrid_source.pushdown import probe


def requests(graph: Graph, until: Until | None, *, goes_on: bool = False) -> dict[str, ReadRequest]:
    """Probe the plans over each source: which columns they need, which predicate they all imply.

    Args:
        graph: The graph.
        until: Where the run ends.
        goes_on: It was interrupted.
    """
    out: dict[str, ReadRequest] = {}
    for node in graph.sources():
        schema = pl.Schema({name: dtype for name, dtype in node.source.schema.items() if name != columns.ROW_WATERMARK})
        pushed = probe(graph.pipeline(node.id), schema)
        wanted = list(pushed.columns)
        if columns.ROW_WATERMARK in node.source.schema and graph.judges_lateness(node.id):
            wanted.append(columns.ROW_WATERMARK)
        out[node.id] = ReadRequest(wanted, pushed.predicate, until, goes_on=goes_on)
    return out
