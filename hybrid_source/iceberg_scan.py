"""Lazy scans of some data files of an Iceberg table, resolved by field id.

Native Polars scans, with the private options that Polars' own Iceberg reader passes to ``scan_parquet`` (columns by
field id, identity-partition values, initial defaults); tests/contract/test_polars_iceberg_scan.py holds what is
relied upon. Files with delete files go through pyiceberg's reader, which applies every kind of position delete.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import polars as pl
from polars.io.iceberg._utils import (
    IdentityTransformedPartitionValuesBuilder,
    extract_field_initial_default,
    name_mapping_by_field_id,
)
from polars.io.plugins import register_io_source
from polars.io.scan_options.cast_options import ScanCastOptions
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan, schema_to_pyarrow
from pyiceberg.table import FileScanTask, Table

from catalog.schemas import to_polars
from hybrid_source.splits import HistoryFile, Split
from hybrid_source.storage import from_iceberg

_MAPPING: Final = "iceberg-column-mapping"


class IcebergScanner:
    """Makes the lazy rows of splits of one table, in the table's current schema.

    Args:
        table: The loaded table; not refreshed.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self._schema = table.schema()
        self._arrow = schema_to_pyarrow(self._schema)
        self._polars = pl.Schema(self._arrow)
        self._stored = to_polars(self._schema)
        self._casts = {name: dtype for name, dtype in self._stored.items() if self._polars[name] != dtype}
        self._names = name_mapping_by_field_id(table)
        self._defaults = {
            field.field_id: value
            for field in self._schema.fields
            if (value := extract_field_initial_default(field)) is not None
        }
        self._storage = from_iceberg(table.io.properties)

    @property
    def schema(self) -> pl.Schema:
        """The table's current columns."""
        return self._stored

    def scan(self, split: Split) -> pl.LazyFrame:
        """All table columns of a split's rows; lazy, so what is not asked for is not read."""
        task = split.files[0].task
        rows = self._native(split.files) if task is None else self._with_deletes(task)
        if split.rows is not None:
            rows = rows.slice(*split.rows)
        return rows.cast(pl.Schema(self._casts)) if self._casts else rows

    def row_groups(self, file: HistoryFile) -> Sequence[int]:
        """Rows in each row group, from the file's footer."""
        import pyarrow.parquet as pq

        with self._table.io.new_input(file.path).open() as stream:
            footer = pq.read_metadata(stream)
        return [footer.row_group(index).num_rows for index in range(footer.num_row_groups)]

    def _native(self, files: Sequence[HistoryFile]) -> pl.LazyFrame:
        paths = [_readable(file.path) for file in files]
        return pl.scan_parquet(
            paths,
            glob=False,
            hive_partitioning=False,
            schema=self._polars,
            cast_options=ScanCastOptions._default_iceberg(),  # noqa: SLF001  (contract-tested)
            missing_columns="insert",
            extra_columns="ignore",
            storage_options=self._storage if "://" in paths[0] else None,
            _column_mapping=(_MAPPING, self._arrow, self._names),
            _default_values=("iceberg", self._default_values(files)),
            _source_sizes=[file.nbytes for file in files],
        )

    def _default_values(self, files: Sequence[HistoryFile]) -> tuple[Any, Any, Any]:
        builder = IdentityTransformedPartitionValuesBuilder(self._table, self._schema)
        for index, file in enumerate(files):
            if file.partition is not None:
                spec_id, values = file.partition
                builder.push_partition_values(current_index=index, partition_spec_id=spec_id, partition_values=values)
        values = builder.finish()
        filled = builder.fill_absent_with_initial_defaults(values, builder.present_indices, self._defaults, len(files))
        return filled, self._defaults, builder.present_masks(builder.present_indices, values, len(files))

    def _with_deletes(self, task: FileScanTask) -> pl.LazyFrame:
        def source(
            columns: list[str] | None, predicate: pl.Expr | None, _rows: int | None, _batch: int | None
        ) -> Iterator[pl.DataFrame]:
            names = list(self._polars) if columns is None else columns
            projected = self._schema.select(*names)
            scan = ArrowScan(self._table.metadata, self._table.io, projected, AlwaysTrue())
            wanted = pl.Schema({name: self._polars[name] for name in names})
            for batch in scan.to_record_batches([task]):
                frame = pl.DataFrame(batch).select(names).cast(wanted)
                yield frame if predicate is None else frame.filter(predicate)

        return register_io_source(source, schema=self._polars)


def _readable(path: str) -> str:
    # Polars decodes %XX in file: URLs, but the names on the disk hold it literally (p=%C3%9F).
    return path.removeprefix("file://")
