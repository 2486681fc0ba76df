"""What the job store holds, as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from headrace.jobs.processes import ProcessId
from headrace.jobs.states import Desired, JobKind, JobState, StopMode
from headrace.kernel.protocols import Json


@dataclass(frozen=True, slots=True)
class Draft:
    """A job that is to be stored.

    Attributes:
        kind: What it is for.
        name: For people; need not be unique.
        uid: Names its checkpoint. At most one active job has it. None: made from the job's id.
        spec: The job spec as JSON.
        until: ``caught-up`` or a time as ISO 8601 for a bounded run, None to run for ever.
        on_end: What the end of a bounded input does with open windows.
        plan: What it is going to read, when it was planned before it was stored.
        backfill: The backfill request that the spec was made from.
        target: The table that a backfill writes to.
        range_from_us: Event time (microseconds, inclusive) from which a backfill reads; None: from the beginning.
        range_to_us: Event time (microseconds, exclusive) up to which it reads; None: to the end.
        reason: Why it is there, for people.
    """

    kind: JobKind
    name: str
    uid: str | None
    spec: Mapping[str, Json]
    until: str | None = None
    on_end: StopMode = StopMode.DRAIN
    plan: Mapping[str, Json] | None = None
    backfill: Mapping[str, Json] | None = None
    target: str | None = None
    range_from_us: int | None = None
    range_to_us: int | None = None
    reason: str = "created"


@dataclass(frozen=True, slots=True)
class RequestKey:
    """An idempotency key and what it was first sent with."""

    key: str
    digest: str


@dataclass(frozen=True, slots=True)
class Job:
    """A job as the store has it. Times are microseconds since the epoch, UTC."""

    id: str
    kind: JobKind
    name: str
    uid: str
    spec: Mapping[str, Json]
    until: str | None
    on_end: StopMode
    state: JobState
    desired: Desired
    stop_mode: StopMode | None
    stop_requested_us: int | None
    killed: bool
    delete_requested: bool
    created_us: int
    updated_us: int
    state_since_us: int
    plan: Mapping[str, Json] | None
    progress: Mapping[str, Json] | None
    error: Mapping[str, Json] | None
    backfill: Mapping[str, Json] | None
    target: str | None
    attempt: int
    failures: int
    start_after_us: int | None
    nonce: str | None
    heartbeat_us: int | None
    worker: ProcessId | None


@dataclass(frozen=True, slots=True)
class Transition:
    """One change of a job's state."""

    at_us: int
    state: JobState
    reason: str


@dataclass(frozen=True, slots=True)
class Created:
    """The answer to a creation: the job, and whether an earlier request with the same key had made it."""

    job: Job
    replayed: bool


@dataclass(frozen=True, slots=True)
class Page:
    """Some jobs, newest first, and the id to go on after, or None at the end."""

    jobs: Sequence[Job]
    after: str | None


@dataclass(frozen=True, slots=True)
class Orders:
    """What a worker is told with each heartbeat."""

    stop: bool
    mode: StopMode | None


def job_from(row: sa.RowMapping) -> Job:
    """A row of the jobs table as a value."""
    return Job(
        id=row["id"],
        kind=JobKind(row["kind"]),
        name=row["name"],
        uid=row["uid"],
        spec=row["spec"],
        until=row["until"],
        on_end=StopMode(row["on_end"]),
        state=JobState(row["state"]),
        desired=Desired(row["desired"]),
        stop_mode=_optional(StopMode, row["stop_mode"]),
        stop_requested_us=row["stop_requested_us"],
        killed=row["killed"],
        delete_requested=row["delete_requested"],
        created_us=row["created_us"],
        updated_us=row["updated_us"],
        state_since_us=row["state_since_us"],
        plan=row["plan"],
        progress=row["progress"],
        error=row["error"],
        backfill=row["backfill"],
        target=row["target"],
        attempt=row["attempt"],
        failures=row["failures"],
        start_after_us=row["start_after_us"],
        nonce=row["nonce"],
        heartbeat_us=row["heartbeat_us"],
        worker=_process(row),
    )


def _optional(kind: Any, value: str | None) -> Any:
    return None if value is None else kind(value)


def _process(row: sa.RowMapping) -> ProcessId | None:
    if row["worker_pid"] is None:
        return None
    return ProcessId(row["worker_machine"], row["worker_pid"], row["worker_started"])
