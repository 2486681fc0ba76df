"""The broker's jars: fetched once by Maven into the cache folder, shared by all stacks."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from importlib import resources
from pathlib import Path
from typing import Final

from headrace.kernel.errors import DependencyError, UnavailableError
from infra.dev.lock import exclusive
from infra.dev.tools import run_tool

_GOAL: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
_FETCH_SECONDS: Final = 900.0


def cache_folder() -> Path:
    """Where downloads are kept: ``HEADRACE_CACHE``, else ``headrace`` in the user's cache folder."""
    if named := os.environ.get("HEADRACE_CACHE"):
        return Path(named).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "headrace"


def kafka_jars() -> Path:
    """The folder of the broker's jars, fetched if it is not there yet.

    Raises:
        DependencyError: Maven is not installed.
        UnavailableError: Maven could not fetch them.
    """
    pom = resources.files(__package__).joinpath("pom.xml").read_bytes()
    home = cache_folder() / "kafka" / hashlib.sha256(pom).hexdigest()[:16]
    jars = home / "libs"
    if jars.is_dir():
        return jars
    with exclusive(home / "lock"):
        if not jars.is_dir():
            _fetch(pom, home, jars)
    return jars


def _fetch(pom: bytes, home: Path, jars: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise DependencyError(
            "Maven is not installed",
            code="MAVEN_MISSING",
            detail="it fetches the Kafka broker's jars, once",
            hint="install it (Debian, Ubuntu: apt-get install maven), or name a broker of your own in "
            "HEADRACE_KAFKA_BOOTSTRAP",
        )
    (home / "pom.xml").write_bytes(pom)
    fresh = Path(tempfile.mkdtemp(prefix="libs.", dir=home))
    try:
        argv = [maven, "-q", "-B", "-C", "-f", str(home / "pom.xml"), _GOAL, f"-DoutputDirectory={fresh}"]
        fetched = run_tool(argv, _FETCH_SECONDS)
        if not fetched.ok:
            raise UnavailableError(
                "Maven could not fetch the Kafka broker's jars",
                code="DOWNLOAD_FAILED",
                detail=fetched.last_words(),
                hint="check the network and Maven's settings, then try again, or name a broker of your own in "
                "HEADRACE_KAFKA_BOOTSTRAP",
            )
        # Renamed only when whole, so that a fetch that was killed is never taken for a finished one.
        fresh.rename(jars)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
