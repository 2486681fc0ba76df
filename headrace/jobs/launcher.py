"""Starts worker processes that outlive the service."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace.kernel.errors import DependencyError

STORE_VARIABLE: Final = "HEADRACE_JOB_STORE"
"""The store's URL reaches the worker by environment: it may hold a password, and arguments are public."""

DEFAULT_WORKER: Final = (sys.executable, "-m", "headrace.jobs.worker")


@dataclass(frozen=True, slots=True)
class Launcher:
    """How workers are started.

    Attributes:
        store_url: The job store, for the worker.
        logs: Folder for the workers' output, one file for each attempt.
        config: Path of headrace.toml, or None for the worker's own search.
        state: The state folder, or None for the one that the configuration says.
        command: The program, before its own arguments.
    """

    store_url: str
    logs: Path
    config: Path | None = None
    state: Path | None = None
    command: Sequence[str] = DEFAULT_WORKER

    def start(self, job_id: str, attempt: int, nonce: str) -> subprocess.Popen[bytes]:
        """Start a worker in a session of its own, so that no signal to the service's terminal reaches it.

        Raises:
            DependencyError: The program cannot be started, or its log cannot be written.
        """
        arguments = [*self.command, "--job-id", job_id, "--nonce", nonce]
        if self.config is not None:
            arguments += ["--config", str(self.config.absolute())]
        if self.state is not None:
            arguments += ["--state", str(self.state.absolute())]
        try:
            path = self.log_path(job_id, attempt)
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as log:
                return subprocess.Popen(
                    arguments,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    env={**os.environ, STORE_VARIABLE: self.store_url},
                )
        except OSError as error:
            raise DependencyError(
                f"worker of job {job_id} cannot be started", detail=str(error), hint="see the service's log"
            ) from error

    def log_path(self, job_id: str, attempt: int) -> Path:
        """Where the output of one attempt goes."""
        return self.logs / job_id / f"{attempt:04d}.log"

    def log_end(self, job_id: str, attempt: int, limit: int = 2000) -> str:
        """The last characters of an attempt's output; empty when there is none."""
        try:
            with self.log_path(job_id, attempt).open("rb") as log:
                log.seek(0, os.SEEK_END)
                log.seek(max(0, log.tell() - limit))
                return log.read().decode(errors="replace").strip()
        except FileNotFoundError:
            return ""
