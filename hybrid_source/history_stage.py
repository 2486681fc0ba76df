"""The history of a hybrid source in production: a pinned lake version, its boundary rules, its splits."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import polars as pl

from headrace.kernel import columns as system
from headrace.kernel.boundary import Boundary, PartitionRange, TopicBoundary, TopicPartition
from headrace.kernel.clock import Clock
from headrace.kernel.errors import BoundaryError
from headrace.kernel.protocols import Json, ReadRequest
from hybrid_source.boundary import BoundaryContext, BoundaryRule, layouts, resolve_boundary
from hybrid_source.boundary.coverage import cover, file_spans, topics_of
from hybrid_source.history import History, HistoryPlan, HistoryQuery, Trim
from hybrid_source.history_protocols import HistoryBatch, LaterRows
from hybrid_source.history_rows import column, of_topics
from hybrid_source.iceberg_pins import whole_pin
from hybrid_source.lake_tail import LakeTail, Wanted, Window
from hybrid_source.offset_rows import OffsetRows, check_named
from hybrid_source.pending import PendingPartitions
from hybrid_source.predicates import all_of
from hybrid_source.resolution import OffsetNames, Resolution
from hybrid_source.source_values import END_OF_HISTORY, EXACTLY_ONCE, EventTime
from hybrid_source.splits import SplitTarget
from hybrid_source.tail_position import TailPosition
from hybrid_source.tail_watermark import TailWatermark


@dataclass(frozen=True, slots=True)
class LakeHistory:
    """See :class:`hybrid_source.history_protocols.LakeStage`. Building it does no I/O.

    Attributes:
        open_history: Opens a version: the one of a pin, or (None) the one that the job asks for now.
        rules: How the boundary is found, in order.
        where: The job's restriction of the history.
        event_time: The event-time column.
        target: How much work one split is.
        open_newest: Opens the version that is the newest now; None: as ``open_history`` does without a pin.
        newer_pin: The pin of what has been appended since a pinned version, or None.
        state: Its rows are the newest ones by key of a changelog, without deletions.
        payload: The payload columns of the source, where this history may lack some of them: those are null.
        topic_pattern: The source reads all topics whose whole name matches it; None: those of the boundary.
        changes: Of two pins, what has changed or deleted rows since the first; see :meth:`changed`.
    """

    open_history: Callable[[Json], History]
    rules: Sequence[BoundaryRule] = ()
    where: pl.Expr | None = None
    event_time: str | None = None
    target: SplitTarget = field(default_factory=SplitTarget)
    open_newest: Callable[[], History] | None = None
    newer_pin: Callable[[Json], Json] | None = None
    state: bool = False
    payload: pl.Schema = field(default_factory=pl.Schema)
    topic_pattern: str | None = None
    changes: Callable[[Json, Json], str] | None = None

    def pin(self) -> Json:
        """See :meth:`hybrid_source.history_protocols.HistoryStage.pin`."""
        return self.open_history(None).pin

    def resolve(self, pin: Json, topics: Sequence[str]) -> Resolution:
        """See :meth:`hybrid_source.history_protocols.HistoryStage.resolve`."""
        # The boundary of an increment is that of all rows at its end.
        history = self.open_history(whole_pin(pin))
        several = len(topics) > 1
        found = joined({t: resolve_boundary(self.rules, BoundaryContext(history, t, several)) for t in topics})
        trim = self._trim(found)
        if trim is not None:
            check_named(history, trim, HistoryQuery(where=self.where, absent=self._absent(history)))
        return found

    def offset_columns(self, pin: Json, topics: Sequence[str], known: OffsetNames | None) -> OffsetNames | None:
        """See :meth:`hybrid_source.history_protocols.LakeStage.offset_columns`."""
        stored = self.open_history(pin).stored
        names = known if known is not None and known.within(stored) else layouts.any_known(stored)
        return names if names is not None and (names.topic or len(topics) <= 1) else None

    def extents(self, pin: Json, topics: Sequence[str], columns: OffsetNames | None) -> Boundary | None:
        """See :meth:`hybrid_source.history_protocols.HistoryStage.extents`."""
        names = self.offset_columns(pin, topics, columns)
        if names is None:
            return None
        history = self.open_history(pin)
        extents: dict[str, TopicBoundary] = {}
        for topic in topics or topics_of(history, names):
            found = cover(history, names, topic).partitions
            extents[topic] = TopicBoundary(
                {number: PartitionRange(held.low, held.high + 1) for number, held in found.items()}
            )
        return Boundary(extents)

    def spans(
        self, pin: Json, topics: Sequence[str], columns: OffsetNames | None
    ) -> Mapping[TopicPartition, Sequence[tuple[int, int]]] | None:
        """See :meth:`hybrid_source.history_protocols.LakeStage.spans`."""
        names, history = self.offset_columns(pin, topics, columns), self.open_history(pin)
        found = {} if names is None else {topic: file_spans(history, names, topic) for topic in topics}
        if names is None or None in found.values():
            return None
        return {
            TopicPartition(topic, number): ranges
            for topic, spans in found.items()
            for number, ranges in (spans or {}).items()
        }

    def unplaced(self, pin: Json, columns: OffsetNames) -> int:
        """See :meth:`hybrid_source.history_protocols.LakeStage.unplaced`."""
        history = self.open_history(pin)
        place = [column(history.stored, name) for name in (columns.partition, columns.offset)]
        where = all_of(self.where, pl.any_horizontal(one.is_null() for one in place))
        query = HistoryQuery([place[1].meta.root_names()[0]], where=where, absent=self._absent(history))
        splits = history.plan(query).splits_from()
        return sum(split.rows.select(pl.len()).collect(engine="streaming").item() for split in splits)

    def at_offsets(
        self,
        pin: Json,
        topics: Sequence[str],
        columns: OffsetNames | None,
        window: Window,
        where: pl.Expr | None,
    ) -> pl.DataFrame | None:
        """See :meth:`hybrid_source.history_protocols.LakeStage.at_offsets`."""
        history, names = self.open_history(pin), self.offset_columns(pin, topics, columns)
        if names is None:
            return None
        plain = [name for name, dtype in history.schema.items() if name not in system.SYSTEM and not dtype.is_nested()]
        wanted = [*([self.event_time] if self.event_time else plain), system.TOPIC, system.PARTITION, system.OFFSET]
        query = HistoryQuery(wanted, where=all_of(self.where, where), absent=self._absent(history))
        return OffsetRows(history, names, query, topics).read(window)

    def open(
        self, request: ReadRequest, pin: Json, resolution: Resolution | None, *, later: Sequence[LaterRows] = ()
    ) -> OpenLakeHistory:
        """See :meth:`hybrid_source.history_protocols.LakeStage.open`."""
        history = self.open_history(pin)
        columns = resolution.columns if resolution else None
        query = HistoryQuery(
            request.columns,
            request.predicate,
            all_of(
                self.where,
                self._of_topics(history, resolution),
                *(_not_given(rows, columns, history.stored) for rows in later),
            ),
            self.event_time,
            self._trim(resolution) if resolution is not None else None,
            self.target,
            resolution.columns if resolution is not None and resolution.distinct else None,
            self._absent(history),
            () if columns is None else (columns.partition, columns.topic) if columns.topic else (columns.partition,),
            request.filters,
        )
        topics = tuple(resolution.boundary.topics) if resolution else ()
        return OpenLakeHistory(history.plan(query), topics)

    def newest(self) -> Json:
        """See :meth:`hybrid_source.history_protocols.LakeStage.newest`."""
        return (self.open_newest() if self.open_newest else self.open_history(None)).pin

    def newer(self, pin: Json) -> Json:
        """See :meth:`hybrid_source.history_protocols.LakeStage.newer`."""
        return self.newer_pin(pin) if self.newer_pin is not None else None

    def changed(self, pin: Json, newest: Json) -> str:
        """See :meth:`hybrid_source.history_protocols.LakeStage.changed`."""
        return self.changes(pin, newest) if self.changes is not None else ""

    def refuses_replay(self, resolution: Resolution, *, whole: bool = False) -> str:
        """See :meth:`hybrid_source.history_protocols.LakeStage.refuses_replay`."""
        if resolution.columns is None:
            return "its rows carry no offsets of the topic"
        if self.where is not None and not whole:
            return "where restricts the rows that are read of the history, and not those of the topic"
        if self.state and not whole:
            return "its rows are the newest ones of each key, and do not say which keys were deleted"
        return ""

    def replay(
        self,
        request: ReadRequest,
        pin: Json,
        columns: OffsetNames,
        position: Json,
        ends: Mapping[TopicPartition, int],
        *,
        time: EventTime | None,
        floor: int | None,
        clock: Clock,
    ) -> LakeTail:
        """See :meth:`hybrid_source.history_protocols.LakeStage.replay`."""
        at = TailPosition.from_json(position)
        wanted = Wanted.of(request, self.payload, time.column if time else None)
        watermark = TailWatermark(
            clock,
            {place: state.max_event_time for place, state in at.partitions.items()},
            floor,
            out_of_orderness_us=time.out_of_orderness_us if time else 0,
            idle_us=time.idle_us if time else None,
        )
        history = self.open_history(pin)
        query = HistoryQuery(wanted.read, where=self.where, absent=self._absent(history))
        rows = OffsetRows(history, columns, query, sorted({place.topic for place in at.partitions}), named=True)
        return LakeTail(rows.read, wanted, watermark, at, ends)

    def _trim(self, resolution: Resolution) -> Trim | None:
        if not resolution.trim or resolution.columns is None:
            return None
        return Trim(_next_offsets(resolution.boundary), resolution.columns, others=self.topic_pattern is not None)

    def _of_topics(self, history: History, resolution: Resolution | None) -> pl.Expr | None:
        """True for the rows of the source's topics; None where rows do not say, or a history has no tail."""
        names = resolution.columns if resolution is not None else None
        if resolution is None or names is None or names.topic is None or not resolution.boundary.topics:
            return None
        topics, pattern = list(resolution.boundary.topics), self.topic_pattern
        if pattern is not None and not _known_to_polars(pattern):
            topics += [topic for topic in topics_of(history, names) if re.fullmatch(pattern, topic)]
            pattern = None
        return of_topics(column(history.stored, names.topic), topics, pattern)

    def _absent(self, history: History) -> Mapping[str, pl.DataType]:
        return {name: dtype for name, dtype in self.payload.items() if name not in history.stored}


def _known_to_polars(pattern: str) -> bool:
    """Whether Polars takes a regular expression of Python's; it has no look-around."""
    try:
        pl.Series([""]).str.contains(pattern)
    except pl.exceptions.ComputeError:
        return False
    return True


def _not_given(later: LaterRows, names: OffsetNames | None, stored: pl.Schema) -> pl.Expr | None:
    """True for the rows that a later stage does not give."""
    if names is None or (names.topic is None and len(later.begins.topics) > 1):
        return None
    below = Trim(_next_offsets(later.begins), names, END_OF_HISTORY).predicate(stored)
    return None if below is None else below | ~later.where.fill_null(value=False)


def _next_offsets(boundary: Boundary) -> Mapping[str, Mapping[int, int]]:
    return {
        topic: {partition: found.next for partition, found in covered.partitions.items()}
        for topic, covered in boundary.topics.items()
    }


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
            context={"topic": sorted(found), "wanted": "one cluster", "available": sorted(clusters - {None}, key=str)},
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
        context={"topic": sorted(found), "wanted": "a topic column", "available": said},
    )


class OpenLakeHistory:
    """See :class:`hybrid_source.history_protocols.OpenHistory`.

    Attributes:
        plan: The pruned plan, for people and tests.
    """

    def __init__(self, plan: HistoryPlan, topics: Sequence[str] = ()) -> None:
        self.plan = plan
        self._pending = PendingPartitions(plan.files, topics)
        self._total = plan.remaining()

    @property
    def records(self) -> int:
        """See :attr:`hybrid_source.history_protocols.OpenHistory.records`."""
        return self._total.records

    def read(self, cursor: Json) -> Iterator[HistoryBatch]:
        """See :meth:`hybrid_source.history_protocols.OpenHistory.read`."""
        for split in self.plan.splits_from(cursor):
            yield HistoryBatch(split.scan, split.cursor, split.watermark, split.records, split.nbytes, split.files)

    def watermark(self, cursor: Json) -> int | None:
        """See :meth:`hybrid_source.history_protocols.OpenHistory.watermark`."""
        return self.plan.watermark(cursor)

    def pending(self, cursor: Json) -> frozenset[TopicPartition] | None:
        """See :meth:`hybrid_source.history_protocols.OpenHistory.pending`."""
        return self._pending.after(self.plan.read(cursor))

    def fraction(self, cursor: Json) -> float:
        """See :meth:`hybrid_source.history_protocols.OpenHistory.fraction`."""
        left = self.plan.remaining(cursor)
        if self._total.records:
            return 1 - left.records / self._total.records
        return 1 - left.nbytes / self._total.nbytes if self._total.nbytes else 1.0
