"""The Iceberg sink in processes that are killed and stopped at the worst moments."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from catalog.catalogs import Catalogs, TableName
from headrace.kernel.errors import ExitCode
from headrace.kernel.protocols import Entry
from tests.lake import Lake, rows
from tests.recovery.iceberg_child import EPOCHS
from tests.services import CatalogCase

ROOT = Path(__file__).parents[2]
EVERYTHING = [100 * number + n for number in range(1, EPOCHS + 1) for n in range(100)]


class Job:
    """The job of iceberg_child.py on one table."""

    def __init__(self, catalog: CatalogCase, folder: Path) -> None:
        self.lake = Lake(Catalogs({"lake": catalog.properties}), TableName("lake", (catalog.namespace,), "t"))
        self._properties = catalog.properties
        self._folder = folder

    def start(self, crash: str = "", *, stop: bool = False) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.recovery.iceberg_child",
                str(self._folder),
                json.dumps(self._properties),
                str(self.lake.name),
                "stop" if stop else "go",
            ],
            cwd=ROOT,
            env={**os.environ, "HEADRACE_CRASH": crash, "PYTHONPATH": str(ROOT)},
            stderr=subprocess.PIPE,
        )

    def run(self, crash: str = "") -> int:
        process = self.start(crash)
        _, words = process.communicate(timeout=120)
        assert process.returncode in (0, -signal.SIGKILL), words.decode()
        return process.returncode


@pytest.fixture
def job(catalog: CatalogCase, tmp_path: Path) -> Job:
    return Job(catalog, tmp_path)


def test_killed_before_and_after_commits(job: Job) -> None:
    crashes = ["iceberg-before-commit:1", "iceberg-after-commit:1", "iceberg-before-commit:2", "iceberg-after-commit:2"]
    for crash in crashes:
        assert job.run(crash) == -signal.SIGKILL
    assert job.run() == 0
    assert job.lake.ids() == EVERYTHING
    epochs = [s.summary.additional_properties["headrace.epoch"] for s in job.lake.data_snapshots()]
    assert epochs == [str(number) for number in range(1, EPOCHS + 1)]


@pytest.mark.parametrize("successor", ["same lineage", "other lineage"])
def test_snk_03_stopped_in_the_middle_of_a_commit_and_continued_after_a_takeover(job: Job, successor: str) -> None:
    zombie = job.start(stop=True)
    os.waitpid(zombie.pid, os.WUNTRACED)
    assert job.lake.ids() == []
    try:
        if successor == "same lineage":
            assert job.run() == 0
            expected = EVERYTHING
        else:
            owner = job.lake.writer("L2", entry=Entry.RESTORED)
            owner.recover(None)
            job.lake.table().append(rows(7).to_arrow().cast(job.lake.table().schema().as_arrow()))
            expected = [7]
    finally:
        zombie.send_signal(signal.SIGCONT)
        _, words = zombie.communicate(timeout=120)
    assert job.lake.ids() == expected
    assert zombie.returncode == (0 if successor == "same lineage" else 1), words.decode()
    assert ("SupersededError" in words.decode()) == (successor == "other lineage")
    assert int(ExitCode.FENCED) == 5


def test_two_processes_on_one_state_never_double(open_catalog: Callable[[str], CatalogCase], tmp_path: Path) -> None:
    job = Job(open_catalog("local"), tmp_path)
    both = [job.start(), job.start()]
    for process in both:
        process.communicate(timeout=120)
    assert job.lake.ids() == EVERYTHING
