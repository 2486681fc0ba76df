"""Makes the graph of a plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from headrace.jobs.compile import CompiledJob
from headrace.jobs.plan_graph import GraphEdge, GraphNode, PlanGraph, Segment
from headrace.jobs.planning_table import columns_read, text
from headrace.kernel.protocols import MAIN, ReadRequest, StatefulOperator
from headrace.runtime.graph import Graph, Node, SinkNode, SourceNode, StatefulNode, Stream, TransformNode
from operators.settled import Settled
from operators.timed_join import TimedJoin
from operators.top import TopN


def plan_graph(job: CompiledJob, graph: Graph, pushed: Mapping[str, ReadRequest]) -> PlanGraph:
    """The graph of a compiled job.

    Args:
        job: The job.
        graph: Its graph.
        pushed: By source, what the graph pushes down.
    """
    kinds = {node.id: node.kind for node in job.nodes.steps}
    # A join's inputs are tagged by steps of their own, which nobody has written.
    shown = [node for node in graph.nodes if not isinstance(node, TransformNode) or node.id in kinds]
    return PlanGraph(
        [_node(job, graph, node, kinds, pushed) for node in shown],
        list(dict.fromkeys(edge for node in shown for edge in _edges(graph, node, kinds))),
        list(_segments(graph, kinds)),
    )


def _node(
    job: CompiledJob, graph: Graph, node: Node, kinds: Mapping[str, str], pushed: Mapping[str, ReadRequest]
) -> GraphNode:
    match node:
        case SourceNode():
            request = pushed[node.id]
            columns = columns_read(node.source.schema, request)
            reads = [f"columns {', '.join(columns) or 'none'}"]
            predicate = text(request.predicate)
            return GraphNode(node.id, "source", "source", reads=[*reads, *([f"rows {predicate}"] if predicate else [])])
        case TransformNode():
            return GraphNode(node.id, "step", kinds[node.id], node.transform.determinism.value)
        case StatefulNode():
            key = _key(node.operator)
            kind = kinds.get(node.id, "changelog")
            instances = job.spec.parallelism if key else 1
            held = [] if node.columns is None else [f"columns {', '.join(node.columns)}"]
            reads = [*held, *(f"rows {condition}" for condition in node.conditions)]
            return GraphNode(node.id, "state", kind, node.operator.determinism.value, reads, key, instances)
        case SinkNode():
            kind = next(sink.kind for sink in job.nodes.sinks if sink.id == node.id)
            return GraphNode(_name(graph, node), "sink", kind)


def _name(graph: Graph, node: Node) -> str:
    """A node's id; that of a sink may be another node's, too."""
    taken = isinstance(node, SinkNode) and any(other.id == node.id and other is not node for other in graph.nodes)
    return f"sink {node.id}" if taken else node.id


def _key(operator: StatefulOperator) -> Sequence[str]:
    """The key by the names that the job gives it."""
    if isinstance(operator, Settled) and isinstance(operator.operator, TimedJoin):
        return _key(operator.operator)
    if isinstance(operator, TimedJoin):
        pairs = zip(operator.sides.left.on, operator.sides.right.on, strict=True)
        return [left if left == right else f"{left} = {right}" for left, right in pairs]
    return list(operator.by if isinstance(operator, TopN | Settled) else operator.key_columns)


def _inputs(node: Node) -> Sequence[Stream]:
    if isinstance(node, SourceNode):
        return ()
    return [node.input, *(node.others if isinstance(node, TransformNode) else ())]


def _edges(graph: Graph, node: Node, kinds: Mapping[str, str]) -> Iterator[GraphEdge]:
    exchange = isinstance(node, StatefulNode) and bool(node.operator.key_columns)
    waiting = list(_inputs(node))
    while waiting:
        stream = waiting.pop(0)
        above = graph.node(stream.node)
        if isinstance(above, TransformNode) and above.id not in kinds:
            waiting += _inputs(above)
        else:
            yield GraphEdge(above.id, stream.port, _name(graph, node), exchange)


def _segments(graph: Graph, kinds: Mapping[str, str]) -> Iterator[Segment]:
    starts = dict.fromkeys(
        stream
        for node in graph.nodes
        for stream in _inputs(node)
        if not isinstance(graph.node(stream.node), TransformNode)
    )
    for start in starts:
        nodes = list(_fused(graph, start))
        found = {role: [_name(graph, node) for node in nodes if isinstance(node, role)] for role in _ROLES}
        steps = [step for step in found[TransformNode] if step in kinds]
        yield Segment(str(start), steps, found[StatefulNode], found[SinkNode])


_ROLES = (TransformNode, StatefulNode, SinkNode)


def _fused(graph: Graph, stream: Stream) -> Iterator[Node]:
    """What takes the rows of a stream, through steps without state."""
    found: dict[str, Node] = {}
    waiting = [stream]
    while waiting:
        for consumer in graph.consumers(waiting.pop(0)):
            if (name := _name(graph, consumer)) not in found:
                found[name] = consumer
                waiting += [Stream(consumer.id, MAIN)] if isinstance(consumer, TransformNode) else []
    yield from found.values()
