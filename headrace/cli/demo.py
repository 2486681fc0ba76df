"""``headrace demo``: the demonstration on real services."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import typer

from headrace.kernel.errors import InternalError
from infra import dev
from infra.demo.scenario import Demo


def run_demo(report: Path | None, *, keep: bool) -> None:
    """Run the demonstration in a folder of its own, which is removed at the end unless it is to be kept.

    Args:
        report: Where to write what was seen, as JSON.
        keep: Leave the services up and the data in place.

    Raises:
        InternalError: An output is not what the batch computation gives.
        HeadraceError: A step failed.
    """
    folder = Path(tempfile.mkdtemp(prefix="headrace-demo-"))
    try:
        result = Demo(folder, typer.echo).run()
    finally:
        if keep:
            typer.echo(f"kept: {folder}; stop its services with: headrace dev down --state-dir {folder / 'stack'}")
        else:
            dev.down(folder / "stack", delete=True)
            shutil.rmtree(folder, ignore_errors=True)
    if report is not None:
        report.write_text(json.dumps(result.to_json(), indent=2, default=str) + "\n", encoding="utf-8")
    if not result.equal:
        raise InternalError(
            "the outputs differ from the batch computation", detail=json.dumps(result.to_json()["table"])
        )
