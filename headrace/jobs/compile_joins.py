"""Joins of two streams as nodes of the graph: an input for each side, both together, and the operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import polars as pl

from headrace.jobs.spec_joins import JoinSpec
from headrace.kernel.errors import InternalError
from headrace.kernel.protocols import StatefulOperator
from headrace.runtime.graph import Node, StatefulNode, Stream, TransformNode
from operators.interval_join import IntervalJoin
from operators.join_sides import JoinInput, JoinSide, JoinSides, Together
from operators.stream_join import StreamJoin

LEFT: Final = "left"
RIGHT: Final = "right"
BOTH: Final = "both"


@dataclass(frozen=True, slots=True)
class JoinedStream:
    """What a join reads on one side.

    Attributes:
        rows: The stream.
        schema: Its columns.
        time: Its event-time column; None: it has none.
    """

    rows: Stream
    schema: pl.Schema
    time: str | None


def join_nodes(node_id: str, join: JoinSpec, left: JoinedStream, right: JoinedStream) -> list[Node]:
    """The nodes of a join, in topological order; the last one has the step's id.

    Raises:
        SpecError: The join does not fit the columns of its inputs.
    """
    sides = JoinSides(
        node_id,
        join.how,
        _side(left, [mine for mine, _ in join.pairs], join.left_prefix, timed=join.timed),
        _side(right, [other for _, other in join.pairs], join.right_prefix, timed=join.timed),
        join.where,
        join.event_time,
    )
    inputs = [
        TransformNode(f"{node_id}.{LEFT}", left.rows, JoinInput(f"{node_id}.{LEFT}", sides, "left")),
        TransformNode(f"{node_id}.{RIGHT}", right.rows, JoinInput(f"{node_id}.{RIGHT}", sides, "right")),
    ]
    first, *others = [Stream(tagged.id) for tagged in inputs]
    both = TransformNode(f"{node_id}.{BOTH}", first, Together(f"{node_id}.{BOTH}"), others)
    return [*inputs, both, StatefulNode(node_id, Stream(both.id), _operator(node_id, join, sides))]


def _side(stream: JoinedStream, on: list[str], prefix: str, *, timed: bool) -> JoinSide:
    return JoinSide(stream.schema, on, stream.time if timed else None, prefix)


def _operator(node_id: str, join: JoinSpec, sides: JoinSides) -> StatefulOperator:
    if join.within is not None:
        return IntervalJoin(node_id, sides, join.within.lower, join.within.upper, join.allowed_lateness)
    if join.kind != "regular":
        raise InternalError(f"join {node_id!r} of kind {join.kind}")
    return StreamJoin(node_id, sides, join.ttl, join.allowed_lateness)
