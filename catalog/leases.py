"""Leases: a job's hold on a snapshot, so that expiry spares it for as long as the job needs it.

A lease is the tag ``headrace-lease-<digest of the job's uid>-<holder>-<snapshot id>`` with an explicit reference age,
and a table property of the same name that tells people whose it is. The name says all, so taking a lease twice is
taking it once. The age is made to end :data:`TTL_US` after the last renewal (an age counts from the *snapshot*, so the
table's default would end a fresh lease on an old snapshot at once); a live job renews in time, a dead job's lease goes
stale, and may be removed by anybody.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyiceberg.table.refs import SnapshotRefType

from catalog.catalogs import Catalogs, TableName
from catalog.changing import RetryPolicy, apply
from catalog.commit import MAIN
from catalog.iceberg_internals import Commit
from headrace.kernel.errors import SnapshotGoneError

if TYPE_CHECKING:
    from pyiceberg.table import Table

PREFIX: Final = "headrace-lease-"
DAY_US: Final = 86_400_000_000
TTL_US: Final = 7 * DAY_US
RENEW_AFTER_US: Final = DAY_US


@dataclass(frozen=True, slots=True)
class Lease:
    """A hold on a snapshot.

    Attributes:
        name: The tag's name.
        snapshot_id: The snapshot.
        until_us: When it goes stale, wall clock in microseconds; None: the tag has no age.
        job: The job's uid; None: the table does not tell.
        holder: The job's source or static table, likewise.
    """

    name: str
    snapshot_id: int
    until_us: int | None
    job: str | None = None
    holder: str | None = None

    @classmethod
    def of(cls, job_uid: str, holder: str, snapshot_id: int, now_us: int) -> Lease:
        """The lease that a job takes, or renews, now."""
        name = f"{own_prefix(job_uid)}{holder}-{snapshot_id}"
        return cls(name, snapshot_id, now_us + TTL_US, job_uid, holder)

    def is_stale(self, now_us: int) -> bool:
        """Nobody has renewed it in time."""
        return self.until_us is not None and self.until_us <= now_us

    def is_due(self, now_us: int) -> bool:
        """Its job should renew it."""
        return self.until_us is None or self.until_us - now_us <= TTL_US - RENEW_AFTER_US


def own_prefix(job_uid: str) -> str:
    """What the names of all leases of a job begin with."""
    return f"{PREFIX}{hashlib.sha256(job_uid.encode()).hexdigest()[:12]}-"


def find_leases(table: Table) -> Sequence[Lease]:
    """All leases on a table, by name."""
    found = []
    for name, ref in sorted(table.metadata.refs.items()):
        if not name.startswith(PREFIX):
            continue
        snapshot = table.metadata.snapshot_by_id(ref.snapshot_id)
        until = None
        if snapshot is not None and ref.max_ref_age_ms is not None:
            until = (snapshot.timestamp_ms + ref.max_ref_age_ms) * 1000
        job, holder = _told(table.metadata.properties.get(name))
        found.append(Lease(name, ref.snapshot_id, until, job, holder))
    return found


def take(catalogs: Catalogs, table: TableName, lease: Lease, policy: RetryPolicy | None = None) -> None:
    """Take a lease, or renew it.

    Raises:
        SnapshotGoneError: The snapshot is no longer there.
        AccessDeniedError: Not allowed.
        HeadraceError: The catalog failed, or offers no tags.
    """
    apply(catalogs, _Take(table, lease), policy or RetryPolicy())


def release(catalogs: Catalogs, table: TableName, names: Collection[str], policy: RetryPolicy | None = None) -> None:
    """Let leases go; those that are gone already are passed over.

    Raises:
        HeadraceError: The catalog failed, or does not allow it.
    """
    if names:
        apply(catalogs, _Release(table, frozenset(names)), policy or RetryPolicy())


@dataclass(frozen=True, slots=True)
class _Take:
    table: TableName
    lease: Lease
    branch: str = MAIN

    def result(self, table: Table) -> bool | None:
        wanted = self.lease.until_us or 0
        return True if any(self._stands(found, wanted) for found in find_leases(table)) else None

    def _stands(self, found: Lease, wanted: int) -> bool:
        # Reference ages are milliseconds.
        return found.name == self.lease.name and found.until_us is not None and found.until_us // 1000 >= wanted // 1000

    def build(self, table: Table) -> Commit:
        lease = self.lease
        snapshot = table.metadata.snapshot_by_id(lease.snapshot_id)
        if snapshot is None:
            raise SnapshotGoneError(
                f"snapshot {lease.snapshot_id} of table {self.table} is no longer available",
                detail="it was expired before it could be tagged",
                hint="start the job again, or name a snapshot that is kept",
                context={"table": str(self.table), "snapshot_id": str(lease.snapshot_id)},
            )
        commit = Commit(table)
        age_ms = max(1, (lease.until_us or 0) // 1000 - snapshot.timestamp_ms)
        commit.set_ref(lease.name, SnapshotRefType.TAG, lease.snapshot_id, age_ms)
        commit.set_properties({lease.name: json.dumps({"job": lease.job, "holder": lease.holder})})
        return commit


@dataclass(frozen=True, slots=True)
class _Release:
    table: TableName
    names: frozenset[str]
    branch: str = MAIN

    def result(self, table: Table) -> bool | None:
        return None if self._present(table) else True

    def build(self, table: Table) -> Commit:
        commit, names = Commit(table), self._present(table)
        for name in names:
            if name in table.metadata.refs:
                commit.remove_ref(name)
        commit.remove_properties([name for name in names if name in table.metadata.properties])
        return commit

    def _present(self, table: Table) -> list[str]:
        there = table.metadata.refs.keys() | table.metadata.properties.keys()
        return sorted(self.names & there)


def _told(text: str | None) -> tuple[str | None, str | None]:
    if text is not None:
        with suppress(ValueError, AttributeError):
            value = json.loads(text)
            return value.get("job"), value.get("holder")
    return None, None
