"""The commands and their options. Each one is a thin function over a module that is imported only when it runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli import failure
from headrace.cli.groups import boundary_app, dev_app, lease_app, spec_app
from headrace.cli.options import (
    ConfigOption,
    DebugOption,
    JobArgument,
    JsonLogsOption,
    JsonOption,
    StateOption,
    TableArgument,
    UntilOption,
)
from headrace.cli.origins import check_origins
from headrace.cli.settings import Settings
from headrace.kernel.errors import ExitCode, HeadraceError, UserError

app = typer.Typer(
    name="headrace",
    help="History from the lake, the tail from Kafka, one job over both, exactly once.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(boundary_app, name="boundary")
app.add_typer(lease_app, name="lease")
app.add_typer(dev_app, name="dev")
app.add_typer(spec_app, name="spec")


class PlanFormat(StrEnum):
    """How a plan is printed."""

    TEXT = "text"
    JSON = "json"
    MERMAID = "mermaid"
    SVG = "svg"


class OnEnd(StrEnum):
    """What happens to open windows at that end."""

    DRAIN = "drain"
    SUSPEND = "suspend"


def run(arguments: Sequence[str]) -> ExitCode:
    """Run one command line and give its exit code; whatever goes wrong is reported on standard error."""
    debug, as_json = "--debug" in arguments, "--json-logs" in arguments
    try:
        check_origins()
        code = app(args=list(arguments) or ["--help"], prog_name="headrace", standalone_mode=False)
    except typer.TyperException as error:
        return failure.report(_usage_error(error), debug=debug, as_json=as_json)
    except typer.Abort:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # The reader of standard output is gone (head, less): that is no fault. Keep Python from flushing into it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK
    except HeadraceError as error:
        return failure.report(error, debug=debug, as_json=as_json)
    except Exception as error:  # noqa: BLE001 - the last line of defence: reported as an internal error
        return failure.report(error, debug=debug, as_json=as_json)
    return ExitCode(code) if isinstance(code, int) else ExitCode.OK


def _usage_error(error: typer.TyperException) -> HeadraceError:
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "headrace"
    message = error.format_message().rstrip(".")
    return UserError(message[:1].lower() + message[1:], hint=f"see {command} --help", code="USAGE")


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - typer calls it
    if wanted:
        from importlib.metadata import version

        typer.echo(version("headrace"))
        raise typer.Exit


@app.callback()
def _root(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None: ...


@app.command("run")
def run_command(
    job: JobArgument,
    *,
    until: UntilOption = None,
    on_end: Annotated[
        OnEnd, typer.Option("--on-end", help="At that end: fire open windows, or keep them.")
    ] = OnEnd.DRAIN,
    on_stop: Annotated[
        OnEnd, typer.Option("--on-stop", help="At Ctrl-C or SIGTERM: keep open windows, or fire them and finish.")
    ] = OnEnd.SUSPEND,
    drop_state: Annotated[
        list[str] | None,
        typer.Option("--drop-state", metavar="ID", help="Let this operator begin empty, once; repeatable."),
    ] = None,
    parallelism: Annotated[
        int | None,
        typer.Option("--parallelism", min=1, max=256, help="Instances of each step with state and a key, this time."),
    ] = None,
    config: ConfigOption = None,
    state: StateOption = None,
    debug: DebugOption = False,
    json_logs: JsonLogsOption = False,
) -> None:
    """Run a job until it is stopped (Ctrl-C, SIGTERM) or its end is reached. It goes on from its last checkpoint."""
    from headrace.cli.run_job import run_file

    settings = Settings(config, state, debug=debug, json_logs=json_logs)
    run_file(job, settings, until, on_end.value, on_stop.value, drop_state or (), parallelism)


@app.command()
def plan(
    job: JobArgument,
    *,
    form: Annotated[
        PlanFormat, typer.Option("--format", help="Text, JSON, or a drawing of the graph as Mermaid or SVG.")
    ] = PlanFormat.TEXT,
    json: JsonOption = False,
    config: ConfigOption = None,
    state: StateOption = None,
    debug: DebugOption = False,
) -> None:
    """Show what a job would read, where its boundary lies, and what it promises. Writes nothing."""
    from headrace.cli.plan_job import plan_file

    plan_file(job, Settings(config, state, debug=debug), "json" if json else form.value)


@app.command()
def seam(
    job: JobArgument,
    *,
    json: JsonOption = False,
    config: ConfigOption = None,
    state: StateOption = None,
    debug: DebugOption = False,
) -> None:
    """Print the seam proof that is stored with a job: what came from the lake, what from Kafka, what is missing."""
    from headrace.cli.seam import show_seam

    show_seam(job, Settings(config, state, debug=debug), as_json=json)


@app.command("state")
def state_command(
    job: JobArgument,
    table: Annotated[
        str | None, typer.Argument(metavar="OPERATOR", help="OPERATOR or OPERATOR.TABLE; without it: what there is.")
    ] = None,
    *,
    where: Annotated[
        str | None, typer.Option("--where", metavar="SQL", help="Only rows for which this expression is true.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=0, help="At most so many rows; 0: all.")] = 100,
    epoch: Annotated[int | None, typer.Option("--epoch", help="Of this checkpoint, instead of the last one.")] = None,
    json: JsonOption = False,
    config: ConfigOption = None,
    state: StateOption = None,
    debug: DebugOption = False,
) -> None:
    """Print what the operators of a job hold in its last checkpoint, as tables. Takes nothing over, writes nothing."""
    from headrace.cli.state import show_state

    settings = Settings(config, state, debug=debug)
    show_state(job, table, settings, where=where, limit=limit or None, epoch=epoch, as_json=json)


@app.command()
def archive(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    table: TableArgument,
    *,
    schema: Annotated[str, typer.Option("--schema", help='Columns: "id: int64, at: timestamptz".')] = "",
    schema_from: Annotated[
        str, typer.Option("--schema-from", help="A YAML or JSON file of {column: type}, a Parquet file, or a table.")
    ] = "",
    partition_by: Annotated[
        list[str] | None, typer.Option("--partition-by", help="Partitioning of a new table, e.g. day(at); repeatable.")
    ] = None,
    cluster: Annotated[str, typer.Option("--cluster", help="A [kafka.NAME] section.")] = "default",
    changelog_key: Annotated[
        list[str] | None,
        typer.Option("--changelog-key", help="Column of the key of a compacted topic; keeps deletions; repeatable."),
    ] = None,
    uid: Annotated[
        str | None, typer.Option("--uid", help="The archiver's identity; a new one begins at the topic's start.")
    ] = None,
    until: UntilOption = None,
    config: ConfigOption = None,
    state: StateOption = None,
    debug: DebugOption = False,
    json_logs: JsonLogsOption = False,
) -> None:
    """Copy a JSON topic into an Iceberg table, with offsets as columns and the boundary record in every commit."""
    from headrace.cli.archive import run_archive

    settings = Settings(config, state, debug=debug, json_logs=json_logs)
    run_archive(
        settings,
        topic,
        table,
        schema=schema,
        schema_from=schema_from,
        partition_by=partition_by or [],
        cluster=cluster,
        changelog_key=changelog_key or [],
        uid=uid,
        until=until,
    )


@app.command()
def demo(
    *,
    json: Annotated[Path | None, typer.Option("--json", help="Write what was seen to this file.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the services and the data up.")] = False,
    debug: DebugOption = False,
) -> None:
    """Real flights through real services: archive, hand over, kill, restart, compare with one batch computation."""
    from headrace.cli.demo import run_demo

    del debug
    run_demo(json, keep=keep)


@app.command()
def serve(
    *,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0 takes a free one.")
    ] = 8470,
    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            envvar="HEADRACE_JOB_STORE",
            show_envvar=False,
            help="URL of the job store; else HEADRACE_JOB_STORE, else SQLite in the state folder.",
        ),
    ] = None,
    allow_remote: Annotated[
        bool, typer.Option("--allow-remote", help="Listen beyond this machine. There is no authentication.")
    ] = False,
    config: ConfigOption = None,
    state: StateOption = None,
    debug: DebugOption = False,
) -> None:
    """Serve the REST API and supervise its jobs, which go on when the service ends."""
    from headrace.cli.serve import run_server

    run_server(host, port, store, Settings(config, state, debug=debug), allow_remote=allow_remote)
