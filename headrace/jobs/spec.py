"""The job spec as values. What YAML, JSON and ``headrace.Job(...)`` all become.

Every model is frozen and refuses unknown keys. Durations are microseconds here and text outside. The models check
shapes; what spans nodes (references, event time, boundaries) is checked by :mod:`headrace.jobs.graph`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, PrivateAttr, Tag

from headrace.jobs.names import JobName, NodeName, TableName, TopicName
from headrace.jobs.spec_base import Node, Path, SpecModel, by_key, path_text
from headrace.jobs.spec_sources import SourceSpec
from headrace.jobs.spec_steps import Step
from headrace.jobs.spec_tables import StaticTable
from headrace.jobs.values import (
    AnyNumber,
    Option,
    PositiveDuration,
    Size,
    lasting,
)
from headrace.kernel.errors import SpecError
from headrace.kernel.keyed import GROUPS

# ----------------------------------------------------------------------------------------------------------- sinks

Delivery = Literal["exactly-once"]


class IcebergTarget(SpecModel):
    """The table that rows are appended to."""

    table: TableName = Field(description="CATALOG.NAMESPACE.TABLE")
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

    topic: TopicName = Field(description="The topic.")
    cluster: NodeName = Field(default="default", description="A [kafka.NAME] section of headrace.toml.")
    key: AnyNumber = Field(default=(), description="Columns that make the record's key.")
    create: bool = Field(default=False, description="Create the topic when it is not there.")
    partitions: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="Partitions of a created topic; the broker's default if not given."
    )
    format: Literal["json"] = Field(default="json", description="The form of values and keys.")
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

    name: JobName = Field(description="The job's name.")
    uid: JobName = Field(
        default_factory=lambda data: data.get("name", ""),
        description="Stable identity: checkpoints, fencing and commits are bound to it. The name if not given.",
    )
    description: str = Field(default="", description="For people.")
    sources: dict[NodeName, SourceSpec] = Field(min_length=1, description="What is read, by name.")
    tables: dict[NodeName, StaticTable] = Field(default_factory=dict, description="Tables for lookups.")
    sql: str | None = Field(
        default=None, min_length=1, description="Views and queries, in place of steps (docs/sql.md)."
    )
    steps: tuple[Step, ...] = Field(default=(), description="What happens to rows, in order.")
    sinks: tuple[Sink, ...] = Field(min_length=1, description="Where results go.")
    checkpoint: CheckpointSpec = Field(default_factory=CheckpointSpec)
    state: StateSpec = Field(default_factory=StateSpec)
    parallelism: Annotated[int, Field(ge=1, le=GROUPS)] = Field(
        default=1, description="Instances of each step with state and a key; may change from run to run."
    )
    delivery: Delivery = Field(default="exactly-once", description="What sinks promise.")

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
