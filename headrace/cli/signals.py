"""Ctrl-C and SIGTERM: the first asks for a graceful stop, a second Ctrl-C ends at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from headrace.kernel.errors import ExitCode
from headrace.runtime.observer import StopSignal


@contextmanager
def graceful_stop(stop: StopSignal, told: Callable[[], None], *, drain: bool = False) -> Iterator[None]:
    """Within the block SIGINT and SIGTERM set ``stop``; ``told`` is called once, to tell the user.

    With ``drain`` the stop fires what operators hold. A second SIGINT ends the process with exit code 130, whatever
    its threads are doing: the job goes on from its last checkpoint when it is run again. Only for the main thread.
    ``told`` runs in a signal handler: it must not touch buffered streams or locks.
    """

    def ask(_signum: int, _frame: FrameType | None) -> None:
        if not stop.is_set:
            stop.set(drain=drain)
            told()

    def interrupt(signum: int, frame: FrameType | None) -> None:
        if stop.is_set:
            os.write(2, b"\nstopped at once; run the job again to go on from its last checkpoint\n")
            os._exit(ExitCode.INTERRUPTED)
        ask(signum, frame)

    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, interrupt),
        signal.SIGTERM: signal.signal(signal.SIGTERM, ask),
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
