"""Makes a graph in which less comes to operators with state: predicates and columns are pushed below them.

From the last operator with state up to the first, what is read of it is probed as for sources
(:func:`hybrid_source.pushdown.probe`): the columns that somebody needs, and the predicates that all readers imply. What
of them passes the operator (:mod:`operators.passage`) is put before it as a node of its own, where the next operator
above, and in the end the sources, see it. So everything that stands before a filter in the job is read and held only
for rows that the filter lets through.

* Nothing is pushed below an operator whose late rows somebody reads: they would be fewer, with fewer columns.
* Rows that fail a pushed predicate are not counted as late.
* What is pushed below an operator decides what its state holds, so it is part of its fingerprint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import polars as pl
import polars.selectors as cs

from headrace.kernel import columns
from headrace.kernel.protocols import ERRORS, LATE, Determinism
from headrace.runtime.graph import Graph, Node, SinkNode, SourceNode, StatefulNode, Stream, TransformNode
from hybrid_source.pushdown import Pushdown, probe
from operators.conditions import both, either, passing, written
from operators.passage import Narrowed, NarrowsColumns, Passage, PassesPredicates


def optimised(graph: Graph) -> Graph:
    """The graph with everything pushed down that may be; gives out the same rows."""
    schemas = _schemas(graph)
    for node in reversed(graph.stateful()):
        if graph.has_consumers(Stream(node.id)) and not graph.has_consumers(Stream(node.id, LATE)):
            graph = _pushed(graph, node.id, schemas)
    return graph


@dataclass(frozen=True, slots=True, eq=False)
class Needed:
    """Leaves out what an operator behind it does not need; implements :class:`headrace.kernel.protocols.Transform`.

    Args:
        id: Stable id.
        predicate: Which rows are needed; None: all.
        columns: Which columns are; None: all.
    """

    id: str
    predicate: pl.Expr | None
    columns: Sequence[str] | None

    @property
    def determinism(self) -> Determinism:
        """Exact."""
        return Determinism.EXACT

    def apply(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """The rows that are needed."""
        kept = rows if self.predicate is None else rows.filter(self.predicate)
        if self.columns is None:
            return kept
        # Of streams that come together here, one may have watermarks of its rows that the others lack.
        return kept.select(cs.by_name(*self.columns, columns.ROW_WATERMARK, require_all=False))


@dataclass(frozen=True, slots=True, eq=False)
class Completed:
    """Puts nulls in place of columns that nobody needs, for steps may name them on their way.

    Implements :class:`headrace.kernel.protocols.Transform`.

    Args:
        id: Stable id.
        schema: The columns that there were, in their order.
    """

    id: str
    schema: pl.Schema

    @property
    def determinism(self) -> Determinism:
        """Exact."""
        return Determinism.EXACT

    def apply(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """The rows with all columns."""
        there = rows.collect_schema()
        missing = {name: pl.lit(None, dtype) for name, dtype in self.schema.items() if name not in there}
        return rows.with_columns(**missing).select(cs.by_name(*self.schema))


def _schemas(graph: Graph) -> dict[Stream, pl.Schema]:
    """The columns of every stream, as an operator would be given them."""
    found: dict[Stream, pl.Schema] = {}
    for node in graph.nodes:
        match node:
            case SourceNode():
                found[Stream(node.id)] = node.source.schema
                found[Stream(node.id, ERRORS)] = columns.ERRORS
            case TransformNode():
                rows = pl.LazyFrame(schema=found[node.input])
                found[Stream(node.id)] = node.transform.apply(rows).collect_schema()
            case StatefulNode():
                rows = pl.LazyFrame(schema=found[node.input])
                partials = node.operator.partial(rows).collect_schema()
                found[Stream(node.id)] = node.operator.output_schema(partials)
                if LATE in node.operator.ports:
                    found[Stream(node.id, LATE)] = node.operator.late(rows).collect_schema()
            case SinkNode():
                pass
    return found


def _pushed(graph: Graph, node_id: str, schemas: Mapping[Stream, pl.Schema]) -> Graph:
    node = next(node for node in graph.stateful() if node.id == node_id)
    if not isinstance(node.operator, PassesPredicates | NarrowsColumns):
        return graph
    rows, given = schemas[node.input], schemas[Stream(node_id)]
    wanted = probe(graph.pipeline(node_id), given)
    predicates = _predicates(node, wanted, rows, given)
    narrowed = Narrowed(node.operator)
    if isinstance(node.operator, NarrowsColumns) and len(wanted.columns) < len(given):
        narrowed = node.operator.narrowed(wanted.columns, rows)
    own = [predicate for passage, predicate in predicates if not passage.into]
    fewer = None if narrowed.reads is None or len(narrowed.reads) == len(rows) else narrowed.reads
    needed = Needed(f"{node_id}.needed", both(own) if own else None, fewer)
    partials = narrowed.operator.partial(needed.apply(pl.LazyFrame(schema=rows))).collect_schema()
    left = narrowed.operator.output_schema(partials)
    conditions = tuple(f"{passage.into} {written(predicate)}".strip() for passage, predicate in predicates)
    changed = replace(
        node, operator=narrowed.operator, conditions=conditions, columns=None if left == given else list(left)
    )
    graph = Graph([changed if other is node else other for other in graph.nodes])
    for passage, predicate in predicates:
        if passage.into:
            side = f"{node_id}.{passage.into}"
            graph = _before(graph, side, Needed(f"{side}.needed", predicate, None))
    if own or fewer is not None:
        graph = _before(graph, node_id, needed)
    return graph if left == given else _behind(graph, node_id, Completed(f"{node_id}.completed", given))


def _predicates(
    node: StatefulNode, wanted: Pushdown, rows: pl.Schema, given: pl.Schema
) -> Sequence[tuple[Passage, pl.Expr]]:
    """What of the predicates that every reader implies passes the operator, and where."""
    if not wanted.uses or not isinstance(node.operator, PassesPredicates):
        return []
    out = []
    for passage in node.operator.passages(rows):
        found = [passing(predicate, passage.names, given) for predicate in wanted.uses]
        implied = [predicate for predicate in found if predicate is not None]
        if len(implied) == len(found):
            out.append((passage, either(implied)))
    return out


def _before(graph: Graph, node_id: str, needed: Needed) -> Graph:
    """The graph with a node more, before another one."""
    nodes: list[Node] = []
    for node in graph.nodes:
        if node.id == node_id and isinstance(node, StatefulNode | TransformNode):
            nodes += [TransformNode(needed.id, node.input, needed), replace(node, input=Stream(needed.id))]
        else:
            nodes.append(node)
    return Graph(nodes)


def _behind(graph: Graph, node_id: str, completed: Completed) -> Graph:
    """The graph with a node more between another one and everything that reads it."""
    given, nodes = Stream(node_id), list[Node]()
    for node in graph.nodes:
        nodes.append(_reading(node, given, Stream(completed.id)))
        if node.id == node_id and not isinstance(node, SinkNode):
            nodes.append(TransformNode(completed.id, given, completed))
    return Graph(nodes)


def _reading(node: Node, old: Stream, new: Stream) -> Node:
    """A node that reads one stream in place of another."""
    match node:
        case SourceNode():
            return node
        case TransformNode():
            others = tuple(new if stream == old else stream for stream in node.others)
            return replace(node, input=new if node.input == old else node.input, others=others)
        case StatefulNode() | SinkNode():
            return replace(node, input=new) if node.input == old else node
