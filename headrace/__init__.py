"""Headrace: lakehouse-plus-stream hybrid processing.

The public names are imported on first use, so that ``import headrace`` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from headrace.jobs.builder import Job as Job
    from headrace.jobs.config import Config as Config
    from headrace.jobs.config import load_config as load_config
    from headrace.jobs.loading import load_job as load_job
    from headrace.jobs.spec import JobSpec as JobSpec
    from headrace.kernel.boundary import Boundary as Boundary
    from headrace.kernel.errors import HeadraceError as HeadraceError

_HOMES: Final = {
    "Boundary": "headrace.kernel.boundary",
    "Config": "headrace.jobs.config",
    "HeadraceError": "headrace.kernel.errors",
    "Job": "headrace.jobs.builder",
    "JobSpec": "headrace.jobs.spec",
    "load_config": "headrace.jobs.config",
    "load_job": "headrace.jobs.loading",
}

__all__ = ["Boundary", "Config", "HeadraceError", "Job", "JobSpec", "load_config", "load_job"]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
