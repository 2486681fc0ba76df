"""A two-phase sink into memory, with the same commit contract as the real ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import polars as pl

from headrace.kernel.boundary import Boundary
from headrace.kernel.errors import FencedError, InternalError
from headrace.kernel.protocols import EpochId, PreCommit, SinkContext

KIND: Final = "memory"


@dataclass(slots=True)
class MemoryTable:
    """A table that survives simulated crashes: committed frames, and the token of the last commit of each sink."""

    committed: list[pl.DataFrame] = field(default_factory=list)
    staged: dict[str, pl.DataFrame] = field(default_factory=dict)
    tokens: dict[str, tuple[str, int]] = field(default_factory=dict)
    coverage: Mapping[str, object] | None = None

    def rows(self) -> pl.DataFrame:
        """All committed rows, in commit order; an empty frame without columns when there are none."""
        return pl.concat(self.committed) if self.committed else pl.DataFrame()


@dataclass(frozen=True, slots=True)
class MemorySink:
    """Writes to a :class:`MemoryTable`."""

    id: str
    table: MemoryTable
    commit_order: int = 1

    def open(self, schema: pl.Schema, context: SinkContext) -> MemoryWriter:
        """See :meth:`Sink.open`."""
        return MemoryWriter(self.id, self.table, schema, context)


class MemoryWriter:
    """See :class:`SinkWriter`."""

    def __init__(self, sink_id: str, table: MemoryTable, schema: pl.Schema, context: SinkContext) -> None:
        self._id = sink_id
        self._table = table
        self._schema = schema
        self._context = context
        self._rows: list[pl.DataFrame] = []

    def recover(self, pre_commit: PreCommit | None) -> None:
        """See :meth:`SinkWriter.recover`."""
        if pre_commit is not None:
            self.commit(pre_commit)

    def write(self, frame: pl.DataFrame) -> None:
        """See :meth:`SinkWriter.write`."""
        if frame.schema != self._schema:
            raise InternalError(f"sink {self._id} was opened for {self._schema}, got {frame.schema}")
        self._rows.append(frame)

    def prepare(self, epoch: EpochId, coverage: Boundary | None) -> PreCommit | None:
        """See :meth:`SinkWriter.prepare`."""
        if not self._rows:
            return None
        name = f"{epoch.lineage}-{epoch.epoch}-{epoch.attempt}"
        self._table.staged[name] = pl.concat(self._rows)
        self._rows = []
        return {
            "kind": KIND,
            "staged": name,
            "lineage": epoch.lineage,
            "epoch": epoch.epoch,
            "coverage": coverage.to_json() if coverage else None,
        }

    def commit(self, pre_commit: PreCommit) -> None:
        """See :meth:`SinkWriter.commit`."""
        key = f"{self._context.job_uid}/{self._id}"
        lineage, epoch = self._table.tokens.get(key, (pre_commit["lineage"], -1))
        if lineage != pre_commit["lineage"]:
            raise FencedError(f"sink {self._id} belongs to another lineage")
        if epoch >= pre_commit["epoch"]:
            return
        self._table.committed.append(self._table.staged[pre_commit["staged"]])
        self._table.tokens[key] = (lineage, pre_commit["epoch"])
        if pre_commit["coverage"] is not None:
            self._table.coverage = pre_commit["coverage"]

    def abort(self) -> None:
        """See :meth:`SinkWriter.abort`."""
        self._rows = []

    def close(self) -> None:
        """See :meth:`SinkWriter.close`."""
