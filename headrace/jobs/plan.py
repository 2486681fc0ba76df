"""What a job would do, as values: the answer of ``headrace plan`` and the API. Built by ``headrace.jobs.planning``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from headrace.jobs.plan_graph import PlanGraph
from headrace.kernel.protocols import Determinism
from hybrid_source.resolution import Verdict


@dataclass(frozen=True, slots=True)
class HistoryPlan:
    """What is read of a history.

    Attributes:
        location: The table's name or the Parquet pattern.
        snapshot: The pinned snapshot id; None for Parquet and for an empty table.
        columns: Columns that are read.
        columns_total: Columns that there are.
        files_predicate: What files are pruned by (an Iceberg filter), as text; None when nothing could be pushed.
        rows_predicate: What rows are filtered by while they are read (exact), as text.
        residual: Parts of the rows' predicate that prune no files, as text.
        files: Data files that are read.
        files_total: Data files before pruning; None: unknown.
        nbytes: Their size in bytes.
        nbytes_total: The size before pruning; None: unknown.
        records: Rows in the files that are read, before the rows' predicate.
        records_total: Rows before pruning; None: unknown.
        lease: The tag under which a run keeps the snapshot from expiry; None: nothing is tagged.
    """

    location: str
    snapshot: int | None
    columns: Sequence[str]
    columns_total: int
    files_predicate: str | None
    rows_predicate: str | None
    residual: Sequence[str]
    files: int
    files_total: int | None
    nbytes: int
    nbytes_total: int | None
    records: int
    records_total: int | None
    lease: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """One topic partition. Offsets are *next* offsets (exclusive).

    Attributes:
        topic: Its topic.
        partition: Its number.
        log_start: The first offset that Kafka still has.
        log_end: The end of the log (its last stable offset).
        start: Where the tail starts; None when that is not decided before the run.
        lost: Ranges (first inclusive, next exclusive) that were gone when they were wanted (``on_gap: record``).
        kept_s: Estimated seconds, at the earliest, until retention deletes what the tail starts at; None: never, or it
            cannot be told.
        silent: No row of it is known or waits in the log, so it holds the watermark until it has one.
        local_start: The first offset that the brokers hold themselves, for a topic with tiered storage; what lies
            before it is in the remote tier. None: the topic has none, or it is not known.
    """

    topic: str
    partition: int
    log_start: int
    log_end: int
    start: int | None
    lost: Sequence[tuple[int, int]] = ()
    kept_s: float | None = None
    local_start: int | None = None
    silent: bool = False

    @property
    def lag(self) -> int | None:
        """Offsets from the start to the end."""
        return None if self.start is None else max(0, self.log_end - self.start)

    @property
    def gap(self) -> bool:
        """Wanted offsets are gone: the job would refuse to start its tail here."""
        return self.start is not None and self.start < self.log_start


@dataclass(frozen=True, slots=True)
class TailPlan:
    """What is read of Kafka: topics, the columns that are decoded, and the predicate that follows the decoding.

    ``notes`` say what could not be found out.
    """

    topics: Sequence[str]
    cluster: str
    columns: Sequence[str]
    columns_total: int
    rows_predicate: str | None
    partitions: Sequence[PartitionPlan]
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class SnapshotPlan:
    """A snapshot that waits to be read.

    Attributes:
        snapshot: Its id.
        operation: What it did: ``append`` is read, ``replace`` changes no rows.
        records: Rows it appended, by its summary; None: unknown.
        refused: It changes or deletes rows, and the job would fail there.
    """

    snapshot: int
    operation: str
    records: int | None
    refused: bool


@dataclass(frozen=True, slots=True)
class TableTailPlan:
    """What is read of a table's later snapshots.

    Attributes:
        table: The table.
        since: Snapshots after this one (exclusive); None: from the first one on.
        columns: Columns that are read.
        columns_total: Columns that there are.
        rows_predicate: What rows are filtered by while they are read (exact), as text.
        interval_s: Seconds between two looks for new snapshots.
        on_change: What happens at a snapshot that overwrites or deletes rows.
        waiting: The snapshots that are there already, oldest first.
    """

    table: str
    since: int | None
    columns: Sequence[str]
    columns_total: int
    rows_predicate: str | None
    interval_s: float
    on_change: str
    waiting: Sequence[SnapshotPlan]


@dataclass(frozen=True, slots=True)
class BoundaryPlan:
    """How the boundary was found.

    Attributes:
        rule: The rule's name.
        evidence: What it rests on, for people.
        guarantee: What follows.
        columns: The columns by which history rows at or above the boundary are left out; None: there are none.
        tried: What came of every rule, in order; empty for a job that goes on from a checkpoint.
    """

    rule: str
    evidence: str
    guarantee: str = "exactly-once"
    columns: str | None = None
    tried: Sequence[Verdict] = ()


@dataclass(frozen=True, slots=True)
class HandoverPlan:
    """What happens at the seam beyond the single switch.

    Attributes:
        per_partition: Partitions go over to the topic one by one, where file statistics tell them apart.
        chase: A newer snapshot is read at the end of the history.
        lag: Records behind at which the tail goes back to the lake; None: never for that reason.
        on_truncation: The tail goes back to the lake for offsets that the topic has lost.
        late: ``include`` or ``as_live``: how lateness of history rows is judged.
        refused: Why the table cannot stand in for the topic, so that the tail never goes back; empty when it can.
        reads: What is read now: ``history``, ``lake`` (in the place of the topic) or ``topic``.
        live: Partitions that are read from the topic while the history of others goes on, as ``TOPIC[NUMBER]``.
    """

    per_partition: bool
    chase: bool
    lag: int | None
    on_truncation: bool
    late: str
    refused: str
    reads: str
    live: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """One source. ``history`` meets the tail; ``earlier`` are the stages that are read before it, oldest first.

    ``notes`` say what was found between the stages: offsets that they share, and what a hole in a later one hides.
    """

    name: str
    history: HistoryPlan | None
    tail: TailPlan | None
    boundary: BoundaryPlan | None
    event_time: str | None = None
    table_tail: TableTailPlan | None = None
    earlier: Sequence[HistoryPlan] = ()
    handover: HandoverPlan | None = None
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class OperatorPlan:
    """One step: what it is, what it promises, and for stateful ones the fingerprint that state is bound to."""

    id: str
    kind: str
    input: str
    determinism: Determinism
    fingerprint: str | None = None


@dataclass(frozen=True, slots=True)
class SinkPlan:
    """One sink. ``exists`` tells whether its target is there; None: not looked up."""

    id: str
    kind: str
    input: str
    target: str
    delivery: str
    columns: Sequence[str]
    exists: bool | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole plan. ``fingerprint`` changes when the state of an earlier checkpoint cannot serve this job."""

    job: str
    uid: str
    fingerprint: str
    sources: Sequence[SourcePlan]
    operators: Sequence[OperatorPlan]
    sinks: Sequence[SinkPlan]
    checkpoint_store: str
    tables: Mapping[str, str] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    parallelism: int = 1
    graph: PlanGraph = field(default_factory=PlanGraph)

    @property
    def determinism(self) -> Determinism:
        """The weakest promise of all operators, which is that of the job."""
        order = list(Determinism)
        return max((operator.determinism for operator in self.operators), key=order.index, default=Determinism.EXACT)

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON values, with lag and gap by partition."""
        out = asdict(self) | {"determinism": self.determinism.value}
        for source, section in zip(self.sources, out["sources"], strict=True):
            if source.tail:
                for partition, entry in zip(source.tail.partitions, section["tail"]["partitions"], strict=True):
                    entry |= {"lag": partition.lag, "gap": partition.gap}
        return out
