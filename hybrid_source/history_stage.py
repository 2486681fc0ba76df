"""The history of a hybrid source in production: a pinned lake version, its boundary rules, its splits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import polars as pl

from headrace.kernel import columns as system
from headrace.kernel.boundary import Boundary
from headrace.kernel.protocols import Json, ReadRequest
from hybrid_source.boundary import BoundaryContext, BoundaryRule, resolve_boundary
from hybrid_source.history import History, HistoryPlan, HistoryQuery, Trim
from hybrid_source.splits import SplitTarget
from hybrid_source.stages import HistoryBatch, Resolution


@dataclass(frozen=True, slots=True)
class OffsetNames:
    """The columns of the history that say where in the topic a row came from; ``a.b`` is a field of a struct."""

    partition: str = system.PARTITION
    offset: str = system.OFFSET
    topic: str | None = None

    def within(self, stored: pl.Schema) -> bool:
        """Whether a history has them."""
        return all(name.split(".")[0] in stored for name in (self.partition, self.offset))


@dataclass(frozen=True, slots=True)
class LakeHistory:
    """See :class:`hybrid_source.stages.HistoryStage`. Building it does no I/O.

    Attributes:
        open_history: Opens a version: the one of a pin, or (None) the one that the job asks for now.
        topic: The tail's topic; None for a job without a tail.
        rules: How the boundary is found, in order.
        where: The job's restriction of the history.
        event_time: The event-time column.
        offsets: The columns to trim by, where the history has them.
        target: How much work one split is.
    """

    open_history: Callable[[Json], History]
    topic: str | None = None
    rules: Sequence[BoundaryRule] = ()
    where: pl.Expr | None = None
    event_time: str | None = None
    offsets: OffsetNames = OffsetNames()
    target: SplitTarget = field(default_factory=SplitTarget)

    def pin(self) -> Json:
        """See :meth:`hybrid_source.stages.HistoryStage.pin`."""
        return self.open_history(None).pin

    def resolve(self, pin: Json, topic: str) -> Resolution:
        """See :meth:`hybrid_source.stages.HistoryStage.resolve`."""
        return resolve_boundary(self.rules, BoundaryContext(self.open_history(pin), topic))

    def open(self, request: ReadRequest, pin: Json, trim: Boundary | None) -> OpenLakeHistory:
        """See :meth:`hybrid_source.stages.HistoryStage.open`."""
        history = self.open_history(pin)
        query = HistoryQuery(
            request.columns,
            request.predicate,
            self.where,
            self.event_time,
            self._trim(history.stored, trim),
            self.target,
        )
        return OpenLakeHistory(history.plan(query))

    def _trim(self, stored: pl.Schema, boundary: Boundary | None) -> Trim | None:
        covered = boundary.topics.get(self.topic) if boundary is not None and self.topic is not None else None
        if covered is None or not self.offsets.within(stored):
            return None
        nexts = {partition: found.next for partition, found in covered.partitions.items()}
        return Trim(nexts, self.offsets.partition, self.offsets.offset, self.offsets.topic, self.topic)


class OpenLakeHistory:
    """See :class:`hybrid_source.stages.OpenHistory`.

    Attributes:
        plan: The pruned plan, for people and tests.
    """

    def __init__(self, plan: HistoryPlan) -> None:
        self.plan = plan
        self._total = plan.remaining()

    def read(self, cursor: Json) -> Iterator[HistoryBatch]:
        """See :meth:`hybrid_source.stages.OpenHistory.read`."""
        for split in self.plan.splits_from(cursor):
            yield HistoryBatch(split.rows, split.cursor, split.watermark, split.records, split.nbytes, split.files)

    def fraction(self, cursor: Json) -> float:
        """See :meth:`hybrid_source.stages.OpenHistory.fraction`."""
        left = self.plan.remaining(cursor)
        if self._total.records:
            return 1 - left.records / self._total.records
        return 1 - left.nbytes / self._total.nbytes if self._total.nbytes else 1.0
