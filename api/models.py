"""Requests and answers of the API."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, JsonValue

from api.numbers import with_text_integers
from headrace.jobs.records import Job, Transition
from headrace.jobs.redact import redact_urls
from headrace.jobs.states import JobKind, JobState, StopMode

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

SPEC_EXAMPLE: Final[dict[str, JsonValue]] = {
    "name": "flight-delays",
    "sources": {
        "flights": {
            "history": {"table": "lake.flights.archive"},
            "tail": {"topic": "flights"},
            "event_time": {"column": "time_hour", "out_of_orderness": "2h"},
        }
    },
    "steps": [{"window": {"tumbling": "1h", "by": ["carrier"], "aggregate": {"flights": "count(*)"}}}],
    "sinks": [{"iceberg": {"table": "lake.flights.hourly", "create": True}}],
}
BACKFILL_EXAMPLE: Final[dict[str, JsonValue]] = {
    "job": "job_019b1f2a7c3d0a1b2c3d4e5f",
    "from": "2013-01-01T00:00:00Z",
    "to": "2013-02-01T00:00:00Z",
    "target": "lake.flights.hourly_january",
    "create": True,
    "mode": "append",
}


class JobRequest(BaseModel):
    """A job to create."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"spec": SPEC_EXAMPLE, "until": "caught-up"}]}
    )

    spec: dict[str, Any] = Field(description="The job spec (docs/job-spec.md, `headrace spec schema`).")
    until: Literal["caught-up"] | AwareDatetime | None = Field(
        default=None,
        description="`caught-up` ends at the end offsets seen at the start, a time at the first records at or after "
        "it; without it the job runs on.",
    )
    on_end: StopMode = Field(default=StopMode.DRAIN, description="What that end does with open windows.")


class StopRequest(BaseModel):
    """How to stop a job."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"mode": "suspend"}]})

    mode: StopMode = Field(
        default=StopMode.SUSPEND, description="`suspend` keeps open windows in the checkpoint, `drain` fires them."
    )


class TransitionView(BaseModel):
    """One change of a job's state."""

    at: datetime
    state: JobState
    reason: str


class StopView(BaseModel):
    """A stop that was asked for."""

    mode: StopMode
    requested_at: datetime
    killed: bool = Field(description="The worker did not stop in time and was killed. Safe: its last epoch stands.")


class WorkerView(BaseModel):
    """The process behind a job."""

    pid: int
    attempt: int
    heartbeat_at: datetime | None


class JobView(BaseModel):
    """A job. Integers in `plan`, `progress` and `error` are decimal strings (docs/api.md, numbers)."""

    id: str
    kind: JobKind
    name: str
    uid: str = Field(description="Names the checkpoint. A new job with the uid of one that is over goes on from there.")
    state: JobState
    created_at: datetime
    updated_at: datetime
    until: str | None = Field(description="`caught-up`, or a time.")
    on_end: StopMode
    stop: StopView | None
    deleting: bool
    worker: WorkerView | None
    progress: dict[str, Any] | None
    plan: dict[str, Any] | None
    error: dict[str, Any] | None = Field(description="code, domain, retryable, message, detail, hint, context.")
    backfill: dict[str, Any] | None = Field(description="The request of a backfill.")


class JobDetail(JobView):
    """A job with its spec and its past."""

    spec: dict[str, Any] = Field(description="As it was sent, without the passwords of URLs.")
    transitions: list[TransitionView]


class JobList(BaseModel):
    """A page of jobs, newest first."""

    items: list[JobView]
    next_cursor: str | None = Field(description="Send it as `cursor` for the next page; null on the last one.")


class Health(BaseModel):
    """The service answers."""

    status: Literal["ok"] = "ok"
    version: str


class Readiness(BaseModel):
    """The service can do its work."""

    status: Literal["ready"] = "ready"
    role: Literal["active", "standby"] = Field(
        description="`active` supervises the workers; `standby` serves all requests while another service does."
    )


def job_view(job: Job) -> JobView:
    """A job as the API shows it."""
    return JobView(**_fields(job))


def job_detail(job: Job, history: Sequence[Transition]) -> JobDetail:
    """A job with its spec and its past."""
    past = [TransitionView(at=_time(step.at_us), state=step.state, reason=step.reason) for step in history]
    return JobDetail(**_fields(job), spec=redact_urls(dict(job.spec)), transitions=past)


def _fields(job: Job) -> dict[str, Any]:
    return {
        "id": job.id,
        "kind": job.kind,
        "name": job.name,
        "uid": job.uid,
        "state": job.state,
        "created_at": _time(job.created_us),
        "updated_at": _time(job.updated_us),
        "until": job.until,
        "on_end": job.on_end,
        "stop": _stop(job),
        "deleting": job.delete_requested,
        "worker": _worker(job),
        "progress": with_text_integers(job.progress),
        "plan": with_text_integers(job.plan),
        "error": with_text_integers(job.error),
        "backfill": redact_urls(with_text_integers(job.backfill["request"])) if job.backfill else None,
    }


def _stop(job: Job) -> StopView | None:
    if job.stop_mode is None or job.stop_requested_us is None:
        return None
    return StopView(mode=job.stop_mode, requested_at=_time(job.stop_requested_us), killed=job.killed)


def _worker(job: Job) -> WorkerView | None:
    if job.worker is None or job.state not in (JobState.RUNNING, JobState.STOPPING):
        return None
    beat = None if job.heartbeat_us is None else _time(job.heartbeat_us)
    return WorkerView(pid=job.worker.pid, attempt=job.attempt, heartbeat_at=beat)


def _time(us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=us)
