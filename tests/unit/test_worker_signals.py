"""A SIGTERM to a worker, at any moment: it asks for the stop, and nothing waits for ever."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from headrace.kernel.doorbell import Doorbell

AT_ANY_LINE = """
import signal, sys
from headrace.jobs.store import JobStore
from headrace.jobs.worker import Heart, Reporter
from headrace.kernel.doorbell import Doorbell
from headrace.runtime.observer import EpochReport, StopSignal

store = JobStore.connect(sys.argv[1])
for line in range(1, 40):
    stop, wake, left = StopSignal(), Doorbell(), [line]
    reporter = Reporter(wake)
    heart = Heart(store, "no-job", "nonce", reporter, stop, wake)
    heart.start()

    def trace(frame, event, arg):
        if event == "line":
            left[0] -= 1
            if left[0] == 0:
                signal.raise_signal(signal.SIGTERM)
        return trace

    sys.settrace(trace)
    reporter.on_epoch(EpochReport(1, 1, {}, 0.1, 0.0, 0.0))
    sys.settrace(None)
    heart.close()
    assert stop.is_set
    if left[0] > 0:
        break
print("done" if left[0] > 0 else "not every line was seen")
"""


def test_a_signal_may_come_at_any_line_of_a_report(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    program = [sys.executable, "-c", AT_ANY_LINE, f"sqlite:///{tmp_path}/jobs.db"]
    done = subprocess.run(program, check=True, capture_output=True, text=True, timeout=120, cwd=root)
    assert done.stdout == "done\n"


def test_a_ring_before_the_wait_counts_and_all_rings_are_one() -> None:
    bell = Doorbell()
    assert not bell.wait(0)
    bell.ring()
    bell.ring()
    assert bell.wait(60)
    assert not bell.wait(0)
