"""What the job store refuses, and why: looked up within the caller's transaction."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

from headrace.jobs.database import idempotency, jobs
from headrace.jobs.records import Draft, Job, RequestKey, job_from
from headrace.jobs.states import ACTIVE, JobState
from headrace.kernel.errors import NotFoundError, UserError

ACTIVE_VALUES: Final = sorted(state.value for state in ACTIVE)


def get_job(connection: sa.Connection, job_id: str) -> Job:
    """A job that is there.

    Raises:
        NotFoundError: ``JOB_NOT_FOUND`` or ``JOB_DELETED``.
    """
    return job_from(get_row(connection, job_id))


def get_row(connection: sa.Connection, job_id: str) -> sa.RowMapping:
    """The row of a job that is there.

    Raises:
        NotFoundError: As :func:`get_job`.
    """
    # No id of ours has such characters, and PostgreSQL does not take a NUL.
    asked = jobs.select().where(jobs.c.id == job_id) if job_id.isprintable() else None
    row = None if asked is None else connection.execute(asked).mappings().one_or_none()
    context = {"job_id": job_id}
    if row is None:
        raise NotFoundError(
            f"job {job_id!r} is not known", hint="GET /v1/jobs lists all", code="JOB_NOT_FOUND", context=context
        )
    if row["deleted_us"] is not None:
        raise NotFoundError(f"job {job_id} has been deleted", code="JOB_DELETED", context=context)
    return row


def replayed(connection: sa.Connection, key: RequestKey) -> Job | None:
    """The job that an earlier request with this key made, or None.

    Raises:
        UserError: ``IDEMPOTENCY_KEY_REUSED``: it came with another body.
        NotFoundError: ``JOB_DELETED``: that job has been deleted since.
    """
    row = connection.execute(idempotency.select().where(idempotency.c.key == key.key)).one_or_none()
    if row is None:
        return None
    if row.digest != key.digest:
        raise UserError(
            f"idempotency key {key.key!r} was used for another request",
            hint="send a new key with a new request",
            code="IDEMPOTENCY_KEY_REUSED",
            context={"job_id": row.job_id},
        )
    return get_job(connection, row.job_id)


def refuse_same_uid(connection: sa.Connection, uid: str) -> None:
    """One active job has a uid.

    Raises:
        UserError: ``UID_IN_USE``.
    """
    taken = connection.scalar(sa.select(jobs.c.id).where(jobs.c.active_uid == uid))
    if taken is not None:
        raise UserError(
            f"job uid {uid!r} is in use by job {taken}",
            hint="stop that job first, or give this one a uid of its own",
            code="UID_IN_USE",
            context={"job_id": taken, "uid": uid},
        )


def refuse_overlap(connection: sa.Connection, draft: Draft) -> None:
    """Active backfills into one table do not overlap: half-open ranges meet iff each begins before the other ends.

    Raises:
        UserError: ``BACKFILL_OVERLAPS``.
    """
    clauses = [jobs.c.target == draft.target, jobs.c.state.in_(ACTIVE_VALUES)]
    if draft.range_to_us is not None:
        clauses.append(sa.or_(jobs.c.range_from_us.is_(None), jobs.c.range_from_us < draft.range_to_us))
    if draft.range_from_us is not None:
        clauses.append(sa.or_(jobs.c.range_to_us.is_(None), jobs.c.range_to_us > draft.range_from_us))
    running = connection.scalar(sa.select(jobs.c.id).where(*clauses).order_by(jobs.c.id).limit(1))
    if running is not None:
        raise UserError(
            f"backfill {running} into {draft.target} overlaps this range and is not over",
            hint="wait for it or stop it first",
            code="BACKFILL_OVERLAPS",
            context={"job_id": running, "target": draft.target},
        )


def refuse_unresumable(job: Job) -> None:
    """A job goes on only after one that is over and has not come to its end.

    Raises:
        UserError: ``JOB_ACTIVE`` or ``JOB_OVER``.
    """
    if not job.state.terminal:
        raise UserError(
            f"job {job.id} is not over: {job.state}",
            hint="it goes on by itself; stop it first if it is to begin again",
            code="JOB_ACTIVE",
            context={"job_id": job.id, "state": job.state.value},
        )
    if job.state is JobState.FINISHED:
        raise UserError(
            f"job {job.id} has finished",
            hint="nothing is left to do; create a new one to do it again",
            code="JOB_OVER",
            context={"job_id": job.id, "state": job.state.value},
        )
