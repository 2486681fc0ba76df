"""Changing a table until the change certainly stands, or certainly does not."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from pyiceberg.exceptions import CommitFailedException

from catalog.errors import mapped, mapping
from headrace.kernel.clock import Clock, SystemClock
from headrace.kernel.errors import CommitUnknownError, ExternalError, HeadraceError, NotFoundError, UnavailableError

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from catalog.catalogs import Catalogs, TableName
    from catalog.iceberg_internals import Commit

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long a change is tried. Waits double from ``first_wait`` to ``max_wait`` seconds, each with random jitter."""

    first_wait: float = 0.05
    max_wait: float = 5.0
    timeout: float = 120.0
    clock: Clock = field(default_factory=SystemClock)
    sleep: Callable[[float], None] = time.sleep

    def waits(self) -> Iterator[None]:
        """Yields once for each attempt, waiting in between; ends when the time is used up."""
        deadline, wait = self.clock.monotonic() + self.timeout, self.first_wait
        yield
        while self.clock.monotonic() + wait < deadline:
            self.sleep(wait * random.uniform(0.5, 1.5))  # noqa: S311 - jitter
            wait = min(wait * 2, self.max_wait)
            yield


class Change(Protocol[T_co]):
    """A change that can be looked for in a table, and attempted on top of a table as it was read."""

    @property
    def table(self) -> TableName:
        """Which table."""

    @property
    def branch(self) -> str:
        """The branch whose head the attempts assert."""

    def result(self, table: Table) -> T_co | None:
        """What stands in the table, or None while the change is still to be made.

        Raises:
            HeadraceError: The change must not be made any more.
        """

    def build(self, table: Table) -> Commit:
        """An attempt on top of ``table``."""


def apply(catalogs: Catalogs, change: Change[T], policy: RetryPolicy) -> T:
    """Make a change, with back-off, until the table shows it.

    An attempt whose outcome is unknown is looked for before another is sent. Another one is then safe: of two attempts
    on the same head of the branch the catalog takes one at most.

    Raises:
        CommitFailedError: Other writers were faster until the time was used up. Nothing was changed.
        UnavailableError: The catalog or the storage was down until then, and nothing was sent.
        CommitUnknownError: Something was sent, and what became of it could not be seen. Nothing was removed.
        HeadraceError: The change must not be made, or is not allowed.
    """
    run = _Run(catalogs, change)
    for _ in policy.waits():
        done = run.attempt()
        if done is not None:
            return done
    return run.last_look()


class _Run(Generic[T]):
    """The attempts so far: the last error, and the one attempt whose outcome may still be open."""

    def __init__(self, catalogs: Catalogs, change: Change[T]) -> None:
        self._catalogs = catalogs
        self._change = change
        self._error: HeadraceError | None = None
        self._open: HeadraceError | None = None
        self._open_head: int | None = None
        self._failed: Commit | None = None

    def attempt(self) -> T | None:
        """Look, and try once; None when it has to be tried again."""
        table = self._read()
        if table is None:
            return None
        found = self._change.result(table)
        if found is not None:
            return found
        self._settle(table)
        try:
            with mapping(f"prepare a commit to table {self._change.table}"):
                commit = self._change.build(table)
                commit.write()
        except ExternalError as error:
            self._error = error
            return None
        return self._send(table, commit)

    def last_look(self) -> T:
        """The result, if the table shows it after all; else the error that says what is known."""
        table = self._read()
        if table is not None:
            found = self._change.result(table)
            if found is not None:
                return found
            self._settle(table)
        if self._open is not None:
            raise self._unknown(self._open)
        raise self._error or UnavailableError(f"no time was given to change table {self._change.table}")

    def _read(self) -> Table | None:
        try:
            return self._catalogs.load(self._change.table)
        except NotFoundError:
            raise
        except HeadraceError as error:
            if isinstance(error, ExternalError):
                self._error = error
                return None
            if self._open is not None:
                raise self._unknown(error) from error
            raise

    def _settle(self, table: Table) -> None:
        """The table does not show the change: decide what became of the attempts so far."""
        head = table.metadata.refs.get(self._change.branch)
        if self._open is not None:
            if not isinstance(self._open, ExternalError):
                raise self._open
            if (head.snapshot_id if head else None) != self._open_head:
                self._open = None
        if self._failed is not None:
            self._failed.discard()
            self._failed = None

    def _send(self, table: Table, commit: Commit) -> T | None:
        head = table.metadata.refs.get(self._change.branch)
        doing = f"commit to table {self._change.table}"
        try:
            commit.send()
        except CommitFailedException as error:
            self._error, self._failed = mapped(error, doing), commit
            return None
        except Exception as error:  # noqa: BLE001 - whatever came up, the commit may stand: the next look decides
            self._open, self._open_head = mapped(error, doing), head.snapshot_id if head else None
            return None
        return self._change.result(table)

    def _unknown(self, error: HeadraceError) -> CommitUnknownError:
        return CommitUnknownError(
            f"it is not known whether a commit to table {self._change.table} happened",
            detail=f"{error.message}; {error.detail}" if error.detail else error.message,
            hint="start the job again when the catalog answers: it looks for the commit first. No file was removed",
        )
