"""``headrace dev``: the dev stack."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import typer

from headrace.kernel.errors import UserError
from infra import dev

CONFIG_NAME: Final = "headrace.toml"


def up(folder: Path | None, services: Sequence[str] | None, *, as_json: bool) -> None:
    """Start services and write a configuration file that connects to them (readable by its owner only)."""
    place = folder or dev.default_folder()
    there = dev.up(place, services or None)
    file = (place / CONFIG_NAME).absolute()
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(dev.render_settings(there, place))
    _show(place, as_json=as_json)
    if not as_json:
        typer.echo(f"\nuse it with: export HEADRACE_CONFIG={file}")


def down(folder: Path | None, *, delete: bool) -> None:
    """Stop the services of a stack."""
    dev.down(folder or dev.default_folder(), delete=delete)


def status(folder: Path | None, *, as_json: bool) -> None:
    """Show the services of a stack."""
    _show(folder or dev.default_folder(), as_json=as_json)


def logs(folder: Path | None, services: Sequence[str] | None, lines: int) -> None:
    """Show the ends of the services' logs."""
    unknown = sorted(set(services or ()) - set(dev.SERVICE_NAMES))
    if unknown:
        raise UserError(f"the dev stack has no service {unknown[0]!r}", hint=f"it has {', '.join(dev.SERVICE_NAMES)}")
    for name, found in dev.logs(folder or dev.default_folder(), lines=lines).items():
        if not services or name in services:
            for line in found:
                typer.echo(f"{name} | {line}")


def _show(place: Path, *, as_json: bool) -> None:
    states, where = dev.status(place), dev.locate(place)
    if as_json:
        services = {each.name: {"state": each.state.value, "pid": each.pid, "detail": each.detail} for each in states}
        typer.echo(json.dumps({"services": services, "endpoints": where.environment()}))
        return
    for each in states:
        typer.echo(f"{each.name:10} {each.state.value:10} {each.pid or '':<8}{each.detail}".rstrip())
    for name, value in where.environment().items():
        typer.echo(f"{name}={value}")
