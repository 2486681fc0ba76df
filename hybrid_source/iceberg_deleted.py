"""Which rows of a data file are deleted: their positions, whatever kind of delete file says so.

Values that equality deletes name are looked up in the key columns of the data file, which are read for that; a delete
file is read once for many data files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from threading import Lock
from typing import Final

import polars as pl
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
from pyiceberg.table.puffin import PuffinFile
from pyiceberg.types import NestedField

from headrace.kernel.errors import InternalError, UserError
from hybrid_source.iceberg_deletes import key_field
from hybrid_source.iceberg_native import POSITION, POSITIONS, NativeScan
from hybrid_source.splits import DeleteFile, HistoryFile

_KEPT_BYTES: Final = 256 << 20
"""So much of equality deletes is kept in memory, for the data files to come."""


class DeletedRows:
    """Finds the deleted rows of data files.

    Args:
        table: The loaded table.
        scan: Of its files.
    """

    def __init__(self, table: Table, scan: NativeScan) -> None:
        self._table = table
        self._scan = scan
        self._keys = _Keys(table)

    def positions(
        self, file: HistoryFile, deletes: Sequence[DeleteFile], rows: tuple[int, int] | None = None
    ) -> pl.Series:
        """Positions of the deleted rows of a file, unsorted, maybe with repetitions.

        Args:
            file: The data file.
            deletes: Its delete files.
            rows: Only these (offset, count) are of interest.

        Raises:
            FileNotFoundError: A delete file is gone.
            UserError: ``TABLE_UNSUPPORTED``: two deletion vectors of one file in one Puffin file.
        """
        named = [one for one in deletes if not one.equality]
        found = [self._vector(one, file) if one.vector else self._listed(one, file) for one in named]
        by_value = sorted((one for one in deletes if one.equality), key=lambda one: (one.equality, one.path))
        for key, group in groupby(by_value, key=lambda one: one.equality):
            found.append(self._keys.matches(file, key, list(group), rows))
        return pl.concat([pl.Series(dtype=POSITIONS), *(one.rename("") for one in found)])

    def _listed(self, delete: DeleteFile, file: HistoryFile) -> pl.Series:
        wanted = self._scan.plain(delete.path).filter(pl.col("file_path") == file.path)
        return wanted.select(pl.col("pos").cast(POSITIONS)).collect().to_series()

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
        return pl.Series(found[0].to_vector() if found else [], dtype=pl.Int64).cast(POSITIONS)


class _Keys:
    """The values that equality deletes name, by file; the last ones are kept. For any thread."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._scans: dict[tuple[int, ...], NativeScan] = {}
        self._kept: dict[DeleteFile, pl.DataFrame] = {}
        self._nbytes = 0
        self._lock = Lock()

    def matches(
        self, file: HistoryFile, key: tuple[int, ...], deletes: Sequence[DeleteFile], rows: tuple[int, int] | None
    ) -> pl.Series:
        """Positions of the rows whose key is named by some delete files of that key."""
        scan = self._scan(key)
        mine = scan([file], position=True)
        if rows is not None:
            mine = mine.slice(*rows)
        named = pl.concat([self._read(scan, delete) for delete in deletes])
        found = mine.join(named.lazy(), on=list(scan.columns), how="semi", nulls_equal=True)
        return found.select(POSITION).collect().to_series()

    def _scan(self, key: tuple[int, ...]) -> NativeScan:
        if key not in self._scans:
            self._scans[key] = NativeScan(self._table, Schema(*(self._field(field_id) for field_id in key)))
        return self._scans[key]

    def _field(self, field_id: int) -> NestedField:
        """A key column, under a name of its own: a dropped one may share its name with one that came later."""
        field = key_field(self._table, field_id)
        if field is None:
            raise InternalError(f"equality deletes by field {field_id}, which was planned, but is not there")
        return field.model_copy(update={"name": f"key-{field_id}", "required": False})

    def _read(self, scan: NativeScan, delete: DeleteFile) -> pl.DataFrame:
        with self._lock:
            found = self._kept.get(delete)
        if found is None:
            found = scan([HistoryFile(delete.path, 0, 0)]).unique().collect()
            self._keep(delete, found)
        return found

    def _keep(self, delete: DeleteFile, keys: pl.DataFrame) -> None:
        with self._lock:
            if delete not in self._kept:
                self._kept[delete] = keys
                self._nbytes += int(keys.estimated_size())
            while self._nbytes > _KEPT_BYTES:
                oldest = next(iter(self._kept))
                self._nbytes -= int(self._kept.pop(oldest).estimated_size())


def only_in(positions: pl.Series, others: pl.Series) -> pl.Series:
    """The positions that are not among others."""
    return positions.filter(~positions.is_in(others.implode()))


def newly(
    deleted: DeletedRows, file: HistoryFile, before: Sequence[DeleteFile], after: Sequence[DeleteFile]
) -> Iterator[tuple[int, pl.Series]]:
    """Positions of the rows that other delete files have made go (-1) and come (+1).

    Where those that differ delete nothing, only they are read: with each snapshot of a table that is upserted every
    older file gets further deletes.
    """
    for here, there, sign in ((after, before, -1), (before, after, 1)):
        added = [one for one in here if one not in there]
        found = deleted.positions(file, added) if added else pl.Series(dtype=POSITIONS)
        if found.len():
            found = only_in(found, deleted.positions(file, there))
        if found.len():
            yield sign, found
