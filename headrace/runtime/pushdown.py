"""What a graph pushes down into its sources."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from headrace.kernel import columns
from headrace.kernel.errors import SpecError
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
        out[node.id] = ReadRequest(wanted, pushed.predicate, until, goes_on=goes_on, filters=pushed.filters)
    return out


def absent(graph: Graph, source: str, wanted: Sequence[str]) -> pl.Schema:
    """Columns that plans name on their way, and that no output needs: rows without them would not fit the plans.

    A select that keeps a column which a later select leaves out is the usual case. Nothing of these columns is read;
    rows are given nulls in their place, which the optimiser takes out again.

    Args:
        graph: The job.
        source: The source.
        wanted: What is read of it.

    Returns:
        Empty where the plans over the source can do with ``wanted``.
    """
    schema = next(node.source.schema for node in graph.sources() if node.id == source)
    rows = pl.DataFrame(schema={name: schema[name] for name in wanted}).lazy()
    try:
        pl.collect_all(graph.pipeline(source)(rows))
    except (pl.exceptions.ColumnNotFoundError, SpecError):
        return pl.Schema(
            {name: dtype for name, dtype in schema.items() if name not in wanted and name != columns.ROW_WATERMARK}
        )
    return pl.Schema()
