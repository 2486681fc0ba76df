"""The sources of a job spec: history, tail, and what happens at the seam between them."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, AwareDatetime, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from headrace.jobs.names import NodeName, TableName, Topics
from headrace.jobs.spec_base import SpecModel, by_key
from headrace.jobs.spec_boundary import AnyOffsets, BoundaryRule
from headrace.jobs.spec_tables import LEASE, Lease, ParquetLocation
from headrace.jobs.values import (
    ColumnType,
    Duration,
    Expression,
    OneOrMany,
    Option,
    PositiveDuration,
    lasting,
)

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

    offsets: AnyOffsets = Field(description="The next offset by partition, or by topic and partition.")


class StartAtTimestamp(SpecModel):
    """The tail starts at the first record with this timestamp or a later one."""

    timestamp: AwareDatetime = Field(description="At the first record that is not older.")


Start = Annotated[
    Annotated[Literal["earliest", "latest"], Tag("@word")]
    | Annotated[StartAtOffsets, Tag("@offsets")]
    | Annotated[StartAtTimestamp, Tag("@timestamp")],
    by_key("offsets", "timestamp", text="word"),
]


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
    format: Literal["json"] = Field(default="json", description="The form of values.")
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

    column: str = Field(description="A timestamp or date.")
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
    tail: Tail | None = Field(default=None, description="The unbounded part: a topic, or a table that is followed.")
    boundary: BoundaryRule = Field(default="auto", description="Where the history ends and the tail begins.")
    event_time: EventTimeSpec | None = Field(default=None, description="The column of event time; windows need it.")
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
