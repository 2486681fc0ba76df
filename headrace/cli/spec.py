"""``headrace spec``: the JSON Schema, and checks that reach no service."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import typer

from headrace.jobs.loading import load_job
from headrace.jobs.spec import json_schema


def print_schema() -> None:
    """Print the JSON Schema of job specs."""
    typer.echo(json.dumps(json_schema(), indent=2))


def check(jobs: Sequence[Path], *, as_json: bool) -> None:
    """Load each job; the first wrong one ends the command.

    Raises:
        SpecError: A job is wrong.
        NotFoundError: A file is missing.
    """
    specs = [(path, load_job(path)) for path in jobs]
    if as_json:
        typer.echo(json.dumps([spec.to_json() for _, spec in specs]))
        return
    for path, spec in specs:
        typer.echo(f"{path}: job {spec.name} is well-formed")
