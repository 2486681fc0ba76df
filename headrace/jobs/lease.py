"""The right to supervise: one service process at a time holds it.

The lease is a row that changes by compare-and-set on its turn. It runs out when its holder stops renewing it, and at
once when its holder's process is seen to be dead.
"""

from __future__ import annotations

import secrets
from typing import Final

import sqlalchemy as sa

from headrace.jobs.database import SUPERVISION, Database, leases
from headrace.jobs.processes import ProcessId, is_alive, this_process
from headrace.kernel.clock import Clock

LEASE_US: Final = 15_000_000


class Lease:
    """This process's claim to supervise.

    Args:
        database: Where the row is.
        clock: For the expiry. Machines that share a store need clocks that agree within a few seconds.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._owner = secrets.token_hex(8)
        self._valid_until = 0.0

    @property
    def held(self) -> bool:
        """Whether the last renewal is still good; counted from before it was asked for, by the monotonic clock."""
        return self._clock.monotonic() < self._valid_until

    def renew(self) -> bool:
        """Take or keep the lease; False when another live process has it."""
        asked = self._clock.monotonic()
        now = self._clock.now_us()
        me = this_process()
        with self._database.write() as connection:
            row = connection.execute(sa.select(leases).where(leases.c.name == SUPERVISION)).one()
            if row.owner not in (None, self._owner) and row.expires_us > now and not _dead(row):
                self._valid_until = 0.0
                return False
            taken = connection.execute(
                leases.update()
                .where(leases.c.name == SUPERVISION, leases.c.turn == row.turn)
                .values(
                    owner=self._owner,
                    machine=me.machine,
                    pid=me.pid,
                    started=me.started,
                    expires_us=now + LEASE_US,
                    turn=row.turn + 1,
                )
            )
        self._valid_until = asked + LEASE_US / 1e6 if taken.rowcount == 1 else 0.0
        return taken.rowcount == 1

    def release(self) -> None:
        """Give it up, if it is ours."""
        self._valid_until = 0.0
        with self._database.write() as connection:
            connection.execute(
                leases.update()
                .where(leases.c.name == SUPERVISION, leases.c.owner == self._owner)
                .values(owner=None, expires_us=0, turn=leases.c.turn + 1)
            )


def _dead(row: sa.Row[tuple[object, ...]]) -> bool:
    holder = ProcessId(str(row.machine), int(row.pid), str(row.started))
    return is_alive(holder) is False
