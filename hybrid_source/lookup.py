"""Lookup tables: small static tables, pinned for the life of a lineage and loaded whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl
from pyiceberg.table import Table

from headrace.kernel.protocols import Json
from hybrid_source.history import History, HistoryQuery
from hybrid_source.iceberg_history import open_iceberg
from hybrid_source.parquet_history import open_parquet
from hybrid_source.read_errors import reading


@dataclass(frozen=True, slots=True)
class IcebergLookup:
    """A lookup table in Iceberg, pinned by table uuid and snapshot id.

    Attributes:
        name: ``catalog.namespace.table``.
        load_table: Loads it from its catalog, afresh at each call.
        snapshot_id: The snapshot to pin; None for the current one.
    """

    name: str
    load_table: Callable[[], Table]
    snapshot_id: int | None = None

    @property
    def schema(self) -> pl.Schema:
        """See :class:`headrace.kernel.protocols.LookupTable`."""
        return self._open(None).stored

    def pin(self) -> Json:
        """See :class:`headrace.kernel.protocols.LookupTable`.

        Raises:
            NotFoundError: No such table or snapshot.
        """
        return self._open(None).pin

    def load(self, pin: Json) -> pl.DataFrame:
        """See :class:`headrace.kernel.protocols.LookupTable`.

        Raises:
            SnapshotGoneError: The pinned snapshot is no longer there.
            IdentityError: The table was created anew.
        """
        return _rows(self._open(pin))

    def _open(self, pin: Json) -> History:
        return open_iceberg(self.load_table(), self.name, snapshot_id=self.snapshot_id, pin=pin)


@dataclass(frozen=True, slots=True)
class ParquetLookup:
    """A lookup table in Parquet files, pinned by their frozen listing.

    Attributes:
        pattern: A file, a folder or a glob; local or ``s3://``.
        storage: boto3 client options for ``s3://``.
    """

    pattern: str
    storage: Mapping[str, Any] = field(default_factory=dict)

    @property
    def schema(self) -> pl.Schema:
        """See :class:`headrace.kernel.protocols.LookupTable`."""
        return open_parquet(self.pattern, storage=self.storage).stored

    def pin(self) -> Json:
        """See :class:`headrace.kernel.protocols.LookupTable`.

        Raises:
            NotFoundError: No file matches.
        """
        return open_parquet(self.pattern, storage=self.storage).pin

    def load(self, pin: Json) -> pl.DataFrame:
        """See :class:`headrace.kernel.protocols.LookupTable`.

        Raises:
            SnapshotGoneError: A pinned file is gone or has changed.
        """
        return _rows(open_parquet(self.pattern, storage=self.storage, pin=pin))


def _rows(history: History) -> pl.DataFrame:
    splits = history.plan(HistoryQuery(columns=tuple(history.stored))).splits_from()
    frames = []
    for split in splits:
        with reading(f"lookup table {history.name}", split.files):
            frames.append(split.rows.collect())
    return pl.concat(frames) if frames else pl.DataFrame(schema=history.stored)
