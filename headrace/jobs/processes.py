"""Processes that outlive their parent: identity, life, signals. Linux (``/proc``, pidfd).

A pid alone names nothing: it is used again. A process is named by the machine (boot and pid namespace), its pid and
the moment it was started.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from headrace.kernel.errors import DependencyError

_PROC: Final = Path("/proc")
_STATE_FIELD: Final = 0
_START_FIELD: Final = 19
_GONE: Final = frozenset("ZX")


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process, for all time.

    Attributes:
        machine: Boot id and pid namespace: pids mean something only within both.
        pid: Process id.
        started: Start time in clock ticks after boot, as ``/proc`` gives it.
    """

    machine: str
    pid: int
    started: str


@cache
def machine() -> str:
    """Names this boot of this machine, and the pid namespace.

    Raises:
        DependencyError: There is no ``/proc``.
    """
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{(_PROC / 'self/ns/pid').readlink()}"
    except OSError as error:
        raise DependencyError(
            "supervision needs /proc",
            detail=str(error),
            hint="run the service on Linux with /proc mounted; single jobs run anywhere with `headrace run`",
        ) from error


def this_process() -> ProcessId:
    """The process that calls."""
    found = find(os.getpid())
    if found is None:
        raise DependencyError("supervision needs /proc", detail="this process is not listed there")
    return found


def find(pid: int) -> ProcessId | None:
    """The live process that has ``pid`` now, or None. A zombie is not alive."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(")") + 2 :].split()
    if fields[_STATE_FIELD] in _GONE:
        return None
    return ProcessId(machine(), pid, fields[_START_FIELD])


def find_with_argument(argument: str) -> ProcessId | None:
    """A live process of this machine that was started with exactly this argument, or None."""
    wanted = argument.encode()
    for entry in _PROC.iterdir():
        if entry.name.isdecimal() and wanted in _arguments(entry):
            return find(int(entry.name))
    return None


def _arguments(entry: Path) -> list[bytes]:
    try:
        return (entry / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def is_alive(process: ProcessId) -> bool | None:
    """Whether a process lives; None when it belongs to another machine (or an earlier boot) and cannot be seen."""
    if process.machine != machine():
        return None
    return find(process.pid) == process


def send(process: ProcessId, signum: signal.Signals) -> bool:
    """Signal exactly this process; False when it is gone.

    The pidfd is opened before the identity is checked, so the signal cannot reach a process that took the pid later.
    """
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        if find(process.pid) != process:
            return False
        signal.pidfd_send_signal(handle, signum)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True
