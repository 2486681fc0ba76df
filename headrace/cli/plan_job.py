"""``headrace plan``: what a job would do."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from headrace.cli.consoles import output_console
from headrace.cli.draw_plan import mermaid, svg
from headrace.cli.render_plan import print_plan
from headrace.cli.settings import Settings
from headrace.jobs.compile import compile_job
from headrace.jobs.loading import load_job
from headrace.jobs.planning import plan_job


def plan_file(path: Path, settings: Settings, form: str) -> None:
    """Print the plan of the job in a file, or a drawing of its graph.

    Args:
        path: The file.
        settings: Which configuration.
        form: ``text``, ``json``, ``mermaid`` or ``svg``.

    Raises:
        HeadraceError: The job or what it names is wrong, or a service does not answer.
    """
    plan = plan_job(compile_job(load_job(path), settings.load()))
    match form:
        case "json":
            typer.echo(json.dumps(plan.to_json(), indent=2, default=str))
        case "mermaid":
            typer.echo(mermaid(plan.graph), nl=False)
        case "svg":
            typer.echo(svg(plan.graph), nl=False)
        case _:
            print_plan(plan, output_console())
