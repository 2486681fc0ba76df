"""Wakes one thread that waits, from other threads and from signal handlers."""

from __future__ import annotations

import queue
from contextlib import suppress


class Doorbell:
    """A bell that one thread listens to; it may be rung from any thread or signal handler, at any line.

    A :class:`threading.Event` holds a lock while it is set. A signal that comes then, in that thread, and whose handler
    sets it too, waits for ever; what rings here is a queue that is reentrant by contract.
    """

    def __init__(self) -> None:
        self._rings: queue.SimpleQueue[None] = queue.SimpleQueue()

    def ring(self) -> None:
        """Wake the listener, now or at its next :meth:`wait`."""
        self._rings.put(None)

    def wait(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for a ring, and take all there are; True when there was one."""
        rung = False
        with suppress(queue.Empty):
            self._rings.get(timeout=timeout)
            rung = True
            while True:
                self._rings.get_nowait()
        return rung
