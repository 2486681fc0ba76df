"""The Iceberg sink: appends rows to a table, exactly once.

Prepare writes data files and a staged manifest, which no reader sees; commit makes them a snapshot together with the
epoch's token and the boundary record (docs/design: catalog/commit.py). Guarantee: exactly once, as long as the table is
changed through its catalog.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import polars as pl

from catalog.boundary_record import find_boundary, merged
from catalog.catalogs import Catalogs, TableName
from catalog.changing import RetryPolicy
from catalog.commit import (
    EpochCommit,
    check_identity,
    commit_epoch,
    fence,
    refuse_commits,
    refuse_set_back,
    rolled_back,
)
from catalog.fitting import fit
from catalog.staging import remove, seal
from catalog.tables import load_or_create
from catalog.tokens import SinkKey
from catalog.write_properties import check_writable
from headrace.kernel import crash
from headrace.kernel.boundary import Boundary
from headrace.kernel.clock import Clock, SystemClock
from headrace.kernel.errors import BoundaryError, FencedError, NotFoundError
from headrace.kernel.protocols import BlobStore, EpochId, PreCommit, SinkContext
from headrace.sinks import iceberg_precommit
from headrace.sinks.iceberg_buffer import EpochBuffer
from headrace.state.frames import damaged

if TYPE_CHECKING:
    from pyiceberg.table import Table

HOUR_US: Final = 3_600_000_000
DEFAULT_BUFFER_BYTES: Final = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class IcebergSink:
    """An append-only Iceberg table as a target. Implements ``headrace.kernel.protocols.Sink``.

    Attributes:
        id: Stable id.
        catalogs: Where the table's catalog is configured.
        table: ``catalog.namespace.table``.
        create: Create the table (and its namespace) when the job first opens it.
        partition_by: Partition fields of a new table, such as ``day(ts)``.
        properties: Properties of a new table.
        branch: The branch to write to; made from main when it is missing.
        target_file_size: Size of a full data file, in bytes; None: what the table's properties say.
        buffer_bytes: Rows held in memory before they are written, in bytes; twice that is the most that is held.
        marker_interval_us: When only the boundary moves, it is committed at most this often.
        retry: How long a commit is tried.
        clock: Where the time comes from.
    """

    id: str
    catalogs: Catalogs
    table: str
    create: bool = False
    partition_by: Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    branch: str = "main"
    target_file_size: int | None = None
    buffer_bytes: int = DEFAULT_BUFFER_BYTES
    marker_interval_us: int = HOUR_US
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    clock: Clock = field(default_factory=SystemClock)

    @property
    def commit_order(self) -> int:
        """After Kafka."""
        return 1

    def open(self, schema: pl.Schema, context: SinkContext) -> IcebergWriter:
        """See ``Sink.open``: the table is checked or made, nothing is written to it.

        Raises:
            SpecError: The table's name or a partition field is wrong.
            NotFoundError: The catalog, or the table and ``create`` is off or the job has written to it before.
            IdentityError: The table is not the one this lineage has written to.
            SchemaError: The rows do not fit the table.
            UserError: The job begins, and the table holds what it committed before (``SINK_HAS_COMMITS``); the table
                cannot be written as it is (:func:`catalog.write_properties.check_writable`).
            DataError: The table holds epochs that the job's head does not know (``CHECKPOINT_SET_BACK``).
        """
        name = TableName.parse(self.table)
        identity = _Identity(context.blobs, f"staging/{quote(self.id, safe='')}/table-{context.lineage}.json")
        recorded = identity.read()
        if self.create and recorded is None:
            table = load_or_create(self.catalogs, name, schema, self.partition_by, self.properties)
        else:
            table = self.catalogs.load(name)
        check_writable(table, name)
        if recorded is not None:
            check_identity(table, name, recorded)
        fit(schema, table.schema(), str(name))
        key = SinkKey(context.job_uid, self.id, self.branch)
        if context.decided is None:
            # Before any sink of the job fences an instance that works with another state.
            refuse_commits(table, name, key, context.lineage)
        else:
            refuse_set_back(table, name, key, context.lineage, context.decided)
        identity.record(str(table.metadata.table_uuid))
        return IcebergWriter(self, name, table, schema, context)


class IcebergWriter:
    """An open Iceberg sink. Implements ``headrace.kernel.protocols.SinkWriter``; used by one thread."""

    def __init__(
        self, sink: IcebergSink, name: TableName, table: Table, schema: pl.Schema, context: SinkContext
    ) -> None:
        self._sink = sink
        self._name = name
        self._key = SinkKey(context.job_uid, sink.id, sink.branch)
        self._lineage = context.lineage
        self._uuid = str(table.metadata.table_uuid)
        self._entry = context.entry
        self._buffer = EpochBuffer(
            sink.catalogs, name, table, schema, self._key.digest, sink.target_file_size, sink.buffer_bytes
        )
        self._committed: int | None = None
        self._committed_us = sink.clock.now_us()
        self._covered: Boundary | None = None

    def recover(self, pre_commit: PreCommit | None) -> None:
        """See ``SinkWriter.recover``.

        Raises:
            DataError: The table was rolled back behind what this lineage has committed (``TABLE_ROLLED_BACK``).
            NotFoundError: The table is gone.
            IdentityError: The table of the pre-commit is not this one.
            SupersededError: Another lineage of the job has taken the sink over.
            UserError: The job begins, and another lineage of it has committed meanwhile (``SINK_HAS_COMMITS``).
        """
        state = fence(self._sink.catalogs, self._name, self._key, self._lineage, self._sink.retry, entry=self._entry)
        here = state.committed if state.committed and state.committed.lineage == self._lineage else None
        if state.rolled_back:
            raise rolled_back(self._name, self._key, here)
        self._committed = here.epoch if here else None
        if state.at_ms is not None:
            self._committed_us = state.at_ms * 1000
        self._covered = self._recorded()
        if pre_commit is not None:
            self.commit(pre_commit)

    def write(self, frame: pl.DataFrame) -> None:
        """See ``SinkWriter.write``: rows are buffered, and written by a thread beyond ``buffer_bytes``."""
        self._buffer.add(frame)

    def prepare(self, epoch: EpochId, coverage: Boundary | None) -> PreCommit | None:
        """See ``SinkWriter.prepare``.

        Without rows, a moved boundary is committed as a marker once per ``marker_interval_us``.

        Raises:
            SchemaError: The table's schema has changed so that the rows no longer fit.
            NotFoundError: The table is gone (``TABLE_NOT_FOUND``).
            IdentityError: The table was recreated.
        """
        files = self._buffer.finish()
        if not files and not self._marker_due(coverage):
            return None
        staged = seal(self._buffer.table, files, f"{self._key.digest}-{epoch.epoch}-{epoch.attempt}")
        return iceberg_precommit.to_json(
            EpochCommit(
                table=self._name,
                table_uuid=self._uuid,
                key=self._key,
                lineage=epoch.lineage,
                epoch=epoch.epoch,
                attempt=epoch.attempt,
                staged=staged,
                coverage=coverage,
                previous=self._committed,
            )
        )

    def commit(self, pre_commit: PreCommit) -> None:
        """See ``SinkWriter.commit`` and :func:`catalog.commit.commit_epoch` for its errors."""
        wanted = iceberg_precommit.from_json(pre_commit)
        crash.point("iceberg-before-commit")
        commit_epoch(self._sink.catalogs, wanted, self._sink.retry)
        crash.point("iceberg-after-commit")
        self._committed = max(wanted.epoch, self._committed or 0)
        self._committed_us = self._sink.clock.now_us()
        if wanted.coverage is not None:
            self._covered = merged(self._covered, wanted.coverage)
        remove(self._buffer.table.io, [manifest.path for manifest in wanted.staged])

    def abort(self) -> None:
        """See ``SinkWriter.abort``."""
        self._buffer.clear()

    def close(self) -> None:
        """See ``SinkWriter.close``."""
        self._buffer.close()

    def _marker_due(self, coverage: Boundary | None) -> bool:
        if coverage is None or merged(self._covered, coverage) == self._covered:
            return False
        return self._sink.clock.now_us() - self._committed_us >= self._sink.marker_interval_us

    def _recorded(self) -> Boundary | None:
        """The boundary that the branch records now."""
        table = self._sink.catalogs.load(self._name)
        head = table.metadata.refs.get(self._sink.branch)
        with suppress(BoundaryError):
            found = find_boundary(table, head.snapshot_id if head else None)
            return found.boundary if found else None
        return None


class _Identity:
    """Which table a lineage writes to, noted once beside the job's checkpoints.

    Without it a table that was dropped between two runs would be made anew, and what it held would be missing silently.
    """

    def __init__(self, blobs: BlobStore, name: str) -> None:
        self._blobs = blobs
        self._name = name

    def read(self) -> str | None:
        """The noted UUID.

        Raises:
            DataError: The note is damaged (``CHECKPOINT_DAMAGED``).
        """
        try:
            value: dict[str, Any] = json.loads(self._blobs.get(self._name))
            return str(value["table_uuid"])
        except NotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise damaged(self._name, repr(error)) from error

    def record(self, table_uuid: str) -> None:
        """Note it, unless it is noted already."""
        with suppress(FencedError):
            self._blobs.put(self._name, json.dumps({"version": 1, "table_uuid": table_uuid}).encode())
