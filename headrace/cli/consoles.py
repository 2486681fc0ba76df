"""Where commands print tables and trees."""

from __future__ import annotations

import os
from typing import Final

from rich.console import Console

FILE_WIDTH: Final = 200
"""Of lines in files and pipes, in characters, unless ``COLUMNS`` says otherwise."""


def output_console() -> Console:
    """A console on standard output: as wide as the terminal, and wide enough for tables where there is none."""
    console = Console()
    return console if console.is_terminal or os.environ.get("COLUMNS") else Console(width=FILE_WIDTH)
