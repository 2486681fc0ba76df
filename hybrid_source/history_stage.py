"""The history of a hybrid source in production: a pinned lake version, its boundary rules, its splits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import polars as pl

from headrace.kernel import columns as system
from headrace.kernel.boundary import Boundary, TopicBoundary
from headrace.kernel.errors import BoundaryError
from headrace.kernel.protocols import Json, ReadRequest
from hybrid_source.boundary import BoundaryContext, BoundaryRule, resolve_boundary
from hybrid_source.history import History, HistoryPlan, HistoryQuery, Trim
from hybrid_source.splits import SplitTarget
from hybrid_source.stages import EXACTLY_ONCE, HistoryBatch, Resolution


@dataclass(frozen=True, slots=True)
class OffsetNames:
    """The columns of the history that say where in the topic a row came from; ``a.b`` is a field of a struct."""

    partition: str = system.PARTITION
    offset: str = system.OFFSET
    topic: str | None = None

    def within(self, stored: pl.Schema) -> bool:
        """Whether a history has them."""
        return all(name.split(".")[0] in stored for name in (self.partition, self.offset))

    def topic_column(self, stored: pl.Schema) -> str | None:
        """The column with the topic: the one that is named, else Headrace's own where there is one."""
        return self.topic or (system.TOPIC if system.TOPIC in stored else None)


@dataclass(frozen=True, slots=True)
class LakeHistory:
    """See :class:`hybrid_source.stages.HistoryStage`. Building it does no I/O.

    Attributes:
        open_history: Opens a version: the one of a pin, or (None) the one that the job asks for now.
        rules: How the boundary is found, in order.
        where: The job's restriction of the history.
        event_time: The event-time column.
        offsets: The columns to trim by, where the history has them.
        target: How much work one split is.
    """

    open_history: Callable[[Json], History]
    rules: Sequence[BoundaryRule] = ()
    where: pl.Expr | None = None
    event_time: str | None = None
    offsets: OffsetNames = OffsetNames()
    target: SplitTarget = field(default_factory=SplitTarget)

    def pin(self) -> Json:
        """See :meth:`hybrid_source.stages.HistoryStage.pin`."""
        return self.open_history(None).pin

    def resolve(self, pin: Json, topics: Sequence[str]) -> Resolution:
        """See :meth:`hybrid_source.stages.HistoryStage.resolve`."""
        history = self.open_history(pin)
        found = {topic: resolve_boundary(self.rules, BoundaryContext(history, topic)) for topic in topics}
        return joined(found)

    def open(self, request: ReadRequest, pin: Json, trim: Boundary | None) -> OpenLakeHistory:
        """See :meth:`hybrid_source.stages.HistoryStage.open`."""
        history = self.open_history(pin)
        query = HistoryQuery(
            request.columns,
            request.predicate,
            self.where,
            self.event_time,
            self._trims(history.stored, trim),
            self.target,
        )
        return OpenLakeHistory(history.plan(query))

    def _trims(self, stored: pl.Schema, boundary: Boundary | None) -> Sequence[Trim]:
        if boundary is None or not self.offsets.within(stored):
            return ()
        several = len(boundary.topics) > 1
        topic_column = self.offsets.topic_column(stored) if several else self.offsets.topic
        if several and topic_column is None:
            raise BoundaryError(
                f"rows of the history do not say which of the topics {', '.join(sorted(boundary.topics))} they are of",
                detail=f"looked for a column {self.offsets.topic or system.TOPIC} next to {self.offsets.offset}",
                hint="read each topic as a source of its own, or name the column that holds the topic",
            )
        return [
            Trim(
                {partition: found.next for partition, found in covered.partitions.items()},
                self.offsets.partition,
                self.offsets.offset,
                topic_column,
                topic,
            )
            for topic, covered in boundary.topics.items()
        ]


def joined(found: Mapping[str, Resolution]) -> Resolution:
    """The resolutions of several topics as one, whose boundary has exactly these topics.

    Raises:
        BoundaryError: They are recorded for different clusters.
    """
    clusters = {one.boundary.cluster for one in found.values()} - {None}
    if len(clusters) > 1:
        raise BoundaryError(
            f"the boundaries of topics {', '.join(sorted(found))} are of different clusters",
            detail=", ".join(f"{topic}: cluster {one.boundary.cluster}" for topic, one in sorted(found.items())),
            hint="read the topics of each cluster as a source of their own",
        )
    topics = {topic: one.boundary.topics.get(topic, TopicBoundary({})) for topic, one in found.items()}
    first = next(iter(found.values()))
    if len(found) == 1:
        return replace(first, boundary=replace(first.boundary, topics=topics))
    guarantees = dict.fromkeys(one.guarantee for one in found.values() if one.guarantee != EXACTLY_ONCE)
    return Resolution(
        Boundary(topics, next(iter(clusters), None)),
        ", ".join(dict.fromkeys(one.rule for one in found.values())),
        "; ".join(f"topic {topic}: {one.evidence}" for topic, one in found.items()),
        ", and ".join(guarantees) or EXACTLY_ONCE,
        any(one.trim for one in found.values()),
    )


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
