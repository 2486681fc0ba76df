"""The Java runtime that the broker needs."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Final

from headrace.kernel.errors import DependencyError
from infra.dev.tools import run_tool

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
    answer = run_tool([program, "-version"], 60.0)
    found = re.search(r'version "(?:1\.)?(\d+)', answer.said)
    if not answer.ok or found is None:
        raise DependencyError(f"{program} does not run", code="JAVA_MISSING", detail=answer.last_words(500), hint=_HINT)
    version = int(found[1])
    if version < OLDEST:
        raise DependencyError(
            f"Java {version} is too old for the broker", code="JAVA_TOO_OLD", detail=f"{program} is used", hint=_HINT
        )
    return program
