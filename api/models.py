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

    at: datetime = Field(description="When it changed.")
    state: JobState = Field(description="To which state.")
    reason: str = Field(description="Why, for people.")


class StopView(BaseModel):
    """A stop that was asked for."""

    mode: StopMode = Field(description="What becomes of open windows.")
    requested_at: datetime = Field(description="When it was asked for.")
    killed: bool = Field(description="The worker did not stop in time and was killed. Safe: its last epoch stands.")


class WorkerView(BaseModel):
    """The process behind a job."""

    pid: int = Field(description="Its process id, on the machine that it runs on.")
    attempt: int = Field(description="How many workers this job has had, this one included.")
    heartbeat_at: datetime | None = Field(description="When it was last heard of.")


class JobView(BaseModel):
    """A job. Integers in `plan`, `progress` and `error` are decimal strings (docs/api.md, numbers)."""

    id: str = Field(description="Made by the service; names the job in every path.")
    kind: JobKind = Field(description="A job or a backfill.")
    name: str = Field(description="The name in its spec.")
    uid: str = Field(description="Names the checkpoint. A new job with the uid of one that is over goes on from there.")
    state: JobState = Field(description="Where it stands (docs/api.md, jobs).")
    created_at: datetime = Field(description="When it was created.")
    updated_at: datetime = Field(description="When anything of it changed last.")
    until: str | None = Field(description="`caught-up`, or a time.")
    on_end: StopMode = Field(description="What that end does with open windows.")
    stop: StopView | None = Field(description="The stop that was asked for, if any.")
    deleting: bool = Field(description="It goes as soon as it has stopped.")
    worker: WorkerView | None = Field(description="The process behind it, while there is one.")
    progress: dict[str, Any] | None = Field(
        description="Counts of this worker's run, lag and retention by partition, the last committed epoch."
    )
    plan: dict[str, Any] | None = Field(description="Of a backfill: what it reads.")
    error: dict[str, Any] | None = Field(description="code, domain, retryable, message, detail, hint, context.")
    backfill: dict[str, Any] | None = Field(description="The request of a backfill.")


class JobDetail(JobView):
    """A job with its spec and its past."""

    spec: dict[str, Any] = Field(description="As it was sent, without the passwords of URLs.")
    transitions: list[TransitionView] = Field(description="Its changes of state, oldest first.")


class JobList(BaseModel):
    """A page of jobs, newest first."""

    items: list[JobView] = Field(description="The jobs of this page.")
    next_cursor: str | None = Field(description="Send it as `cursor` for the next page; null on the last one.")


class Health(BaseModel):
    """The service answers."""

    status: Literal["ok"] = Field(default="ok", description="Always `ok`.")
    version: str = Field(description="The release.")


class Readiness(BaseModel):
    """The service can do its work."""

    status: Literal["ready"] = Field(default="ready", description="Always `ready`.")
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
