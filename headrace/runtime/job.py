"""What the runtime needs of a job: an identity, pins, and a graph once the pins are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from headrace.kernel.errors import HeadraceError
from headrace.kernel.protocols import Json, Position
from headrace.kernel.until import Until
from headrace.runtime.graph import Graph

OnEnd: TypeAlias = Literal["drain", "suspend"]


class Program(Protocol):
    """A compiled job."""

    @property
    def uid(self) -> str:
        """The job's stable id: its head, its commit tokens and its transactional ids are bound to it."""

    def pin(self, known: Mapping[str, Json]) -> Mapping[str, Json]:
        """Decide which version of every static table is used: once for a lineage, so that what is ``known`` stays."""

    def graph(self, pins: Mapping[str, Json]) -> Graph:
        """The graph over those versions; loads the static tables."""


class Leases(Protocol):
    """Keeps the versions that a job's checkpoints need from being expired. Used by the engine's thread."""

    def keep(
        self, positions: Mapping[str, Position], pins: Mapping[str, Json], *, decided: bool
    ) -> Sequence[HeadraceError]:
        """Take or renew what a restart here would open, let go what no retained checkpoint needs any more.

        Called before the first checkpoint is written, after each one, and now and then in between.

        Args:
            positions: Of the sources, as the last checkpoint has them (or the first one will).
            pins: Of the static tables.
            decided: A further checkpoint with them has been decided.

        Returns:
            What could not be done; the job goes on without.

        Raises:
            SnapshotGoneError: At the first call: a version has gone already.
        """

    def end(self, *, finished: bool) -> Sequence[HeadraceError]:
        """A run has come to the end of all its input: let go what a later run will not need.

        Args:
            finished: A later run has nothing to do.
        """


class NoLeases:
    """Keeps nothing."""

    def keep(
        self,
        positions: Mapping[str, Position],  # noqa: ARG002 - the protocol's signature
        pins: Mapping[str, Json],  # noqa: ARG002 - as above
        *,
        decided: bool,  # noqa: ARG002 - as above
    ) -> Sequence[HeadraceError]:
        """See :meth:`Leases.keep`."""
        return ()

    def end(self, *, finished: bool) -> Sequence[HeadraceError]:  # noqa: ARG002 - the protocol's signature
        """See :meth:`Leases.end`."""
        return ()


@dataclass(frozen=True, slots=True)
class CheckpointPolicy:
    """When an epoch ends, and what is kept.

    Attributes:
        interval_us: An epoch ends when this much time has passed and something has moved.
        rows: ... or after this many input records.
        nbytes: ... or after this many input bytes.
        retain: Completed checkpoints that are kept.
        timeout_s: An epoch whose checkpoint takes longer fails (the epoch, not the job).
        tolerated_failures: Failed epochs in a row after which the job fails.
    """

    interval_us: int = 10_000_000
    rows: int | None = None
    nbytes: int | None = None
    retain: int = 3
    timeout_s: float = 600.0
    tolerated_failures: int = 5


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How one run of a job goes, and how it ends.

    Attributes:
        until: ``caught-up`` ends at the end offsets seen at the start, a time at the first records at or after it;
            None runs until it is stopped.
        on_end: At that end, ``drain`` fires what operators hold (the job is finished then, if it has state),
            ``suspend`` keeps it in the checkpoint.
        parallelism: Instances of each operator with a key; None: as the job says. It may differ from run to run.
    """

    until: Until | None = None
    on_end: OnEnd = "drain"
    parallelism: int | None = None


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended.

    Attributes:
        status: ``finished``: drained, a later run has nothing to do; ``suspended``: goes on from here next time.
        epoch: The last epoch.
        records: Input records of this run.
        rows_out: Rows committed in this run, by sink.
        late_rows: Rows that came too late.
        error_rows: Records that could not be decoded.
        restarts: Times that the job recovered from its checkpoint within this run.
    """

    status: Literal["finished", "suspended"]
    epoch: int
    records: int
    rows_out: Mapping[str, int]
    late_rows: int
    error_rows: int
    restarts: int
