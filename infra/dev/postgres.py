"""PostgreSQL as a service of the stack, where the machine has it."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from headrace.kernel.errors import ConfigError, DependencyError, UnavailableError
from infra.dev.endpoints import Endpoints
from infra.dev.files import write_private
from infra.dev.ports import HOST
from infra.dev.service import Command, NotReadyError, Place
from infra.dev.tools import run_tool

if TYPE_CHECKING:
    from collections.abc import Mapping

_ROLE: Final = "headrace"
_DATABASE: Final = "postgres"
_USERS: Final = ("postgres", "nobody")
_INITDB_SECONDS: Final = 120.0
_HINT: Final = "install it (Debian, Ubuntu: apt-get install postgresql), or name a server in HEADRACE_POSTGRES_URI"


class Postgres:
    """PostgreSQL on loopback, with one role and its own password; optional."""

    name: ClassVar[str] = "postgres"
    ports: ClassVar[tuple[str, ...]] = ("postgres",)
    port_variables: ClassVar[Mapping[str, str]] = {"postgres": "HEADRACE_DEV_POSTGRES_PORT"}
    secrets: ClassVar[tuple[str, ...]] = ("password",)
    optional: ClassVar[bool] = True
    start_seconds: ClassVar[float] = 60.0
    ports_taken: ClassVar[tuple[str, ...]] = ("Address already in use",)

    def given(self, external: Endpoints) -> bool:
        """See :meth:`Service.given`."""
        return external.postgres_uri is not None

    def require(self, home: Path) -> None:
        """See :meth:`Service.require`."""
        _program("postgres")
        _program("initdb")
        user = _other_user()
        if user is None:
            return
        for folder in home.absolute().parents:
            if folder.exists() and not _may_enter(folder, user):
                raise ConfigError(
                    f"PostgreSQL cannot keep its data in {home}",
                    detail=f"it refuses to run as root, and user {user.pw_name} may not enter {folder}",
                    hint=f"choose another state folder, or allow it: chmod o+x {folder}",
                )

    def prepare(self, place: Place) -> Command:
        """See :meth:`Service.prepare`."""
        data, user = place.home / "data", _other_user()
        if user is not None:
            place.home.chmod(0o711)
        if not (data / "PG_VERSION").exists():
            _initdb(place, data, user)
        argv = (
            *_as_user(user),
            _program("postgres"),
            "-D",
            str(data),
            "-c",
            f"listen_addresses={HOST}",
            "-c",
            f"port={place.ports['postgres']}",
            "-c",
            "unix_socket_directories=",
        )
        # Fast shutdown: the polite one waits for every client to leave.
        return Command(argv, os.environ, stop_signal=signal.SIGINT)

    def probe(self, place: Place) -> None:
        """See :meth:`Service.probe`."""
        argv = [_program("pg_isready"), "-h", HOST, "-p", str(place.ports["postgres"]), "-t", "2"]
        asked = run_tool(argv, 5.0)
        if not asked.ok:
            raise NotReadyError(asked.last_words())

    def endpoints(self, place: Place) -> Endpoints:
        """See :meth:`Service.endpoints`."""
        login = f"{_ROLE}:{place.secrets['password']}"
        return Endpoints(postgres_uri=f"postgresql+psycopg2://{login}@{HOST}:{place.ports['postgres']}/{_DATABASE}")


def _program(name: str) -> str:
    def version(folder: Path) -> tuple[int, ...]:
        return tuple(int(part) for part in folder.parent.name.split(".") if part.isdigit())

    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=version, reverse=True)
    path = os.pathsep.join([os.environ.get("PATH", ""), *(str(folder) for folder in installed)])
    program = shutil.which(name, path=path)
    if program is None:
        raise DependencyError(
            "PostgreSQL is not installed", code="POSTGRES_MISSING", detail=f"{name} was not found", hint=_HINT
        )
    return program


def _other_user() -> pwd.struct_passwd | None:
    """Whom to run as: None for ourselves, somebody unprivileged when we are root."""
    if os.geteuid() != 0:
        return None
    for name in _USERS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise DependencyError("PostgreSQL refuses to run as root", hint=f"add one of the users {', '.join(_USERS)}")


def _may_enter(folder: Path, user: pwd.struct_passwd) -> bool:
    facts = folder.stat()
    if facts.st_uid == user.pw_uid:
        return bool(facts.st_mode & 0o100)
    if facts.st_gid == user.pw_gid:
        return bool(facts.st_mode & 0o010)
    return bool(facts.st_mode & 0o001)


def _as_user(user: pwd.struct_passwd | None) -> tuple[str, ...]:
    if user is None:
        return ()
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise DependencyError("setpriv is not installed", hint="install util-linux, or do not run as root")
    return (setpriv, f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "--")


def _initdb(place: Place, data: Path, user: pwd.struct_passwd | None) -> None:
    data.mkdir(mode=0o700, exist_ok=True)
    password = place.home / "password"
    write_private(password, place.secrets["password"])
    if user is not None:
        for path in (data, password):
            os.chown(path, user.pw_uid, user.pw_gid)
    argv = [*_as_user(user), _program("initdb"), "-D", str(data), "-U", _ROLE, "--auth=scram-sha-256"]
    argv += [f"--pwfile={password}", "--encoding=UTF8", "--locale=C", "--no-sync"]
    try:
        made = run_tool(argv, _INITDB_SECONDS)
    finally:
        password.unlink()
    if not made.ok:
        raise UnavailableError(
            "PostgreSQL's data folder could not be made",
            code="SERVICE_START_FAILED",
            detail=made.last_words(),
            hint="stop the stack, delete its folder and start it again",
        )
