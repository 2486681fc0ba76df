"""Rule: rows carry the partition and offset they came from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import polars as pl

from headrace.kernel import columns as system
from headrace.kernel.boundary import Boundary, PartitionRange, TopicBoundary
from headrace.kernel.errors import NotFoundError
from hybrid_source.boundary.rule import BoundaryContext
from hybrid_source.history import HistoryQuery
from hybrid_source.history_rows import column
from hybrid_source.iceberg_history import IcebergHistory
from hybrid_source.stages import Resolution

_PREFIX: Final = "exactly-once if the history holds every record below the boundary"
_ROWS: Final = "rows"


@dataclass(frozen=True, slots=True)
class _Covered:
    """What rows of one partition say: smallest offset, largest offset, number of rows (None: not counted)."""

    low: int
    high: int
    rows: int | None = None

    def join(self, other: _Covered) -> _Covered:
        rows = None if self.rows is None or other.rows is None else self.rows + other.rows
        return _Covered(min(self.low, other.low), max(self.high, other.high), rows)


@dataclass(frozen=True, slots=True)
class OffsetColumns:
    """Largest offset plus one, by partition; from file statistics where those are exact, else by a scan of the columns.

    Statistics are exact where every file holds one partition and has bounds of both columns. Either way the boundary
    is right only if the rows are a prefix of each partition: a record that is missing below it is never read.

    Attributes:
        partition: Column with the partition; ``a.b`` names a field of a struct.
        offset: Column with the offset, likewise.
        topic: Column with the topic; rows of other topics do not count. None when there is no such column.
        required: The job named the columns: their absence is an error, not a reason to try another rule.
    """

    partition: str = system.PARTITION
    offset: str = system.OFFSET
    topic: str | None = None
    required: bool = False

    @property
    def looks_for(self) -> str:
        """See :class:`hybrid_source.boundary.rule.BoundaryRule`."""
        return f"columns {self.partition} and {self.offset}"

    def resolve(self, context: BoundaryContext) -> Resolution | None:
        """See :class:`hybrid_source.boundary.rule.BoundaryRule`.

        Raises:
            NotFoundError: The job named columns that are not there.
        """
        stored = context.history.stored
        try:
            column(stored, self.partition)
            column(stored, self.offset)
            if self.topic is not None:
                column(stored, self.topic)
        except NotFoundError:
            if self.required:
                raise
            return None
        covered = self._from_statistics(context)
        how = "file statistics"
        if covered is None:
            covered = self._from_rows(context)
            how = "a scan of the two columns"
        ranges = {partition: PartitionRange(found.low, found.high + 1) for partition, found in sorted(covered.items())}
        evidence = f"{how} of {context.history.name}: " + (
            "; ".join(_describe(partition, found) for partition, found in sorted(covered.items())) or "no rows"
        )
        return Resolution(Boundary({context.topic: TopicBoundary(ranges)}), self.looks_for, evidence, _PREFIX)

    def _from_statistics(self, context: BoundaryContext) -> Mapping[int, _Covered] | None:
        history = context.history
        if not isinstance(history, IcebergHistory):
            return None
        names = [self.partition, self.offset, *([self.topic] if self.topic else [])]
        out: dict[int, _Covered] = {}
        for bounds in history.bounds(names):
            if any(bound is None for bound in bounds):
                return None
            (first, last), (low, high), *topics = [bound for bound in bounds if bound is not None]
            if first != last:
                return None
            if topics:
                if topics[0][0] != topics[0][1]:
                    return None
                if topics[0][0] != context.topic:
                    continue
            found = _Covered(int(low), int(high))
            out[int(first)] = out[int(first)].join(found) if int(first) in out else found
        return out

    def _from_rows(self, context: BoundaryContext) -> Mapping[int, _Covered]:
        out: dict[int, _Covered] = {}
        for partition, found in self._scanned(context):
            out[partition] = out[partition].join(found) if partition in out else found
        return out

    def _scanned(self, context: BoundaryContext) -> Iterator[tuple[int, _Covered]]:
        stored = context.history.stored
        partition, offset = column(stored, self.partition), column(stored, self.offset)
        roots = {self.partition: partition, self.offset: offset}
        where = partition.is_not_null() & offset.is_not_null()
        if self.topic is not None:
            where &= column(stored, self.topic).is_null() | (column(stored, self.topic) == context.topic)
        wanted = {name for expression in roots.values() for name in expression.meta.root_names()}
        plan = context.history.plan(HistoryQuery(columns=sorted(wanted), where=where))
        for split in plan.splits_from():
            found = (
                split.rows.group_by(partition.alias(system.PARTITION))
                .agg(offset.min().alias("low"), offset.max().alias("high"), pl.len().alias(_ROWS))
                .collect(engine="streaming")
            )
            for number, low, high, rows in found.iter_rows():
                yield int(number), _Covered(int(low), int(high), int(rows))


def _describe(partition: int, found: _Covered) -> str:
    text = f"partition {partition} holds offsets {found.low} to {found.high}"
    if found.rows is None:
        return text
    missing = found.high - found.low + 1 - found.rows
    if missing > 0:
        return f"{text} with {missing} left out (compaction, transaction markers, or missing rows)"
    if missing < 0:
        return f"{text} with {-missing} rows more than offsets (some are doubled)"
    return f"{text}, each once"
