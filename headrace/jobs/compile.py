"""From a spec to something that runs. Reads metadata (schemas of tables), never rows.

The compiled job is the runtime's :class:`~headrace.runtime.job.Program`: sources are fixed when it is compiled,
operators are built when the pins of the static tables are known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from catalog.catalogs import Catalogs
from headrace.jobs.compile_joins import JoinedStream, join_nodes
from headrace.jobs.compile_sinks import build_sink
from headrace.jobs.compile_sources import JobSource, build_source, hidden_columns
from headrace.jobs.compile_steps import TableRows, build_lookup_table, build_step
from headrace.jobs.config import Config
from headrace.jobs.custom_operators import build_custom
from headrace.jobs.graph import JobGraph, StepNode, build_graph
from headrace.jobs.graph import SinkNode as SpecSink
from headrace.jobs.graph_sources import gives_versions
from headrace.jobs.names import suggest
from headrace.jobs.own_names import check_sql, check_step
from headrace.jobs.spec import IcebergSink, JobSpec, KafkaSink
from headrace.jobs.spec_custom import CustomStep
from headrace.jobs.spec_joins import JoinStep
from headrace.jobs.spec_sources import ChangelogSpec
from headrace.jobs.spec_steps import (
    DropStep,
    LookupStep,
    SelectStep,
    StatefulStep,
    UnionStep,
    UnnestStep,
    WithColumnsStep,
)
from headrace.jobs.unique_keys import unique_keys
from headrace.kernel import columns
from headrace.kernel.clock import SystemClock
from headrace.kernel.errors import InternalError, SpecError
from headrace.kernel.protocols import ERRORS, LATE, MAIN, Json, LookupTable, StatefulOperator, Transform
from headrace.runtime.graph import Graph, Node, SinkNode, SourceNode, StatefulNode, Stream, TransformNode
from headrace.runtime.job import CheckpointPolicy
from headrace.runtime.optimiser import optimised
from headrace.state.backend import DEFAULT_MEMORY, StateOptions
from hybrid_source.refreshed_table import RefreshedTable, as_before
from operators.changelog import ChangelogNormalize
from operators.segment import late_schema, output_schema, window_schema
from operators.union import Union, united


@dataclass(frozen=True, slots=True)
class CompiledJob:
    """A job that is ready to run. See :class:`headrace.runtime.job.Program`.

    Attributes:
        spec: What it was compiled from.
        config: The connections.
        catalogs: Open catalogs.
        nodes: The resolved graph of the spec.
        sources: By name.
        lookups: The tables of lookups, by name.
        optimise: Push predicates and columns below operators with state; for tests of just that it can be off.
    """

    spec: JobSpec
    config: Config
    catalogs: Catalogs
    nodes: JobGraph
    sources: Mapping[str, JobSource]
    lookups: Mapping[str, LookupTable]
    optimise: bool = True

    @property
    def uid(self) -> str:
        """See :attr:`headrace.runtime.job.Program.uid`."""
        return self.spec.uid

    @property
    def policy(self) -> CheckpointPolicy:
        """When epochs end."""
        wanted = self.spec.checkpoint
        return CheckpointPolicy(
            wanted.interval,
            wanted.rows,
            wanted.bytes,
            wanted.retain,
            wanted.timeout / 1e6,
            wanted.tolerated_failures,
        )

    @property
    def state(self) -> StateOptions:
        """How much memory keyed state may take, and where it spills to."""
        wanted = self.spec.state
        memory = wanted.memory or self.config.state_memory or DEFAULT_MEMORY
        return StateOptions(memory, Path(wanted.dir).expanduser() if wanted.dir else self.config.spill_path)

    @property
    def store(self) -> str:
        """Location of the job's checkpoints."""
        return self.spec.checkpoint.store or str(self.config.state_path / "jobs" / self.uid)

    def pin(self, known: Mapping[str, Json]) -> Mapping[str, Json]:
        """See :meth:`headrace.runtime.job.Program.pin`."""
        pinned = {name: table for name, table in self.lookups.items() if self.spec.tables[name].pinned}
        return {name: known[name] if name in known else table.pin() for name, table in pinned.items()}

    def graph(self, pins: Mapping[str, Json]) -> Graph:
        """See :meth:`headrace.runtime.job.Program.graph`."""
        graph = self._build({name: self._rows(name, table, pins) for name, table in self.lookups.items()})
        return optimised(graph) if self.optimise else graph

    def sketch(self) -> Graph:
        """The graph over empty static tables: for plans."""
        return optimised(self.written()) if self.optimise else self.written()

    def written(self) -> Graph:
        """The graph as it stands in the spec, over empty static tables: for checks."""
        return self._build({name: self._no_rows(name, table) for name, table in self.lookups.items()})

    def _rows(self, name: str, table: LookupTable, pins: Mapping[str, Json]) -> TableRows:
        stated = self.spec.tables[name]
        if stated.pinned:
            return table.load(pins[name])
        schema = table.schema
        return RefreshedTable(lambda: as_before(name, table.load(table.pin()), schema), stated.refresh, SystemClock())

    def _no_rows(self, name: str, table: LookupTable) -> TableRows:
        empty = pl.DataFrame(schema=table.schema)
        return empty if self.spec.tables[name].pinned else RefreshedTable(lambda: empty, None, SystemClock())

    def _build(self, tables: Mapping[str, TableRows]) -> Graph:
        nodes: list[Node] = [SourceNode(name, source, self._is_bounded(name)) for name, source in self.sources.items()]
        changes = {
            Stream(name): self._normalize(name) for name in self.sources if gives_versions(self.spec.sources[name])
        }
        nodes += changes.values()
        for node in self.nodes.steps:
            with _located(self.spec, node):
                if isinstance(node.step, JoinStep):
                    revised = any(map(self.nodes.is_revised, node.inputs))
                    nodes += join_nodes(node.id, node.step.join, *self._joined(node, nodes), revised=revised)
                    continue
                rows = self._rows_of(node.input)
                if isinstance(node.step, UnionStep):
                    nodes.append(self._union(node, rows, nodes))
                    continue
                if isinstance(node.step, CustomStep):
                    operator = build_custom(node.id, node.step.custom, self.config.operators)
                    nodes.append(StatefulNode(node.id, rows, operator))
                    continue
                revised = self.nodes.is_revised(node.input)
                changelog = self.nodes.is_changelog(node.input)
                built = build_step(node, self._event_time(node.input), tables, changes=changelog, revised=revised)
            nodes.append(_node(node, rows, built))
        for sink in self.nodes.sinks:
            covers = self.nodes.source_of(sink.input) if self._is_one_to_one(sink) else None
            target = build_sink(sink, self.config, self.catalogs)
            nodes.append(SinkNode(sink.id, self._rows_of(sink.input), target, covers))
        return Graph(nodes)

    def _union(self, node: StepNode, rows: Stream, nodes: Sequence[Node]) -> TransformNode:
        known, others = {one.id: one for one in nodes}, tuple(map(self._rows_of, node.others))
        schema = united([stream_schema(known, stream) for stream in (rows, *others)])
        if self.nodes.is_changelog(Stream(node.id)):
            schema = pl.Schema({**schema, columns.WEIGHT: columns.WEIGHT_TYPE})
        return TransformNode(node.id, rows, Union(node.id, schema), others)

    def _normalize(self, source: str) -> StatefulNode:
        """What turns a source's versions into changes, for everything that reads the source."""
        wanted = self.spec.sources[source].changelog
        if not isinstance(wanted, ChangelogSpec):
            raise InternalError(f"source {source!r} is no changelog")
        visible = [
            name for name in self.sources[source].schema if name not in hidden_columns(self.spec.sources[source])
        ]
        rows = self._rows_of(Stream(source))
        return StatefulNode(rows.node, Stream(source), ChangelogNormalize(rows.node, wanted.key, visible))

    def _rows_of(self, ref: Stream) -> Stream:
        """Where the rows that the spec calls ``ref`` come from: a changelog's changes, not its versions."""
        source = self.spec.sources.get(ref.node)
        changes = source is not None and ref.port == MAIN and gives_versions(source)
        return Stream(f"{ref.node}.changes") if changes else ref

    def _steps_above(self, ref: Stream) -> list[StepNode]:
        by_id = {node.id: node for node in self.nodes.steps}
        above = []
        while ref.node in by_id:
            above.append(by_id[ref.node])
            ref = by_id[ref.node].input
        return above

    def _is_one_to_one(self, sink: SpecSink) -> bool:
        """Whether a target holds one row for each record of a source, and so can say which offsets it covers.

        Not behind a step that drops, adds or holds back rows, and not for a table that another sink fills as well.
        """
        if sink.input.port != MAIN or not isinstance(sink.sink, IcebergSink):
            return False
        table = sink.sink.iceberg.table
        others = [other for other in self.nodes.sinks if other is not sink and isinstance(other.sink, IcebergSink)]
        alone = all(other.sink.iceberg.table != table for other in others if isinstance(other.sink, IcebergSink))
        return alone and all(_keeps_rows(node) for node in self._steps_above(sink.input))

    def _event_time(self, read: Stream) -> str | None:
        """The event-time column of some rows, where they have one."""
        times = self.nodes.event_times(read)
        return next(iter(times)) if len(times) == 1 else None

    def _joined(self, node: StepNode, nodes: Sequence[Node]) -> Iterator[JoinedStream]:
        known = {above.id: above for above in nodes}
        for read in node.inputs:
            rows = self._rows_of(read)
            fed_by = " and ".join(Graph(nodes).feeds(rows))
            yield JoinedStream(rows, stream_schema(known, rows), self._event_time(read), fed_by)

    def _is_bounded(self, source: str) -> bool:
        return self.spec.sources[source].tail is None


def _keeps_rows(node: StepNode) -> bool:
    if isinstance(node.step, LookupStep):
        return node.step.lookup.how == "left" and not node.step.lookup.many
    return isinstance(node.step, SelectStep | DropStep | UnnestStep | WithColumnsStep)


def compile_job(spec: JobSpec, config: Config) -> CompiledJob:
    """Compile and check a job.

    Raises:
        SpecError: The job makes no sense; the message points at file and line where it can.
        ConfigError: It names a cluster or catalog that is not configured.
        NotFoundError: It names a table or file that is not there.
        ExternalError: A catalog does not answer.
    """
    nodes = build_graph(spec)
    catalogs = Catalogs(config.catalogs)
    try:
        sources = {name: build_source(spec, nodes, name, config, catalogs) for name in spec.sources}
        lookups = {name: build_lookup_table(name, table, config, catalogs) for name, table in spec.tables.items()}
        job = CompiledJob(spec, config, catalogs, nodes, sources, lookups)
        check_columns(job)
    except BaseException:
        catalogs.close()
        raise
    return job


def stream_schema(nodes: Mapping[str, Node], ref: Stream) -> pl.Schema:
    """The columns of a stream, found by asking the operators above it."""
    node = nodes[ref.node]
    if isinstance(node, SourceNode):
        return node.source.schema if ref.port == MAIN else columns.ERRORS
    above = stream_schema(nodes, node.input)
    if isinstance(node, TransformNode):
        return output_schema(node.transform, above)
    if isinstance(node, StatefulNode):
        return (window_schema if ref.port == MAIN else late_schema)(node.operator, above)
    return above


def check_columns(job: CompiledJob) -> None:
    """Check every step against the columns that reach it.

    Raises:
        SpecError: A step names a column that is not there, or does not fit its type; with file and line.
    """
    graph = job.written()
    schemas = {Stream(name): source.schema for name, source in job.sources.items()}
    for stateful in graph.stateful():
        if isinstance(stateful.operator, ChangelogNormalize):
            schemas[stateful.input] = window_schema(stateful.operator, schemas[stateful.input])
    schemas |= {Stream(name, ERRORS): columns.ERRORS for name in job.sources}
    for name, source in job.sources.items() if job.spec.sql is not None else ():
        check_sql(source.schema, f"source {name!r}")
    nodes = {node.id: node for node in graph.nodes if not isinstance(node, SinkNode)}
    for step in job.nodes.steps:
        node = nodes[step.id]
        with _located(job.spec, step):
            if isinstance(node, StatefulNode):
                _check_names(job.nodes, step, schemas)
                read = stream_schema(nodes, node.input) if isinstance(step.step, JoinStep) else schemas[step.input]
                schemas[Stream(step.id)] = window_schema(node.operator, read)
                schemas[Stream(step.id, LATE)] = late_schema(node.operator, read)
            elif isinstance(node, TransformNode):
                for above in step.inputs:
                    schemas[Stream(step.id)] = output_schema(node.transform, schemas[above])
    _check_keys(job, schemas)


def _check_names(nodes: JobGraph, step: StepNode, schemas: Mapping[Stream, pl.Schema]) -> None:
    join = isinstance(step.step, JoinStep)
    for above in step.inputs:
        check_step(schemas[above], f"step {step.id!r}", join=join, changelog=nodes.is_changelog(above))


def _check_keys(job: CompiledJob, schemas: Mapping[Stream, pl.Schema]) -> None:
    keys = unique_keys(job.nodes)
    for index, sink in enumerate(job.nodes.sinks):
        wanted = sink.sink.kafka.key if isinstance(sink.sink, KafkaSink) else ()
        for column in wanted:
            if column not in schemas[sink.input]:
                raise job.spec.problem(
                    "sinks",
                    index,
                    "kafka",
                    "key",
                    message=f"key column {column!r} does not reach sink {sink.id!r}",
                    hint=suggest(column, schemas[sink.input]),
                    code="COLUMN_NOT_FOUND",
                )
        if wanted and job.nodes.is_changelog(sink.input) and not keys(sink.input).allow(wanted):
            better = keys(sink.input).shortest
            raise job.spec.problem(
                "sinks",
                index,
                "kafka",
                "key",
                message=f"sink {sink.id!r} upserts by {', '.join(wanted)}, and {str(sink.input)!r} gives several rows "
                "with one such key: they would overwrite each other",
                hint=f"what tells its rows apart is key: [{', '.join(better)}]"
                if better
                else "give the rows a number that tells them apart (running_top: {rank: NAME}), and add it to the key",
                code="UPSERT_KEY_NOT_UNIQUE",
            )


@contextmanager
def _located(spec: JobSpec, node: StepNode) -> Iterator[None]:
    """Let what an operator says of its definition point at the file and line of its step."""
    try:
        yield
    except SpecError as error:
        raise spec.problem(
            *node.path, message=error.message, detail=error.detail, hint=error.hint, code=error.code
        ) from error


def _node(node: StepNode, rows: Stream, built: Transform | StatefulOperator) -> TransformNode | StatefulNode:
    if isinstance(node.step, StatefulStep):
        return StatefulNode(node.id, rows, built)  # type: ignore[arg-type] # build_step's contract
    return TransformNode(node.id, rows, built)  # type: ignore[arg-type] # build_step's contract
