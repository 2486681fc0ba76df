"""The job's graph: every node with its id and what it reads, checked for what single keys cannot show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from headrace.jobs.graph_sources import check_source, gives_changes
from headrace.jobs.graph_steps import check_step
from headrace.jobs.names import suggest
from headrace.jobs.spec import AnySink, IcebergSink, JobSpec
from headrace.jobs.spec_custom import CustomStep
from headrace.jobs.spec_joins import JoinSpec, JoinStep
from headrace.jobs.spec_over import OverStep
from headrace.jobs.spec_sources import SourceSpec
from headrace.jobs.spec_steps import (
    AggregateStep,
    AnyStep,
    DedupStep,
    RunningStep,
    TimedStep,
    TopStep,
    UnionStep,
    WindowStep,
    step_kind,
)
from headrace.jobs.spec_tables import IcebergTable, PostgresTable
from headrace.kernel.errors import SpecError
from headrace.kernel.protocols import ERRORS, LATE, MAIN
from headrace.runtime.graph import Stream
from operators.windowed import WINDOW_START


@dataclass(frozen=True, slots=True)
class StepNode:
    """A step of the graph.

    Attributes:
        id: Its id.
        kind: The key that makes it.
        step: The step.
        input: What it reads.
        path: Where it stands in the spec, for :meth:`JobSpec.problem`.
        others: What it reads besides (a union).
    """

    id: str
    kind: str
    step: AnyStep
    input: Stream
    path: tuple[str | int, ...]
    others: tuple[Stream, ...] = ()

    @property
    def inputs(self) -> tuple[Stream, ...]:
        """Everything that it reads."""
        return (self.input, *self.others)


@dataclass(frozen=True, slots=True)
class SinkNode:
    """A sink of the graph."""

    id: str
    kind: str
    sink: AnySink
    input: Stream
    path: tuple[str | int, ...]

    @property
    def inputs(self) -> tuple[Stream, ...]:
        """Everything that it reads."""
        return (self.input,)


@dataclass(frozen=True, slots=True)
class JobGraph:
    """Sources, then steps in the order in which they stand (inputs always come earlier), then sinks."""

    sources: Mapping[str, SourceSpec]
    steps: Sequence[StepNode]
    sinks: Sequence[SinkNode]

    def source_of(self, ref: Stream) -> str:
        """The name of the source from which the rows of ``ref`` come."""
        by_id = {node.id: node for node in self.steps}
        while ref.node in by_id:
            ref = by_id[ref.node].input
        return ref.node

    def sources_of(self, ref: Stream) -> list[str]:
        """The names of all sources from which the rows of ``ref`` come: several behind a union."""
        by_id = {node.id: node for node in self.steps}
        if ref.node not in by_id:
            return [ref.node]
        return list(dict.fromkeys(name for above in by_id[ref.node].inputs for name in self.sources_of(above)))

    def event_times(self, ref: Stream) -> set[str | None]:
        """The event-time columns that the rows of ``ref`` have: one, unless a union takes what does not fit."""
        by_id = {node.id: node for node in self.steps}
        if ref.node not in by_id:
            time = self.sources[ref.node].event_time
            return {time.column if time else None}
        node = by_id[ref.node]
        if isinstance(node.step, WindowStep) and ref.port == MAIN:
            return {WINDOW_START if node.step.window.time == "event" else None}
        if isinstance(node.step, CustomStep) and ref.port == MAIN:
            return {node.step.custom.event_time}
        if isinstance(node.step, AggregateStep) and ref.port == MAIN:
            return {time if time in node.step.aggregate.by else None for time in self.event_times(node.input)}
        if isinstance(node.step, JoinStep):
            return self._joined_times(node.step.join, node) if ref.port == MAIN else {None}
        return {column for above in node.inputs for column in self.event_times(above)}

    def _joined_times(self, join: JoinSpec, node: StepNode) -> set[str | None]:
        """The event-time columns of what a join gives out."""
        match join.kind:
            case "window":
                return {WINDOW_START}
            case "within" if join.event_time is not None:
                return {join.event_time}
            case "within" | "as_of" if join.how != "full":
                side, above = ("right", node.others[0]) if join.how == "right" else ("left", node.input)
                return {time and join.output_name(side, time) for time in self.event_times(above)}
            case _:
                return {None}

    def is_changelog(self, ref: Stream) -> bool:
        """Whether the rows of ``ref`` carry ``_weight``: a source read as one, or a running step, stands above."""
        node = next((node for node in self.steps if node.id == ref.node), None)
        if node is None:
            return ref.port == MAIN and ref.node in self.sources and gives_changes(self.sources[ref.node])
        if ref.port == MAIN and isinstance(node.step, RunningStep):
            return True
        if ref.port == MAIN and isinstance(node.step, WindowStep):
            return node.step.window.early is not None
        once = isinstance(node.step, JoinStep) and node.step.join.kind != "regular"
        if ref.port == MAIN and (once or isinstance(node.step, DedupStep | OverStep | TopStep)):
            return False
        if ref.port == MAIN and isinstance(node.step, JoinStep) and node.step.join.updates:
            return True
        return any(map(self.is_changelog, node.inputs))

    def is_revised(self, ref: Stream) -> bool:
        """Whether ``ref`` is a changelog in which rows may be taken back whose event time has passed."""
        node = next((node for node in self.steps if node.id == ref.node), None)
        if node is None or not self.is_changelog(ref):
            return self.is_changelog(ref)
        step = node.step
        if ref.port == MAIN and isinstance(step, WindowStep):
            return False  # what changes in a window comes before the watermark has passed its start
        if ref.port == MAIN and isinstance(step, RunningStep):
            by = step.aggregate.by if isinstance(step, AggregateStep) else step.running_top.by
            if not self.event_times(node.input) <= set(by):
                return True
        if ref.port == MAIN and isinstance(step, JoinStep):
            return True
        return any(map(self.is_revised, node.inputs))

    def readers(self, ref: Stream) -> list[StepNode | SinkNode]:
        """The nodes that read ``ref``."""
        nodes: list[StepNode | SinkNode] = [*self.steps, *self.sinks]
        return [node for node in nodes if ref in node.inputs]


def build_graph(spec: JobSpec) -> JobGraph:
    """Resolve ids and references, and check everything that spans nodes.

    Default ids: a step is named after its kind (``window``; ``window-2`` for the second one), a sink after its kind
    and target (``iceberg-lake.flights.hourly``), so that adding nodes elsewhere changes no id.

    Raises:
        SpecError: The job makes no sense; the message names file and line where they are known.
    """
    for name, source in spec.sources.items():
        check_source(spec, name, source)
    _check_tables(spec)
    _check_names(spec)
    steps = _resolve_steps(spec)
    graph = JobGraph(spec.sources, steps, _resolve_sinks(spec, steps))
    for node in graph.steps:
        check_step(spec, graph, node)
    for sink in graph.sinks:
        _check_changes(spec, graph, sink)
    _check_dead_ends(spec, graph)
    return graph


def _check_tables(spec: JobSpec) -> None:
    for name, table in spec.tables.items():
        path = ("tables", name)
        if isinstance(table, IcebergTable) and table.refresh is not None and table.snapshot is not None:
            raise spec.problem(
                *path, "refresh", message="one snapshot never changes", hint="remove snapshot, or refresh"
            )
        if isinstance(table, PostgresTable) and (table.postgres.table is None) == (table.postgres.query is None):
            raise spec.problem(*path, "postgres", message="a table in PostgreSQL is a table or a query, one of them")


def _check_names(spec: JobSpec) -> None:
    taken = {name: f"source {name!r}" for name in spec.sources}
    for name in spec.tables:
        if name in taken:
            raise spec.problem("tables", name, message=f"the name {name!r} is taken by {taken[name]}")
        taken[name] = f"table {name!r}"
    for index, step in enumerate(spec.steps):
        if step.id is None:
            continue
        if step.id in taken:
            raise spec.problem("steps", index, "id", message=f"the name {step.id!r} is taken by {taken[step.id]}")
        taken[step.id] = f"step {index + 1}"


def _step_ids(spec: JobSpec) -> Iterator[str]:
    taken = {*spec.sources, *spec.tables, *(step.id for step in spec.steps if step.id)}
    for step in spec.steps:
        if step.id:
            yield step.id
            continue
        kind = step_kind(step)
        candidate, number = kind, 1
        while candidate in taken:
            number += 1
            candidate = f"{kind}-{number}"
        taken.add(candidate)
        yield candidate


def _resolve_steps(spec: JobSpec) -> list[StepNode]:
    ids = list(_step_ids(spec))
    ports: dict[str, tuple[str, ...]] = dict.fromkeys(spec.sources, (MAIN, ERRORS))
    nodes: list[StepNode] = []
    for index, (node_id, step) in enumerate(zip(ids, spec.steps, strict=True)):
        path = ("steps", index)
        kind = step_kind(step)
        others: list[Stream] = []
        if isinstance(step, JoinStep):
            source, *others = _resolve_join(spec, step, ports, path, later=ids[index:])
        elif isinstance(step, UnionStep):
            source, *others = _resolve_union(spec, step, ports, path, later=ids[index:])
        elif step.from_ is None:
            source = _resolve_default(spec, nodes, path, f"step {node_id!r}")
        else:
            source = _resolve_ref(spec, step.from_, ports, (*path, "from"), later=ids[index:])
        nodes.append(StepNode(node_id, kind, step, source, path, tuple(others)))
        ports[node_id] = _ports(step)
    return nodes


def _ports(step: AnyStep) -> tuple[str, ...]:
    match step:
        case JoinStep():
            timed = step.join.timed
        case CustomStep():
            timed = step.custom.order_by is not None
        case WindowStep():
            timed = step.window.time == "event"
        case _:
            timed = isinstance(step, TimedStep)
    return (MAIN, LATE) if timed else (MAIN,)


def _resolve_sinks(spec: JobSpec, steps: Sequence[StepNode]) -> list[SinkNode]:
    ports: dict[str, tuple[str, ...]] = dict.fromkeys(spec.sources, (MAIN, ERRORS))
    ports |= {node.id: _ports(node.step) for node in steps}
    nodes: list[SinkNode] = []
    for index, sink in enumerate(spec.sinks):
        path = ("sinks", index)
        if isinstance(sink, IcebergSink):
            kind, target = "iceberg", sink.iceberg.table
        else:
            kind, target = "kafka", sink.kafka.topic
        node_id = sink.id or f"{kind}-{target}"
        if any(node.id == node_id for node in nodes):
            hint = "give each of them an id of its own" if sink.id is None else ""
            raise spec.problem(*path, message=f"two sinks are named {node_id!r}", hint=hint)
        if sink.from_ is None:
            source = _resolve_default(spec, steps, path, f"sink {node_id!r}")
        else:
            source = _resolve_ref(spec, sink.from_, ports, (*path, "from"), later=())
        nodes.append(SinkNode(node_id, kind, sink, source, path))
    return nodes


def _resolve_default(spec: JobSpec, steps: Sequence[StepNode], path: tuple[str | int, ...], what: str) -> Stream:
    if steps:
        return Stream(steps[-1].id)
    if len(spec.sources) == 1:
        return Stream(next(iter(spec.sources)))
    raise spec.problem(
        *path, message=f"{what} must say which source it reads", hint=f"from: {' or '.join(sorted(spec.sources))}"
    )


def _resolve_ref(
    spec: JobSpec, text: str, ports: Mapping[str, Sequence[str]], path: tuple[str | int, ...], later: Sequence[str]
) -> Stream:
    node, _, port = text.partition(".")
    if node not in ports:
        if node in later:
            raise _from_problem(spec, path, f"{node!r} stands at or below what reads it", "move it up")
        raise _from_problem(spec, path, f"there is no source or step named {node!r}", suggest(node, ports))
    if port and port not in ports[node]:
        raise _from_problem(spec, path, f"{node!r} has no port {port!r}", suggest(port, ports[node]))
    return Stream(node, port or MAIN)


def _resolve_union(
    spec: JobSpec,
    step: UnionStep,
    ports: Mapping[str, Sequence[str]],
    path: tuple[str | int, ...],
    later: Sequence[str],
) -> list[Stream]:
    if step.from_ is not None:
        raise _from_problem(spec, (*path, "from"), "a union names everything that it reads itself", "remove from")
    streams = [_resolve_ref(spec, text, ports, (*path, "union", i), later) for i, text in enumerate(step.union)]
    twice = [str(stream) for stream in streams if streams.count(stream) > 1]
    if twice:
        raise spec.problem(*path, "union", message=f"{twice[0]!r} stands twice in a union")
    return streams


def _resolve_join(
    spec: JobSpec,
    step: JoinStep,
    ports: Mapping[str, Sequence[str]],
    path: tuple[str | int, ...],
    later: Sequence[str],
) -> list[Stream]:
    if step.from_ is not None:
        raise _from_problem(spec, (*path, "from"), "a join names what it reads in left and right", "remove from")
    sides = {"left": step.join.left, "right": step.join.right}
    return [_resolve_ref(spec, text, ports, (*path, "join", side), later) for side, text in sides.items()]


def _from_problem(spec: JobSpec, path: tuple[str | int, ...], message: str, hint: str) -> SpecError:
    return spec.problem(*path, message=message, hint=hint)


def _check_changes(spec: JobSpec, graph: JobGraph, node: SinkNode) -> None:
    changes = graph.is_changelog(node.input)
    if isinstance(node.sink, IcebergSink):
        if changes and node.sink.iceberg.changes is None:
            raise spec.problem(
                *node.path,
                "iceberg",
                message=f"sink {node.id!r} appends, and {str(node.input)!r} gives a changelog, which takes rows back",
                hint="write changes: append to keep each change as a row with _weight +1 or -1, or use a kafka sink "
                "with a key, which upserts",
                code="CHANGELOG_UNSUPPORTED",
            )
    elif changes and not node.sink.kafka.key:
        raise spec.problem(
            *node.path,
            "kafka",
            message=f"sink {node.id!r} takes a changelog and has no key",
            hint="name the columns that identify a row: key: [...]; updates and deletes are records of that key",
            code="UPSERT_WITHOUT_KEY",
        )


def _check_dead_ends(spec: JobSpec, graph: JobGraph) -> None:
    for node in graph.steps:
        if not graph.readers(Stream(node.id)):
            raise spec.problem(*node.path, message=f"nothing reads the output of step {node.id!r}")
    for name in graph.sources:
        if not graph.readers(Stream(name)):
            raise spec.problem("sources", name, message=f"nothing reads source {name!r}")
