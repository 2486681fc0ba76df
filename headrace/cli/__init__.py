"""The command line: ``headrace``."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line and end the process with its exit code."""
    from headrace.cli.app import run

    sys.exit(run(sys.argv[1:]))
