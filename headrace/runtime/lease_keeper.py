"""When an attempt's leases are taken and renewed, and who is told of those that cannot be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from headrace.kernel.clock import Clock
from headrace.kernel.errors import HeadraceError
from headrace.kernel.protocols import Json, Position
from headrace.runtime.job import Leases
from headrace.runtime.observer import Event, Level, Observer

LEASES_EVERY_S: Final = 3600.0


class LeaseKeeper:
    """Keeps leases for one attempt.

    Args:
        leases: The job's.
        observer: Told of snapshots that are not safe.
        clock: For renewals.
    """

    def __init__(self, leases: Leases, observer: Observer, clock: Clock) -> None:
        self._leases = leases
        self._observer = observer
        self._clock = clock
        self._kept = float("-inf")

    @property
    def due(self) -> bool:
        """It is time to look at them again."""
        return self._clock.monotonic() - self._kept >= LEASES_EVERY_S

    def keep(self, positions: Mapping[str, Position], pins: Mapping[str, Json], *, decided: bool) -> None:
        """See :meth:`headrace.runtime.job.Leases.keep`."""
        self._kept = self._clock.monotonic()
        self._tell(self._leases.keep(positions, pins, decided=decided))

    def end(self, *, finished: bool) -> None:
        """See :meth:`headrace.runtime.job.Leases.end`."""
        self._tell(self._leases.end(finished=finished))

    def _tell(self, problems: Sequence[HeadraceError]) -> None:
        for error in problems:
            message = f"a pinned snapshot is not safe from expiry: {error.message}"
            self._observer.on_event(Event(Level.WARNING, "lease", message, error.to_dict()))
