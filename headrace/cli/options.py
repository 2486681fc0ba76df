"""Arguments and options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.kernel.until import parse_until

JobArgument = Annotated[Path, typer.Argument(metavar="JOB", help="Job file: YAML, JSON, or Python with a `job`.")]
TableArgument = Annotated[str, typer.Argument(metavar="TABLE", help="CATALOG.NAMESPACE.TABLE")]
ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="Configuration file; else HEADRACE_CONFIG, else headrace.toml upwards.")
]
StateOption = Annotated[Path | None, typer.Option("--state", help="State folder, over the configuration's.")]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]
JsonLogsOption = Annotated[bool, typer.Option("--json-logs", help="Logs and errors as JSON lines.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
UntilOption = Annotated[
    str | None,
    typer.Option(
        "--until",
        metavar="caught-up|TIME",
        callback=lambda text: text if parse_until(text) else None,
        help="End when all that is there now has been read, or at the first records at or after a time (ISO 8601).",
    ),
]
DevFolderOption = Annotated[Path | None, typer.Option("--state-dir", help="The stack's folder.")]
