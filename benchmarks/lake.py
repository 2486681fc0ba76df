"""The history that is measured: web requests in an Iceberg table on the local disk."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import polars as pl
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

TABLE: Final = "local.bench.requests"
SITES: Final = 50
ROW_GROUP: Final = 1 << 20
_START_US: Final = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000
_FILE_US: Final = 24 * 3_600_000_000
_DISORDER_US: Final = 300_000_000


@dataclass(frozen=True, slots=True)
class Lake:
    """A table that grows by one file with each snapshot, so that a snapshot chooses its size.

    Attributes:
        folder: Where everything is.
        files: The data files, oldest first.
        snapshots: The snapshot after each file.
    """

    folder: Path
    files: tuple[str, ...]
    snapshots: tuple[int, ...]


def build(folder: Path, files: int, rows_per_file: int) -> Lake:
    """Write the table: each file holds one day, in which times rise with a few minutes of disorder."""
    catalog = SqlCatalog("local", **properties(folder))
    catalog.create_namespace("bench")
    schema = requests(0, 1).to_arrow(compat_level=pl.CompatLevel.oldest()).schema
    table = catalog.create_table(
        TABLE.partition(".")[2], schema, properties={"write.parquet.row-group-limit": str(ROW_GROUP)}
    )
    for day in range(files):
        rows = requests(day, rows_per_file).to_arrow(compat_level=pl.CompatLevel.oldest())
        table.append(rows.cast(table.schema().as_arrow()))
    paths = _files(table)
    snapshots = tuple(snapshot.snapshot_id for snapshot in table.metadata.snapshots)
    catalog.close()
    return Lake(folder, paths, snapshots)


def properties(folder: Path) -> dict[str, str]:
    """Pyiceberg's properties of the catalog in a folder."""
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}


def _files(table: Table) -> tuple[str, ...]:
    paths: list[str] = []
    for snapshot in table.metadata.snapshots:
        found = table.inspect.files(snapshot_id=snapshot.snapshot_id)["file_path"].to_pylist()
        paths += [path for path in found if path not in paths]
    return tuple(path.removeprefix("file://") for path in paths)


def requests(day: int, rows: int) -> pl.DataFrame:
    """One day of requests."""
    seed = 1000 * day
    index = pl.int_range(rows, dtype=pl.Int64)

    def noise(number: int, below: int) -> pl.Expr:
        return (index.hash(seed + number) % below).cast(pl.Int64)

    at = _START_US + day * _FILE_US + index * ((_FILE_US - _DISORDER_US) // rows) + noise(0, _DISORDER_US)
    return pl.select(
        at=at.cast(pl.Datetime("us", "UTC")),
        site="site-" + noise(1, SITES).cast(pl.String),
        status=pl.when(noise(2, 10) == 0).then(500).otherwise(200).cast(pl.Int32),
        amount=noise(3, 1_000_000),
        latency=noise(4, 10_000_000) / 7,
        user=noise(5, 100_000),
        path="/items/" + noise(6, 1_000_000).cast(pl.String),
    )
