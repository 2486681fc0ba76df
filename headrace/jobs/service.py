"""What people can do with stored jobs. The API is a thin cover of this; so is whatever else creates jobs."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol

import polars as pl

from headrace.jobs.backfill import BackfillRequest, derive, restrict, restriction, warnings
from headrace.jobs.parse import parse_job
from headrace.jobs.records import Created, Draft, Job, Page, RequestKey, Transition
from headrace.jobs.spec import JobSpec, KafkaSink
from headrace.jobs.spec_custom import IN_MODULE, CustomStep
from headrace.jobs.states import JobKind, JobState, StopMode
from headrace.jobs.store import JobStore
from headrace.kernel.clock import SystemClock
from headrace.kernel.errors import NotFoundError, SpecError, UserError
from headrace.kernel.protocols import Json
from headrace.kernel.until import Until, check_until, until_text

MAX_KEY_LENGTH: Final = 255
_KEY: Final = re.compile(r"[\x21-\x7e]+")
_CONNECTION_OPTION: Final = re.compile(r"^(bootstrap|metadata\.broker|plugin|ssl|sasl|enable\.sasl|security|oauth)")


class Planner(Protocol):
    """What a service asks before it stores a job. All raise the ``HeadraceError`` that a run would end with."""

    def check(self, spec: JobSpec) -> None:
        """Tables, columns and types exist and fit."""

    def columns(self, spec: JobSpec, source: str) -> Mapping[str, pl.DataType]:
        """The columns of a source."""

    def plan(self, spec: JobSpec) -> dict[str, Json]:
        """What a run would read."""

    def seam(self, spec: JobSpec) -> dict[str, Json]:
        """The seam proof of a job."""


class JobService:
    """Creates, shows, stops and deletes jobs.

    Args:
        store: Where they are.
        planner: Checks and plans them first.
        changed: Called after each change, so that a supervisor looks at once.
    """

    def __init__(self, store: JobStore, planner: Planner, changed: Callable[[], None]) -> None:
        self._store = store
        self._planner = planner
        self._changed = changed

    def create_job(
        self,
        spec: Mapping[str, Json],
        *,
        until: Until | None = None,
        on_end: StopMode = StopMode.DRAIN,
        key: str | None = None,
    ) -> Created:
        """Check a job and store it; it starts at once.

        Args:
            spec: The job spec as JSON values. ``${NAME}`` means nothing in it: the service's environment is its own.
            until: ``caught-up`` ends at the end offsets seen at the start, a time at the first records at or after it.
            on_end: What that end does with open windows.
            key: Idempotency key: the same request with the same key makes one job.

        Raises:
            SpecError: The spec is wrong, or names what is not there.
            UserError: ``UID_IN_USE``, ``IDEMPOTENCY_KEY_REUSED``, or ``UNTIL_INVALID``: the end lies in the future.
            ExternalError: A catalog does not answer; nothing was stored.
        """
        body = {"spec": dict(spec), "until": until_text(until), "on_end": on_end.value}
        request = _request_key(key, "jobs", body)
        found = self._store.replay(request) if request else None
        if found is not None:
            return Created(found, replayed=True)
        with _pointing(lambda path: ["spec", *path]):
            checked = _parsed(spec)
            self._planner.check(checked)
        check_until(until, SystemClock().now_us())
        draft = Draft(JobKind.JOB, checked.name, checked.uid, checked.to_json(), until=until_text(until), on_end=on_end)
        return self._told(self._store.create(draft, request))

    def create_backfill(self, wanted: BackfillRequest, *, key: str | None = None) -> Created:
        """Plan a backfill and store it; it starts at once, and its plan is in the answer.

        Raises:
            SpecError: The request does not fit the job.
            NotFoundError: ``JOB_NOT_FOUND``: the job that is named by id.
            UserError: ``BACKFILL_OVERLAPS`` or ``IDEMPOTENCY_KEY_REUSED``.
            ExternalError: A catalog does not answer; nothing was stored.
        """
        body = wanted.model_dump(mode="json", by_alias=True)
        request = _request_key(key, "backfills", body)
        found = self._store.replay(request) if request else None
        if found is not None:
            return Created(found, replayed=True)
        base = self._base(wanted.job)
        derived = derive(base, wanted)
        uid = f"{derived.spec.name[:160]}-{secrets.token_hex(8)}"
        spec = derived.spec.model_copy(update={"uid": uid})
        # The derived job has other places than the one that was sent.
        with _pointing(lambda _: ["job"]):
            columns = self._planner.columns(spec, derived.source)
        part = restriction(derived, wanted, columns)
        with _pointing(lambda _: ["job"]):
            plan = self._planner.plan(restrict(spec, part))
        draft = Draft(
            JobKind.BACKFILL,
            spec.name,
            uid,
            spec.to_json(),
            plan={**plan, **_totals(plan), "warnings": list(warnings(derived, wanted))},
            backfill={"request": body, "restriction": part},
            target=wanted.target,
            range_from_us=wanted.from_us,
            range_to_us=wanted.to_us,
        )
        return self._told(self._store.create(draft, request))

    def get(self, job_id: str, kind: JobKind | None = None) -> tuple[Job, Sequence[Transition]]:
        """A job and its changes of state.

        Raises:
            NotFoundError: ``JOB_NOT_FOUND`` or ``JOB_DELETED``.
        """
        job = self._store.get(job_id)
        if kind is not None and job.kind is not kind:
            raise NotFoundError(
                f"job {job_id} is no {kind}", hint=f"GET /v1/{job.kind}s/{job_id}", code="JOB_NOT_FOUND"
            )
        return job, self._store.history(job_id)

    def seam(self, job_id: str) -> dict[str, Json]:
        """The seam proof of a job: :func:`headrace.jobs.seam.prove_seam`.

        Raises:
            NotFoundError: ``JOB_NOT_FOUND``, ``JOB_DELETED``, ``CHECKPOINT_NOT_FOUND`` (it has none yet) or
                ``SEAM_NOT_FOUND``.
            HeadraceError: A catalog or the checkpoint store does not answer.
        """
        return self._planner.seam(parse_job(self._store.get(job_id).spec))

    def page(
        self, *, limit: int, after: str | None, kind: JobKind | None = None, states: Collection[JobState] = ()
    ) -> Page:
        """Jobs, newest first. See :meth:`JobStore.page`."""
        return self._store.page(limit=limit, after=after, kind=kind, states=states)

    def stop(self, job_id: str, mode: StopMode) -> Job:
        """Ask a job to stop. See :meth:`JobStore.request_stop`."""
        job = self._store.request_stop(job_id, mode)
        self._changed()
        return job

    def resume(self, job_id: str, *, key: str | None = None) -> Created:
        """Go on with a job or backfill that was stopped, failed or was fenced, from its checkpoint, as a new job.

        Raises:
            NotFoundError: ``JOB_NOT_FOUND`` or ``JOB_DELETED``.
            UserError: ``JOB_ACTIVE``, ``JOB_OVER`` (it has finished), ``UID_IN_USE``, ``BACKFILL_OVERLAPS`` or
                ``IDEMPOTENCY_KEY_REUSED``.
        """
        request = _request_key(key, f"jobs/{job_id}/resume", {})
        return self._told(self._store.resume(job_id, request))

    def delete(self, job_id: str) -> Job:
        """Stop a job and remove it. See :meth:`JobStore.request_delete`."""
        job = self._store.request_delete(job_id)
        self._changed()
        return job

    def _told(self, created: Created) -> Created:
        self._changed()
        return created

    def _base(self, job: str | dict[str, Any]) -> JobSpec:
        if isinstance(job, str):
            return parse_job(self._store.get(job).spec)
        with _pointing(lambda path: ["job", *path]):
            return _parsed(job)


def _parsed(spec: Mapping[str, Json]) -> JobSpec:
    checked = parse_job(dict(spec))
    _refuse_connections(checked)
    _refuse_modules(checked)
    return checked


@contextmanager
def _pointing(place: Callable[[Sequence[str | int]], list[str | int]]) -> Iterator[None]:
    """Spec errors inside point into the request: ``place`` makes the path there from the path in the spec."""
    try:
        yield
    except SpecError as error:
        context = {**error.context, "path": place(error.context.get("path", []))}
        raise SpecError(
            error.message, detail=error.detail, hint=error.hint, code=error.code, context=context
        ) from error


def _refuse_connections(spec: JobSpec) -> None:
    """Whoever may create jobs chooses among the service's connections; its libraries and keys stay its own."""
    for name, source in spec.sources.items():
        if source.topic_tail is not None:
            _refuse_options(spec, source.topic_tail.options, ("sources", name, "tail", "options"))
    for index, sink in enumerate(spec.sinks):
        if isinstance(sink, KafkaSink):
            _refuse_options(spec, sink.kafka.options, ("sinks", index, "kafka", "options"))


def _refuse_modules(spec: JobSpec) -> None:
    """Whoever may create jobs chooses among the service's operators, not among all code that it can import."""
    for index, step in enumerate(spec.steps):
        if isinstance(step, CustomStep) and IN_MODULE in step.custom.name:
            raise spec.problem(
                "steps",
                index,
                "custom",
                "operator",
                message=f"operator {step.custom.name!r} is not registered with the service",
                hint="have it registered in [operators] of the service's headrace.toml, or as an entry point of a "
                "package that is installed there, and name it",
                code="OPERATOR_NOT_REGISTERED",
            )


def _refuse_options(spec: JobSpec, options: Mapping[str, Any], path: tuple[str | int, ...]) -> None:
    for option in options:
        if _CONNECTION_OPTION.match(option):
            raise spec.problem(
                *path,
                option,
                message=f"option {option!r} belongs to the service",
                hint="put it into [kafka.NAME] of the service's headrace.toml and name that cluster",
                code="OPTION_REFUSED",
            )


def _request_key(key: str | None, route: str, body: Mapping[str, Json]) -> RequestKey | None:
    if key is None:
        return None
    if len(key) > MAX_KEY_LENGTH or not _KEY.fullmatch(key):
        raise UserError(
            "idempotency key cannot be used",
            hint=f"send 1 to {MAX_KEY_LENGTH} printable ASCII characters without spaces, for example a UUID",
            code="IDEMPOTENCY_KEY_INVALID",
        )
    text = json.dumps([route, body], sort_keys=True, separators=(",", ":"))
    return RequestKey(key, hashlib.sha256(text.encode()).hexdigest())


def _totals(plan: Mapping[str, Json]) -> dict[str, Json]:
    """What the backfill reads, at the top of its plan."""
    history = next(source["history"] for source in plan["sources"] if source["history"])
    names = ("files", "files_total", "nbytes", "nbytes_total", "records", "records_total")
    return {name.replace("nbytes", "bytes"): history[name] for name in names}
