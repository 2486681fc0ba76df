"""Native lazy scans of Parquet files of an Iceberg table, resolved by field id.

With the private options that Polars' own Iceberg reader passes to ``scan_parquet`` (columns by field id,
identity-partition values, initial defaults); tests/contract/test_polars_iceberg_scan.py holds what is relied upon.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import polars as pl
from polars.io.iceberg._utils import (
    IdentityTransformedPartitionValuesBuilder,
    extract_field_initial_default,
    name_mapping_by_field_id,
)
from polars.io.scan_options.cast_options import ScanCastOptions
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from headrace.kernel.errors import UserError
from hybrid_source.splits import HistoryFile
from hybrid_source.storage import from_iceberg

_MAPPING: Final = "iceberg-column-mapping"
POSITION: Final = "__headrace_position"
"""The row's number in its file, where a scan is asked for it."""

POSITIONS: Final = pl.get_index_type()


class NativeScan:
    """Scans files in one schema.

    Args:
        table: The loaded table; not refreshed.
        schema: Fields with ids of the table; their names are those of the columns.
    """

    def __init__(self, table: Table, schema: Schema) -> None:
        self._table = table
        self._schema = schema
        self._arrow = schema_to_pyarrow(schema)
        self.columns = pl.Schema(self._arrow)
        self._names = name_mapping_by_field_id(table)
        self._defaults = {
            field.field_id: value
            for field in schema.fields
            if (value := extract_field_initial_default(field)) is not None
        }
        self._storage = from_iceberg(table.io.properties)

    def __call__(
        self, files: Sequence[HistoryFile], *, position: bool = False, statistics: bool = True
    ) -> pl.LazyFrame:
        """All rows of some files, deleted ones included.

        Args:
            files: The files.
            position: Give each row's number in its file, in a column of that name.
            statistics: See :func:`hybrid_source.predicates.holds_for_bounds`.
        """
        paths = [readable(file.path) for file in files]
        sizes = [file.nbytes for file in files]
        return pl.scan_parquet(
            paths,
            glob=False,
            hive_partitioning=False,
            schema=self.columns,
            row_index_name=POSITION if position else None,
            cast_options=ScanCastOptions._default_iceberg(),  # noqa: SLF001  (contract-tested)
            use_statistics=statistics,
            missing_columns="insert",
            extra_columns="ignore",
            storage_options=self._storage if "://" in paths[0] else None,
            _column_mapping=(_MAPPING, self._arrow, self._names),
            _default_values=("iceberg", self._default_values(files)),
            _source_sizes=sizes if all(sizes) else None,
        )

    def plain(self, path: str) -> pl.LazyFrame:
        """All columns of one file by name."""
        path = readable(path)
        return pl.scan_parquet(path, glob=False, storage_options=self._storage if "://" in path else None)

    def _default_values(self, files: Sequence[HistoryFile]) -> tuple[Any, Any, Any]:
        builder = IdentityTransformedPartitionValuesBuilder(self._table, self._schema)
        for index, file in enumerate(files):
            if file.partition is not None:
                spec_id, values = file.partition
                builder.push_partition_values(current_index=index, partition_spec_id=spec_id, partition_values=values)
        values = builder.finish()
        filled = builder.fill_absent_with_initial_defaults(values, builder.present_indices, self._defaults, len(files))
        return filled, self._defaults, builder.present_masks(builder.present_indices, values, len(files))


def check_defaults(schema: Schema, name: str) -> None:
    """Refuse fields within other columns that have a value for older files: they would read as null there.

    Raises:
        UserError: ``TABLE_UNSUPPORTED``.
    """
    columns = {field.field_id for field in schema.fields}
    for path in schema.column_names:
        field = schema.find_field(path)
        if field.initial_default is not None and field.field_id not in columns:
            raise UserError(
                f"table {name} has a field {path} with an initial default, which is read of whole columns only",
                hint="add the field as a column of its own, or add it without a default",
                code="TABLE_UNSUPPORTED",
                context={"table": name, "column": path},
            )


def readable(path: str) -> str:
    """A location as Polars takes it."""
    if path.startswith("s3n://"):  # Hadoop's older name for what Polars knows as s3 and s3a
        return f"s3{path.removeprefix('s3n')}"
    # Polars decodes %XX in file: URLs, but the names on the disk hold it literally (p=%C3%9F).
    return path.removeprefix("file://")
