"""Python's garbage collector while jobs run."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_YOUNG: Final = 50_000
"""Container objects between two collections; a poll of the tail makes some ten thousand that need none."""

_lock: Final = threading.Lock()
_thresholds: Final[list[tuple[int, int, int]]] = []
"""For each use that has begun and not ended, the thresholds that it found."""


@contextmanager
def quiet_collector() -> Iterator[None]:
    """Leave what exists already, above all the imported modules, out of collections, and collect less often.

    Without this the collector walks all modules once in some fifty thousand Kafka records, which costs as much CPU as
    consuming them. Cycles that a job makes are collected as ever. It holds for the whole process; the last of
    overlapping uses puts everything back.
    """
    with _lock:
        _thresholds.append(gc.get_threshold())
        gc.freeze()
        gc.set_threshold(_YOUNG, *_thresholds[0][1:])
    try:
        yield
    finally:
        with _lock:
            found = _thresholds[0]
            _thresholds.pop()
            if not _thresholds:
                gc.set_threshold(*found)
                gc.unfreeze()
