"""Detached processes with an identity that outlives a recycled process id."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from infra.dev.tools import run_tool

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_PROC: Final = Path("/proc/self/stat")
_POLL_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class ProcessId:
    """One process for good: its id, and when it started.

    Attributes:
        pid: The operating system's process id.
        started: The start time as the operating system tells it; compared for equality only.
    """

    pid: int
    started: str

    def alive(self) -> bool:
        """Whether this very process still runs; a zombie does not, nor does another one under the same id."""
        now = _look(self.pid)
        if now is None or now.started != self.started:
            return False
        if now.ended:
            # Only a parent may bury it; for anybody else it stays a zombie.
            with suppress(ChildProcessError):
                os.waitpid(self.pid, os.WNOHANG)
        return not now.ended

    def kill(self, number: signal.Signals) -> None:
        """Send a signal, unless the process is gone."""
        if self.alive():
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


def identify(pid: int) -> ProcessId:
    """The identity of whoever has a process id now, be it a zombie; nobody's when it is free."""
    now = _look(pid)
    return ProcessId(pid, now.started if now else "")


def spawn(argv: Sequence[str], env: Mapping[str, str], log: Path) -> ProcessId:
    """Start a program in a session of its own, so that it survives the caller and the caller's terminal.

    Args:
        argv: The program (an absolute path) and its arguments.
        env: Its whole environment.
        log: Standard output and error are appended here; standard input is empty.
    """
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    pid = os.posix_spawn(
        argv[0],
        list(argv),
        dict(env),
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), append, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )
    return identify(pid)


def terminate(process: ProcessId, polite: signal.Signals, grace: float) -> bool:
    """Stop a process: politely, then, after ``grace`` seconds, by SIGKILL.

    Returns:
        Whether it went by itself.
    """
    process.kill(polite)
    if wait_until(lambda: not process.alive(), grace):
        return True
    process.kill(signal.SIGKILL)
    wait_until(lambda: not process.alive(), grace)
    return False


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Ask ``condition`` until it holds or ``seconds`` have passed; says whether it held."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def tail(log: Path, lines: int) -> list[str]:
    """The last lines of a log; none when there is no log."""
    if lines <= 0 or not log.exists():
        return []
    return log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:]


@dataclass(frozen=True, slots=True)
class _Look:
    started: str
    ended: bool


def _look(pid: int) -> _Look | None:
    if not _PROC.exists():
        return _look_by_ps(pid)
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the program's name and may hold anything, so count from its closing bracket.
    fields = stat.rpartition(")")[2].split()
    state, threads, ticks_since_boot = fields[0], int(fields[17]), fields[19]
    # The first thread of a killed program may be a zombie while the others still hold its ports and files.
    return _Look(f"{_boot()}/{ticks_since_boot}", ended=state in "ZX" and threads <= 1)


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _look_by_ps(pid: int) -> _Look | None:
    said = run_tool(["ps", "-o", "stat=", "-o", "lstart=", "-p", str(pid)], 10.0).said
    state, _, when = said.strip().partition(" ")
    return _Look(when.strip(), ended=state.startswith("Z")) if when else None
