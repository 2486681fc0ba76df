"""A worker whose job does what its spec's description says, through the real store and heartbeat.

``steps``: commits an epoch each 0.1 s. Words in the description: ``forever``, ``end``, ``die`` (SIGKILL itself after
the first epoch), ``die-first`` (only in attempt 1), ``fail`` (a user error), ``retry`` (an error a retry may help),
``fence``, ``deaf`` (ignores the stop). No job ends while there is a file ``hold`` in the state folder.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Any, cast

from headrace.jobs import worker
from headrace.kernel.errors import FencedError, NotFoundError, UnavailableError
from headrace.runtime.job import RunResult
from headrace.runtime.observer import EpochReport, Observer, Phase, Progress, StopSignal

if TYPE_CHECKING:
    from headrace.jobs.config import Config
    from headrace.jobs.records import Job


def run(job: Job, config: Config, observer: Observer, stop: StopSignal) -> RunResult:
    words = cast("Any", job.spec).get("description", "").split()
    epoch, hold = 0, config.state_path / "hold"
    while "forever" in words or epoch < 3 or hold.exists():
        if stop.wait(0.1) and "deaf" not in words:
            return RunResult("finished" if stop.drain else "suspended", epoch, 2**62, {}, 0, 0, 0)
        if "fail" in words:
            raise NotFoundError("table lake.a.b does not exist", code="TABLE_NOT_FOUND")
        if "retry" in words:
            raise UnavailableError("broker does not answer")
        if "fence" in words:
            raise FencedError("job is owned by another instance")
        if "die" in words or ("die-first" in words and job.attempt == 1):
            os.kill(os.getpid(), signal.SIGKILL)
        epoch += 1
        observer.on_progress(Progress(Phase.HISTORY, epoch=epoch, records=2**62))
        observer.on_epoch(EpochReport(epoch, 1, {}, 0.1, 0.0, 0.0))
    return RunResult("finished", epoch, 2**62, {}, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(worker.main(run=run))
