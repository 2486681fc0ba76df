"""The routes. Each calls one method of the job service."""

from __future__ import annotations

import base64
import binascii
import json
from http import HTTPStatus
from typing import Annotated, Any, Final

from fastapi import APIRouter, Body, Depends, Header, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from api.models import (
    BACKFILL_EXAMPLE,
    Health,
    JobDetail,
    JobList,
    JobRequest,
    JobView,
    Readiness,
    StopRequest,
    job_detail,
    job_view,
)
from api.numbers import with_text_integers
from api.problems import MEDIA_TYPE
from headrace.jobs.backfill import BackfillRequest
from headrace.jobs.records import Created
from headrace.jobs.service import JobService
from headrace.jobs.states import JobKind, JobState
from headrace.jobs.supervisor import Supervisor
from headrace.kernel.errors import InternalError, UserError

MAX_PAGE: Final = 200
_REPLAYED: Final = "Idempotency-Replayed"


def _problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"description": HTTPStatus(status).phrase, "content": content} for status in statuses}


def _service(request: Request) -> JobService:
    service: JobService = request.app.state.service
    return service


Service = Annotated[JobService, Depends(_service)]
JobId = Annotated[str, Path(description="The id of a job or backfill.")]
Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        description="Of any number of requests with one key and one body, exactly one creates; all get its answer.",
        examples=["5f7c1c9e-2f0b-4a0e-9d5c-0d6f3b6f2a11"],
    ),
]


class Wanted(BaseModel):
    """Which page of a list. A parameter of another name is refused: a filter that is not understood would show all."""

    model_config = ConfigDict(extra="forbid")

    cursor: str | None = Field(default=None, description="`next_cursor` of the page before.")
    limit: int = Field(default=50, ge=1, le=MAX_PAGE, description="Jobs on a page at most.")
    state: list[JobState] = Field(default=[], description="Only jobs in one of these states.")


PageOf = Annotated[Wanted, Query()]


async def _unicode(request: Request) -> None:
    """Refuse texts with halves of surrogate pairs, which JSON can spell: nobody could be shown them again.

    Raises:
        UserError: ``REQUEST_INVALID``.
    """
    body = await request.body()
    if rb"\u" not in body:
        return
    try:
        json.dumps(json.loads(body), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise UserError(
            "request is not valid: a text in it is no Unicode",
            detail=f"half of a surrogate pair: {error.object[error.start]!a}",
            code="REQUEST_INVALID",
        ) from error
    except (ValueError, RecursionError):
        return  # no JSON: the framework says so


router = APIRouter(responses=_problems(400, 413, 421, 422, 500, 503), dependencies=[Depends(_unicode)])


@router.post("/v1/jobs", status_code=201, tags=["jobs"], responses=_problems(409, 410))
def create_job(wanted: JobRequest, service: Service, response: Response, key: Key = None) -> JobView:
    """Create a job. It is checked against its catalogs first, and starts at once."""
    created = service.create_job(wanted.spec, until=wanted.until, on_end=wanted.on_end, key=key)
    return _created(created, response)


@router.get("/v1/jobs", tags=["jobs"])
def list_jobs(service: Service, wanted: PageOf) -> JobList:
    """List jobs and backfills, newest first. Jobs that are added meanwhile shift no page."""
    return _page(service, wanted, None)


@router.get("/v1/jobs/{job_id}", tags=["jobs"], responses=_problems(404, 410))
def get_job(job_id: JobId, service: Service) -> JobDetail:
    """One job or backfill, with its spec, progress and past."""
    return job_detail(*service.get(job_id))


@router.get("/v1/jobs/{job_id}/seam", tags=["jobs"], responses=_problems(404, 410))
def get_seam(job_id: JobId, service: Service) -> dict[str, Any]:
    """The seam proof of a job: what came from the lake, what from Kafka, what is missing or there twice."""
    proof: dict[str, Any] = with_text_integers(service.seam(job_id))
    return proof


@router.post("/v1/jobs/{job_id}/stop", tags=["jobs"], responses=_problems(404, 409, 410))
def stop_job(
    job_id: JobId, service: Service, response: Response, wanted: Annotated[StopRequest | None, Body()] = None
) -> JobView:
    """Stop a job at its next epoch. 202 while it is stopping, 200 once it is STOPPED, 409 when it ended otherwise."""
    job = service.stop(job_id, (wanted or StopRequest()).mode)
    response.status_code = 200 if job.state.terminal else 202
    return job_view(job)


@router.post("/v1/jobs/{job_id}/resume", status_code=201, tags=["jobs"], responses=_problems(404, 409, 410))
def resume_job(job_id: JobId, service: Service, response: Response, key: Key = None) -> JobView:
    """Go on with a job or backfill that was stopped, failed or was fenced: a new job, from the same checkpoint."""
    return _created(service.resume(job_id, key=key), response)


@router.delete("/v1/jobs/{job_id}", status_code=204, tags=["jobs"], responses=_problems(404, 410))
def delete_job(job_id: JobId, service: Service) -> Response:
    """Remove a job: at once (204) when it is over, else as soon as it has stopped (202). Its tables stay."""
    job = service.delete(job_id)
    return Response(status_code=204 if job.state.terminal else 202)


@router.post("/v1/backfills", status_code=201, tags=["backfills"], responses=_problems(404, 409, 410))
def create_backfill(
    wanted: Annotated[BackfillRequest, Body(examples=[BACKFILL_EXAMPLE])],
    service: Service,
    response: Response,
    key: Key = None,
) -> JobView:
    """Plan a backfill and start it; `plan` says what it reads. One that overlaps an active one is refused (409)."""
    return _created(service.create_backfill(wanted, key=key), response)


@router.get("/v1/backfills", tags=["backfills"])
def list_backfills(service: Service, wanted: PageOf) -> JobList:
    """List backfills, newest first."""
    return _page(service, wanted, JobKind.BACKFILL)


@router.get("/v1/backfills/{job_id}", tags=["backfills"], responses=_problems(404, 410))
def get_backfill(job_id: JobId, service: Service) -> JobDetail:
    """One backfill, with its plan and progress."""
    return job_detail(*service.get(job_id, JobKind.BACKFILL))


@router.get("/healthz", tags=["service"])
def health(request: Request) -> Health:
    """The process answers."""
    return Health(version=request.app.version)


@router.get("/readyz", tags=["service"])
def ready(request: Request, service: Service) -> Readiness:
    """The job store answers (503 when not), supervision works (500 when not), and who supervises."""
    service.page(limit=1, after=None)
    supervisor: Supervisor = request.app.state.supervisor
    if not supervisor.working:
        raise InternalError("supervision has ended", hint="see the service's log and restart it")
    return Readiness(role="active" if supervisor.active else "standby")


def _created(created: Created, response: Response) -> JobView:
    response.headers["Location"] = f"/v1/{created.job.kind.value}s/{created.job.id}"
    if created.replayed:
        response.headers[_REPLAYED] = "true"
    return job_view(created.job)


def _page(service: JobService, wanted: Wanted, kind: JobKind | None) -> JobList:
    page = service.page(limit=wanted.limit, after=_decode(wanted.cursor), kind=kind, states=wanted.state)
    return JobList(items=[job_view(job) for job in page.jobs], next_cursor=_encode(page.after))


def _encode(after: str | None) -> str | None:
    return None if after is None else base64.urlsafe_b64encode(after.encode()).decode()


def _decode(cursor: str | None) -> str | None:
    if cursor is None:
        return None
    refused = UserError(
        "cursor cannot be read", hint="send next_cursor of the page before, unchanged", code="CURSOR_INVALID"
    )
    try:
        after = base64.b64decode(cursor, altchars=b"-_", validate=True).decode("ascii")
    except (binascii.Error, UnicodeDecodeError, ValueError) as error:
        raise refused from error
    if not after or not after.isprintable():
        raise refused
    return after
