"""Catalogs by name, and tables by ``catalog.namespace.table``."""

from __future__ import annotations

import difflib
import sys
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from catalog.errors import mapping
from headrace.kernel.errors import ConfigError, ExternalError, HeadraceError, NotFoundError, SpecError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

FILE_IO: Final = "pyiceberg.io.pyarrow.PyArrowFileIO"
_SQLITE: Final = "sqlite:///"
_BUSY_SECONDS: Final = 30
_REST_TIMEOUT: Final = (5.0, 60.0)
_EXISTS: Final = ("already exists", "duplicate key")  # SQLite, PostgreSQL (whose type of the same name comes first)
_SHOWN: Final = 10
_CLOSE: Final = 0.5


@dataclass(frozen=True, slots=True)
class TableName:
    """A table's full name. The namespace has one or more levels."""

    catalog: str
    namespace: tuple[str, ...]
    table: str

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Read ``catalog.namespace.table``; the namespace may have several levels.

        Raises:
            SpecError: Fewer than three parts, or an empty one (code ``TABLE_NAME_INVALID``).
        """
        parts = text.split(".")
        if len(parts) < 3 or not all(part.strip() == part and part for part in parts):  # noqa: PLR2004 - the three parts
            raise SpecError(
                f"{text!r} is no table name",
                hint="write catalog.namespace.table, for example lake.flights.hourly",
                code="TABLE_NAME_INVALID",
            )
        return cls(parts[0], tuple(parts[1:-1]), parts[-1])

    @property
    def identifier(self) -> tuple[str, ...]:
        """The name inside its catalog, as pyiceberg takes it."""
        return (*self.namespace, self.table)

    def __str__(self) -> str:
        return ".".join((self.catalog, *self.namespace, self.table))


def sqlite_options(folder: Path) -> dict[str, str]:
    """Options of the default catalog: SQLite and a local warehouse below ``folder``, made when first used."""
    root = folder.absolute()
    return {"type": "sql", "uri": f"{_SQLITE}{root / 'catalog.db'}", "warehouse": (root / "warehouse").as_uri()}


class Catalogs:
    """The catalogs of a configuration, opened when they are first asked for. Safe for use by several threads.

    Args:
        options: By catalog name, plain pyiceberg properties (``type``, ``uri``, ``warehouse``, ``s3.endpoint`` ...).
    """

    def __init__(self, options: Mapping[str, Mapping[str, Any]]) -> None:
        self._options = options
        self._open: dict[str, Catalog] = {}
        self._lock = threading.Lock()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the configured catalogs."""
        return tuple(self._options)

    def catalog(self, name: str) -> Catalog:
        """The open catalog.

        Raises:
            NotFoundError: No such entry in the configuration (``CATALOG_NOT_FOUND``).
            HeadraceError: It cannot be reached, or its options are wrong.
        """
        with self._lock:
            if name not in self._open:
                if name not in self._options:
                    raise NotFoundError(
                        f"catalog {name!r} is not configured",
                        hint=_suggest(name, self._options, "catalogs", f"add [catalogs.{name}] to headrace.toml"),
                        code="CATALOG_NOT_FOUND",
                    )
                self._open[name] = _open(name, self._options[name])
            return self._open[name]

    def load(self, name: str | TableName) -> Table:
        """The table as it is now.

        Raises:
            NotFoundError: ``CATALOG_NOT_FOUND``, ``NAMESPACE_NOT_FOUND`` or ``TABLE_NOT_FOUND``; the hint lists what
                exists, close names first.
            HeadraceError: The catalog or the storage failed, or does not allow it.
        """
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        full = name if isinstance(name, TableName) else TableName.parse(name)
        catalog = self.catalog(full.catalog)
        with mapping(f"load table {full}"):
            try:
                return catalog.load_table(full.identifier)
            except (NoSuchTableError, NoSuchNamespaceError) as error:
                raise _missing(catalog, full) from error

    def close(self) -> None:
        """Release connections; a catalog asked for later is opened anew."""
        with self._lock:
            for catalog in self._open.values():
                with suppress(HeadraceError), mapping("close a catalog"):
                    catalog.close()
            self._open.clear()


def _open(name: str, options: Mapping[str, Any]) -> Catalog:
    properties: dict[str, Any] = {
        key: value if isinstance(value, dict) else str(value) for key, value in options.items()
    }
    properties.setdefault("py-io-impl", FILE_IO)
    uri = properties.get("uri", "")
    if not uri and properties.get("type", "sql") == "sql":
        raise ConfigError(
            f"catalog {name!r} has no uri",
            hint="give it uri = sqlite:///PATH, postgresql+psycopg2://... or http://... (with type = rest)",
            code="CATALOG_OPTION_MISSING",
        )
    with mapping(f"open catalog {name!r}"):
        if uri.startswith(_SQLITE):
            properties["uri"] = _prepared_sqlite(uri)
        try:
            catalog = _load(name, properties)
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"the options of catalog {name!r} are wrong",
                detail=f"{type(error).__name__}: {error}",
                hint=f"mend [catalogs.{name}]: type is sql, rest, glue, hive, ...; all options are pyiceberg's own",
                code="CATALOG_OPTION_INVALID",
            ) from error
        _bound_waiting(catalog)
        return catalog


def _load(name: str, properties: Mapping[str, Any]) -> Catalog:
    """Open a catalog of which other processes may be opening the same new database.

    pyiceberg looks for the tables of an SQL catalog, then creates them; whoever is second is told that they exist, and
    finds them at the next look. Two tables can be lost in this way, one after the other.
    """
    from pyiceberg.catalog import load_catalog

    from catalog.manifest_doubles import read_doubles_whole

    read_doubles_whole()
    for _ in range(2):
        try:
            return load_catalog(name, **properties)
        except Exception as error:
            if not _made_meanwhile(error):
                raise
    return load_catalog(name, **properties)


def _made_meanwhile(error: Exception) -> bool:
    return type(error).__module__.startswith("sqlalchemy.") and any(text in str(error) for text in _EXISTS)


def _prepared_sqlite(uri: str) -> str:
    path, _, query = uri.removeprefix(_SQLITE).partition("?")
    if path and path != ":memory:":
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        if "timeout=" not in query:
            query = f"{query}&timeout={_BUSY_SECONDS}" if query else f"timeout={_BUSY_SECONDS}"
    return f"{_SQLITE}{path}?{query}" if query else f"{_SQLITE}{path}"


def _bound_waiting(catalog: Catalog) -> None:
    """Give a REST catalog's session a time limit: pyiceberg sets none, and a silent server would hold a job."""
    rest = sys.modules.get("pyiceberg.catalog.rest")
    if rest is None:  # no REST catalog has been opened, and the module is slow to import
        return
    from requests.adapters import HTTPAdapter

    class Limited(HTTPAdapter):
        def send(self, request: Any, **kwargs: Any) -> Any:  # type: ignore[override] # passes everything on
            kwargs["timeout"] = kwargs.get("timeout") or _REST_TIMEOUT
            return super().send(request, **kwargs)

    if isinstance(catalog, rest.RestCatalog) and type(catalog._session.get_adapter(catalog.uri)) is HTTPAdapter:  # noqa: SLF001 - pyiceberg has no option for it
        catalog._session.mount("http://", Limited())  # noqa: SLF001 - as above
        catalog._session.mount("https://", Limited())  # noqa: SLF001 - as above


def _suggest(wanted: str, present: Iterable[str], what: str, otherwise: str) -> str:
    known = sorted(present)
    if not known:
        return f"there are no {what}; {otherwise}"
    close = difflib.get_close_matches(wanted, known, n=3, cutoff=_CLOSE)
    rest = [item for item in known if item not in close]
    listed = ", ".join((close + rest)[:_SHOWN]) + (" ..." if len(known) > _SHOWN else "")
    start = f"did you mean {close[0]}? " if close else ""
    return f"{start}{what}: {listed}; or {otherwise}"


def _missing(catalog: Catalog, name: TableName) -> NotFoundError:
    with mapping(f"list what catalog {name.catalog!r} holds"):
        try:
            if name.namespace and not catalog.namespace_exists(name.namespace):
                return _missing_namespace(catalog, name)
            tables = [identifier[-1] for identifier in catalog.list_tables(name.namespace)]
        except (ExternalError, NotImplementedError):
            tables = []
    return NotFoundError(
        f"table {name} does not exist",
        hint=_suggest(
            name.table, tables, f"tables in {'.'.join(name.namespace)}", "let the sink create it (create: true)"
        ),
        code="TABLE_NOT_FOUND",
    )


def _missing_namespace(catalog: Catalog, name: TableName) -> NotFoundError:
    present = [".".join(levels) for levels in catalog.list_namespaces()]
    return NotFoundError(
        f"namespace {'.'.join(name.namespace)!r} does not exist in catalog {name.catalog!r}",
        hint=_suggest(".".join(name.namespace), present, "namespaces", "let a sink create it (create: true)"),
        code="NAMESPACE_NOT_FOUND",
    )
