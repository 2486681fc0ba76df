"""The history of a hybrid source in production: a pinned lake version, its boundary rules, its splits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import polars as pl

from headrace.kernel.boundary import Boundary, TopicBoundary
from headrace.kernel.errors import BoundaryError
from headrace.kernel.protocols import Json, ReadRequest
from hybrid_source.boundary import BoundaryContext, BoundaryRule, resolve_boundary
from hybrid_source.history import History, HistoryPlan, HistoryQuery, Trim
from hybrid_source.resolution import OffsetNames, Resolution
from hybrid_source.splits import SplitTarget
from hybrid_source.stages import EXACTLY_ONCE, HistoryBatch


@dataclass(frozen=True, slots=True)
class LakeHistory:
    """See :class:`hybrid_source.stages.HistoryStage`. Building it does no I/O.

    Attributes:
        open_history: Opens a version: the one of a pin, or (None) the one that the job asks for now.
        rules: How the boundary is found, in order.
        where: The job's restriction of the history.
        event_time: The event-time column.
        target: How much work one split is.
    """

    open_history: Callable[[Json], History]
    rules: Sequence[BoundaryRule] = ()
    where: pl.Expr | None = None
    event_time: str | None = None
    target: SplitTarget = field(default_factory=SplitTarget)

    def pin(self) -> Json:
        """See :meth:`hybrid_source.stages.HistoryStage.pin`."""
        return self.open_history(None).pin

    def resolve(self, pin: Json, topics: Sequence[str]) -> Resolution:
        """See :meth:`hybrid_source.stages.HistoryStage.resolve`."""
        history = self.open_history(pin)
        several = len(topics) > 1
        return joined({t: resolve_boundary(self.rules, BoundaryContext(history, t, several)) for t in topics})

    def open(self, request: ReadRequest, pin: Json, resolution: Resolution | None) -> OpenLakeHistory:
        """See :meth:`hybrid_source.stages.HistoryStage.open`."""
        history = self.open_history(pin)
        query = HistoryQuery(
            request.columns,
            request.predicate,
            self.where,
            self.event_time,
            _trims(resolution),
            self.target,
            resolution.columns if resolution is not None and resolution.distinct else None,
        )
        return OpenLakeHistory(history.plan(query))


def _trims(resolution: Resolution | None) -> Sequence[Trim]:
    if resolution is None or not resolution.trim or resolution.columns is None:
        return ()
    names = resolution.columns
    return [
        Trim(
            {partition: found.next for partition, found in covered.partitions.items()},
            names.partition,
            names.offset,
            names.topic,
            topic,
        )
        for topic, covered in resolution.boundary.topics.items()
    ]


def joined(found: Mapping[str, Resolution]) -> Resolution:
    """The resolutions of several topics as one, whose boundary has exactly these topics.

    Raises:
        BoundaryError: They are recorded for different clusters, or rows do not say which topic they are of.
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
        _columns_of_all(found),
        any(one.distinct for one in found.values()),
        tuple(
            replace(verdict, detail=f"topic {topic}: {verdict.detail}")
            for topic, one in found.items()
            for verdict in one.tried
        ),
    )


def _columns_of_all(found: Mapping[str, Resolution]) -> OffsetNames | None:
    columns = {one.columns for one in found.values()}
    names = next(iter(columns))
    if len(columns) == 1 and (names is None or names.topic is not None):
        return names
    if not any(one.trim for one in found.values()):
        return None
    said = "; ".join(f"{topic}: {one.columns or 'none'}" for topic, one in sorted(found.items()))
    raise BoundaryError(
        f"rows of the history do not say which of the topics {', '.join(sorted(found))} they are of",
        detail=f"offset columns by topic: {said}",
        hint="read each topic as a source of its own, or name the column that holds the topic (boundary: {columns: "
        "{partition: p, offset: o, topic: t}})",
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
