"""Which delete files apply to which data file (Iceberg spec v2 and v3, "Scan planning").

Position deletes and deletion vectors name files and rows. Equality deletes, which upserting writers leave behind
(Flink, Kafka Connect), name values: every row of an *older* data file that has them in some columns is deleted, null
equal to null.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from pyiceberg.expressions import BooleanExpression
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestEntry, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.delete_file_index import DeleteFileIndex
from pyiceberg.transforms import VoidTransform
from pyiceberg.typedef import Record
from pyiceberg.types import IntegerType, LongType, NestedField, StringType

from headrace.kernel.errors import UserError
from hybrid_source.iceberg_bounds import exact_bounds
from hybrid_source.iceberg_planner import Planner
from hybrid_source.splits import DeleteFile

_Scope: TypeAlias = tuple[int, Record] | None
"""Partition spec and partition that equality deletes are for; None: all files."""

_ORDERED: Final = (IntegerType, LongType, StringType)
"""Types whose bounds leave nothing out (those of floats say nothing of NaN) and have one form whatever was promoted."""


def unsupported(name: str, file: DataFile, what: str) -> UserError:
    """The refusal of a table with files that cannot be read rightly."""
    return UserError(
        f"table {name} has {what}",
        detail=file.file_path,
        hint="rewrite the table's files (compaction) as plain Parquet without delete files, or pin an earlier snapshot",
        code="TABLE_UNSUPPORTED",
        context={"table": name, "file": file.file_path},
    )


def key_field(table: Table, field_id: int) -> NestedField | None:
    """A column by its id, in the current schema or else in the latest that has it; None for a nested field.

    Equality deletes hold on after their column was dropped.
    """
    schemas = sorted(table.schemas().values(), key=lambda schema: schema.schema_id, reverse=True)
    for schema in (table.schema(), *schemas):
        for field in schema.fields:
            if field.field_id == field_id:
                return field
    return None


@dataclass(frozen=True, slots=True)
class _Equality:
    """One file of equality deletes.

    Attributes:
        sequence: Its data sequence number: it is for data files with a smaller one.
        file: The file.
        bounds: Of its key columns, as far as they are known.
    """

    sequence: int
    file: DeleteFile
    bounds: tuple[tuple[Any, Any] | None, ...]


class DeleteIndex:
    """The delete files of a snapshot.

    Args:
        table: The loaded table.
        name: For messages.
    """

    def __init__(self, table: Table, name: str) -> None:
        self._table = table
        self._name = name
        self._positions = DeleteFileIndex()
        self._equality: dict[_Scope, list[_Equality]] = {}
        self._files: dict[str, DeleteFile] = {}

    def read(self, manifests: Sequence[ManifestFile], row_filter: BooleanExpression) -> DeleteIndex:
        """Take in some delete manifests, as far as they are for partitions that may hold rows of a filter.

        Raises:
            UserError: ``TABLE_UNSUPPORTED``: deletes that cannot be applied.
        """
        planner = _DeletePlanner(self._table.metadata, self._table.io, row_filter)
        for entries in planner.plan_manifest_entries(manifests):
            for entry in entries:
                self._add(entry)
        return self

    def of(self, entry: ManifestEntry) -> tuple[DeleteFile, ...]:
        """The delete files that apply to a data file, in the order of their paths."""
        file, sequence = entry.data_file, entry.sequence_number or 0
        found = self._positions.for_data_file(sequence, file, partition_key=file.partition)
        deletes = [self._file(one) for one in found]
        deletes += [one.file for one in self._equal(file) if one.sequence > sequence and self._meets(one, file)]
        return tuple(sorted(deletes, key=lambda one: one.path))

    def _add(self, entry: ManifestEntry) -> None:
        file = entry.data_file
        if file.content != DataFileContent.EQUALITY_DELETES:
            self._positions.add_delete_file(entry, partition_key=file.partition)
            return
        fields = self._key(file)
        bounds = tuple(exact_bounds(file, fields))
        deletes = _Equality(entry.sequence_number or 0, self._file(file), bounds)
        self._equality.setdefault(self._scope(file), []).append(deletes)

    def _key(self, file: DataFile) -> list[NestedField]:
        fields = [key_field(self._table, field_id) for field_id in file.equality_ids or ()]
        known = [field for field in fields if field is not None and field.field_type.is_primitive]
        if not known or len(known) != len(fields):
            raise unsupported(self._name, file, "equality deletes by what is no plain column, which cannot be applied")
        return known

    def _scope(self, file: DataFile) -> _Scope:
        spec = self._table.specs()[file.spec_id]
        every = all(isinstance(field.transform, VoidTransform) for field in spec.fields)
        return None if every else (file.spec_id, file.partition)

    def _equal(self, file: DataFile) -> Iterator[_Equality]:
        if self._equality:
            yield from self._equality.get(None, ())
            yield from self._equality.get((file.spec_id, file.partition), ())

    def _meets(self, deletes: _Equality, file: DataFile) -> bool:
        """Whether the file may hold any of the values, by the bounds of both."""
        for field_id, theirs in zip(deletes.file.equality, deletes.bounds, strict=True):
            field = key_field(self._table, field_id)
            if theirs is None or field is None or not isinstance(field.field_type, _ORDERED):
                continue
            (ours,) = exact_bounds(file, [field])
            if ours is not None and (ours[1] < theirs[0] or theirs[1] < ours[0]):
                return False
        return True

    def _file(self, file: DataFile) -> DeleteFile:
        found = self._files.get(file.file_path)
        if found is None:
            if file.file_format not in {FileFormat.PARQUET, FileFormat.PUFFIN}:
                raise unsupported(self._name, file, f"delete files in {file.file_format.value}")
            if file.key_metadata is not None:
                raise unsupported(self._name, file, "encrypted delete files")
            key = tuple(file.equality_ids or ()) if file.content == DataFileContent.EQUALITY_DELETES else ()
            found = DeleteFile(file.file_path, vector=file.file_format == FileFormat.PUFFIN, equality=key)
            self._files[file.file_path] = found
        return found


class _DeletePlanner(Planner):
    """Reads delete manifests by partition alone.

    The metrics of delete files say nothing of the rows that they delete: of those an equality delete gives the key, and
    whatever else stands in it is of another row.
    """

    def _build_metrics_evaluator(self) -> Callable[[DataFile], bool]:
        return lambda _: True
