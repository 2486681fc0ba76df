"""Lazy scans of some data files of an Iceberg table, resolved by field id.

Native Polars scans, with the private options that Polars' own Iceberg reader passes to ``scan_parquet`` (columns by
field id, identity-partition values, initial defaults); tests/contract/test_polars_iceberg_scan.py holds what is
relied upon. Deleted positions are read first and left out by row index: that holds for every kind of position
delete, and takes 0.3 s where pyiceberg's reader takes 10 s (4M rows, 400k deletes).
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
from polars.io.scan_options.cast_options import ScanCastOptions
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table
from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
from pyiceberg.table.puffin import PuffinFile

from catalog.schemas import to_polars
from headrace.kernel.columns import WEIGHT, WEIGHT_TYPE
from headrace.kernel.errors import UserError
from hybrid_source.splits import DeleteFile, FileChange, HistoryFile, Split
from hybrid_source.storage import from_iceberg

_MAPPING: Final = "iceberg-column-mapping"
_POSITION: Final = "__headrace_position"
_POSITIONS: Final = pl.get_index_type()


class IcebergScanner:
    """Makes the lazy rows of splits of one table, in the table's current schema.

    Args:
        table: The loaded table; not refreshed.
        weights: Give each row its weight: +1, in a change -1 for rows that it has taken away.
    """

    def __init__(self, table: Table, *, weights: bool = False) -> None:
        self._table = table
        self._schema = table.schema()
        self._arrow = schema_to_pyarrow(self._schema)
        self._polars = pl.Schema(self._arrow)
        self._stored = to_polars(self._schema)
        self._casts = {name: dtype for name, dtype in self._stored.items() if self._polars[name] != dtype}
        self._weights = weights
        self._names = name_mapping_by_field_id(table)
        self._defaults = {
            field.field_id: value
            for field in self._schema.fields
            if (value := extract_field_initial_default(field)) is not None
        }
        self._storage = from_iceberg(table.io.properties)

    @property
    def schema(self) -> pl.Schema:
        """The table's current columns, and the weight if rows have one."""
        return pl.Schema({**self._stored, WEIGHT: WEIGHT_TYPE}) if self._weights else self._stored

    def scan(self, split: Split) -> pl.LazyFrame:
        """All table columns of a split's rows; lazy, so what is not asked for is not read."""
        if split.files[0].changes:
            return self._changed(split.files[0].changes)
        rows = self._live(split)
        return rows.with_columns(_weight(1)) if self._weights else rows

    def _live(self, split: Split) -> pl.LazyFrame:
        first = split.files[0]
        deleted = self._deleted(first, first.deletes) if first.deletes else None
        rows = self._native(split.files, None if deleted is None else _POSITION)
        if split.rows is not None:
            rows = rows.slice(*split.rows)
        if deleted is not None:
            rows = rows.filter(~pl.col(_POSITION).is_in(deleted.implode())).drop(_POSITION)
        return self._cast(rows)

    def _cast(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        return rows.cast(pl.Schema(self._casts)) if self._casts else rows

    def _changed(self, changes: Sequence[FileChange]) -> pl.LazyFrame:
        """What some files have lost (-1) and gained (+1)."""
        whole = {
            -1: [change.file for change in changes if change.after is None and not change.before],
            1: [change.file for change in changes if change.before is None and not change.after],
        }
        parts = [
            self._cast(self._native(files, None)).with_columns(_weight(sign)) for sign, files in whole.items() if files
        ]
        for change in changes:
            if change.before or change.after:
                parts += self._difference(change)
        return pl.concat(parts) if parts else pl.LazyFrame(schema=self.schema)

    def _difference(self, change: FileChange) -> Iterator[pl.LazyFrame]:
        before, after = (
            None if deletes is None else self._deleted(change.file, deletes)
            for deletes in (change.before, change.after)
        )
        position = pl.col(_POSITION)
        if before is None or after is None:
            deleted, sign = (after, 1) if before is None else (before, -1)
            if deleted is not None:
                yield self._rows_at(change.file, ~position.is_in(deleted.implode()), sign)
            return
        for here, there, sign in ((after, before, -1), (before, after, 1)):
            only_here = here.filter(~here.is_in(there.implode()))
            if only_here.len():
                yield self._rows_at(change.file, position.is_in(only_here.implode()), sign)

    def _rows_at(self, file: HistoryFile, positions: pl.Expr, sign: int) -> pl.LazyFrame:
        return self._cast(self._native([file], _POSITION).filter(positions).drop(_POSITION)).with_columns(_weight(sign))

    def row_groups(self, file: HistoryFile) -> Sequence[int]:
        """Rows in each row group, from the file's footer."""
        import pyarrow.parquet as pq

        with self._table.io.new_input(file.path).open() as stream:
            footer = pq.read_metadata(stream)
        return [footer.row_group(index).num_rows for index in range(footer.num_row_groups)]

    def _native(self, files: Sequence[HistoryFile], position: str | None) -> pl.LazyFrame:
        paths = [_readable(file.path) for file in files]
        return pl.scan_parquet(
            paths,
            glob=False,
            hive_partitioning=False,
            schema=self._polars,
            row_index_name=position,
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

    def _deleted(self, file: HistoryFile, deletes: Sequence[DeleteFile]) -> pl.Series:
        """Positions of the deleted rows of a file, unsorted, maybe with repetitions."""
        found = [self._vector(delete, file) if delete.vector else self._listed(delete, file) for delete in deletes]
        return pl.concat([pl.Series(dtype=_POSITIONS), *(one.rename("") for one in found)])

    def _listed(self, delete: DeleteFile, file: HistoryFile) -> pl.Series:
        path = _readable(delete.path)
        rows = pl.scan_parquet(path, glob=False, storage_options=self._storage if "://" in path else None)
        wanted = rows.filter(pl.col("file_path") == file.path).select(pl.col("pos").cast(_POSITIONS))
        return wanted.collect().to_series()

    def _vector(self, delete: DeleteFile, file: HistoryFile) -> pl.Series:
        with self._table.io.new_input(delete.path).open() as stream:
            vectors = deletion_vectors_from_puffin_file(PuffinFile(stream.read()))
        found = [vector for vector in vectors if vector.referenced_data_file == file.path]
        if len(found) > 1:
            raise UserError(
                "a table has two deletion vectors of one data file in one Puffin file",
                detail=f"{delete.path}: {file.path}",
                hint="rewrite the table's files (compaction)",
                code="TABLE_UNSUPPORTED",
            )
        positions = pl.Series(found[0].to_vector() if found else [], dtype=pl.Int64)
        return positions.cast(_POSITIONS)


def _weight(sign: int) -> pl.Expr:
    return pl.lit(sign, WEIGHT_TYPE).alias(WEIGHT)


def _readable(path: str) -> str:
    # Polars decodes %XX in file: URLs, but the names on the disk hold it literally (p=%C3%9F).
    return path.removeprefix("file://")
