"""The tables of a job spec that lookups join with (docs/job-spec.md, "Lookup tables")."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, Tag

from headrace.jobs.names import TableName
from headrace.jobs.spec_base import SpecModel, by_key
from headrace.jobs.values import PositiveDuration

ParquetLocation = Annotated[
    str, Field(min_length=1, description="A file, folder or glob pattern; a local path or an s3:// address.")
]
Lease = Literal["auto", "off"]
LEASE = "auto: the pinned snapshot is tagged while the job needs it, so that expiry spares it; off: it is not."


class TableBase(SpecModel):
    """What lookup tables share."""

    refresh: PositiveDuration | None = Field(
        default=None,
        description="The table is loaded again this often, so the join is not invariant; if not given it is pinned.",
    )

    @property
    def pinned(self) -> bool:
        """Whether the job sees one version of it for its whole life."""
        return self.refresh is None


class IcebergTable(TableBase):
    """A table in Iceberg."""

    table: TableName = Field(description="CATALOG.NAMESPACE.TABLE")
    snapshot: int | None = Field(
        default=None, description="The snapshot to read; the newest when the job first starts if not given."
    )
    lease: Lease = Field(default="auto", description=LEASE)

    @property
    def text(self) -> str:
        """What it is, for people; without secrets."""
        return self.table


class ParquetTable(TableBase):
    """A table in Parquet files."""

    parquet: ParquetLocation

    @property
    def text(self) -> str:
        """What it is, for people; without secrets."""
        return self.parquet


class PostgresSpec(SpecModel):
    """Where in PostgreSQL a table is."""

    url: Annotated[str, Field(min_length=1)] = Field(
        description="postgresql://user:password@host:port/database; take it from the environment: ${NAME}."
    )
    table: Annotated[str, Field(min_length=1)] | None = Field(default=None, description="SCHEMA.TABLE, or")
    query: Annotated[str, Field(min_length=1)] | None = Field(default=None, description="a query that only reads.")


class PostgresTable(TableBase):
    """A table in PostgreSQL, as it is when it is loaded: when the job starts or restarts, and every ``refresh``."""

    postgres: PostgresSpec

    @property
    def pinned(self) -> bool:
        """Never: a database keeps no versions."""
        return False

    @property
    def text(self) -> str:
        """What it is, for people; without secrets."""
        return f"postgres {self.postgres.table or 'query'}"


StaticTable = Annotated[
    Annotated[IcebergTable, Tag("@table")]
    | Annotated[ParquetTable, Tag("@parquet")]
    | Annotated[PostgresTable, Tag("@postgres")],
    by_key("table", "parquet", "postgres"),
]
AnyTable: TypeAlias = IcebergTable | ParquetTable | PostgresTable
