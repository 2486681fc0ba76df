"""A real service process whose workers and planner are doubles: ``python double_service.py PORT STATE [POLL_S]``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from api.app import Settings
from api.server import run
from headrace.jobs.config import Config
from headrace.jobs.supervisor import Policy
from headrace.kernel.errors import HeadraceError, NotFoundError, SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.jobs.spec import JobSpec
    from headrace.kernel.protocols import Json

WORKER = Path(__file__).with_name("double_worker.py")


class DoublePlanner:
    """Knows one history; a job named ``nowhere`` does not plan."""

    def check(self, spec: JobSpec) -> None:
        if spec.name == "nowhere":
            raise SpecError("sources.s.history: table lake.a.b does not exist", code="TABLE_NOT_FOUND")

    def columns(self, spec: JobSpec, source: str) -> Mapping[str, pl.DataType]:
        return {"ts": pl.Datetime("us", "UTC"), "origin": pl.String(), "n": pl.Int64()}

    def plan(self, spec: JobSpec) -> dict[str, Json]:
        history = {
            "files": 2,
            "nbytes": 2**60,
            "records": 10,
            "files_total": 3,
            "nbytes_total": None,
            "records_total": 20,
        }
        return {"sources": [{"name": name, "history": history} for name in spec.sources]}

    def seam(self, spec: JobSpec) -> dict[str, Json]:
        if spec.name == "seamless":
            raise NotFoundError("job 'seamless' has no source with both history and tail", code="SEAM_NOT_FOUND")
        return {"job": spec.name, "epoch": 2**60, "exact": True, "sources": []}


def settings(state: Path) -> Settings:
    return Settings(
        Config().with_state_path(state),
        policy=Policy(poll_s=0.1, stop_timeout_s=5.0, backoff_s=0.05, max_failures=3),
        worker=(sys.executable, str(WORKER)),
        planner=lambda _: DoublePlanner(),
    )


if __name__ == "__main__":
    try:
        run("127.0.0.1", int(sys.argv[1]), settings(Path(sys.argv[2])))
    except HeadraceError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)
