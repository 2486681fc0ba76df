"""``headrace plan``: what a job would do."""

from __future__ import annotations

import json
from pathlib import Path

import typer
from rich.console import Console

from headrace.cli.render_plan import print_plan
from headrace.cli.settings import Settings
from headrace.jobs.compile import compile_job
from headrace.jobs.loading import load_job
from headrace.jobs.planning import plan_job


def plan_file(path: Path, settings: Settings, *, as_json: bool) -> None:
    """Print the plan of the job in a file.

    Raises:
        HeadraceError: The job or what it names is wrong, or a service does not answer.
    """
    plan = plan_job(compile_job(load_job(path), settings.load()))
    if as_json:
        typer.echo(json.dumps(plan.to_json(), indent=2, default=str))
    else:
        print_plan(plan, Console())
