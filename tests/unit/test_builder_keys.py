"""What a spec can say, ``headrace.Job`` can say: every key of a section is a parameter of the method that makes it."""

from __future__ import annotations

import inspect

import pytest

import headrace
from headrace.jobs.spec import json_schema

MODELS = json_schema()["$defs"]
OF_METHOD = {
    "source": ["SourceSpec"],
    "table": ["IcebergTable", "ParquetTable", "PostgresTable"],
    "sink_iceberg": ["IcebergTarget"],
    "sink_kafka": ["KafkaTarget"],
    "checkpoint": ["CheckpointSpec"],
    "state": ["StateSpec"],
    "lookup": ["LookupSpec"],
    "join": ["JoinSpec"],
    "aggregate": ["RunningAggregateSpec"],
    "custom": ["CustomSpec"],
    "over": ["OverSpec"],
    "dedup": ["DedupSpec"],
    "top": ["TopSpec"],
    "running_top": ["RunningTopSpec"],
    "explode": ["ExplodeSpec"],
    "unnest": ["UnnestSpec"],
    "window": ["TumblingSpec", "HoppingSpec", "CumulatingSpec", "SessionSpec"],
}
ONE_VALUE = {"sink_kafka": {"format"}}
"""Keys that take one value, their default."""


def parameters(method: str) -> set[str]:
    return set(inspect.signature(getattr(headrace.Job, method)).parameters)


@pytest.mark.parametrize("method", OF_METHOD)
def test_every_key_of_a_section_is_a_parameter(method: str) -> None:
    keys = {key for model in OF_METHOD[method] for key in MODELS[model]["properties"]}
    assert keys - parameters(method) - ONE_VALUE.get(method, set()) == set()


def test_source_and_table_hand_their_keys_on() -> None:
    job = (
        headrace.Job("j")
        .source(
            "s",
            history={"table": "lake.ns.t"},
            tail={"topic": "t"},
            handover={"per_partition": False, "chase": "off"},
        )
        .table("names", table="lake.ns.names", lease="off")
        .lookup("names", on="k")
        .sink_kafka("out")
        .spec()
    )
    assert (job.sources["s"].handover.per_partition, job.sources["s"].handover.chase) == (False, "off")
    assert job.tables["names"].lease == "off"


def test_each_step_of_a_spec_has_a_method() -> None:
    steps = {
        key
        for name, model in MODELS.items()
        if name.endswith("Step")
        for key in model["properties"]
        if key not in {"id", "from"}
    }
    assert {step for step in steps if not hasattr(headrace.Job, step)} == set()
