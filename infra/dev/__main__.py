"""``python -m infra.dev up|down|status|logs``: the dev stack without the command line tool."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from headrace.kernel.errors import HeadraceError
from infra.dev import SERVICE_NAMES, default_folder, down, locate, logs, status, up


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    asked = _parser().parse_args(argv)
    try:
        for line in _run(asked):
            sys.stdout.write(line + "\n")
    except HeadraceError as error:
        sys.stderr.write(json.dumps(error.to_dict()) + "\n" if asked.json else f"error: {error}\n")
        return int(error.exit_code)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m infra.dev", description=__doc__)
    parser.add_argument("command", choices=["up", "down", "status", "logs"])
    parser.add_argument("services", nargs="*", metavar="SERVICE", help=f"of {', '.join(SERVICE_NAMES)}")
    parser.add_argument("--state-dir", type=Path, default=default_folder(), help="the stack's folder")
    parser.add_argument("--delete", action="store_true", help="down: remove the stack's data, too")
    parser.add_argument("--lines", type=int, default=50, help="logs: how many of each service")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _run(asked: argparse.Namespace) -> list[str]:
    folder: Path = asked.state_dir
    match asked.command:
        case "down":
            down(folder, delete=asked.delete)
            return []
        case "logs":
            found = {name: lines for name, lines in logs(folder, lines=asked.lines).items() if _named(asked, name)}
            if asked.json:
                return [json.dumps(found)]
            return [f"{name} | {line}" for name, lines in found.items() for line in lines]
        case "up":
            up(folder, asked.services or None)
    states = [each for each in status(folder) if _named(asked, each.name)]
    where = locate(folder).environment()
    if asked.json:
        services = {each.name: {"state": each.state.value, "pid": each.pid, "detail": each.detail} for each in states}
        return [json.dumps({"services": services, "endpoints": where})]
    lines = [f"{each.name:10} {each.state.value:10} {each.pid or '':<8}{each.detail}".rstrip() for each in states]
    return lines + [f"{name}={value}" for name, value in where.items()]


def _named(asked: argparse.Namespace, name: str) -> bool:
    return not asked.services or name in asked.services


if __name__ == "__main__":
    sys.exit(main())
