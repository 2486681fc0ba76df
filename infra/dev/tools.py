"""Programs that are run to their end."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Finished:
    """How a program ended, and what it wrote to standard output and error."""

    ok: bool
    said: str

    def last_words(self, characters: int = 1500) -> str:
        """The end of what it wrote, for an error's detail."""
        return self.said.strip()[-characters:]


def run_tool(argv: Sequence[str], seconds: float) -> Finished:
    """Run a program without input; one that does not start or does not end in time has failed."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            timeout=seconds,
            check=False,
            # Some are run as another user, who may not enter the caller's working directory.
            cwd="/",
        )
    except subprocess.TimeoutExpired as error:
        said = (error.stdout or b"").decode("utf-8", "replace")
        return Finished(ok=False, said=f"{said}\nno end after {seconds:.0f} s")
    except OSError as error:
        return Finished(ok=False, said=str(error))
    return Finished(done.returncode == 0, done.stdout)
