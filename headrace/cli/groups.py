"""The commands of two words: ``boundary show``, ``lease list``, ``dev up``, ``spec check`` and so on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.options import (
    ConfigOption,
    DebugOption,
    DevFolderOption,
    JsonOption,
    StateOption,
    TableArgument,
)
from headrace.cli.settings import Settings

boundary_app = typer.Typer(rich_markup_mode=None, help="Show, set or reset what a table covers of a topic.")
lease_app = typer.Typer(rich_markup_mode=None, help="Show or release the leases of jobs on a table's snapshots.")
dev_app = typer.Typer(rich_markup_mode=None, help="Real services on this machine: Kafka, S3, Iceberg catalog.")
spec_app = typer.Typer(rich_markup_mode=None, help="Check job specs, print their JSON Schema.")


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
