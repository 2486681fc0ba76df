"""Lookup tables in PostgreSQL: a table, or the result of a query, loaded whole.

A database keeps no versions, so nothing can be pinned: a restart loads what is there then. Every load is one read-only
transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import polars as pl

from headrace.kernel.errors import ConfigError, SchemaError, SpecError
from headrace.kernel.protocols import Json
from hybrid_source.postgres_errors import asking

CONNECT_S: Final = 10
_DRIVER: Final = "postgresql+psycopg2://"
_UTC: Final = "UTC"
_MAX_DIGITS: Final = 38

_TYPES: Final[dict[int, pl.DataType]] = {
    16: pl.Boolean(),
    17: pl.Binary(),
    18: pl.String(),
    19: pl.String(),
    20: pl.Int64(),
    21: pl.Int16(),
    23: pl.Int32(),
    25: pl.String(),
    700: pl.Float32(),
    701: pl.Float64(),
    1042: pl.String(),
    1043: pl.String(),
    1082: pl.Date(),
    1083: pl.Time(),
    1114: pl.Datetime("us"),
    1184: pl.Datetime("us", _UTC),
    2950: pl.String(),
}
"""By the oid of a built-in type (``pg_type.dat``), as psycopg2 gives its values without further adapters."""
_NUMERIC: Final = 1700


@dataclass(frozen=True, slots=True)
class PostgresLookup:
    """A lookup table in PostgreSQL.

    Attributes:
        name: What it is called in messages; never the url.
        url: ``postgresql://user:password@host:port/database``; the driver may stand in the scheme.
        table: ``schema.table`` or ``table``, as written in SQL without quotes; or
        query: A query.
    """

    name: str
    url: str = field(repr=False)
    table: str | None = None
    query: str | None = None

    @property
    def schema(self) -> pl.Schema:
        """See :class:`headrace.kernel.protocols.LookupTable`.

        Raises:
            SpecError: A column has a type that has no counterpart, or the query is none.
        """
        with self._asked("LIMIT 0") as cursor:
            return self._schema(cursor)

    def pin(self) -> Json:
        """Nothing: there are no versions."""
        return {}

    def load(self, pin: Json) -> pl.DataFrame:  # noqa: ARG002 - the protocol's signature
        """The rows as they are now.

        Raises:
            NotFoundError: No such table.
            SchemaError: A value does not fit its column's type here: NaN in a numeric, a year before Christ.
            UnavailableError: The server does not answer.
        """
        with self._asked("") as cursor:
            schema = self._schema(cursor)
            rows = self._fetched(cursor)
            self._check_finite(rows, schema)
            return pl.DataFrame(_plain(rows, schema), schema=schema, orient="row")

    def _fetched(self, cursor: Any) -> list[tuple[Any, ...]]:
        try:
            rows: list[tuple[Any, ...]] = cursor.fetchall()
        except ValueError as error:
            raise SchemaError(
                f"lookup table {self.name} holds a value that cannot be read",
                detail=str(error),
                hint="dates and times are of the years 1 to 9999: leave others out in a query, or cast(x as text)",
            ) from error
        return rows

    def _check_finite(self, rows: Sequence[tuple[Any, ...]], schema: pl.Schema) -> None:
        """Refuse numerics that are no number (``NaN``), which decimals do not have."""
        for index, (name, dtype) in enumerate(schema.items()):
            if isinstance(dtype, pl.Decimal) and not all(row[index] is None or row[index].is_finite() for row in rows):
                raise SchemaError(
                    f"lookup table {self.name}: column {name!r} holds NaN or Infinity, which decimals do not have",
                    hint="leave such rows out in a query, or cast(x as double precision)",
                    context={"column": name},
                )

    @contextmanager
    def _asked(self, more: str) -> Iterator[Any]:
        what = f"lookup table {self.name}"
        with asking(what):
            import psycopg2

            connection = psycopg2.connect(self._dsn(), connect_timeout=CONNECT_S, application_name="headrace")
            try:
                connection.set_session(isolation_level="REPEATABLE READ", readonly=True)
                with connection.cursor() as cursor:
                    cursor.execute("SET LOCAL TIME ZONE 'UTC'")
                    cursor.execute(f"SELECT * FROM {self._relation()} {more}")  # noqa: S608 - the user's own query
                    yield cursor
            finally:
                connection.close()

    def _relation(self) -> str:
        if self.query is not None:
            query = self.query.strip().removesuffix(";")
            if ";" in query:
                raise SpecError(
                    f"lookup table {self.name}: its query holds a semicolon",
                    hint="write one query; a semicolon in a string is written chr(59)",
                    code="LOOKUP_QUERY_INVALID",
                )
            return f"({query}\n) AS headrace_lookup"
        return ".".join(f'"{part.replace(chr(34), chr(34) * 2)}"' for part in (self.table or "").split("."))

    def _dsn(self) -> str:
        url = self.url.replace(_DRIVER, "postgresql://", 1) if self.url.startswith(_DRIVER) else self.url
        if urlsplit(url).scheme not in {"postgresql", "postgres"}:
            raise ConfigError(
                f"lookup table {self.name}: its url is no PostgreSQL url",
                hint="write postgresql://user:password@host:5432/database; a variable is written ${NAME}",
                code="LOOKUP_URL_INVALID",
            )
        return url

    def _schema(self, cursor: Any) -> pl.Schema:
        found: dict[str, pl.DataType] = {}
        for column in cursor.description:
            if column.name in found:
                raise SpecError(f"lookup table {self.name} gives column {column.name!r} twice", hint="name one with AS")
            found[column.name] = self._type(column)
        return pl.Schema(found)

    def _type(self, column: Any) -> pl.DataType:
        if column.type_code == _NUMERIC and column.precision and column.precision <= _MAX_DIGITS:
            return pl.Decimal(column.precision, column.scale)
        if column.type_code in _TYPES:
            return _TYPES[column.type_code]
        raise SpecError(
            f"lookup table {self.name}: column {column.name!r} has a type that has no counterpart",
            detail=f"its type has the oid {column.type_code}"
            if column.type_code != _NUMERIC
            else "it is a numeric without precision, or with more than 38 digits",
            hint="cast it in a query: cast(x as text), cast(x as numeric(18, 4)), cast(x as double precision)",
            code="LOOKUP_TYPE_UNKNOWN",
        )


def _plain(rows: list[tuple[Any, ...]], schema: pl.Schema) -> list[tuple[Any, ...]]:
    """Rows with bytes in place of what psycopg2 gives for them."""
    if not any(isinstance(dtype, pl.Binary) for dtype in schema.values()):
        return rows
    return [tuple(bytes(value) if isinstance(value, memoryview) else value for value in row) for row in rows]
