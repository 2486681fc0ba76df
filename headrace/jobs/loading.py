"""Jobs from files: YAML, JSON, or Python with a module-level ``job``."""

from __future__ import annotations

import os
import runpy
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from headrace.jobs.builder import Job
from headrace.jobs.parse import parse_job
from headrace.jobs.spec import JobSpec
from headrace.jobs.spec_yaml import read_yaml
from headrace.kernel.errors import HeadraceError, NotFoundError, SpecError

SUFFIXES: Final = (".yaml", ".yml", ".json", ".py")


def load_job(path: str | Path, *, environ: Mapping[str, str] | None = None) -> JobSpec:
    """The job in a file. A Python file is run, with its folder not on ``sys.path``.

    Raises:
        NotFoundError: No such file.
        SpecError: The job is wrong; the message names file, line and column (for Python: the path in the job).
    """
    file = Path(path)
    if file.suffix not in SUFFIXES and file.exists():
        raise SpecError(f"job file {file} is neither YAML, JSON nor Python", hint=f"name it *{', *'.join(SUFFIXES)}")
    if not file.is_file():
        raise NotFoundError(
            f"job file {file} does not exist",
            hint="give the path of a job file: YAML, JSON, or Python with a `job`",
            code="FILE_NOT_FOUND",
        )
    if file.suffix == ".py":
        return _load_python(file)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"job file {file} cannot be read", detail=str(error)) from error
    return load_job_text(text, str(file), environ=environ)


def load_job_text(text: str, name: str, *, environ: Mapping[str, str] | None = None) -> JobSpec:
    """The job in a YAML or JSON text; ``name`` stands in messages.

    Raises:
        SpecError: As :func:`load_job`.
    """
    document = read_yaml(text, name, os.environ if environ is None else environ)
    return parse_job(document.value, places=document.places)


def _load_python(file: Path) -> JobSpec:
    try:
        module = runpy.run_path(str(file), run_name="headrace_job")
    except HeadraceError:
        raise
    except (Exception, SystemExit) as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
        line = (
            getattr(error, "lineno", None) if isinstance(error, SyntaxError) else frames[-1].lineno if frames else None
        )
        place = f"{file}:{line}" if line else str(file)
        raise SpecError(f"{place}: the job file fails", detail=f"{type(error).__name__}: {error}") from error
    job = module.get("job")
    if isinstance(job, Job):
        try:
            return job.spec()
        except SpecError as error:
            raise SpecError(
                f"{file}: {error.message}", detail=error.detail, hint=error.hint, context=error.context
            ) from error
    if isinstance(job, JobSpec):
        return job
    found = "nothing" if job is None else type(job).__name__
    raise SpecError(
        f"{file}: a Python job file must define a module-level 'job'",
        detail=f"found {found}",
        hint="job = headrace.Job(...).source(...)...",
    )
