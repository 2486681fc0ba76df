"""The job store: which jobs there are, where they stand, who works on them.

Every change of state is one compare-and-set on (state, nonce), so that two services, a service and a worker, or a
worker and its zombie predecessor never overwrite each other, and a terminal state stays as it is.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

import sqlalchemy as sa

from headrace.jobs.database import CREATION, Database, idempotency, jobs, leases, transitions
from headrace.jobs.processes import ProcessId
from headrace.jobs.records import Created, Draft, Job, Orders, Page, RequestKey, Transition, job_from
from headrace.jobs.states import TERMINAL, TRANSITIONS, Desired, JobKind, JobState, StopMode
from headrace.jobs.store_guards import (
    ACTIVE_VALUES,
    get_job,
    get_row,
    refuse_overlap,
    refuse_same_uid,
    refuse_unresumable,
    replayed,
)
from headrace.kernel.clock import Clock, SystemClock
from headrace.kernel.errors import InternalError, UserError
from headrace.kernel.protocols import Json

_REASON_LENGTH: Final = 1024
_ID: Final = "job_"
_MOMENT_DIGITS: Final = 12
_OWNED: Final = (JobState.STARTING, JobState.RUNNING, JobState.STOPPING)


class JobStore:
    """Jobs in a database.

    Args:
        database: Where; already migrated.
        clock: For the times of what is written.
    """

    def __init__(self, database: Database, clock: Clock | None = None) -> None:
        self._database = database
        self._clock = clock or SystemClock()

    @classmethod
    def connect(cls, url: str, clock: Clock | None = None) -> JobStore:
        """Open the store behind a URL and bring it to this release's version.

        Raises:
            ConfigError: The URL is wrong, or the store is newer than this release.
            UnavailableError: No answer.
        """
        database = Database(url)
        database.migrate()
        return cls(database, clock)

    @property
    def database(self) -> Database:
        """Its connections."""
        return self._database

    # ------------------------------------------------------------------------------------------------ creation

    def replay(self, key: RequestKey) -> Job | None:
        """The job that an earlier request with this key made, or None.

        Raises:
            UserError: ``IDEMPOTENCY_KEY_REUSED``: it came with another body.
            NotFoundError: ``JOB_DELETED``: that job has been deleted since.
        """
        with self._database.read() as connection:
            return replayed(connection, key)

    def create(self, draft: Draft, key: RequestKey | None = None) -> Created:
        """Store a job, once for each key.

        Key, guards and job are one transaction, and creations are serialised: of any number of concurrent requests
        with one key exactly one makes the job, and all get it.

        Raises:
            UserError: ``IDEMPOTENCY_KEY_REUSED``, ``UID_IN_USE`` or ``BACKFILL_OVERLAPS``; the last two name the
                active job in ``context["job_id"]``.
            NotFoundError: ``JOB_DELETED``: the key's job has been deleted since.
        """
        return self._create(key, lambda _: draft)

    def resume(self, job_id: str, key: RequestKey | None = None) -> Created:
        """Store a job that goes on after one that is over and has not come to its end: with its uid, so its checkpoint.

        Key, guards and job are one transaction, as in :meth:`create`.

        Raises:
            NotFoundError: ``JOB_NOT_FOUND`` or ``JOB_DELETED``.
            UserError: ``JOB_ACTIVE``: it is not over. ``JOB_OVER``: it, or one that went on after it, has finished.
                Otherwise as :meth:`create`.
        """
        return self._create(key, lambda connection: _continuation(connection, job_id))

    def _create(self, key: RequestKey | None, drafted: Callable[[sa.Connection], Draft]) -> Created:
        with self._database.write() as connection:
            connection.execute(leases.update().where(leases.c.name == CREATION).values(turn=leases.c.turn + 1))
            found = replayed(connection, key) if key else None
            if found is not None:
                return Created(found, replayed=True)
            job = self._insert(connection, drafted(connection))
            if key:
                connection.execute(
                    idempotency.insert().values(
                        key=key.key, digest=key.digest, job_id=job.id, created_us=job.created_us
                    )
                )
            return Created(job, replayed=False)

    def _insert(self, connection: sa.Connection, draft: Draft) -> Job:
        now = self._clock.now_us()
        job_id = _next_id(connection, now)
        uid = draft.uid or job_id
        refuse_same_uid(connection, uid)
        if draft.target is not None:
            refuse_overlap(connection, draft)
        state = JobState.PLANNED if draft.plan is not None else JobState.CREATED
        connection.execute(
            jobs.insert().values(
                id=job_id,
                kind=draft.kind,
                name=draft.name,
                uid=uid,
                active_uid=uid,
                spec={**draft.spec, "uid": uid},
                until=draft.until,
                on_end=draft.on_end,
                state=state,
                desired=Desired.RUN,
                killed=False,
                delete_requested=False,
                created_us=now,
                updated_us=now,
                state_since_us=now,
                plan=draft.plan,
                backfill=draft.backfill,
                target=draft.target,
                range_from_us=draft.range_from_us,
                range_to_us=draft.range_to_us,
                attempt=0,
                failures=0,
            )
        )
        _record(connection, job_id, now, state, draft.reason)
        return get_job(connection, job_id)

    # ------------------------------------------------------------------------------------------------- reading

    def get(self, job_id: str) -> Job:
        """One job.

        Raises:
            NotFoundError: ``JOB_NOT_FOUND``, or ``JOB_DELETED`` once it has been deleted.
        """
        with self._database.read() as connection:
            return get_job(connection, job_id)

    def page(
        self, *, limit: int, after: str | None, kind: JobKind | None = None, states: Collection[JobState] = ()
    ) -> Page:
        """Jobs, newest first.

        Args:
            limit: At most so many.
            after: Go on after this id; None begins.
            kind: Only of this kind.
            states: Only in these states; empty: any.
        """
        wanted = jobs.select().where(jobs.c.deleted_us.is_(None))
        if after is not None:
            wanted = wanted.where(jobs.c.id < after)
        if kind is not None:
            wanted = wanted.where(jobs.c.kind == kind)
        if states:
            wanted = wanted.where(jobs.c.state.in_(sorted(states)))
        with self._database.read() as connection:
            rows = connection.execute(wanted.order_by(jobs.c.id.desc()).limit(limit + 1)).mappings().all()
        found = [job_from(row) for row in rows[:limit]]
        return Page(found, found[-1].id if len(rows) > limit else None)

    def active(self) -> Sequence[Job]:
        """All jobs that are not over, oldest first."""
        wanted = jobs.select().where(jobs.c.state.in_(ACTIVE_VALUES)).order_by(jobs.c.id)
        with self._database.read() as connection:
            return [job_from(row) for row in connection.execute(wanted).mappings()]

    def history(self, job_id: str) -> Sequence[Transition]:
        """A job's changes of state, oldest first."""
        wanted = transitions.select().where(transitions.c.job_id == job_id).order_by(transitions.c.number)
        with self._database.read() as connection:
            return [
                Transition(row["at_us"], JobState(row["state"]), row["reason"])
                for row in connection.execute(wanted).mappings()
            ]

    # ------------------------------------------------------------------------------------------------ requests

    def request_stop(self, job_id: str, mode: StopMode) -> Job:
        """Want a job stopped. The first request's mode counts; later ones change nothing.

        Raises:
            NotFoundError: ``JOB_NOT_FOUND`` or ``JOB_DELETED``.
            UserError: ``JOB_OVER``: it has finished, failed or been fenced.
        """
        with self._database.write() as connection:
            self._want_stop(connection, job_id, mode)
            job = get_job(connection, job_id)
        if job.state in TERMINAL and job.state is not JobState.STOPPED:
            raise UserError(
                f"job {job_id} is over: {job.state}",
                hint="nothing is left to stop",
                code="JOB_OVER",
                context={"job_id": job_id, "state": job.state.value},
            )
        return job

    def request_delete(self, job_id: str) -> Job:
        """Want a job gone: at once when it is over, else as soon as it has stopped.

        Returns:
            The job as it was; ``job.state.terminal`` tells whether it is gone already.

        Raises:
            NotFoundError: ``JOB_NOT_FOUND`` or ``JOB_DELETED``.
        """
        now = self._clock.now_us()
        with self._database.write() as connection:
            self._want_stop(connection, job_id, StopMode.SUSPEND)
            job = get_job(connection, job_id)
            connection.execute(
                jobs.update()
                .where(jobs.c.id == job_id)
                .values(delete_requested=True, updated_us=now, deleted_us=now if job.state.terminal else None)
            )
            return job

    def _want_stop(self, connection: sa.Connection, job_id: str, mode: StopMode) -> None:
        get_job(connection, job_id)
        now = self._clock.now_us()
        connection.execute(
            jobs.update()
            .where(jobs.c.id == job_id, jobs.c.state.in_(ACTIVE_VALUES), jobs.c.desired == Desired.RUN)
            .values(desired=Desired.STOP, stop_mode=mode, stop_requested_us=now, updated_us=now)
        )

    # --------------------------------------------------------------------------------------------- supervision

    def transition(self, job: Job, to: JobState, reason: str, **changes: Json) -> Job | None:
        """Move a job on from exactly the state and owner that ``job`` shows.

        Args:
            job: The job as it was read.
            to: The next state.
            reason: Why, for people.
            changes: Other columns to set with it.

        Returns:
            The job after it, or None when somebody else has moved it meanwhile.

        Raises:
            InternalError: There is no such transition.
        """
        if to not in TRANSITIONS[job.state]:
            raise InternalError(f"a job cannot go from {job.state} to {to}", context={"job_id": job.id})
        with self._database.write() as connection:
            guard = (jobs.c.id == job.id, jobs.c.state == job.state, _same(jobs.c.nonce, job.nonce))
            if not self._move(connection, guard, to, changes):
                return None
            _record(connection, job.id, self._clock.now_us(), to, reason)
            row = connection.execute(jobs.select().where(jobs.c.id == job.id)).mappings().one()
            return job_from(row)

    def annotate(self, job: Job, **changes: Json) -> bool:
        """Set columns of a job that is still in the state and with the owner that ``job`` shows."""
        with self._database.write() as connection:
            done = connection.execute(
                jobs.update()
                .where(jobs.c.id == job.id, jobs.c.state == job.state, _same(jobs.c.nonce, job.nonce))
                .values(updated_us=self._clock.now_us(), **changes)
            )
            return done.rowcount == 1

    def _move(self, connection: sa.Connection, guard: Sequence[Any], to: JobState, changes: dict[str, Json]) -> bool:
        now = self._clock.now_us()
        values: dict[str, Any] = {"state": to, "state_since_us": now, "updated_us": now, **changes}
        if to.terminal:
            values["active_uid"] = None
            values["deleted_us"] = sa.case((jobs.c.delete_requested, now), else_=None)
        return connection.execute(jobs.update().where(*guard).values(**values)).rowcount == 1

    # -------------------------------------------------------------------------------------------------- worker

    def register(self, job_id: str, nonce: str, process: ProcessId) -> Job | None:
        """A worker takes up its job: STARTING to RUNNING.

        Returns:
            The job, or None when this worker is not wanted (any more).
        """
        guard = (jobs.c.id == job_id, jobs.c.state == JobState.STARTING, jobs.c.nonce == nonce)
        changes: dict[str, Json] = {
            "worker_machine": process.machine,
            "worker_pid": process.pid,
            "worker_started": process.started,
            "heartbeat_us": self._clock.now_us(),
        }
        with self._database.write() as connection:
            if not self._move(connection, guard, JobState.RUNNING, changes):
                return None
            _record(connection, job_id, self._clock.now_us(), JobState.RUNNING, f"worker {process.pid} reported")
            return job_from(connection.execute(jobs.select().where(jobs.c.id == job_id)).mappings().one())

    def heartbeat(self, job_id: str, nonce: str, progress: Json, *, advanced: bool) -> Orders | None:
        """A worker reports that it lives, and how far it is.

        Args:
            job_id: The job.
            nonce: The worker's.
            progress: JSON; None keeps what is there.
            advanced: An epoch was committed since the last report: earlier failures count no more.

        Returns:
            What it shall do, or None when it does not own the job any more.
        """
        now = self._clock.now_us()
        values: dict[str, Any] = {"heartbeat_us": now, "updated_us": now}
        if progress is not None:
            values["progress"] = progress
        if advanced:
            values["failures"] = 0
        with self._database.write() as connection:
            owned = (jobs.c.id == job_id, jobs.c.nonce == nonce, jobs.c.state.in_(_OWNED))
            if connection.execute(jobs.update().where(*owned).values(**values)).rowcount != 1:
                return None
            row = connection.execute(sa.select(jobs.c.desired, jobs.c.stop_mode).where(jobs.c.id == job_id)).one()
            return Orders(row.desired == Desired.STOP, StopMode(row.stop_mode) if row.stop_mode else None)

    def conclude(self, job_id: str, nonce: str, to: JobState, reason: str, **changes: Json) -> bool:
        """A worker's last word. False when it does not own the job any more, or the job is over."""
        sources = [state for state in (JobState.RUNNING, JobState.STOPPING) if to in TRANSITIONS[state]]
        guard = (jobs.c.id == job_id, jobs.c.nonce == nonce, jobs.c.state.in_(sources))
        with self._database.write() as connection:
            if not self._move(connection, guard, to, changes):
                return False
            _record(connection, job_id, self._clock.now_us(), to, reason)
            return True


def _continuation(connection: sa.Connection, job_id: str) -> Draft:
    row = get_row(connection, job_id)
    same = jobs.select().where(jobs.c.uid == row["uid"]).order_by(jobs.c.id.desc()).limit(1)
    refuse_unresumable(job_from(connection.execute(same).mappings().one()))
    return Draft(
        kind=JobKind(row["kind"]),
        name=row["name"],
        uid=row["uid"],
        spec=row["spec"],
        until=row["until"],
        on_end=StopMode(row["on_end"]),
        plan=row["plan"],
        backfill=row["backfill"],
        target=row["target"],
        range_from_us=row["range_from_us"],
        range_to_us=row["range_to_us"],
        reason=f"goes on after {job_id}",
    )


def _same(column: sa.Column[Any], value: str | None) -> sa.ColumnElement[bool]:
    return column.is_(None) if value is None else column == value


def _record(connection: sa.Connection, job_id: str, at_us: int, state: JobState, reason: str) -> None:
    number = connection.scalar(
        sa.select(sa.func.coalesce(sa.func.max(transitions.c.number), 0) + 1).where(transitions.c.job_id == job_id)
    )
    connection.execute(
        transitions.insert().values(
            job_id=job_id, number=number, at_us=at_us, state=state, reason=reason[:_REASON_LENGTH]
        )
    )


def _next_id(connection: sa.Connection, now_us: int) -> str:
    """An id that nobody guesses, and that sorts behind those of all jobs made before, however fast they follow."""
    newest = connection.scalar(sa.select(sa.func.max(jobs.c.id)))
    moment = now_us // 1000
    if newest is not None:
        moment = max(moment, int(newest.removeprefix(_ID)[:_MOMENT_DIGITS], 16) + 1)
    return f"{_ID}{moment:0{_MOMENT_DIGITS}x}{secrets.token_hex(6)}"
