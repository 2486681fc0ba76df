"""What every job store database must do: the same on SQLite and PostgreSQL."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa

from headrace.jobs.database import Database, metadata, versions
from headrace.jobs.lease import LEASE_US, Lease
from headrace.jobs.processes import ProcessId, this_process
from headrace.jobs.records import Draft, Job, RequestKey
from headrace.jobs.states import ACTIVE, TERMINAL, TRANSITIONS, Desired, JobKind, JobState, StopMode
from headrace.jobs.store import JobStore
from headrace.kernel.errors import ConfigError, InternalError, NotFoundError, UserError
from headrace.testing import ManualClock

BIG = 2**63 - 1


def draft(name: str = "a", *, uid: str | None = None) -> Draft:
    return Draft(JobKind.JOB, name, uid, {"name": name, "snapshot": BIG})


def backfill(lower: int | None, upper: int | None, target: str = "lake.a.t") -> Draft:
    plan = {"files": 3, "bytes": BIG}
    return Draft(JobKind.BACKFILL, "b", None, {}, plan=plan, target=target, range_from_us=lower, range_to_us=upper)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/jobs.db"
        return
    found = request.getfixturevalue("stack").endpoints.postgres_uri
    if found is None:
        pytest.skip("no PostgreSQL on this machine")
    yield found
    database = Database(found)
    with database.write() as connection:
        metadata.drop_all(connection)
    database.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_800_000_000_000_000)


@pytest.fixture
def store(url: str, clock: ManualClock) -> Iterator[JobStore]:
    opened = JobStore.connect(url, clock)
    yield opened
    opened.database.close()


def drive(store: JobStore, job: Job, state: JobState) -> Job:
    """Take a new job to a state along an allowed path."""
    paths = {JobState.CREATED: (), JobState.PLANNED: (JobState.PLANNED,), JobState.STARTING: (JobState.STARTING,)}
    to_running = (JobState.STARTING, JobState.RUNNING)
    for step in paths.get(state, (*to_running, state) if state is not JobState.RUNNING else to_running):
        changes = {"nonce": "n1"} if step is JobState.STARTING else {}
        moved = store.transition(job, step, "test", **changes)
        assert moved is not None
        job = moved
    return job


def test_a_job_reads_back_as_it_was_stored(store: JobStore) -> None:
    job = store.create(draft("flights", uid="u")).job
    assert (job.name, job.uid, job.kind, job.state) == ("flights", "u", JobKind.JOB, JobState.CREATED)
    assert job.spec == {"name": "flights", "snapshot": BIG, "uid": "u"}
    assert job.desired is Desired.RUN
    assert job.worker is None
    assert store.get(job.id) == job
    planned = store.create(backfill(0, 10)).job
    assert planned.state is JobState.PLANNED
    assert planned.plan == {"files": 3, "bytes": BIG}
    assert planned.uid == planned.id
    with pytest.raises(NotFoundError) as caught:
        store.get("job_nope")
    assert caught.value.code == "JOB_NOT_FOUND"


@pytest.mark.parametrize(("source", "target"), list(itertools.product(JobState, JobState)))
def test_the_store_allows_exactly_the_transitions_of_the_table(
    source: JobState, target: JobState, tmp_path: Path
) -> None:
    store = JobStore.connect(f"sqlite:///{tmp_path}/jobs.db")
    job = drive(store, store.create(draft()).job, source)
    if target in TRANSITIONS[source]:
        moved = store.transition(job, target, "why")
        assert moved is not None
        assert moved.state is target
        assert [step.state for step in store.history(job.id)][-1] is target
    else:
        with pytest.raises(InternalError):
            store.transition(job, target, "why")
        assert store.get(job.id).state is source


@pytest.mark.parametrize("wrong", ["", "job_\0", "\0", "\ud800", "job_" + "0" * 5000])
def test_what_is_no_id_is_not_known(store: JobStore, wrong: str) -> None:
    asks = (store.get, store.resume, store.request_delete, partial(store.request_stop, mode=StopMode.SUSPEND))
    for ask in asks:
        with pytest.raises(NotFoundError) as caught:
            ask(wrong)
        assert caught.value.code == "JOB_NOT_FOUND"


@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_a_terminal_state_is_never_overwritten(store: JobStore, state: JobState) -> None:
    running = drive(store, store.create(draft()).job, JobState.RUNNING)
    assert store.transition(running, state, "end") is not None
    for target in TRANSITIONS[JobState.RUNNING]:
        assert store.transition(running, target, "late") is None
    assert not store.conclude(running.id, "n1", JobState.FAILED, "late", error={"code": "X"})
    assert store.heartbeat(running.id, "n1", {"epoch": 1}, advanced=True) is None
    after = store.get(running.id)
    assert (after.state, after.error, after.progress) == (state, None, None)
    assert sum(step.state in TERMINAL for step in store.history(running.id)) == 1


def test_of_concurrent_ends_exactly_one_wins(store: JobStore) -> None:
    running = drive(store, store.create(draft()).job, JobState.RUNNING)
    gate = threading.Barrier(8)

    def end(state: JobState) -> bool:
        gate.wait()
        return store.conclude(running.id, "n1", state, "race")

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(end, sorted(TERMINAL) * 2))
    assert sum(won) == 1
    assert sum(step.state in TERMINAL for step in store.history(running.id)) == 1


def test_a_worker_needs_the_nonce(store: JobStore) -> None:
    job = drive(store, store.create(draft()).job, JobState.STARTING)
    me = this_process()
    assert store.register(job.id, "another", me) is None
    taken = store.register(job.id, "n1", me)
    assert taken is not None
    assert taken.worker == me
    assert store.register(job.id, "n1", me) is None
    assert store.heartbeat(job.id, "another", {}, advanced=False) is None
    assert store.heartbeat(job.id, "n1", {"epoch": 4}, advanced=True) is not None
    assert not store.conclude(job.id, "another", JobState.FINISHED, "zombie")
    assert store.get(job.id).progress == {"epoch": 4}


def test_a_stop_reaches_the_worker_with_the_mode_of_the_first_request(store: JobStore) -> None:
    job = drive(store, store.create(draft()).job, JobState.RUNNING)
    store.request_stop(job.id, StopMode.DRAIN)
    store.request_stop(job.id, StopMode.SUSPEND)
    orders = store.heartbeat(job.id, "n1", None, advanced=False)
    assert orders is not None
    assert (orders.stop, orders.mode) == (True, StopMode.DRAIN)


def test_a_stop_of_what_is_over(store: JobStore) -> None:
    stopped = drive(store, store.create(draft("s")).job, JobState.STOPPED)
    assert store.request_stop(stopped.id, StopMode.SUSPEND).state is JobState.STOPPED
    finished = drive(store, store.create(draft("f")).job, JobState.FINISHED)
    with pytest.raises(UserError) as caught:
        store.request_stop(finished.id, StopMode.SUSPEND)
    assert caught.value.code == "JOB_OVER"
    assert store.get(finished.id).desired is Desired.RUN


def test_delete_waits_for_the_end(store: JobStore) -> None:
    job = drive(store, store.create(draft()).job, JobState.RUNNING)
    assert not store.request_delete(job.id).state.terminal
    shown = store.get(job.id)
    assert shown.delete_requested
    assert shown.desired is Desired.STOP
    assert store.transition(shown, JobState.STOPPED, "end") is not None
    for call in (store.get, store.request_delete):
        with pytest.raises(NotFoundError) as caught:
            call(job.id)
        assert caught.value.code == "JOB_DELETED"
    assert store.page(limit=10, after=None).jobs == []
    over = drive(store, store.create(draft("b")).job, JobState.FAILED)
    assert store.request_delete(over.id).state.terminal
    assert store.page(limit=10, after=None).jobs == []


def test_one_key_makes_one_job(store: JobStore) -> None:
    gate = threading.Barrier(20)

    def post(_: int) -> tuple[str, bool]:
        gate.wait()
        made = store.create(draft(), RequestKey("k", "d"))
        return made.job.id, made.replayed

    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(post, range(20)))
    assert len({job_id for job_id, _ in answers}) == 1
    assert sum(not replayed for _, replayed in answers) == 1
    assert len(store.page(limit=100, after=None).jobs) == 1
    replayed = store.replay(RequestKey("k", "d"))
    assert replayed is not None
    assert replayed.id == answers[0][0]
    for call in (lambda key: store.create(draft("z"), key), store.replay):
        with pytest.raises(UserError) as caught:
            call(RequestKey("k", "other"))
        assert caught.value.code == "IDEMPOTENCY_KEY_REUSED"
    assert store.replay(RequestKey("new", "d")) is None


def test_a_refused_creation_does_not_burn_its_key(store: JobStore) -> None:
    first = store.create(draft("a", uid="u")).job
    key = RequestKey("k", "d")
    with pytest.raises(UserError) as caught:
        store.create(draft("b", uid="u"), key)
    assert caught.value.code == "UID_IN_USE"
    assert caught.value.context["job_id"] == first.id
    drive(store, first, JobState.STOPPED)
    assert not store.create(draft("b", uid="u"), key).replayed


@pytest.mark.parametrize(
    ("lower", "upper", "overlaps"),
    [(10, 20, True), (0, 10, False), (20, 30, False), (19, None, True), (20, None, False), (None, 10, False),
     (None, 11, True), (None, None, True), (12, 13, True), (0, 100, True)],
)  # fmt: skip
def test_overlapping_backfills_of_one_target(
    store: JobStore, lower: int | None, upper: int | None, overlaps: bool
) -> None:
    running = store.create(backfill(10, 20)).job
    store.create(backfill(lower, upper, "lake.a.other"))
    if not overlaps:
        store.create(backfill(lower, upper))
        return
    with pytest.raises(UserError) as caught:
        store.create(backfill(lower, upper))
    assert caught.value.code == "BACKFILL_OVERLAPS"
    assert caught.value.context["job_id"] == running.id
    assert store.transition(running, JobState.STOPPED, "end") is not None
    store.create(backfill(lower, upper))


def test_concurrent_overlapping_backfills_make_one_job(store: JobStore) -> None:
    gate = threading.Barrier(8)

    def post(_: int) -> bool:
        gate.wait()
        try:
            store.create(backfill(0, 10))
        except UserError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(post, range(8))) == 1


def test_jobs_are_in_the_order_of_their_creation_however_fast_they_follow(store: JobStore) -> None:
    made = [store.create(draft(f"j{number}")).job.id for number in range(20)]
    assert made == sorted(made)
    assert [job.id for job in store.page(limit=20, after=None).jobs] == made[::-1]


def test_pages_hold_each_job_once_while_jobs_are_added(store: JobStore, clock: ManualClock) -> None:
    made = []
    for number in range(7):
        clock.advance(1000)
        made.append(store.create(draft(f"j{number}")).job.id)
    seen: list[str] = []
    after = None
    while True:
        page = store.page(limit=3, after=after)
        seen += [job.id for job in page.jobs]
        after = page.after
        if after is None:
            break
        clock.advance(1000)
        store.create(draft(f"new{len(seen)}"))
    assert seen == made[::-1]
    running = drive(store, store.get(made[0]), JobState.RUNNING)
    assert [job.id for job in store.page(limit=9, after=None, states=[JobState.RUNNING]).jobs] == [running.id]
    assert store.page(limit=9, after=None, kind=JobKind.BACKFILL).jobs == []
    assert {job.state for job in store.active()} <= ACTIVE


def test_a_restarted_store_is_the_same(url: str, store: JobStore) -> None:
    job = store.create(draft(), RequestKey("k", "d")).job
    again = JobStore.connect(url)
    found = again.replay(RequestKey("k", "d"))
    assert found is not None
    assert found.id == job.id
    again.database.close()


def test_many_processes_may_migrate_at_once(url: str) -> None:
    gate = threading.Barrier(4)

    def connect(_: int) -> None:
        gate.wait()
        JobStore.connect(url).database.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(connect, range(4)))
    opened = JobStore.connect(url)
    with opened.database.read() as connection:
        assert connection.execute(sa.select(versions.c.version)).scalars().all() == [1]
    opened.database.close()


def test_a_new_sqlite_file_may_be_opened_by_many_at_once(tmp_path: Path) -> None:
    """The switch to the write-ahead log is refused to whoever comes second; seen in about one round of fifty."""
    with ThreadPoolExecutor(6) as pool:
        for number in range(60):
            url = f"sqlite:///{tmp_path}/{number}.db"
            gate = threading.Barrier(6)

            def connect(_: int, url: str = url, gate: threading.Barrier = gate) -> None:
                gate.wait()
                JobStore.connect(url).database.close()

            list(pool.map(connect, range(6)))


def test_a_newer_store_is_refused(url: str, store: JobStore) -> None:
    with store.database.write() as connection:
        connection.execute(versions.insert().values(version=99))
    with pytest.raises(ConfigError) as caught:
        JobStore.connect(url)
    assert caught.value.code == "STORE_TOO_NEW"


def test_one_lease_at_a_time(store: JobStore, clock: ManualClock) -> None:
    first, second = Lease(store.database, clock), Lease(store.database, clock)
    assert first.renew()
    assert not second.renew()
    clock.advance(LEASE_US - 1)
    assert first.held
    clock.advance(1)
    assert not first.held
    assert second.renew()
    assert not first.renew()
    second.release()
    assert first.renew()


def test_the_lease_of_a_dead_process_is_free(store: JobStore, clock: ManualClock) -> None:
    first, second = Lease(store.database, clock), Lease(store.database, clock)
    assert first.renew()
    me = this_process()
    dead = ProcessId(me.machine, me.pid, "1")
    with store.database.write() as connection:
        connection.execute(
            sa.text("UPDATE headrace_leases SET started = :s WHERE owner IS NOT NULL"), {"s": dead.started}
        )
    assert second.renew()


@pytest.mark.parametrize("wrong", ["", "sqlite://", "mysql://u:secret@h/db", "sqlite:///:memory:"])
def test_other_databases_are_refused(wrong: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Database(wrong)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("state", sorted(TERMINAL - {JobState.FINISHED}))
def test_what_did_not_finish_is_resumed_with_its_uid(store: JobStore, state: JobState) -> None:
    job = drive(store, store.create(backfill(1, 2)).job, JobState.RUNNING)
    with pytest.raises(UserError) as active:
        store.resume(job.id)
    assert active.value.code == "JOB_ACTIVE"
    drive_on = store.transition(job, state, "test")
    assert drive_on is not None
    resumed = store.resume(job.id).job
    same = ("kind", "name", "uid", "spec", "until", "on_end", "plan", "backfill", "target")
    assert [getattr(resumed, name) for name in same] == [getattr(job, name) for name in same]
    assert (resumed.id != job.id, resumed.state, resumed.attempt) == (True, JobState.PLANNED, 0)
    with pytest.raises(UserError) as overlapping:
        store.create(backfill(1, 2))
    assert overlapping.value.code == "BACKFILL_OVERLAPS"
    drive(store, resumed, JobState.FINISHED)
    with pytest.raises(UserError) as over:
        store.resume(job.id)
    assert (over.value.code, over.value.context["job_id"]) == ("JOB_OVER", resumed.id)


def test_concurrent_requests_with_one_key_go_on_once(store: JobStore) -> None:
    job = drive(store, store.create(backfill(1, 2)).job, JobState.STOPPED)
    key, gate = RequestKey("k", "d"), threading.Barrier(8)

    def go_on(_: int) -> tuple[str, bool]:
        gate.wait()
        created = store.resume(job.id, key)
        return created.job.id, created.replayed

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(go_on, range(8)))
    assert len({job_id for job_id, _ in answers}) == 1
    assert sum(not replayed for _, replayed in answers) == 1
    with pytest.raises(UserError) as without:
        store.resume(job.id)
    assert without.value.code == "JOB_ACTIVE"
    with pytest.raises(UserError) as other:
        store.resume(job.id, RequestKey("k", "other"))
    assert other.value.code == "IDEMPOTENCY_KEY_REUSED"
