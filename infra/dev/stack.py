"""The dev stack: real services on loopback, kept in one folder, alive until they are stopped.

A stack is a folder. Two callers of :func:`up` on one folder get the same services; two folders are two stacks that
know nothing of each other. Services that the user names by environment variables are never started here.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.kernel.errors import ConfigError, DependencyError, UnavailableError
from infra.dev.endpoints import Endpoints, from_environment
from infra.dev.kafka.broker import Broker
from infra.dev.lake import Lake
from infra.dev.lock import exclusive
from infra.dev.ports import asked_port, free_port, is_free, require_free
from infra.dev.postgres import Postgres
from infra.dev.process import spawn, tail, terminate, wait_until
from infra.dev.record import ServiceRecord, StackRecord, load, save
from infra.dev.service import NotReadyError, Place, Service

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from contextlib import AbstractContextManager

STATE_VARIABLE: Final = "HEADRACE_DEV_STATE"

# The broker last: its start is the longest, and the others come up meanwhile.
_SERVICES: Final[Mapping[str, Service]] = {service.name: service for service in (Lake(), Postgres(), Broker())}
SERVICE_NAMES: Final = tuple(_SERVICES)

_STOP_SECONDS: Final = 30.0
_STARTS: Final = 3
_LOG_LINES: Final = 15


class State(StrEnum):
    """How a service is."""

    RUNNING = "running"
    UNHEALTHY = "unhealthy"
    STOPPED = "stopped"
    EXTERNAL = "external"


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """One service as :func:`status` found it.

    Attributes:
        name: One of :data:`SERVICE_NAMES`.
        state: How it is.
        detail: What it answered when it is unhealthy.
        pid: Its process, while it has one.
        log: Its log file, once there is one.
    """

    name: str
    state: State
    detail: str = ""
    pid: int | None = None
    log: Path | None = None


def default_folder() -> Path:
    """Where a stack lives when nobody says: ``HEADRACE_DEV_STATE``, else ``.headrace/dev``."""
    return Path(os.environ.get(STATE_VARIABLE) or ".headrace/dev")


def up(state_dir: Path, services: Collection[str] | None = None) -> Endpoints:
    """Start what does not run yet, and wait until all of it answers.

    Args:
        state_dir: The stack's folder; made if needed. Data in it is kept.
        services: Which services must be there; None for all that this machine can run.

    Returns:
        Where the services answer: the user's own where the environment names them.

    Raises:
        ConfigError: A setting is wrong, or a service is unknown.
        DependencyError: This machine lacks something, or a port that was asked for is taken.
        UnavailableError: A download failed, or a service died or was silent; what this call started is stopped again.
    """
    external = from_environment()
    folder = state_dir.absolute()
    wanted = [service for service in _chosen(services) if not service.given(external)]
    with _locked(folder):
        wanted = [service for service in wanted if _can_run(service, folder, must=services is not None)]
        fresh = [service for service in wanted if not _record_of(folder, service).alive()]
        try:
            for service in fresh:
                _launch(folder, service)
            for service in wanted:
                _await_ready(folder, service)
        except BaseException:
            for service in fresh:
                _halt(folder, service, kill=False)
            raise
        return external.merged(_endpoints(folder))


def down(state_dir: Path, *, delete: bool = False) -> None:
    """Stop every service of a stack; one that is not up is no error.

    Args:
        state_dir: The stack's folder.
        delete: Remove the folder with all data, too.
    """
    folder = state_dir.absolute()
    if not folder.is_dir():
        return
    with exclusive(folder / "lock"):
        for name in load(folder).services:
            _halt(folder, _SERVICES[name], kill=False)
        if delete:
            shutil.rmtree(folder)


def status(state_dir: Path) -> tuple[ServiceStatus, ...]:
    """How every service is; those that run are asked in their own protocol."""
    external, folder = from_environment(), state_dir.absolute()
    record = load(folder)
    return tuple(_status(folder, service, record, external) for service in _SERVICES.values())


def locate(state_dir: Path) -> Endpoints:
    """Where the stack's running services answer, merged with those that the environment names."""
    return from_environment().merged(_endpoints(state_dir.absolute()))


def start_service(state_dir: Path, name: str) -> None:
    """Start one service of a stack again, on its ports, and wait until it answers.

    Raises:
        ConfigError: There is no such service.
        DependencyError: This machine lacks something.
        UnavailableError: It died or was silent.
    """
    (service,) = _chosen([name])
    folder = state_dir.absolute()
    with _locked(folder):
        if not _record_of(folder, service).alive():
            service.require(folder / name)
            _launch(folder, service)
        _await_ready(folder, service)


def stop_service(state_dir: Path, name: str, *, kill: bool = False) -> None:
    """Stop one service of a stack and return when it is gone.

    Args:
        state_dir: The stack's folder.
        name: One of :data:`SERVICE_NAMES`.
        kill: By SIGKILL, as a crash would.
    """
    (service,) = _chosen([name])
    folder = state_dir.absolute()
    with _locked(folder):
        _halt(folder, service, kill=kill)


def logs(state_dir: Path, *, lines: int = 50) -> dict[str, list[str]]:
    """The last lines of each service's log, by service."""
    folder = state_dir.absolute()
    return {name: tail(_log(folder, service), lines) for name, service in _SERVICES.items()}


def _locked(folder: Path) -> AbstractContextManager[None]:
    folder.mkdir(parents=True, exist_ok=True)
    # Others may pass through to what is theirs (PostgreSQL's data), but not look around.
    folder.chmod(0o711)
    return exclusive(folder / "lock")


def _chosen(names: Collection[str] | None) -> Sequence[Service]:
    unknown = sorted(set(names or ()) - set(_SERVICES))
    if unknown:
        raise ConfigError(
            f"the dev stack has no service {', '.join(map(repr, unknown))}", hint=f"it has {', '.join(_SERVICES)}"
        )
    return [service for name, service in _SERVICES.items() if names is None or name in names]


def _can_run(service: Service, folder: Path, *, must: bool) -> bool:
    try:
        service.require(folder / service.name)
    except (DependencyError, ConfigError):
        if must or not service.optional:
            raise
        return False
    return True


def _record_of(folder: Path, service: Service) -> ServiceRecord:
    return load(folder).services.get(service.name) or ServiceRecord({}, {})


def _log(folder: Path, service: Service) -> Path:
    return folder / service.name / "log"


def _place(folder: Path, service: Service, record: ServiceRecord) -> Place:
    return Place(folder / service.name, record.ports, record.secrets)


def _endpoints(folder: Path) -> Endpoints:
    found = Endpoints()
    for name, record in load(folder).services.items():
        if record.alive():
            found = found.merged(_SERVICES[name].endpoints(_place(folder, _SERVICES[name], record)))
    return found


def _launch(folder: Path, service: Service) -> None:
    """Start a service's process on ports that are free now; does not wait."""
    stack = load(folder)
    old = _record_of(folder, service)
    record = ServiceRecord(
        ports=_ports(service, stack, old),
        secrets={purpose: old.secrets.get(purpose) or secrets.token_hex(16) for purpose in service.secrets},
    )
    home = folder / service.name
    home.mkdir(mode=0o700, exist_ok=True)
    command = service.prepare(_place(folder, service, record))
    process = spawn(command.argv, command.env, _log(folder, service))
    save(folder, stack.having(service.name, replace(record, process=process, stop_signal=command.stop_signal.value)))


def _ports(service: Service, stack: StackRecord, old: ServiceRecord) -> dict[str, int]:
    taken = {port for name, other in stack.services.items() if name != service.name for port in other.ports.values()}
    chosen: dict[str, int] = {}
    for purpose in service.ports:
        variable = service.port_variables.get(purpose, "")
        asked = asked_port(variable) if variable else None
        if asked is not None:
            require_free(asked, variable)
        before = old.ports.get(purpose)
        port = asked or (before if before and is_free(before) else free_port(taken))
        taken.add(port)
        chosen[purpose] = port
    return chosen


def _await_ready(folder: Path, service: Service) -> None:
    for attempt in range(1, _STARTS + 1):
        record = _record_of(folder, service)
        waiting = _Waiting(service, _place(folder, service, record), record)
        if wait_until(waiting.over, service.start_seconds) and not waiting.died:
            return
        last = tail(_log(folder, service), _LOG_LINES)
        lost_port = waiting.died and any(words in line for line in last for words in service.ports_taken)
        if not lost_port or attempt == _STARTS:
            raise UnavailableError(
                f"service {service.name} died at its start"
                if waiting.died
                else f"service {service.name} gave no right answer within {service.start_seconds:.0f} s",
                code="SERVICE_START_FAILED",
                detail="\n".join([waiting.answer, *last]).strip(),
                hint=f"its whole log is {_log(folder, service)}",
            )
        _launch(folder, service)


class _Waiting:
    """One wait for a service, which ends when it answers or dies."""

    def __init__(self, service: Service, place: Place, record: ServiceRecord) -> None:
        self._service, self._place, self._record = service, place, record
        self.died = False
        self.answer = ""

    def over(self) -> bool:
        if not self._record.alive():
            self.died = True
            return True
        try:
            self._service.probe(self._place)
        except NotReadyError as error:
            self.answer = str(error)
            return False
        return True


def _halt(folder: Path, service: Service, *, kill: bool) -> None:
    record = _record_of(folder, service)
    if record.process is None:
        return
    polite = signal.SIGKILL if kill else signal.Signals(record.stop_signal)
    terminate(record.process, polite, _STOP_SECONDS)
    save(folder, load(folder).having(service.name, replace(record, process=None)))


def _status(folder: Path, service: Service, stack: StackRecord, external: Endpoints) -> ServiceStatus:
    if service.given(external):
        return ServiceStatus(service.name, State.EXTERNAL)
    record, log = stack.services.get(service.name), _log(folder, service)
    if record is None:
        return ServiceStatus(service.name, State.STOPPED)
    if record.process is None or not record.alive():
        return ServiceStatus(service.name, State.STOPPED, log=log)
    try:
        service.probe(_place(folder, service, record))
    except NotReadyError as error:
        return ServiceStatus(service.name, State.UNHEALTHY, str(error), record.process.pid, log)
    return ServiceStatus(service.name, State.RUNNING, "", record.process.pid, log)
