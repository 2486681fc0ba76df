"""The Java runtime that the broker needs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from headrace.kernel.errors import DependencyError

OLDEST: Final = 17
_HINT: Final = (
    f"install Java {OLDEST} or newer (Debian, Ubuntu: apt-get install openjdk-17-jre-headless) and have it on PATH "
    "or in JAVA_HOME, or name a broker of your own in HEADRACE_KAFKA_BOOTSTRAP"
)


def find_java() -> str:
    """The path of a Java that can run the broker.

    Raises:
        DependencyError: There is none, it does not run, or it is too old.
    """
    home = os.environ.get("JAVA_HOME", "")
    program = shutil.which("java", path=str(Path(home) / "bin")) if home else None
    program = program or shutil.which("java")
    if program is None:
        raise DependencyError("Java is not installed", code="JAVA_MISSING", hint=_HINT)
    try:
        answer = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DependencyError(f"{program} does not run", code="JAVA_MISSING", detail=str(error), hint=_HINT) from error
    said = (answer.stderr + answer.stdout).strip()
    version = _major(said)
    if answer.returncode != 0 or version is None:
        raise DependencyError(f"{program} does not run", code="JAVA_MISSING", detail=said[-500:], hint=_HINT)
    if version < OLDEST:
        raise DependencyError(
            f"Java {version} is too old for the broker", code="JAVA_TOO_OLD", detail=f"{program} is used", hint=_HINT
        )
    return program


def _major(said: str) -> int | None:
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(found[1]) if found else None
