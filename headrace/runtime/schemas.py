"""Schemas of a graph's streams, found by running empty frames through it. Reads nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from headrace.kernel import columns
from headrace.kernel.protocols import ERRORS
from headrace.runtime.graph import Graph, Stream


@dataclass(frozen=True, slots=True)
class Schemas:
    """The schemas that operators and sinks are opened with, by node id."""

    partials: Mapping[str, pl.Schema]
    sinks: Mapping[str, pl.Schema]


def resolve(graph: Graph) -> Schemas:
    """Find the schema of everything that a job's operators and sinks take in.

    Raises:
        HeadraceError: What an operator says about columns that are not there.
    """
    partials: dict[str, pl.Schema] = {}
    sinks: dict[str, pl.Schema] = {}

    def follow(stream: Stream, schema: pl.Schema, *, late: bool) -> None:
        for leg in graph.legs(stream, pl.LazyFrame(schema=schema), maybe_late=late):
            if leg.role == "sink":
                sinks[leg.node] = leg.rows.collect_schema()
            elif leg.role == "partial":
                partials[leg.node] = leg.rows.collect_schema()

    for source in graph.sources():
        follow(Stream(source.id), source.source.schema, late=True)
        follow(Stream(source.id, ERRORS), columns.ERRORS, late=False)
    for node in graph.stateful():
        follow(Stream(node.id), node.operator.output_schema(partials[node.id]), late=True)
    return Schemas(partials, sinks)
