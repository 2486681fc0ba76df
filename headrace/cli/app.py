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
from headrace.cli.origins import check_origins
from headrace.cli.settings import Settings
from headrace.kernel.errors import ExitCode, HeadraceError, UserError
from headrace.kernel.until import parse_until

app = typer.Typer(
    name="headrace",
    help="History from the lake, the tail from Kafka, one job over both, exactly once.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
boundary_app = typer.Typer(rich_markup_mode=None, help="Show, set or reset what a table covers of a topic.")
lease_app = typer.Typer(rich_markup_mode=None, help="Show or release the leases of jobs on a table's snapshots.")
dev_app = typer.Typer(rich_markup_mode=None, help="Real services on this machine: Kafka, S3, Iceberg catalog.")
spec_app = typer.Typer(rich_markup_mode=None, help="Check job specs, print their JSON Schema.")
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
    port: Annotated[int, typer.Option("--port", help="Port to listen on; 0 takes a free one.")] = 8470,
    store: Annotated[
        str | None, typer.Option("--store", help="URL of the job store; SQLite in the state folder.")
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


@boundary_app.command("show")
def boundary_show(
    table: TableArgument,
    *,
    topic: Annotated[
        str | None, typer.Option("--topic", help="Try every rule for this topic, as a job would; else the record only.")
    ] = None,
    cluster: Annotated[str, typer.Option("--cluster", help="A [kafka.NAME] section, for control topics.")] = "default",
    snapshot: Annotated[
        int | None, typer.Option("--snapshot", help="Snapshot id; the current one if not given.")
    ] = None,
    json: JsonOption = False,
    config: ConfigOption = None,
    state: StateOption = None,
    debug: DebugOption = False,
) -> None:
    """Show where the history of a table ends: its record, or with --topic what every rule says."""
    from headrace.cli.boundary import explain_boundary, show_boundary

    settings = Settings(config, state, debug=debug)
    if topic is None:
        show_boundary(table, snapshot, settings, as_json=json)
    else:
        explain_boundary(table, topic, snapshot, cluster, settings, as_json=json)


@boundary_app.command("set")
def boundary_set(
    table: TableArgument,
    *,
    topic: Annotated[str, typer.Option("--topic", help="The topic that the table holds.")],
    offset: Annotated[list[str], typer.Option("--offset", help="PARTITION:NEXT_OFFSET; repeatable.")],
    cluster: Annotated[str, typer.Option("--cluster", help="A [kafka.NAME] section.")] = "default",
    config: ConfigOption = None,
    state: StateOption = None,
    debug: DebugOption = False,
) -> None:
    """Record which offsets a table covers, as next offsets: the first one that the table does not hold."""
    from headrace.cli.boundary import set_boundary

    set_boundary(table, topic, offset, cluster, Settings(config, state, debug=debug))


@boundary_app.command("reset")
def boundary_reset(
    table: TableArgument,
    *,
    topic: Annotated[
        str | None, typer.Option("--topic", help="The topic; the only one of the record if not given.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it.")] = False,
    cluster: Annotated[str, typer.Option("--cluster", help="A [kafka.NAME] section.")] = "default",
    config: ConfigOption = None,
    state: StateOption = None,
    debug: DebugOption = False,
) -> None:
    """Record that a table covers nothing of a topic as it is now: it was created again, or is on another cluster."""
    from headrace.cli.boundary import reset_boundary

    reset_boundary(table, topic, cluster, Settings(config, state, debug=debug), confirmed=yes)


@lease_app.command("list")
def lease_list(
    table: TableArgument,
    *,
    json: JsonOption = False,
    config: ConfigOption = None,
    state: StateOption = None,
    debug: DebugOption = False,
) -> None:
    """Show which jobs hold which snapshots of a table."""
    from headrace.cli.lease import list_leases

    list_leases(table, Settings(config, state, debug=debug), as_json=json)


@lease_app.command("release")
def lease_release(
    table: TableArgument,
    lease: Annotated[str | None, typer.Argument(metavar="LEASE", help="A lease's name.")] = None,
    *,
    all_stale: Annotated[bool, typer.Option("--all-stale", help="All that their jobs no longer renew.")] = False,
    config: ConfigOption = None,
    state: StateOption = None,
    debug: DebugOption = False,
) -> None:
    """Remove a lease, or all leases of dead jobs, so that expiry may remove their snapshots."""
    from headrace.cli.lease import release_leases

    release_leases(table, lease, Settings(config, state, debug=debug), all_stale=all_stale)


@dev_app.command("up")
def dev_up(
    services: Annotated[
        list[str] | None, typer.Argument(metavar="[SERVICE]...", help="Which ones; all if none.")
    ] = None,
    *,
    state_dir: DevFolderOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Start the services, wait until they answer, and write a headrace.toml for them."""
    from headrace.cli.dev import up

    del debug
    up(state_dir, services, as_json=json)


@dev_app.command("down")
def dev_down(
    *,
    state_dir: DevFolderOption = None,
    delete: Annotated[bool, typer.Option("--delete", help="Remove the data, too.")] = False,
    debug: DebugOption = False,
) -> None:
    """Stop the services."""
    from headrace.cli.dev import down

    del debug
    down(state_dir, delete=delete)


@dev_app.command("status")
def dev_status(*, state_dir: DevFolderOption = None, json: JsonOption = False, debug: DebugOption = False) -> None:
    """Show how each service is and where it answers."""
    from headrace.cli.dev import status

    del debug
    status(state_dir, as_json=json)


@dev_app.command("logs")
def dev_logs(
    services: Annotated[
        list[str] | None, typer.Argument(metavar="[SERVICE]...", help="Which ones; all if none.")
    ] = None,
    *,
    state_dir: DevFolderOption = None,
    lines: Annotated[int, typer.Option("--lines", help="How many of each.")] = 50,
    debug: DebugOption = False,
) -> None:
    """Show the last lines of each service's log."""
    from headrace.cli.dev import logs

    del debug
    logs(state_dir, services, lines)


@spec_app.command("schema")
def spec_schema(*, debug: DebugOption = False) -> None:
    """Print the JSON Schema of job specs."""
    from headrace.cli.spec import print_schema

    del debug
    print_schema()


@spec_app.command("check")
def spec_check(
    jobs: Annotated[list[Path], typer.Argument(metavar="JOB...")],
    *,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Check job files without reaching any service."""
    from headrace.cli.spec import check

    del debug
    check(jobs, as_json=json)
