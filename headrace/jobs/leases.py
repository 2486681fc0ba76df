"""A running job's leases on the snapshots that its sources and static tables still need."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from catalog.catalogs import Catalogs, TableName
from catalog.changing import RetryPolicy
from catalog.leases import Lease, find_leases, own_prefix, release, take
from headrace.jobs.compile import CompiledJob
from headrace.jobs.compile_sources import JobSource
from headrace.jobs.spec_sources import TableHistory
from headrace.jobs.spec_tables import IcebergTable
from headrace.kernel.clock import Clock, SystemClock
from headrace.kernel.errors import HeadraceError, SnapshotGoneError
from headrace.kernel.protocols import Json, Position
from hybrid_source.hybrid import HybridSource

PATIENCE_S: Final = 20.0
"""How long one lease is tried: a job must not wait long for what it can do without."""

TRY_AGAIN_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class _Held:
    """A lease on a table, and for how many checkpoints it has not been needed."""

    table: TableName
    lease: Lease
    unneeded: int = 0


class JobLeases:
    """See :class:`headrace.runtime.job.Leases`.

    A lease is let go when as many checkpoints as are retained have been decided without a need for it. What an earlier
    process of the job has left is found by its name.

    Args:
        job: The compiled job.
        clock: Its wall clock says when leases end.
    """

    def __init__(self, job: CompiledJob, clock: Clock | None = None) -> None:
        self._uid = job.uid
        self._catalogs: Catalogs = job.catalogs
        self._sources = job.sources
        self._retain = job.policy.retain
        self._tables = _leased_tables(job)
        self._clock = clock or SystemClock()
        self._policy = RetryPolicy(timeout=PATIENCE_S)
        self._held: dict[str, _Held] = {}
        self._refused: dict[TableName, float] = {}
        self._looked = False

    def keep(
        self, positions: Mapping[str, Position], pins: Mapping[str, Json], *, decided: bool
    ) -> Sequence[HeadraceError]:
        """See :meth:`headrace.runtime.job.Leases.keep`."""
        opening = not self._looked
        problems = list(self._look()) if opening else []
        needed = dict(self._needed(positions, pins))
        problems += self._take(needed, opening=opening)
        if decided:
            for name in self._held.keys() - needed.keys():
                self._held[name] = replace(self._held[name], unneeded=self._held[name].unneeded + 1)
        done = [name for name, held in self._held.items() if held.unneeded >= self._retain]
        return problems + list(self._release(done))

    def end(self, *, finished: bool) -> Sequence[HeadraceError]:
        """See :meth:`headrace.runtime.job.Leases.end`."""
        done = {name for name, source in self._sources.items() if isinstance(source, HybridSource) and not source.tail}
        return list(self._release([name for name, held in self._held.items() if finished or held.lease.holder in done]))

    def _look(self) -> Iterator[HeadraceError]:
        self._looked = True
        mine = own_prefix(self._uid)
        for table in sorted({table for tables in self._tables.values() for table in tables}, key=str):
            try:
                found = find_leases(self._catalogs.load(table))
            except HeadraceError as error:
                yield error
                continue
            self._held |= {lease.name: _Held(table, lease) for lease in found if lease.name.startswith(mine)}

    def _needed(
        self, positions: Mapping[str, Position], pins: Mapping[str, Json]
    ) -> Iterator[tuple[str, tuple[TableName, Lease]]]:
        now = self._clock.now_us()
        wanted = [(name, pin) for name, at in positions.items() for pin in pinned(self._sources[name], at)]
        for holder, pin in [*wanted, *pins.items()]:
            snapshot = pin.get("snapshot_id")  # a listing of Parquet files has none, nor has an empty table
            table = TableName.parse(pin["table"]) if snapshot is not None else None
            if table is not None and table in self._tables.get(holder, ()):
                lease = Lease.of(self._uid, holder, snapshot, now)
                yield lease.name, (table, lease)

    def _take(self, needed: Mapping[str, tuple[TableName, Lease]], *, opening: bool) -> Iterator[HeadraceError]:
        now = self._clock.now_us()
        for name, (table, lease) in needed.items():
            held = self._held.get(name)
            if held is not None and not held.lease.is_due(now):
                self._held[name] = replace(held, unneeded=0)
                continue
            if self._clock.monotonic() < self._refused.get(table, 0.0):
                continue
            try:
                take(self._catalogs, table, lease, self._policy)
            except HeadraceError as error:
                if opening and isinstance(error, SnapshotGoneError):
                    raise
                self._refused[table] = self._clock.monotonic() + TRY_AGAIN_S
                yield error
            else:
                self._held[name] = _Held(table, lease)

    def _release(self, names: Sequence[str]) -> Iterator[HeadraceError]:
        by_table: dict[TableName, list[str]] = {}
        for name in names:
            by_table.setdefault(self._held.pop(name).table, []).append(name)
        for table, mine in by_table.items():
            try:
                release(self._catalogs, table, mine, self._policy)
            except HeadraceError as error:
                yield error


def pinned(source: JobSource, position: Position) -> Sequence[Json]:
    """The pins that a source would open again if it were restarted at ``position``."""
    return source.pins(position)


def _leased_tables(job: CompiledJob) -> Mapping[str, Collection[TableName]]:
    """The tables that each source or static table of a job holds leases on."""
    wanted: dict[str, Sequence[object]] = {name: source.stages for name, source in job.spec.sources.items()}
    wanted |= {name: [table] for name, table in job.spec.tables.items()}
    return {
        name: {
            TableName.parse(one.table)
            for one in found
            if isinstance(one, TableHistory | IcebergTable) and one.lease == "auto"
        }
        for name, found in wanted.items()
    }
