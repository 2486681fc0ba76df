"""``headrace lease``: the leases on a table, and the end of those that nobody needs any more."""

from __future__ import annotations

import json
import time

import typer

from catalog.catalogs import Catalogs, TableName
from catalog.leases import Lease, find_leases, release
from headrace.cli.settings import Settings
from headrace.cli.words import time_text
from headrace.kernel.boundary import timestamp
from headrace.kernel.errors import NotFoundError, UserError


def list_leases(name: str, settings: Settings, *, as_json: bool) -> None:
    """Print the leases on a table.

    Raises:
        NotFoundError: There is no such table.
    """
    found, now = find_leases(Catalogs(settings.load().catalogs).load(name)), _now_us()
    if as_json:
        typer.echo(json.dumps({"table": name, "leases": [_facts(lease, now) for lease in found]}))
        return
    for lease in found:
        whose = f"job {lease.job}, {lease.holder}" if lease.job else "job unknown"
        end = "stale since" if lease.is_stale(now) else "until"
        typer.echo(f"{lease.name}: snapshot {lease.snapshot_id}, {whose}, {end} {time_text(lease.until_us)}")
    if not found:
        typer.echo(f"table {name} has no leases")


def release_leases(name: str, lease: str | None, settings: Settings, *, all_stale: bool) -> None:
    """Remove a lease by name, or all whose jobs have not renewed them in time.

    Raises:
        NotFoundError: There is no such table or lease.
        UserError: Neither or both of ``lease`` and ``all_stale``.
    """
    if (lease is None) is not all_stale:
        raise UserError("say which lease", hint="give a name from `headrace lease list`, or --all-stale", code="USAGE")
    catalogs, now = Catalogs(settings.load().catalogs), _now_us()
    known = {found.name: found for found in find_leases(catalogs.load(name))}
    if lease is not None and lease not in known:
        raise NotFoundError(
            f"table {name} has no lease {lease!r}", hint=f"it has: {', '.join(known) or 'none'}", code="LEASE_NOT_FOUND"
        )
    wanted = [lease] if lease is not None else [found.name for found in known.values() if found.is_stale(now)]
    release(catalogs, TableName.parse(name), wanted)
    for gone in wanted:
        typer.echo(f"released {gone}")
    if not wanted:
        typer.echo(f"table {name} has no stale leases")


def _facts(lease: Lease, now_us: int) -> dict[str, object]:
    return {
        "name": lease.name,
        "snapshot": lease.snapshot_id,
        "job": lease.job,
        "holder": lease.holder,
        "until": None if lease.until_us is None else timestamp(lease.until_us),
        "stale": lease.is_stale(now_us),
    }


def _now_us() -> int:
    return time.time_ns() // 1000
