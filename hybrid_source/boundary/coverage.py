"""What the offset columns of a history cover: from file statistics where these are exact, else by a scan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from headrace.kernel.boundary import Boundary, PartitionRange, TopicBoundary
from headrace.kernel.errors import BoundaryError
from hybrid_source.boundary.rule import BoundaryContext, Unusable
from hybrid_source.history import History, HistoryQuery
from hybrid_source.history_rows import column
from hybrid_source.iceberg_history import IcebergHistory
from hybrid_source.resolution import OffsetNames, Resolution

TOPIC_NOT_IN_HISTORY: Final = "TOPIC_NOT_IN_HISTORY"

_PREFIX: Final = "exactly-once if the history holds every record below the boundary"
_PARTITION: Final = "partition"
_ROWS: Final = "rows"


@dataclass(frozen=True, slots=True)
class Covered:
    """What rows of one partition say: smallest offset, largest offset, number of rows (None: not counted)."""

    low: int
    high: int
    rows: int | None = None

    def join(self, other: Covered) -> Covered:
        """What both say together."""
        rows = None if self.rows is None or other.rows is None else self.rows + other.rows
        return Covered(min(self.low, other.low), max(self.high, other.high), rows)


@dataclass(frozen=True, slots=True)
class Coverage:
    """What the rows of one topic say.

    Attributes:
        partitions: By partition.
        how: ``file statistics``, or a scan.
    """

    partitions: Mapping[int, Covered]
    how: str


def from_columns(
    context: BoundaryContext, rule: str, names: OffsetNames, *, distinct: bool = False
) -> Resolution | Unusable:
    """Largest offset plus one, by partition, of the rows of the topic.

    Statistics are exact where every file holds one partition (and one topic) and has bounds of all columns without
    nulls. Either way the boundary is right only if the rows are a prefix of each partition: a record that is missing
    below it is never read. In compacted and upsert tables it may lie too low, which reads records again.

    Args:
        context: Where.
        rule: The rule's name.
        names: The columns, which must be there.
        distinct: The writer may have written an offset twice.
    """
    if context.several and names.topic is None:
        return Unusable(f"the source reads several topics, and no column next to {names} says which one a row is of")
    unnamed = _unnamed(context.history, names) if context.several else 0
    if unnamed:
        return Unusable(f"{unnamed} rows have an offset and no {names.topic}: they may be of any of the topics")
    coverage = cover(context.history, names, context.topic)
    if not coverage.partitions and names.topic is None:
        return Unusable(f"{context.history.name} has rows, but none of them has a value in {names}")
    ranges = {partition: PartitionRange(found.low, found.high + 1) for partition, found in coverage.partitions.items()}
    said = "; ".join(_describe(partition, found) for partition, found in coverage.partitions.items())
    return Resolution(
        Boundary({context.topic: TopicBoundary(ranges)}),
        rule,
        f"{coverage.how} of {names} in {context.history.name}: {said or f'no rows of topic {context.topic}'}",
        _PREFIX,
        columns=names,
        distinct=distinct,
    )


def cover(history: History, names: OffsetNames, topic: str) -> Coverage:
    """What rows of a topic (or of unknown topic) say; rows without partition or offset never were in one."""
    found = _from_statistics(history, names, topic)
    how = "file statistics"
    if found is None:
        found, how = _from_rows(history, names, topic), "a scan"
    return Coverage(dict(sorted(found.items())), how)


def file_spans(history: History, names: OffsetNames, topic: str) -> Mapping[int, Sequence[tuple[int, int]]] | None:
    """By partition, which offsets lie between the lowest and the highest of some file, from file statistics alone.

    Returns:
        Ranges from (inclusive) and to (exclusive), in their order; None where statistics do not tell.
    """
    if not isinstance(history, IcebergHistory):
        return None
    found: dict[int, list[tuple[int, int]]] = {}
    for file in _of_files(history, names):
        if file is None:
            return None
        of, number, low, high = file
        if of in (None, topic):
            found.setdefault(number, []).append((low, high + 1))
    return {number: _united(spans) for number, spans in sorted(found.items())}


def _united(spans: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
    out: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if out and begin <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end))
        else:
            out.append((begin, end))
    return out


def topics_of(history: History, names: OffsetNames) -> list[str]:
    """The topics that rows name; of rows without a topic column, one without a name."""
    if names.topic is None:
        return [""]
    of = column(history.stored, names.topic)
    plan = history.plan(HistoryQuery(columns=of.meta.root_names(), where=of.is_not_null()))
    found = [split.rows.select(of.unique()).collect(engine="streaming").to_series() for split in plan.splits_from()]
    return sorted({str(topic) for topics in found for topic in topics})


def check_topic(context: BoundaryContext, names: OffsetNames | None, nexts: Mapping[int, int]) -> None:
    """Refuse a boundary that does not come from rows where no row names its topic: all of them would be left out.

    Looks as far as the first row of the topic, or of an offset in an unknown topic.

    Args:
        context: Where.
        names: The columns that say where a row came from.
        nexts: The boundary, by partition.

    Raises:
        BoundaryError: ``TOPIC_NOT_IN_HISTORY``.
    """
    history, topic = context.history, context.topic
    if names is None or names.topic is None or history.is_empty or not any(nexts.values()):
        return
    stored = history.stored
    of, place = column(stored, names.topic), (column(stored, names.partition), column(stored, names.offset))
    where = (of.is_null() | (of == topic)) & pl.all_horizontal(one.is_not_null() for one in place)
    mine = HistoryQuery(columns=of.meta.root_names(), where=where)
    for split in history.plan(mine).splits_from():
        if split.rows.head(1).collect(engine="streaming").height:
            return
    found = topics_of(history, names)
    if not found:
        return
    raise BoundaryError(
        f"no row of {history.name} is of topic {topic!r}, which the boundary says that it covers",
        detail=f"column {names.topic} names {', '.join(found)}; wanted are offsets below "
        f"{', '.join(f'{next_} of partition {number}' for number, next_ in sorted(nexts.items()))}",
        hint="if the topic has another name now, or is a mirror with the same offsets, name the columns without the "
        "topic (boundary: {columns: {partition: p, offset: o}}); else correct the topic or the table",
        code=TOPIC_NOT_IN_HISTORY,
        context={"topic": topic, "wanted": dict(nexts), "available": found},
    )


def _from_statistics(history: History, names: OffsetNames, topic: str) -> dict[int, Covered] | None:
    if not isinstance(history, IcebergHistory):
        return None
    out: dict[int, Covered] = {}
    for file in _of_files(history, names):
        if file is None:
            return None
        of, number, low, high = file
        if of in (None, topic):
            found = Covered(low, high)
            out[number] = out[number].join(found) if number in out else found
    return out


def _of_files(history: IcebergHistory, names: OffsetNames) -> Iterator[tuple[str | None, int, int, int] | None]:
    """Topic (None: no column tells), partition, lowest and highest offset of each file; None: not exactly known."""
    wanted = [names.partition, names.offset, *([names.topic] if names.topic else [])]
    for partition, offset, *topics in history.bounds(wanted):
        topic = topics[0] if topics else (None, None)
        if partition is None or offset is None or topic is None or partition[0] != partition[1] or topic[0] != topic[1]:
            yield None
            return
        yield topic[0], int(partition[0]), int(offset[0]), int(offset[1])


def _from_rows(history: History, names: OffsetNames, topic: str) -> dict[int, Covered]:
    out: dict[int, Covered] = {}
    for partition, found in _scanned(history, names, topic):
        out[partition] = out[partition].join(found) if partition in out else found
    return out


def _unnamed(history: History, names: OffsetNames) -> int:
    """How many rows have an offset, and name no topic."""
    if names.topic is None:
        return 0
    topic, offset = column(history.stored, names.topic), column(history.stored, names.offset)
    query = HistoryQuery(columns=offset.meta.root_names(), where=topic.is_null() & offset.is_not_null())
    splits = history.plan(query).splits_from()
    return sum(split.rows.select(pl.len()).collect(engine="streaming").item() for split in splits)


def _scanned(history: History, names: OffsetNames, topic: str) -> Iterator[tuple[int, Covered]]:
    stored = history.stored
    partition, offset = column(stored, names.partition), column(stored, names.offset)
    where = partition.is_not_null() & offset.is_not_null()
    if names.topic is not None:
        of = column(stored, names.topic)
        where &= of.is_null() | (of == topic)
    roots = {name for expression in (partition, offset) for name in expression.meta.root_names()}
    for split in history.plan(HistoryQuery(columns=sorted(roots), where=where)).splits_from():
        found = (
            split.rows.group_by(partition.alias(_PARTITION))
            .agg(offset.min().alias("low"), offset.max().alias("high"), pl.len().alias(_ROWS))
            .collect(engine="streaming")
        )
        for number, low, high, rows in found.iter_rows():
            yield int(number), Covered(int(low), int(high), int(rows))


def _describe(partition: int, found: Covered) -> str:
    text = f"partition {partition} holds offsets {found.low} to {found.high}"
    if found.rows is None:
        return text
    missing = found.high - found.low + 1 - found.rows
    if missing > 0:
        return f"{text} with {missing} left out (compaction, transaction markers, or missing rows)"
    if missing < 0:
        return f"{text} with {-missing} rows more than offsets (some are doubled)"
    return f"{text}, each once"
