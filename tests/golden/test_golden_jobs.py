"""Jobs over the whole vocabulary give the same however they are run: ``jobs.yaml`` has them.

Each is run once as it is simplest: all of its input is history, in one piece, with one instance of each operator. Then
in random worlds: with history, topic and the seam between them anywhere, in batches of any size, with epochs that end
anywhere, killed and restored, checkpointed with two instances of each operator and restored with three. Streams that
only grow must give the same rows, changelogs must come to the same table.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from headrace.jobs.compile import CompiledJob, compile_job
from headrace.jobs.config import load_config
from headrace.jobs.parse import parse_job
from headrace.jobs.spec_steps import STEP_KINDS
from headrace.jobs.spec_yaml import read_yaml
from tests.compiled_worlds import STREAM, both_ways

JOBS: Mapping[str, Mapping[str, Any]] = read_yaml(
    Path(__file__).with_name("jobs.yaml").read_text(), "jobs.yaml", {}
).value
EXAMPLES = max(1, int(os.environ.get("HEADRACE_EXAMPLES", "300")) // 100)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], CompiledJob]:
    """Compiles a job of the file, once."""
    folder = tmp_path_factory.mktemp("golden")
    pl.DataFrame({"k": ["a", "b"], "name": ["Anna", "Ben"]}).write_parquet(folder / "names.parquet")
    config = load_config(state_path=folder / "state", cwd=folder, environ={"HEADRACE_KAFKA_BOOTSTRAP": "nowhere:1"})

    @cache
    def compile_named(name: str) -> CompiledJob:
        section = {"streams": ["a"], **JOBS[name]}
        job = {
            "name": name,
            "sources": dict.fromkeys(section.pop("streams"), STREAM),
            "sinks": [{"id": "out", "iceberg": {"table": "local.golden.out", "create": True, "changes": "append"}}],
            **section,
        }
        if "names" in str(section):
            job["tables"] = {"names": {"parquet": str(folder / "names.parquet")}}
        return compile_job(parse_job(job), config)

    return compile_named


@pytest.mark.parametrize("name", JOBS)
@settings(max_examples=EXAMPLES, deadline=None, phases=[Phase.generate])  # a seed cannot be made smaller
@given(seed=st.integers(0, 2**63))
def test_the_output_is_the_same_however_a_job_is_run(
    compiled: Callable[[str], CompiledJob], name: str, seed: int
) -> None:
    plain, wild = both_ways(compiled(name), random.Random(seed))
    assert wild == plain


def test_every_step_is_in_a_job() -> None:
    steps = [step for job in JOBS.values() for step in job.get("steps", ())]
    # The streams have no structs; test_operators_nested.py has unnest.
    assert {kind for step in steps for kind in step} & {*STEP_KINDS} == {*STEP_KINDS} - {"unnest"}
    windows = {kind for step in steps for kind in step.get("window", ())}
    assert {"tumbling", "hopping", "cumulating", "session", "early"} <= windows
