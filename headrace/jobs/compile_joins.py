"""Joins of two streams as nodes of the graph: an input for each side, both together, and the operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import polars as pl

from headrace.jobs.spec_joins import JoinHoppingSpec, JoinSpec, JoinTumblingSpec
from headrace.kernel import columns
from headrace.kernel.errors import SpecError
from headrace.kernel.protocols import StatefulOperator
from headrace.runtime.graph import Node, StatefulNode, Stream, TransformNode
from operators.interval_join import IntervalJoin
from operators.join_sides import TIME, JoinInput, JoinSide, JoinSides, Together
from operators.settled import Settled
from operators.slices import Slices
from operators.stream_join import StreamJoin
from operators.time_scales import time_scale
from operators.version_join import VersionJoin
from operators.window_join import WindowJoin

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
        fed_by: The source or operator that it comes from.
    """

    rows: Stream
    schema: pl.Schema
    time: str | None
    fed_by: str = ""


def join_nodes(
    node_id: str, join: JoinSpec, left: JoinedStream, right: JoinedStream, *, revised: bool = False
) -> list[Node]:
    """The nodes of a join, in topological order; the last one has the step's id.

    Args:
        node_id: The step's id.
        join: What it says.
        left: The left side.
        right: The right side.
        revised: A side is a changelog that takes rows back whose time may have passed.

    Raises:
        SpecError: The join does not fit the columns of its inputs.
    """
    mine, other = ([pair[at] for pair in join.pairs] for at in (0, 1))
    deletes = join.as_of is not None and {columns.DELETED, columns.TIMESTAMP} <= right.schema.keys()
    sides = JoinSides(
        node_id,
        join.how,
        JoinSide(left.schema, mine, left.time if join.timed else None, join.left_prefix, fed_by=left.fed_by),
        JoinSide(
            right.schema,
            other,
            right.time if join.timed else None,
            join.right_prefix,
            columns.TIMESTAMP if deletes else None,
            None if join.within is None else join.within.until,
            right.fed_by,
        ),
        join.where,
        join.event_time,
    )
    inputs = [
        TransformNode(f"{node_id}.{LEFT}", left.rows, JoinInput(f"{node_id}.{LEFT}", sides, "left")),
        TransformNode(f"{node_id}.{RIGHT}", right.rows, JoinInput(f"{node_id}.{RIGHT}", sides, "right")),
    ]
    first, *others = [Stream(tagged.id) for tagged in inputs]
    both = TransformNode(f"{node_id}.{BOTH}", first, Together(f"{node_id}.{BOTH}"), others)
    operator = _operator(node_id, join, sides)
    if sides.weighted and join.kind != "regular":
        operator = _settled(operator, join, sides, revised=revised)
    return [*inputs, both, StatefulNode(node_id, Stream(both.id), operator)]


def _settled(operator: StatefulOperator, join: JoinSpec, sides: JoinSides, *, revised: bool) -> Settled:
    """A join that gives rows out once, over changelogs: it waits until what it reads has settled."""
    size = join.window.tumbling if isinstance(join.window, JoinTumblingSpec) else 1
    return Settled(operator, TIME, sides.keys, join.allowed_lateness, size, revised)


def _operator(node_id: str, join: JoinSpec, sides: JoinSides) -> StatefulOperator:
    if join.within is not None:
        upper = join.within.upper if join.within.until is None else None
        return IntervalJoin(node_id, sides, join.within.lower, upper, join.allowed_lateness)
    if join.as_of is not None:
        return VersionJoin(node_id, sides, join.as_of.direction, join.as_of.within, join.allowed_lateness)
    if join.window is not None:
        return WindowJoin(node_id, sides, _slices(sides, join.window), join.allowed_lateness)
    return StreamJoin(node_id, sides, join.ttl, join.allowed_lateness)


def _slices(sides: JoinSides, window: JoinTumblingSpec | JoinHoppingSpec) -> Slices:
    size, every = (
        (window.hopping, window.every) if isinstance(window, JoinHoppingSpec) else (window.tumbling, window.tumbling)
    )
    if every > size:
        raise SpecError(
            f"{sides.label} has windows that begin further apart than they are long", hint="every is at most hopping"
        )
    return Slices(size, every, window.offset, time_scale(window.time_zone, {"size": size, "every": every}, sides.label))
