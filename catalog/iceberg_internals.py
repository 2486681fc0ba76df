"""Every private part of pyiceberg and Polars that Headrace leans on, held by tests/contract/test_iceberg_internals.py.

Written for pyiceberg 0.12 and Polars 2.1 (pinned in pyproject.toml).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import polars as pl
from pyiceberg.manifest import (
    DataFile,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    write_manifest,
)
from pyiceberg.table import Transaction
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation, SnapshotSummaryCollector, Summary, update_snapshot_summaries
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    RemovePropertiesUpdate,
    RemoveSnapshotRefUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
    update_table_metadata,
)
from pyiceberg.table.update.snapshot import _MergeAppendFiles
from pyiceberg.typedef import EMPTY_DICT

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.refs import SnapshotRefType

FOREVER_MS: Final = 2**63 - 1
"""An explicit reference age: without it, a table property may let expiry remove a tag."""


class CachedTransaction(Transaction):
    """A transaction that applies its updates once: pyiceberg copies the metadata some twenty times per commit."""

    _cache: tuple[object, object, TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        """The table's metadata with the staged updates."""
        base, updates = self._table.metadata, self._updates
        if not updates:
            return base
        if self._cache is None or self._cache[0] is not base or self._cache[1] is not updates:
            self._cache = (base, updates, update_table_metadata(base, updates))
        return self._cache[2]


class _Append(_MergeAppendFiles):
    """Appends data files under the partition spec each was written for; pyiceberg takes the current one for all."""

    def _manifests(self) -> list[ManifestFile]:
        by_spec: dict[int, list[DataFile]] = defaultdict(list)
        for data_file in self._added_data_files:
            by_spec[data_file.spec_id].append(data_file)
        added = [self._added_manifest(self.spec(spec_id), files) for spec_id, files in by_spec.items()]
        return self._process_manifests(added + self._existing_manifests())

    def _added_manifest(self, spec: PartitionSpec, files: list[DataFile]) -> ManifestFile:
        with self.new_manifest_writer(spec) as writer:
            for data_file in files:
                writer.add(_added(data_file, self._snapshot_id))
        return writer.to_manifest_file()

    def _summary(self, snapshot_properties: dict[str, str] = EMPTY_DICT) -> Summary:
        metadata = self._transaction.table_metadata
        collector = SnapshotSummaryCollector()
        specs, schema = metadata.specs(), metadata.schema()
        for data_file in self._added_data_files:
            collector.add_file(data_file, schema, specs[data_file.spec_id])
        parent = self._parent_snapshot_id
        previous = metadata.snapshot_by_id(parent) if parent is not None else None
        return update_snapshot_summaries(
            summary=Summary(operation=self._operation, **collector.build(), **snapshot_properties),
            previous_summary=previous.summary if previous else None,
        )


class Commit:
    """One attempt to change a table: what to change, and what must still hold when the catalog changes it.

    Nothing is retried in here. pyiceberg's own retry drops assertions that were added by hand, and removes the files of
    an attempt that it takes for failed; both were seen to break exactly-once.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self._transaction = CachedTransaction(table)
        self._append: _Append | None = None
        self._extra_updates: list[TableUpdate] = []
        self._extra_requirements: list[TableRequirement] = [AssertTableUUID(uuid=table.metadata.table_uuid)]

    @property
    def snapshot_id(self) -> int:
        """The id of the snapshot that :meth:`append` stages."""
        return self._staged.snapshot_id

    @property
    def sequence_number(self) -> int:
        """The sequence number of that snapshot."""
        return self._table.metadata.next_sequence_number()

    @property
    def _staged(self) -> _Append:
        if self._append is None:
            raise RuntimeError("no snapshot is staged")
        return self._append

    def append(self, files: Iterable[DataFile], branch: str, summary: Mapping[str, str]) -> None:
        """Stage a snapshot with ``files`` (none: an empty one) on top of ``branch``, asserting the branch's head."""
        self._append = _Append(
            operation=Operation.APPEND,
            transaction=self._transaction,
            io=self._table.io,
            branch=branch,
            snapshot_properties=dict(summary),
        )
        for data_file in files:
            self._append.append_data_file(data_file)

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """Set table properties."""
        self._extra_updates.append(SetPropertiesUpdate(updates=dict(properties)))

    def remove_properties(self, names: Iterable[str]) -> None:
        """Remove table properties, which must be there."""
        if removals := list(names):
            self._extra_updates.append(RemovePropertiesUpdate(removals=removals))

    def set_ref(self, name: str, kind: SnapshotRefType, snapshot_id: int, age_ms: int = FOREVER_MS) -> None:
        """Let a branch or tag point at a snapshot, with an explicit age so that expiry spares a tag.

        Args:
            name: The branch or tag.
            kind: Which of the two.
            snapshot_id: The snapshot.
            age_ms: How old the *snapshot* may become before expiry may remove a tag.
        """
        ages: dict[str, Any] = {"max-ref-age-ms": age_ms} if kind == "tag" else {}
        self._extra_updates.append(
            SetSnapshotRefUpdate.model_validate({"ref-name": name, "type": kind, "snapshot-id": snapshot_id, **ages})
        )

    def remove_ref(self, name: str) -> None:
        """Remove a branch or tag."""
        self._extra_updates.append(RemoveSnapshotRefUpdate.model_validate({"ref-name": name}))

    def require_ref(self, name: str) -> None:
        """Require that a branch or tag is still as it is in the metadata this attempt was made from."""
        found = self._table.metadata.refs.get(name)
        expected = found.snapshot_id if found else None
        # The spec allows no assertion on other references of a table without snapshots; main's own fences there.
        if self._table.metadata.snapshots or name == MAIN_BRANCH:
            self._extra_requirements.append(AssertRefSnapshotId.model_validate({"ref": name, "snapshot-id": expected}))

    def write(self) -> None:
        """Write the snapshot's manifests, if one is staged. The table does not change."""
        if self._append is not None:
            self._append.commit()

    def send(self) -> None:
        """Send it to the catalog, once.

        Raises:
            Exception: As pyiceberg raises it. ``CommitFailedException`` says that *this* request changed nothing; all
                others leave open whether it did.
        """
        self._table._do_commit(  # noqa: SLF001 - the one commit without pyiceberg's retry
            updates=(*self._transaction._updates, *self._extra_updates),  # noqa: SLF001 - as above
            requirements=(*self._transaction._requirements, *self._extra_requirements),  # noqa: SLF001 - as above
        )

    def discard(self) -> None:
        """Remove the manifests of this attempt. Only after it is certain that it changed nothing."""
        if self._append is not None:
            self._append._clean_all_uncommitted()  # noqa: SLF001 - only pyiceberg knows their names


def _added(data_file: DataFile, snapshot_id: int) -> ManifestEntry:
    return ManifestEntry.from_args(
        status=ManifestEntryStatus.ADDED,
        snapshot_id=snapshot_id,
        sequence_number=None,
        file_sequence_number=None,
        data_file=data_file,
    )


def write_staged_manifest(table: Table, spec_id: int, files: Iterable[DataFile], location: str) -> int:
    """Write data files of one partition spec as an Iceberg manifest, and give its length in bytes."""
    spec, output = table.specs()[spec_id], table.io.new_output(location)
    with write_manifest(2, spec, table.schema(), output, snapshot_id=0, avro_compression="deflate") as writer:
        for data_file in files:
            writer.add(_added(data_file, 0))
    return writer.to_manifest_file().manifest_length


def read_staged_manifest(file_io: FileIO, location: str, length: int, spec_id: int) -> list[DataFile]:
    """The data files of a manifest that :func:`write_staged_manifest` wrote."""
    manifest = ManifestFile.from_args(
        manifest_path=location,
        manifest_length=length,
        partition_spec_id=spec_id,
        content=ManifestContent.DATA,
        sequence_number=0,
        min_sequence_number=0,
        added_snapshot_id=0,
    )
    return [entry.data_file for entry in manifest.fetch_manifest_entry(file_io)]


def bucket_hash(value: pl.Expr) -> pl.Expr:
    """Iceberg's 32-bit Murmur3 hash of an int64, string or binary expression (Iceberg spec, appendix B)."""
    return value._mm3_hash()  # noqa: SLF001 - Polars has no public Murmur3
