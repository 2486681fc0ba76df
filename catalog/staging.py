"""Data files that are durable but not committed, and the staged manifests through which anybody can commit them."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import polars as pl
from pyiceberg.typedef import Record

from catalog.errors import mapping
from catalog.iceberg_internals import read_staged_manifest, write_staged_manifest
from catalog.parquet_files import write_parquet
from catalog.partition_values import split_by_partition
from catalog.write_properties import compression, target_file_size
from headrace.kernel.errors import HeadraceError

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile
    from pyiceberg.partitioning import PartitionKey
    from pyiceberg.table import Table

_FIRST_GUESS: Final = 4.0


@dataclass(frozen=True, slots=True)
class StagedManifest:
    """A manifest of data files that no snapshot knows yet. All of them follow the partition spec ``spec_id``."""

    path: str
    length: int
    spec_id: int
    files: int
    rows: int
    nbytes: int

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StagedManifest:
        """Read what :meth:`to_json` gave."""
        return cls(**{name: value[name] for name in cls.__slots__})


class DataFileWriter:
    """Writes frames to data files of one table, without committing them. Used by one thread at a time.

    Args:
        table: The table; the current partition spec and schema are used. :attr:`table` may be replaced by a newer view.
        label: Goes into every file's name, with a nonce of this writer: no two attempts ever share a name.
        target_size: Size of a full file in bytes, compressed; reached within the accuracy of the compression seen so
            far. None: what the table's properties say.
    """

    def __init__(self, table: Table, label: str, target_size: int | None = None) -> None:
        self.table = table
        self._label = f"{label}-{uuid.uuid4().hex}"
        self._target = target_size
        self._numbers = itertools.count()
        self._ratio = _FIRST_GUESS

    def write(self, frame: pl.DataFrame) -> list[DataFile]:
        """Write rows with exactly the table's columns and types (see :func:`catalog.fitting.cast`).

        Raises:
            HeadraceError: The storage failed, or does not allow it. Files written before stay behind, unreferenced.
        """
        with mapping(f"write data files of table {'.'.join(self.table.name())}"):
            return [
                self._write_file(piece, key)
                for key, rows in split_by_partition(frame, self.table)
                for piece in self._pieces(rows)
            ]

    def _pieces(self, rows: pl.DataFrame) -> Iterator[pl.DataFrame]:
        size = rows.estimated_size() / self._ratio
        pieces = max(1, round(size / (self._target or target_file_size(self.table))))
        return rows.iter_slices(-(-rows.height // pieces))

    def _write_file(self, rows: pl.DataFrame, key: PartitionKey | None) -> DataFile:
        name = f"{self._label}-{next(self._numbers):05d}.parquet"
        data_file = write_parquet(
            rows,
            self.table,
            self.table.location_provider().new_data_location(name, key),
            self.table.spec().spec_id,
            key.partition if key else Record(),
            compression(self.table),
        )
        if rows.height > 1000:  # noqa: PLR2004 - a small file says nothing about compression
            self._ratio = max(1.0, rows.estimated_size() / data_file.file_size_in_bytes)
        return data_file


def seal(table: Table, files: Iterable[DataFile], name: str) -> tuple[StagedManifest, ...]:
    """Record data files durably in staged manifests beside the table's metadata, one for each partition spec.

    Args:
        table: Their table.
        files: Fresh data files.
        name: Goes into the manifests' names; must be unique to the attempt.
    """
    by_spec: dict[int, list[DataFile]] = {}
    for data_file in files:
        by_spec.setdefault(data_file.spec_id, []).append(data_file)
    staged = []
    with mapping(f"write a staged manifest of table {'.'.join(table.name())}"):
        for spec_id, group in by_spec.items():
            path = table.location_provider().new_metadata_location(f"headrace-staged-{name}-{spec_id}.avro")
            length = write_staged_manifest(table, spec_id, group, path)
            rows = sum(data_file.record_count for data_file in group)
            nbytes = sum(data_file.file_size_in_bytes for data_file in group)
            staged.append(StagedManifest(path, length, spec_id, len(group), rows, nbytes))
    return tuple(staged)


def staged_files(file_io: FileIO, staged: Sequence[StagedManifest]) -> list[DataFile]:
    """The data files that staged manifests name."""
    files = []
    for manifest in staged:
        with mapping(f"read staged manifest {manifest.path}"):
            files += read_staged_manifest(file_io, manifest.path, manifest.length, manifest.spec_id)
    return files


def remove(file_io: FileIO, paths: Iterable[str]) -> None:
    """Remove files that no snapshot needs, as far as that works; what stays behind is orphan removal's."""
    for path in paths:
        with suppress(HeadraceError), mapping(f"remove {path}"):
            file_io.delete(path)
