"""Plans a job without running it: takes nothing over, writes nothing, reads metadata and offsets only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import polars as pl

from catalog.catalogs import TableName
from catalog.fitting import fit
from catalog.partitioning import partition_spec
from catalog.schemas import to_iceberg
from catalog.write_properties import check_writable
from headrace.jobs.compile import CompiledJob
from headrace.jobs.compile_sources import JobSource
from headrace.jobs.graph import SinkNode
from headrace.jobs.plan import (
    BoundaryPlan,
    HandoverPlan,
    HistoryPlan,
    OperatorPlan,
    PartitionPlan,
    Plan,
    SinkPlan,
    SourcePlan,
    TailPlan,
)
from headrace.jobs.planning_graph import plan_graph
from headrace.jobs.planning_table import columns_read, history_plan, plan_table_source, text
from headrace.jobs.planning_tiers import tiers
from headrace.jobs.spec import IcebergSink
from headrace.kafka.cluster import KafkaCluster
from headrace.kafka.metadata import KafkaMetadata
from headrace.kernel.boundary import TopicPartition, places_text
from headrace.kernel.columns import listed
from headrace.kernel.errors import NotFoundError
from headrace.kernel.protocols import Json, ReadRequest
from headrace.runtime.graph import Graph, StatefulNode, TransformNode
from headrace.runtime.pushdown import requests
from headrace.runtime.schemas import Schemas, resolve
from headrace.runtime.state_fit import refuse_changed
from headrace.state.checkpoint import CheckpointStore
from headrace.state.records import Checkpoint
from headrace.state.stores import open_store
from hybrid_source.history_protocols import OpenHistory
from hybrid_source.history_sequence import OpenHistorySequence
from hybrid_source.history_stage import OpenLakeHistory
from hybrid_source.hybrid import HybridPosition, HybridSource
from hybrid_source.hybrid_opening import open_history
from hybrid_source.resolution import Resolution, naming
from hybrid_source.table_source import TableSource
from hybrid_source.tail_position import TailPosition

PATIENCE_S: Final = 3.0
"""How long a plan waits for a cluster none of whose brokers can be connected to."""


def plan_job(job: CompiledJob) -> Plan:
    """Plan a run of a job from where it stands.

    Raises:
        HeadraceError: What a run would fail with before its first row: a missing boundary, a gap, a recreated topic.
    """
    _reach(job)
    graph = job.sketch()
    pushed = requests(graph, None)
    record = _record(job)
    positions = dict(record.positions) if record else {}
    if record is not None:
        refuse_changed(record, graph)
    sources = [_source(job, source, pushed[name], positions.get(name)) for name, source in job.sources.items()]
    return Plan(
        job=job.spec.name,
        uid=job.uid,
        fingerprint=graph.fingerprint(),
        sources=sources,
        operators=_operators(job, graph),
        sinks=_sinks(job, resolve(graph)),
        checkpoint_store=job.store,
        tables={name: table.text for name, table in job.spec.tables.items()},
        warnings=[*_warnings(record), *_waits(job, graph, sources)],
        parallelism=job.spec.parallelism,
        graph=plan_graph(job, graph, pushed),
    )


def _reach(job: CompiledJob) -> None:
    """Meet every cluster once, so that nobody waits for one that is not there.

    Raises:
        HeadraceError: A cluster cannot be reached, or takes no client like this: why.
    """
    tails = [source.topic_tail for source in job.spec.sources.values()]
    sinks = [node.sink.kafka for node in job.nodes.sinks if not isinstance(node.sink, IcebergSink)]
    for name in sorted({used.cluster for used in (*tails, *sinks) if used is not None}):
        KafkaMetadata(KafkaCluster(name, job.config.kafka_cluster(name)), patience=PATIENCE_S).cluster_id()


def _record(job: CompiledJob) -> Checkpoint | None:
    store = open_store(job.store, job.config.object_stores)
    head = store.head.read()
    return CheckpointStore(store, job.uid).read(head.record) if head and head.record else None


def _warnings(record: Checkpoint | None) -> Sequence[str]:
    if record is None:
        return ()
    if record.finished:
        return (f"the job has finished at epoch {record.epoch}: a run does nothing; give it another uid to run afresh",)
    return (f"the job goes on from its checkpoint at epoch {record.epoch}",)


def _waits(job: CompiledJob, graph: Graph, sources: Sequence[SourcePlan]) -> Iterator[str]:
    """What will surprise who waits for windows: partitions that hold the watermark though they have nothing to say."""
    for source in sources:
        time = job.spec.sources[source.name].event_time
        if source.tail is None or time is None or time.idle is not None or not graph.judges_lateness(source.name):
            continue
        silent = [TopicPartition(at.topic, at.partition) for at in source.tail.partitions if at.silent]
        if silent:
            yield (
                f"the watermark of source {source.name} will wait for the next record of {places_text(silent)}, and "
                "with it what closes by event time (windows): set event_time.idle to pass silent partitions over, or "
                "end the run with --until caught-up"
            )


def _source(job: CompiledJob, source: JobSource, request: ReadRequest, position: Json) -> SourcePlan:
    if isinstance(source, TableSource):
        return plan_table_source(job, source, request, position)
    at = source.plan() if position is None else HybridPosition.from_json(position)
    if position is not None:
        source.check(at)
    with naming(lambda: at.decided):
        opened = open_history(source, request, at) if at.phase == "history" else None
    stages = [*_histories(job, source, request, at, opened)] if opened is not None else []
    notes = opened.notes if isinstance(opened, OpenHistorySequence) else ()
    return SourcePlan(
        source.name,
        stages[-1] if stages else None,
        _tail(job, source, request, at),
        _boundary(at.resolution) if at.resolution else None,
        source.event_time.column if source.event_time else None,
        earlier=stages[:-1],
        handover=_handover(source, at),
        notes=[*(at.resolution.notes if at.resolution else ()), *notes],
    )


def _handover(source: HybridSource, at: HybridPosition) -> HandoverPlan | None:
    if source.lake is None or source.tail is None or at.resolution is None:
        return None
    policy = source.policy
    return HandoverPlan(
        policy.per_partition and at.resolution.columns is not None,
        policy.chase,
        policy.lag,
        policy.on_truncation,
        "as_live" if policy.as_live else "include",
        source.lake.refuses_replay(at.resolution),
        "history" if at.phase == "history" else "lake" if at.lake else "topic",
        [f"{topic}[{partition}]" for topic, partition in sorted(at.live)],
    )


def _boundary(found: Resolution) -> BoundaryPlan:
    columns = str(found.columns) if found.columns and found.trim else None
    return BoundaryPlan(found.rule, found.evidence, found.guarantee, columns, found.tried)


def _histories(
    job: CompiledJob, source: HybridSource, request: ReadRequest, at: HybridPosition, opened: OpenHistory
) -> Iterator[HistoryPlan]:
    stages: Sequence[OpenHistory] = [opened]
    pins = [at.pin]
    if isinstance(opened, OpenHistorySequence):
        stages, pins = opened.stages, at.pin["stages"]
    wanted = job.spec.sources[source.name].stages
    read = [(stage, pin) for stage, pin in zip(wanted, pins, strict=True) if pin is not None]
    for (stated, pin), stage in zip(read, stages, strict=True):
        if isinstance(stage, OpenLakeHistory):
            yield history_plan(job, source, stated, pin, request, stage.plan)


def _tail(job: CompiledJob, source: HybridSource, request: ReadRequest, at: HybridPosition) -> TailPlan | None:
    tail = source.tail
    wanted = job.spec.sources[source.name].topic_tail
    if tail is None or wanted is None:
        return None
    ranges = tail.ranges()
    position = TailPosition.from_json(at.tail)
    kept = {expiry.at: expiry.seconds for expiry in tail.expiries(at.tail)}
    cluster = KafkaCluster(wanted.cluster, job.config.kafka_cluster(wanted.cluster))
    local, notes = tiers(cluster, ranges)
    return TailPlan(
        topics=sorted({at.topic for at in ranges}),
        cluster=wanted.cluster,
        columns=columns_read(source.schema, request),
        columns_total=len(listed(source.schema)),
        rows_predicate=text(request.predicate),
        partitions=[
            PartitionPlan(
                *place,
                start,
                end,
                position.nexts.get(place),
                position.lost_of(place),
                kept.get(place),
                local.get(place),
                place in position.nexts and position.nexts[place] >= end and not _seen(position, place),
            )
            for place, (start, end) in sorted(ranges.items())
        ],
        notes=notes,
    )


def _seen(position: TailPosition, place: TopicPartition) -> bool:
    return position.partitions[place].max_event_time is not None


def _operators(job: CompiledJob, graph: Graph) -> Sequence[OperatorPlan]:
    kinds = {node.id: node.kind for node in job.nodes.steps}
    inputs = {node.id: ", ".join(map(str, node.inputs)) for node in job.nodes.steps}
    out = []
    for node in graph.nodes:
        if isinstance(node, TransformNode) and node.id not in kinds:
            continue  # nobody has written it
        if isinstance(node, TransformNode):
            out.append(OperatorPlan(node.id, kinds[node.id], inputs[node.id], node.transform.determinism))
        elif isinstance(node, StatefulNode):
            operator = node.operator
            out.append(
                OperatorPlan(
                    node.id,
                    kinds.get(node.id, "changelog"),
                    inputs.get(node.id) or ", ".join(source for source in graph.inputs(node)),
                    operator.determinism,
                    node.fingerprint,
                )
            )
    return out


def _sinks(job: CompiledJob, schemas: Schemas) -> Sequence[SinkPlan]:
    return [
        SinkPlan(
            node.id,
            node.kind,
            str(node.input),
            node.sink.iceberg.table if isinstance(node.sink, IcebergSink) else node.sink.kafka.topic,
            job.spec.delivery,
            list(schemas.sinks[node.id]),
            _exists(job, node, schemas.sinks[node.id]),
        )
        for node in job.nodes.sinks
    ]


def _exists(job: CompiledJob, node: SinkNode, columns: pl.Schema) -> bool:
    """Whether a sink's target is there.

    Raises:
        NotFoundError: It is not, and is not to be created.
        SchemaError: The rows do not fit the table.
        SpecError: It cannot be created so.
        UserError: The table cannot be written as it is.
    """
    try:
        if isinstance(node.sink, IcebergSink):
            name = node.sink.iceberg.table
            table = check_writable(job.catalogs.load(name), TableName.parse(name))
            fit(columns, table.schema(), name)
        else:
            target = node.sink.kafka
            KafkaMetadata(KafkaCluster(target.cluster, job.config.kafka_cluster(target.cluster))).describe(target.topic)
    except NotFoundError:
        wanted = node.sink.iceberg if isinstance(node.sink, IcebergSink) else node.sink.kafka
        if not wanted.create:
            raise
        if isinstance(node.sink, IcebergSink):
            partition_spec(node.sink.iceberg.partition_by, to_iceberg(columns))
        return False
    return True
