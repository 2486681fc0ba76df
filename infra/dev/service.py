"""What every service of the stack is to the stack."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from infra.dev.endpoints import Endpoints


class NotReadyError(Exception):
    """The service does not answer as it should (yet); the text says what it did instead."""


@dataclass(frozen=True, slots=True)
class Place:
    """What one service may count on, and keeps over restarts.

    Attributes:
        home: Its own folder.
        ports: Its loopback ports by purpose.
        secrets: Random words made for it, by purpose.
    """

    home: Path
    ports: Mapping[str, int]
    secrets: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Command:
    """How to start and how to stop a service."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    stop_signal: signal.Signals = signal.SIGTERM


class Service(Protocol):
    """A program that the stack starts, checks and stops.

    Nothing is started or written before :meth:`prepare`; each method may be called again after a restart.

    Attributes:
        name: What the user calls it.
        ports: The purposes of its ports.
        port_variables: The environment variables that ask for a certain port, by purpose.
        secrets: The purposes of its secrets.
        optional: Whether a stack goes without it where it cannot run.
        start_seconds: How long a start may take.
        ports_taken: Words in its log that mean that a port was taken meanwhile.
    """

    name: ClassVar[str]
    ports: ClassVar[tuple[str, ...]]
    port_variables: ClassVar[Mapping[str, str]]
    secrets: ClassVar[tuple[str, ...]]
    optional: ClassVar[bool]
    start_seconds: ClassVar[float]
    ports_taken: ClassVar[tuple[str, ...]]

    def given(self, external: Endpoints) -> bool:
        """Whether the user's own services make this one needless."""

    def require(self, home: Path) -> None:
        """Check that this machine can run it, fetching what can be fetched.

        Raises:
            DependencyError: It cannot; the error names the cure.
            UnavailableError: Something could not be fetched.
        """

    def prepare(self, place: Place) -> Command:
        """Lay out its files (keeping data that is there) and say how to start it."""

    def probe(self, place: Place) -> None:
        """Ask it in its own protocol, and wait a second or two at most.

        Raises:
            NotReadyError: It does not answer rightly.
        """

    def endpoints(self, place: Place) -> Endpoints:
        """Where it answers."""
