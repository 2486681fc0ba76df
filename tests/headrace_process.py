"""``headrace`` in processes that are forked from one which has imported everything: a start takes no time.

A child is a process like any other: it can be killed, stopped and continued, and it has an exit code. Tests of the
start itself use ``python -m headrace.cli``.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import boto3  # noqa: F401 - imported for the children
import confluent_kafka  # noqa: F401 - likewise
import pyiceberg.io.pyarrow  # noqa: F401 - likewise

import headrace.cli.archive
import headrace.cli.boundary
import headrace.cli.plan_job
import headrace.cli.run_job
import headrace.cli.seam  # noqa: F401 - likewise
from headrace.cli.app import run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from multiprocessing.context import ForkServerProcess

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.headrace_process"])


def start(
    arguments: Sequence[str], folder: Path, environment: Mapping[str, str], out: Path, log: Path
) -> ForkServerProcess:
    """Start ``headrace`` with these arguments, in this folder, with exactly this environment."""
    process = _context.Process(target=_main, args=(arguments, folder, dict(environment), out, log), daemon=True)
    process.start()
    return process


def _main(arguments: Sequence[str], folder: Path, environment: Mapping[str, str], out: Path, log: Path) -> None:
    for path, number in ((out, 1), (log, 2)):
        with path.open("wb") as file:
            os.dup2(file.fileno(), number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    code = run(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
