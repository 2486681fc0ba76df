"""The request to stop: from other threads, and from signal handlers at any moment."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

from headrace.runtime.observer import StopSignal

AT_ANY_LINE = """
import sys
from headrace.runtime.observer import StopSignal

for line in range(1, 60):
    stop, left = StopSignal(), [line]

    def trace(frame, event, arg):
        if event == "line":
            left[0] -= 1
            if left[0] == 0:
                stop.set(drain=True)  # as a signal handler would
        return trace

    sys.settrace(trace)
    stop.wait(0.001)
    sys.settrace(None)
    stop.set()
    assert stop.wait(0) and stop.is_set
print("done")
"""


def test_a_signal_may_come_at_any_line_of_waiting() -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", AT_ANY_LINE], check=True, capture_output=True, text=True, timeout=120, cwd=root
    )
    assert done.stdout == "done\n"


def test_everybody_who_waits_is_woken_and_the_first_request_counts() -> None:
    stop, woken = StopSignal(), []
    waiting = [threading.Thread(target=lambda: woken.append(stop.wait(120))) for _ in range(4)]
    for thread in waiting:
        thread.start()
    assert not stop.is_set
    assert not stop.wait(0)
    stop.set(drain=True)
    stop.set()
    for thread in waiting:
        thread.join(120)
    assert woken == [True] * 4
    assert stop.is_set
    assert stop.drain
    assert stop.wait(0)
