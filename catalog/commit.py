"""The idempotent, fenced commit of an epoch to an Iceberg table, and the fence itself.

What makes it exact:

* **One decision point.** Every commit asserts the head of its branch, so the catalog puts all of them into one order,
  and the token of what was committed before is read from exactly the metadata that the commit is built on.
* **Own retry.** Each attempt reloads the table, looks for the token, and builds its assertions anew.
* **Unknown outcomes.** After a lost answer the table is read before anything else is sent. A second attempt can do no
  harm: of two that assert the same head only one is taken, and one that asserts an older head none.
* **Fence.** A tag that every commit of a lineage asserts is taken away when another lineage begins. Within one lineage
  the job's head (checkpoint store) lets each epoch be decided once, and the token tells a second committer that it is
  done; see :func:`fence`.
"""

from __future__ import annotations

import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pyiceberg.table.refs import SnapshotRefType

from catalog import boundary_record
from catalog.ancestry import Ancestry
from catalog.catalogs import Catalogs, TableName
from catalog.changing import RetryPolicy, apply
from catalog.iceberg_internals import Commit
from catalog.staging import StagedManifest, staged_files
from catalog.tokens import ATTEMPT, Committed, SinkKey, SinkState, find_state, state_property, token
from headrace.kernel.boundary import Boundary
from headrace.kernel.clock import Clock
from headrace.kernel.errors import (
    BoundaryError,
    DataError,
    IdentityError,
    NotFoundError,
    SupersededError,
    has_commits,
    set_back,
    superseded,
)
from headrace.kernel.protocols import Entry

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

MAIN: Final = "main"
ROLLED_BACK: Final = "TABLE_ROLLED_BACK"


@dataclass(frozen=True, slots=True)
class EpochCommit:
    """An epoch that is to be committed. The values come from a pre-commit and may have been made by another process.

    Attributes:
        table: The table's name.
        table_uuid: Its identity when the epoch was prepared.
        key: The sink.
        lineage: The lineage the epoch belongs to.
        epoch: Its number; grows within a lineage, with gaps where nothing was to be committed.
        attempt: The attempt that prepared it.
        staged: Its data files; empty for a marker that only moves the boundary.
        coverage: The boundary to record, or None.
        previous: The newest epoch of this lineage that is known to be committed; None when there is none.
    """

    table: TableName
    table_uuid: str
    key: SinkKey
    lineage: str
    epoch: int
    attempt: str
    staged: tuple[StagedManifest, ...]
    coverage: Boundary | None = None
    previous: int | None = None


def commit_epoch(catalogs: Catalogs, wanted: EpochCommit, policy: RetryPolicy | None = None) -> Committed:
    """Commit an epoch, exactly once, however often and by whomever this is called.

    Returns:
        The commit that stands for the epoch: this one, an earlier one of the same epoch, or the newest one when the
        table is already past it.

    Raises:
        NotFoundError: The table (``TABLE_NOT_FOUND``) or the branch (``BRANCH_NOT_FOUND``) is gone.
        IdentityError: The table was recreated.
        SupersededError: Another lineage of the job has taken the sink over.
        DataError: The table was rolled back behind what this lineage has committed (``TABLE_ROLLED_BACK``).
        CommitFailedError: Other writers were faster until the time was used up; certainly not committed.
        UnavailableError: The catalog was down from the start; certainly not committed.
        CommitUnknownError: It may be committed, and the table could not be read to decide it. Nothing was removed.
    """
    policy = policy or RetryPolicy()
    return apply(catalogs, _EpochChange(wanted, policy.clock), policy)


def fence(
    catalogs: Catalogs,
    table: TableName,
    key: SinkKey,
    lineage: str,
    policy: RetryPolicy | None = None,
    *,
    entry: Entry = Entry.GOES_ON,
) -> SinkState:
    """Make it the turn of ``lineage``: from now on no commit of another lineage of this sink can succeed.

    To be called by an owner that has just taken the job over, before it commits anything. Within the same lineage
    nothing needs to change: a zombie can only hold epochs that the job's head has decided, and those the new owner
    commits first, so that the zombie finds its token, or loses the race for the branch's head to it and then finds it.
    Another lineage's zombie may hold an epoch that the table has never seen; its tag is taken away, which its commit
    asserts. Where it has no tag (the table had no snapshot when it began), an empty snapshot moves the branch's head.

    A lineage that begins takes another one's turn only while that one has committed nothing, so that the same rows are
    not written by two; that is decided on the very metadata that the fence asserts. One that goes on and finds
    another's turn has lost its own for good.

    A missing branch is made from the head of ``main``.

    Args:
        catalogs: Where the table's catalog is configured.
        table: The table.
        key: The sink.
        lineage: Whose turn it is to be.
        policy: How long it is tried.
        entry: How the lineage comes to the table.

    Returns:
        The sink's state under the fence.

    Raises:
        UserError: The lineage begins, and another one has committed to the table (``SINK_HAS_COMMITS``).
        SupersededError: It goes on, and another one has taken the turn since.
        NotFoundError: The table is gone, or its branch is missing and cannot be made.
        UnavailableError: The catalog was down.
        CommitFailedError: Other writers were faster until the time was used up.
        CommitUnknownError: It may be fenced, and the table could not be read to decide it.
    """
    policy = policy or RetryPolicy()
    return apply(catalogs, _FenceChange(table, key, lineage, policy.clock, entry), policy)


def refuse_commits(table: Table, name: TableName, key: SinkKey, lineage: str) -> None:
    """Refuse a table that holds what another lineage of the job has committed. Changes nothing.

    Raises:
        UserError: It does (``SINK_HAS_COMMITS``).
    """
    earlier = find_state(table.metadata, key).committed
    if earlier is not None and earlier.lineage != lineage:
        raise has_commits(
            f"table {name}",
            key.job_uid,
            f"snapshot {earlier.snapshot_id} is epoch {earlier.epoch} of another life of this job",
            {"table": str(name), "epoch": earlier.epoch},
        )


def refuse_set_back(table: Table, name: TableName, key: SinkKey, lineage: str, decided: int) -> None:
    """Refuse a table that holds epochs of this lineage that its own head does not know. Changes nothing.

    Only an owner of the head may ask: epochs are committed once the head has decided them, so that nobody can have
    committed more than the head that it took over says.

    Raises:
        DataError: It does (``CHECKPOINT_SET_BACK``).
    """
    here = find_state(table.metadata, key).committed
    if here is not None and here.lineage == lineage and here.epoch > decided:
        raise set_back(f"table {name}", key.job_uid, decided, here.epoch, {"table": str(name)})


def set_boundary(catalogs: Catalogs, name: TableName, boundary: Boundary, policy: RetryPolicy | None = None) -> int:
    """Record a boundary for the table as it is now, in an empty snapshot of its main branch.

    A snapshot rather than a bare property, so that the record follows the table: a rollback takes it back, a time
    travel to an older snapshot does not see it.

    Returns:
        The new snapshot's id.

    Raises:
        HeadraceError: As :func:`commit_epoch`.
    """
    return apply(catalogs, _BoundaryChange(name, boundary), policy or RetryPolicy())


@dataclass(frozen=True, slots=True)
class _EpochChange:
    wanted: EpochCommit
    clock: Clock
    _files: list[DataFile] = field(default_factory=list)

    @property
    def table(self) -> TableName:
        return self.wanted.table

    @property
    def branch(self) -> str:
        return self.wanted.key.branch

    def result(self, table: Table) -> Committed | None:
        wanted = self.wanted
        check_identity(table, wanted.table, wanted.table_uuid)
        if wanted.key.branch != MAIN and wanted.key.branch not in table.metadata.refs:
            raise _no_branch(wanted.table, wanted.key.branch)
        state = find_state(table.metadata, wanted.key)
        if state.lineage is not None and state.lineage != wanted.lineage:
            raise _superseded(wanted.table, wanted.key, wanted.lineage, state.lineage)
        here = state.committed if state.committed and state.committed.lineage == wanted.lineage else None
        if here is not None and here.epoch >= wanted.epoch:
            return here
        if state.rolled_back or (wanted.previous is not None and (here is None or here.epoch < wanted.previous)):
            raise rolled_back(wanted.table, wanted.key, here)
        return None

    def build(self, table: Table) -> Commit:
        wanted = self.wanted
        if not self._files:
            self._files.extend(staged_files(table.io, wanted.staged))
        commit = Commit(table)
        summary = token(wanted.key, wanted.lineage, wanted.epoch, wanted.attempt)
        record = _record_text(table, wanted.key.branch, wanted.coverage)
        if record is not None:
            summary[boundary_record.BOUNDARY] = record
        commit.append(self._files, wanted.key.branch, summary)
        done = Committed(wanted.lineage, wanted.epoch, wanted.attempt, commit.snapshot_id, commit.sequence_number)
        commit.set_properties(state_property(wanted.key, wanted.lineage, done, _now_ms(self.clock)))
        tag = wanted.key.tag(wanted.lineage)
        commit.require_ref(tag)
        commit.set_ref(tag, SnapshotRefType.TAG, commit.snapshot_id)
        if record is not None and wanted.key.branch == MAIN:
            _mirror(commit, record)
        return commit


@dataclass(frozen=True, slots=True)
class _FenceChange:
    table: TableName
    key: SinkKey
    lineage: str
    clock: Clock
    entry: Entry

    @property
    def branch(self) -> str:
        return self.key.branch

    def result(self, table: Table) -> SinkState | None:
        if self.branch != MAIN and self.branch not in table.metadata.refs:
            return None
        state = find_state(table.metadata, self.key)
        if state.lineage == self.lineage:
            return state
        if self.entry is Entry.BEGINS:
            refuse_commits(table, self.table, self.key, self.lineage)
        elif self.entry is Entry.GOES_ON and state.lineage is not None:
            raise _superseded(self.table, self.key, self.lineage, state.lineage)
        return None

    def build(self, table: Table) -> Commit:
        commit, refs = Commit(table), table.metadata.refs
        if self.branch != MAIN and self.branch not in refs:
            return self._make_branch(table, commit)
        state, head, tag = find_state(table.metadata, self.key), refs.get(self.branch), self.key.tag(self.lineage)
        commit.set_properties(state_property(self.key, self.lineage, state.committed, _now_ms(self.clock)))
        commit.require_ref(tag)
        # Nobody has committed since the table was read, or what was found out from it would no longer hold.
        commit.require_ref(self.branch)
        before = self.key.tag(state.lineage) if state.lineage is not None else None
        if head is not None and (before is None or before in refs):
            if before is not None:
                commit.require_ref(before)
                commit.remove_ref(before)
            commit.set_ref(tag, SnapshotRefType.TAG, head.snapshot_id)
        elif before is not None:
            commit.append((), self.branch, token(self.key, self.lineage, None, uuid.uuid4().hex))
            commit.set_ref(tag, SnapshotRefType.TAG, commit.snapshot_id)
        return commit

    def _make_branch(self, table: Table, commit: Commit) -> Commit:
        main = table.metadata.refs.get(MAIN)
        if main is None:
            raise _no_branch(self.table, self.branch)
        commit.require_ref(self.branch)
        commit.set_ref(self.branch, SnapshotRefType.BRANCH, main.snapshot_id)
        return commit


@dataclass(frozen=True, slots=True)
class _BoundaryChange:
    table: TableName
    boundary: Boundary
    attempt: str = field(default_factory=lambda: uuid.uuid4().hex)
    branch: str = MAIN

    def result(self, table: Table) -> int | None:
        for snapshot in Ancestry.of_ref(table.metadata, self.branch).snapshots:
            if snapshot.summary and snapshot.summary.additional_properties.get(ATTEMPT) == self.attempt:
                return snapshot.snapshot_id
        return None

    def build(self, table: Table) -> Commit:
        record = boundary_record.write(table, self.boundary)
        commit = Commit(table)
        commit.append((), self.branch, {boundary_record.BOUNDARY: record, ATTEMPT: self.attempt})
        _mirror(commit, record)
        return commit


def check_identity(table: Table, name: TableName, recorded: str) -> None:
    """Refuse a table that is not the one that was recorded.

    Raises:
        IdentityError: Its UUID is another one.
    """
    if str(table.metadata.table_uuid) != recorded:
        raise IdentityError(
            f"table {name} is not the one this job has written to",
            detail=f"recorded table UUID {recorded}, found {table.metadata.table_uuid}: it was dropped and made anew",
            hint="give the job another name to start afresh, or bring the old table back",
            code="TABLE_RECREATED",
        )


def rolled_back(name: TableName, key: SinkKey, here: Committed | None) -> DataError:
    """The error for a table that has lost commits of a sink."""
    stands = f"epoch {here.epoch}" if here else "no epoch of it"
    return DataError(
        f"table {name} was rolled back behind what job {key.job_uid!r} has committed",
        detail=f"branch {key.branch} stands at {stands}",
        hint="restore the job from a savepoint of that epoch, or roll the table forward again",
        code=ROLLED_BACK,
    )


def _superseded(name: TableName, key: SinkKey, lineage: str, owner: str) -> SupersededError:
    return superseded(f"table {name}", key.sink_id, key.job_uid, lineage, owner)


def _no_branch(name: TableName, branch: str) -> NotFoundError:
    return NotFoundError(
        f"branch {branch!r} of table {name} does not exist",
        hint="create it; a branch is made by itself only once the main branch has a snapshot",
        code="BRANCH_NOT_FOUND",
    )


def _record_text(table: Table, branch: str, coverage: Boundary | None) -> str | None:
    if coverage is None:
        return None
    head = Ancestry.of_ref(table.metadata, branch).head
    earlier = None
    if head is not None:
        with suppress(BoundaryError):
            earlier = boundary_record.find_boundary(table, head.snapshot_id)
    return boundary_record.write(table, boundary_record.merged(earlier.boundary if earlier else None, coverage))


def _mirror(commit: Commit, record: str) -> None:
    commit.set_properties(boundary_record.properties(record, commit.snapshot_id, commit.sequence_number))
    commit.set_ref(boundary_record.TAG, SnapshotRefType.TAG, commit.snapshot_id)


def _now_ms(clock: Clock) -> int:
    return clock.now_us() // 1000
