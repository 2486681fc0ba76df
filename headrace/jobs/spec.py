"""The job spec as values. What YAML, JSON and ``headrace.Job(...)`` all become.

Every model is frozen and refuses unknown keys. Durations are microseconds here and text outside. The models check
shapes; what spans nodes (references, event time, boundaries) is checked by :mod:`headrace.jobs.graph`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import AfterValidator, AwareDatetime, Discriminator, Field, PrivateAttr, Tag
from pydantic_core import PydanticCustomError

from headrace.jobs.names import JobName, NodeName, TableName, TopicName, Topics
from headrace.jobs.spec_base import Node, Path, SpecModel, by_key, path_text
from headrace.jobs.spec_boundary import AnyOffsets, BoundaryRule
from headrace.jobs.spec_steps import Step
from headrace.jobs.spec_tables import LEASE, Lease, ParquetLocation, StaticTable
from headrace.jobs.values import (
    AnyNumber,
    ColumnType,
    Duration,
    Expression,
    OneOrMany,
    PositiveDuration,
    Size,
    lasting,
)
from headrace.kernel.errors import SpecError
from headrace.kernel.keyed import GROUPS

# --------------------------------------------------------------------------------------------------------- sources


DEFAULT_CONCURRENCY: Final = 2

Concurrency = Annotated[
    int,
    Field(ge=1, le=64, description="Splits that are read at once; they are handed out in order."),
]


class TableHistory(SpecModel):
    """History in an Iceberg table, as of one snapshot."""

    table: TableName = Field(description="CATALOG.NAMESPACE.TABLE")
    snapshot: int | None = Field(
        default=None, description="Snapshot id; the newest one when the job starts if not given."
    )
    lease: Lease = Field(default="auto", description=LEASE)
    where: Expression | None = Field(default=None, description="Reads only these rows of the history.")
    split_rows: Annotated[int, Field(ge=1)] | None = Field(default=None, description="Rows per split, about.")
    concurrency: Concurrency = DEFAULT_CONCURRENCY


class ParquetHistory(SpecModel):
    """History in Parquet files."""

    parquet: ParquetLocation
    where: Expression | None = Field(default=None, description="Reads only these rows of the history.")
    split_rows: Annotated[int, Field(ge=1)] | None = Field(default=None, description="Rows per split, about.")
    concurrency: Concurrency = DEFAULT_CONCURRENCY


History = Annotated[
    Annotated[TableHistory, Tag("@table")] | Annotated[ParquetHistory, Tag("@parquet")], by_key("table", "parquet")
]


def _one_or_several(value: Any) -> str:
    return "@several" if isinstance(value, list | tuple) else "@one"


Histories = Annotated[
    Annotated[History, Tag("@one")] | Annotated[tuple[History, ...], Field(min_length=1), Tag("@several")],
    Discriminator(_one_or_several),
]
"""One history, or several that are read in a row, oldest first."""


class StartAtOffsets(SpecModel):
    """The tail starts at these offsets."""

    offsets: AnyOffsets


class StartAtTimestamp(SpecModel):
    """The tail starts at the first record with this timestamp or a later one."""

    timestamp: AwareDatetime


Start = Annotated[
    Annotated[Literal["earliest", "latest"], Tag("@word")]
    | Annotated[StartAtOffsets, Tag("@offsets")]
    | Annotated[StartAtTimestamp, Tag("@timestamp")],
    by_key("offsets", "timestamp", text="word"),
]

Option = str | int | float | bool


def _regular_expression(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise PydanticCustomError(
            "message", "{message}", {"message": f"{text!r} is no regular expression: {error}"}
        ) from error
    return text


class TailSpec(SpecModel):
    """The tail: Kafka topics."""

    topic: Topics = Field(default=(), description="The topic, or a list of topics.")
    topic_pattern: Annotated[str, AfterValidator(_regular_expression)] | None = Field(
        default=None, description="Or a regular expression: all topics whose whole name matches, those of later too."
    )
    cluster: NodeName = Field(default="default", description="A [kafka.NAME] section of headrace.toml.")
    format: Literal["json"] = "json"
    row_schema: dict[str, ColumnType] | None = Field(
        default=None, alias="schema", min_length=1, description="Column types; the history's schema if not given."
    )
    rate_limit: Annotated[int, Field(ge=1)] | None = Field(default=None, description="Records per second at most.")
    start: Start = Field(default="earliest", description="Where to start without a history.")
    discovery_interval: PositiveDuration = lasting("1m", description="How often to look for new partitions and topics.")
    on_gap: Literal["fail", "record"] = Field(
        default="fail",
        description="When wanted offsets are gone: fail, or go on behind them and record what was lost.",
    )
    transaction_wait: PositiveDuration = lasting(
        "1m", description="How long a bounded read waits for open transactions."
    )
    options: dict[str, Option] = Field(default_factory=dict, description="librdkafka options, over the cluster's own.")


class TableTailSpec(SpecModel):
    """The tail of a table: what each later snapshot appends, snapshot by snapshot."""

    table: TableName = Field(description="CATALOG.NAMESPACE.TABLE; the history's, if there is one.")
    interval: PositiveDuration = lasting("10s", description="How often to look for new snapshots.")
    on_change: Literal["fail", "skip", "changelog"] = Field(
        default="fail",
        description="When a snapshot overwrites or deletes rows: fail, or pass over it and read appended rows only. "
        "changelog: all rows have _weight, +1, or -1 where a snapshot has taken them away.",
    )
    since: int | None = Field(
        default=None,
        description="Without a history: the snapshot after which to begin; the newest one when the job starts if not "
        "given.",
    )


Tail = Annotated[
    Annotated[TailSpec, Tag("@topic")] | Annotated[TableTailSpec, Tag("@table")],
    by_key("topic", "topic_pattern", "table", same={"topic_pattern": "topic"}),
]


class EventTimeSpec(SpecModel):
    """When a row happened, and how far rows may be out of order."""

    column: str
    out_of_orderness: Duration = lasting("0s", description="How much later than newer rows a row may come.")
    idle: PositiveDuration | None = Field(
        default=None,
        description="A silent partition at its end stops holding the watermark after this long; never if not given.",
    )
    max_drift: PositiveDuration | None = Field(
        default=None,
        description="A partition of the tail waits while it is further ahead of the slowest one in event time.",
    )


class ChangelogSpec(SpecModel):
    """The source says what holds now, by key, rather than what happened: a compacted topic, an upsert table."""

    key: OneOrMany = Field(description="Columns that identify a row; the topic's records have them as their key.")
    key_format: Literal["text", "json"] | None = Field(
        default=None,
        description="How a tombstone's key is read: text (one column's plain text; the default for one column) or json "
        "(an object; the default for several).",
    )
    give: Literal["changes", "versions"] = Field(
        default="changes",
        description="changes: rows with _weight, +1 and -1. versions: each record as a row, with _kafka_deleted, as an "
        "archive keeps them.",
    )


class LatePolicy(SpecModel):
    """How lateness is judged."""

    history: Literal["include", "as_live"] = Field(
        default="include",
        description="include: rows of the history are never late. as_live: they are late as they were in the topic; "
        "the history is read in the order of its offsets, which its rows must carry.",
    )


class SwitchBackSpec(SpecModel):
    """When the tail goes back to the lake."""

    lag: Annotated[int, Field(ge=1)] | Literal["off"] = Field(
        default="off", description="When the topic is more records ahead than this."
    )
    on_truncation: bool = Field(
        default=True, description="When offsets that are wanted next have been deleted, and the table has them."
    )


class HandoverSpec(SpecModel):
    """What happens at the seam beyond the single switch."""

    per_partition: bool = Field(
        default=True, description="A partition goes live when its own history is done, where rows carry offsets."
    )
    chase: Literal["auto", "off"] = Field(
        default="auto", description="At the end of the history a newer snapshot is read before the topic takes over."
    )
    switch_back: SwitchBackSpec = Field(default_factory=SwitchBackSpec)


class SourceSpec(SpecModel):
    """Where rows come from: history, tail, or history and then the tail."""

    history: Histories | None = Field(
        default=None, description="The bounded part; a list of stages is read in its order, oldest first."
    )
    tail: Tail | None = None
    boundary: BoundaryRule = "auto"
    event_time: EventTimeSpec | None = None
    handover: HandoverSpec = Field(default_factory=HandoverSpec)
    late: LatePolicy = Field(default_factory=LatePolicy)
    changelog: ChangelogSpec | Literal[False] | None = Field(
        default=None,
        description="Reads upserts by key as a changelog. A compacted topic needs it, or false: its records are then "
        "rows of their own, and how many there are depends on when the topic was compacted.",
    )
    metadata: bool = Field(
        default=False, description="Adds the columns _kafka_topic, _kafka_partition, _kafka_offset and so on."
    )
    on_error: Literal["fail", "skip"] = Field(
        default="fail", description="What to do with records that cannot be decoded."
    )

    @property
    def topic_tail(self) -> TailSpec | None:
        """The tail, if it is in Kafka."""
        return self.tail if isinstance(self.tail, TailSpec) else None

    @property
    def table_tail(self) -> TableTailSpec | None:
        """The tail, if it is a table's."""
        return self.tail if isinstance(self.tail, TableTailSpec) else None

    @property
    def stages(self) -> tuple[History, ...]:
        """The stages of the history, oldest first; the last one meets the tail."""
        if self.history is None:
            return ()
        return self.history if isinstance(self.history, tuple) else (self.history,)


# ----------------------------------------------------------------------------------------------------------- sinks

Delivery = Literal["exactly-once"]


class IcebergTarget(SpecModel):
    """The table that rows are appended to."""

    table: TableName
    create: bool = Field(default=False, description="Create the table when it is not there.")
    partition_by: AnyNumber = Field(default=(), description="Partitioning of a created table, e.g. day(window_start).")
    marker: PositiveDuration = lasting(
        "1h", description="Without rows, a boundary or watermark that has moved is committed once in this time at most."
    )
    changes: Literal["append"] | None = Field(
        default=None, description="append: a changelog's rows are appended with their _weight, +1 or -1."
    )


class IcebergSink(Node):
    """Appends to an Iceberg table, exactly once."""

    iceberg: IcebergTarget


class KafkaTarget(SpecModel):
    """The topic that rows are produced to."""

    topic: TopicName
    cluster: NodeName = Field(default="default", description="A [kafka.NAME] section of headrace.toml.")
    key: AnyNumber = Field(default=(), description="Columns that make the record's key.")
    create: bool = Field(default=False, description="Create the topic when it is not there.")
    partitions: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="Partitions of a created topic; the broker's default if not given."
    )
    format: Literal["json"] = "json"
    options: dict[str, Option] = Field(default_factory=dict, description="librdkafka options, over the cluster's own.")


class KafkaSink(Node):
    """Produces to a Kafka topic in transactions, exactly once."""

    kafka: KafkaTarget


Sink = Annotated[
    Annotated[IcebergSink, Tag("@iceberg")] | Annotated[KafkaSink, Tag("@kafka")], by_key("iceberg", "kafka")
]
AnySink: TypeAlias = IcebergSink | KafkaSink


class CheckpointSpec(SpecModel):
    """When epochs end and where their records are kept."""

    interval: PositiveDuration = lasting("10s", description="An epoch ends after this long,")
    rows: Annotated[int, Field(ge=1)] | None = Field(default=None, description="or after this many input rows,")
    bytes: Size | None = Field(default=None, description="or after this many input bytes.")
    store: str | None = Field(
        default=None, min_length=1, description="Folder or s3://BUCKET/PREFIX; the state folder if not given."
    )
    retain: Annotated[int, Field(ge=1)] = Field(default=3, description="Checkpoints kept.")
    timeout: PositiveDuration = lasting("10m", description="A checkpoint that takes longer fails.")
    tolerated_failures: Annotated[int, Field(ge=0)] = Field(
        default=5, description="Failed checkpoints in a row before the job fails."
    )


class StateSpec(SpecModel):
    """Where keyed state is kept while the job runs."""

    memory: Size | None = Field(
        default=None, description="Up to this size, changes are kept in memory, then on disk; 512MiB if not given."
    )
    dir: str | None = Field(
        default=None, min_length=1, description="Folder on a local disk; `spill` in the state folder if not given."
    )


# ------------------------------------------------------------------------------------------------------------- job


class JobSpec(SpecModel):
    """A whole job."""

    name: JobName
    uid: JobName = Field(
        default_factory=lambda data: data.get("name", ""),
        description="Stable identity: checkpoints, fencing and commits are bound to it. The name if not given.",
    )
    description: str = ""
    sources: dict[NodeName, SourceSpec] = Field(min_length=1)
    tables: dict[NodeName, StaticTable] = Field(default_factory=dict, description="Tables for lookups.")
    sql: str | None = Field(
        default=None, min_length=1, description="Views and queries, in place of steps (docs/sql.md)."
    )
    steps: tuple[Step, ...] = ()
    sinks: tuple[Sink, ...] = Field(min_length=1)
    checkpoint: CheckpointSpec = Field(default_factory=CheckpointSpec)
    state: StateSpec = Field(default_factory=StateSpec)
    parallelism: Annotated[int, Field(ge=1, le=GROUPS)] = Field(
        default=1, description="Instances of each step with state and a key; may change from run to run."
    )
    delivery: Delivery = "exactly-once"

    _places: dict[Path, str] = PrivateAttr(default_factory=dict)

    def set_places(self, places: Mapping[Path, str]) -> None:
        """Remember where each path of the spec stands (``file:line:column``), for later errors."""
        self._places.update(places)

    def to_json(self) -> dict[str, Any]:
        """The spec as JSON values, without what was not given; :func:`headrace.jobs.parse.parse_job` reads it back.

        A Polars expression appears as text that cannot be read back.
        """
        left_out = None if self.sql is None else {"steps"}
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude=left_out) | {"uid": self.uid}

    def place(self, *path: str | int) -> str:
        """Where something stands: ``job.yaml:12:5: steps[0].filter``, or only the path for specs without a file."""
        text = path_text(path)
        known = (self._places.get(path[:length]) for length in range(len(path), -1, -1))
        place = next((found for found in known if found), "")
        return f"{place}: {text}" if place and text else place or text

    def problem(self, *path: str | int, message: str, detail: str = "", hint: str = "", code: str = "") -> SpecError:
        """An error about the thing at ``path``, e.g. ``("steps", 0, "filter")``, which names file and line."""
        return SpecError(
            f"{self.place(*path)}: {message}", detail=detail, hint=hint, code=code, context={"path": list(path)}
        )


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a job spec."""
    schema = JobSpec.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "Headrace job"}
