"""Creating tables that streaming writers can live with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import polars as pl

from catalog.catalogs import Catalogs, TableName
from catalog.errors import mapping
from catalog.partitioning import partition_spec
from catalog.schemas import to_iceberg
from headrace.kernel.errors import NotFoundError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

STREAMING_PROPERTIES: Final[Mapping[str, str]] = {
    "format-version": "2",
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "20",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "write.parquet.compression-codec": "zstd",
}
"""For tables with a commit every few seconds: manifests are merged, old metadata files removed."""


def create_table(
    catalogs: Catalogs,
    name: str | TableName,
    schema: Mapping[str, pl.DataType],
    partition_by: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
) -> Table:
    """Create a table (and its namespaces) for frames of ``schema``.

    A table that somebody else created in the meantime is loaded instead.

    Args:
        catalogs: Where the name's catalog is found.
        name: ``catalog.namespace.table``.
        schema: Column types; all columns become optional.
        partition_by: Partition fields such as ``day(ts)``.
        properties: Table properties; they win over :data:`STREAMING_PROPERTIES`.

    Raises:
        SchemaError: A type that Iceberg cannot hold.
        SpecError: A partition field that is none.
        HeadraceError: The catalog or the storage failed, or does not allow it.
    """
    from pyiceberg.exceptions import TableAlreadyExistsError

    full = name if isinstance(name, TableName) else TableName.parse(name)
    iceberg_schema = to_iceberg(schema)
    spec = partition_spec(partition_by, iceberg_schema)
    catalog = catalogs.catalog(full.catalog)
    with mapping(f"create table {full}"):
        _create_namespaces(catalog, full.namespace)
        try:
            return catalog.create_table(
                full.identifier,
                iceberg_schema,
                partition_spec=spec,
                properties={**STREAMING_PROPERTIES, **(properties or {})},
            )
        except TableAlreadyExistsError:
            return catalogs.load(full)


def load_or_create(
    catalogs: Catalogs,
    name: str | TableName,
    schema: Mapping[str, pl.DataType],
    partition_by: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
) -> Table:
    """The table, created by :func:`create_table` if it (or its namespace) is not there."""
    try:
        return catalogs.load(name)
    except NotFoundError as error:
        if error.code not in {"TABLE_NOT_FOUND", "NAMESPACE_NOT_FOUND"}:
            raise
        return create_table(catalogs, name, schema, partition_by, properties)


def _create_namespaces(catalog: Catalog, levels: tuple[str, ...]) -> None:
    from pyiceberg.exceptions import NoSuchNamespaceError, RESTError

    try:
        catalog.create_namespace_if_not_exists(levels)
    except (NoSuchNamespaceError, RESTError):
        if len(levels) == 1:
            raise
        _create_namespaces(catalog, levels[:-1])
        catalog.create_namespace_if_not_exists(levels)
