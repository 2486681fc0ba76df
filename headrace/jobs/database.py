"""The job store's database: engine, tables, migrations. SQLite and PostgreSQL, portable SQL only.

Times are microseconds since the Unix epoch, UTC.
"""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from headrace.kernel.errors import ConfigError, DependencyError, ExternalError, HeadraceError, UnavailableError

BUSY_TIMEOUT_MS: Final = 30_000
_MIGRATION_LOCK: Final = 0x68656164
_READ_ONLY: Final = "headrace_read_only"

metadata = sa.MetaData()
_json = sa.JSON(none_as_null=True)

versions = sa.Table("headrace_schema", metadata, sa.Column("version", sa.Integer, primary_key=True))

jobs = sa.Table(
    "headrace_jobs",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("name", sa.String(255), nullable=False),
    sa.Column("uid", sa.String(255), nullable=False),
    sa.Column("active_uid", sa.String(255), unique=True),
    sa.Column("spec", _json, nullable=False),
    sa.Column("until", sa.String(32)),
    sa.Column("on_end", sa.String(16), nullable=False),
    sa.Column("state", sa.String(16), nullable=False, index=True),
    sa.Column("desired", sa.String(16), nullable=False),
    sa.Column("stop_mode", sa.String(16)),
    sa.Column("stop_requested_us", sa.BigInteger),
    sa.Column("killed", sa.Boolean, nullable=False),
    sa.Column("delete_requested", sa.Boolean, nullable=False),
    sa.Column("deleted_us", sa.BigInteger),
    sa.Column("created_us", sa.BigInteger, nullable=False),
    sa.Column("updated_us", sa.BigInteger, nullable=False),
    sa.Column("state_since_us", sa.BigInteger, nullable=False),
    sa.Column("plan", _json),
    sa.Column("progress", _json),
    sa.Column("error", _json),
    sa.Column("backfill", _json),
    sa.Column("target", sa.String(1024), index=True),
    sa.Column("range_from_us", sa.BigInteger),
    sa.Column("range_to_us", sa.BigInteger),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("failures", sa.Integer, nullable=False),
    sa.Column("start_after_us", sa.BigInteger),
    sa.Column("nonce", sa.String(64)),
    sa.Column("heartbeat_us", sa.BigInteger),
    sa.Column("worker_machine", sa.String(128)),
    sa.Column("worker_pid", sa.Integer),
    sa.Column("worker_started", sa.String(64)),
)

transitions = sa.Table(
    "headrace_transitions",
    metadata,
    sa.Column("job_id", sa.String(64), sa.ForeignKey("headrace_jobs.id"), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("at_us", sa.BigInteger, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("reason", sa.String(1024), nullable=False),
)

idempotency = sa.Table(
    "headrace_idempotency",
    metadata,
    sa.Column("key", sa.String(255), primary_key=True),
    sa.Column("digest", sa.String(64), nullable=False),
    sa.Column("job_id", sa.String(64), sa.ForeignKey("headrace_jobs.id"), nullable=False),
    sa.Column("created_us", sa.BigInteger, nullable=False),
)

leases = sa.Table(
    "headrace_leases",
    metadata,
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("owner", sa.String(64)),
    sa.Column("machine", sa.String(128)),
    sa.Column("pid", sa.Integer),
    sa.Column("started", sa.String(64)),
    sa.Column("expires_us", sa.BigInteger, nullable=False),
    sa.Column("turn", sa.BigInteger, nullable=False),
)

CREATION: Final = "creation"
SUPERVISION: Final = "supervision"


def _first(connection: sa.Connection) -> None:
    metadata.create_all(connection)
    for name in (CREATION, SUPERVISION):
        connection.execute(leases.insert().values(name=name, expires_us=0, turn=0))


_MIGRATIONS: Final[Sequence[Callable[[sa.Connection], None]]] = (_first,)
"""Step ``n`` (from 1) takes a database from version ``n - 1`` to ``n``."""


class Database:
    """A connection pool to the job store.

    Args:
        url: ``sqlite:///PATH`` or ``postgresql://USER:PASSWORD@HOST/NAME``.

    Raises:
        ConfigError: The URL is none of these.
        DependencyError: The driver is not installed.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._engine = _engine(url)

    def migrate(self) -> None:
        """Bring the tables to this release's version; safe when several processes do it at once.

        Raises:
            ConfigError: The store was written by a newer release.
            UnavailableError: No answer.
        """
        with self.write() as connection:
            if self._engine.dialect.name == "postgresql":
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
            known = sa.inspect(connection).has_table(versions.name)
            current = connection.scalar(sa.select(sa.func.max(versions.c.version))) if known else 0
            if (current or 0) > len(_MIGRATIONS):
                raise ConfigError(
                    f"job store has version {current}, this release knows {len(_MIGRATIONS)}",
                    hint="run the newer release, or name another store",
                    code="STORE_TOO_NEW",
                )
            for number, step in enumerate(_MIGRATIONS[current or 0 :], start=(current or 0) + 1):
                step(connection)
                connection.execute(versions.insert().values(version=number))

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """A transaction that reads."""
        with _mapped(), self._engine.connect().execution_options(**{_READ_ONLY: True}) as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """A transaction that writes; committed at the end, rolled back on any error.

        SQLite takes its write lock at once, so that reads inside see nothing older than the lock.
        """
        with _mapped(), self._engine.begin() as connection:
            yield connection

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()


def _engine(url: str) -> sa.Engine:
    try:
        parsed = sa.make_url(url)
    except ArgumentError as error:
        raise ConfigError(
            "job store URL cannot be read",
            detail=str(error),
            hint="write sqlite:///PATH or postgresql://USER:PASSWORD@HOST/NAME",
        ) from error
    if parsed.drivername == "sqlite" and parsed.database not in (None, "", ":memory:"):
        return _sqlite(parsed)
    if parsed.get_backend_name() == "postgresql":
        driver = "postgresql+psycopg2" if parsed.drivername == "postgresql" else parsed.drivername
        try:
            return sa.create_engine(parsed.set(drivername=driver), pool_pre_ping=True)
        except (ModuleNotFoundError, NoSuchModuleError) as error:
            raise DependencyError(
                "no driver for PostgreSQL is installed", detail=str(error), hint="pip install 'headrace[postgres]'"
            ) from error
    raise ConfigError(
        f"job store URL {parsed.render_as_string()} is neither a SQLite file nor PostgreSQL",
        hint="write sqlite:///PATH or postgresql://USER:PASSWORD@HOST/NAME",
    )


def _sqlite(url: sa.URL) -> sa.Engine:
    folder = Path(url.database or "").absolute().parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"job store folder {folder} cannot be made", detail=str(error)) from error
    engine = sa.create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_MS / 1000})
    sa.event.listen(engine, "connect", _configure_sqlite)
    sa.event.listen(engine, "begin", _begin_sqlite)
    return engine


def _configure_sqlite(connection: Any, _record: Any) -> None:
    """The driver's own transaction control is switched off: it begins late and commits around DDL."""
    connection.isolation_level = None
    cursor = connection.cursor()
    _write_ahead(cursor)
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _write_ahead(cursor: sqlite3.Cursor) -> None:
    """Give the file SQLite's write-ahead log: readers and the writer do not wait for each other.

    On a new file SQLite takes two locks in turn for this and does not wait for the second, whatever the busy timeout:
    two who both hold the first would wait for each other. The one who loses asks again.
    """
    deadline = time.monotonic() + BUSY_TIMEOUT_MS / 1000
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(random.uniform(0.001, 0.02))  # noqa: S311 - spreads those who ask, no secret
        else:
            return


def _begin_sqlite(connection: sa.Connection) -> None:
    reading = connection.get_execution_options().get(_READ_ONLY, False)
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")


@contextmanager
def _mapped() -> Iterator[None]:
    """Every error of the database, in our words."""
    try:
        yield
    except HeadraceError:
        raise
    except (DBAPIError, PoolTimeoutError) as error:
        raise _translate(error) from error
    except SQLAlchemyError as error:
        raise ExternalError("job store failed", detail=str(error), code="STORE_FAILED") from error


def _translate(error: SQLAlchemyError) -> HeadraceError:
    cause = str(getattr(error, "orig", None) or error).strip()
    if isinstance(error, sa.exc.OperationalError | sa.exc.InterfaceError | PoolTimeoutError):
        return UnavailableError("job store does not answer", detail=cause, code="STORE_UNAVAILABLE")
    return ExternalError("job store refused a statement", detail=cause, code="STORE_FAILED")
