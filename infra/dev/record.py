"""What a stack remembers in its folder: ``stack.json``, readable by its owner only."""

from __future__ import annotations

import json
import signal
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from headrace.kernel.errors import ConfigError
from infra.dev.files import write_private
from infra.dev.process import ProcessId

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_VERSION: Final = 1
_FILE: Final = "stack.json"


@dataclass(frozen=True, slots=True)
class ServiceRecord:
    """One service: what it keeps over restarts, and its process while there is one."""

    ports: Mapping[str, int]
    secrets: Mapping[str, str] = field(repr=False)
    process: ProcessId | None = None
    stop_signal: int = signal.SIGTERM.value

    def alive(self) -> bool:
        """Whether its process runs."""
        return self.process is not None and self.process.alive()


@dataclass(frozen=True, slots=True)
class StackRecord:
    """A stack's services by name, in the order of their first start."""

    services: Mapping[str, ServiceRecord] = field(default_factory=dict)

    def having(self, name: str, service: ServiceRecord) -> StackRecord:
        """The same stack with one service set."""
        return replace(self, services={**self.services, name: service})


def load(folder: Path) -> StackRecord:
    """Read a stack's record; an empty one when the folder has none.

    Raises:
        ConfigError: The file is not one that this version wrote.
    """
    path = folder / _FILE
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["version"] != _VERSION:
            raise ValueError(f"version {found['version']}, known is {_VERSION}")  # noqa: TRY301 - one way to fail
        return StackRecord({name: _service(entry) for name, entry in found["services"].items()})
    except FileNotFoundError:
        return StackRecord()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path} is not a dev stack's record",
            detail=f"{type(error).__name__}: {error}",
            hint="end its services by hand and delete the folder, or name another one",
        ) from error


def save(folder: Path, record: StackRecord) -> None:
    """Write a stack's record, at once."""
    services = {name: asdict(service) for name, service in record.services.items()}
    write_private(folder / _FILE, json.dumps({"version": _VERSION, "services": services}, indent=2) + "\n")


def _service(entry: dict[str, Any]) -> ServiceRecord:
    process = entry["process"]
    return ServiceRecord(
        ports={name: int(port) for name, port in entry["ports"].items()},
        secrets={name: str(secret) for name, secret in entry["secrets"].items()},
        process=process and ProcessId(pid=int(process["pid"]), started=str(process["started"])),
        stop_signal=int(entry["stop_signal"]),
    )
