"""The part of the job spec that says where a history ends: offsets, and the rules for a boundary."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, Discriminator, Field, Tag

from headrace.jobs.names import NodeName, TopicName
from headrace.jobs.spec_base import SpecModel, by_key
from headrace.jobs.values import Duration, lasting

Offsets = Annotated[dict[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)]], Field(min_length=1)]
"""Next offset (the first one that is read from Kafka) by partition."""

OffsetsByTopic = Annotated[dict[TopicName, Offsets], Field(min_length=1)]


def _offsets_kind(value: Any) -> str | None:
    if not isinstance(value, dict):
        return None
    return "@topics" if any(isinstance(inner, dict) for inner in value.values()) else "@partitions"


AnyOffsets = Annotated[
    Annotated[Offsets, Tag("@partitions")] | Annotated[OffsetsByTopic, Tag("@topics")],
    Discriminator(
        _offsets_kind,
        custom_error_type="message",
        custom_error_message="must be a mapping of partitions to offsets, or of topics to such mappings",
    ),
]
"""Next offset by partition, for several topics by topic and partition."""


class BoundaryOffsets(SpecModel):
    """The boundary is stated: the next offset by partition, for several topics by topic and partition."""

    offsets: AnyOffsets = Field(description="The next offset by partition, or by topic and partition.")


class BoundaryColumnNames(SpecModel):
    """Columns of the history that say where a row came from; ``a.b`` is a field of a struct."""

    partition: str = Field(description="The column of the partition.")
    offset: str = Field(description="The column of the offset.")
    topic: str | None = Field(default=None, description="Where the history holds rows of several topics.")


class BoundaryColumns(SpecModel):
    """The boundary is computed from columns of the history: highest offset plus one, by partition."""

    columns: BoundaryColumnNames


class ConnectTopic(SpecModel):
    """The control topic of Iceberg's Kafka Connect sink; what is not given is taken from the snapshot summary."""

    control_topic: TopicName | None = Field(
        default=None, description="The control topic; that of the snapshot's summary if not given."
    )
    group: str | None = Field(default=None, description="The connector's group, e.g. connect-NAME.")
    cluster: NodeName | None = Field(default=None, description="A [kafka.NAME] section; the tail's if not given.")


class BoundaryConnect(SpecModel):
    """The boundary is what the control topic of Kafka Connect says of the pinned snapshot."""

    connect: ConnectTopic


class BoundaryTimestamp(SpecModel):
    """The tail starts at the first record that is not older than a time, less an overlap: at least once."""

    timestamp: AwareDatetime | Literal["recorded"] = Field(
        description="The history is complete up to it. recorded: as Kafka Connect or AutoMQ recorded it."
    )
    overlap: Duration = lasting("5m", description="How far records may be older than others before them.")


BoundaryRule = Annotated[
    Annotated[Literal["auto"], Tag("@word")]
    | Annotated[BoundaryOffsets, Tag("@offsets")]
    | Annotated[BoundaryColumns, Tag("@columns")]
    | Annotated[BoundaryConnect, Tag("@connect")]
    | Annotated[BoundaryTimestamp, Tag("@timestamp")],
    by_key("offsets", "columns", "connect", "timestamp", text="word"),
]
