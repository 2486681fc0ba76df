"""The lake in the place of the topic: rows of a pinned version, handed out as the topic would hand them out.

Chase, switch back and ``late: {history: as_live}`` read the table this way: in offset order within a partition, with
the tail's own row watermarks, moving the tail's own position. A kill in the middle resumes from that position; rows,
lateness and position afterwards are those that the topic would have given.

Offsets are read in windows that move all partitions on in proportion to what they have left, so that memory is bounded
by a window and all of them arrive at the boundary together. A window is a filter on offsets: files and row groups
outside of it are pruned by their statistics. Where offsets have few rows (holes), windows widen as long as their rows
are no more than those of a window without holes, so that a hole costs the logarithm of its length.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import polars as pl

from headrace.kernel import columns as system
from headrace.kernel.boundary import TopicPartition
from headrace.kernel.protocols import Json, ReadRequest
from hybrid_source.tail_position import PartitionState, TailPosition
from hybrid_source.tail_protocols import Begins, TailBatch
from hybrid_source.tail_rows import event_times
from hybrid_source.tail_watermark import TailWatermark

WINDOW_ROWS: Final = 1 << 19
"""Offsets in a window, over all partitions."""

Window: TypeAlias = Mapping[TopicPartition, tuple[int, int]]
"""Offsets by partition, from (inclusive) and to (exclusive)."""

ReadWindow: TypeAlias = Callable[[Window, int | None], pl.DataFrame | None]
"""The rows of a window, in any order: the asked-for columns, and topic, partition and offset of each.

The second argument is how many rows at most; None in the place of the rows where there are more, and never without it.
"""

_SLOT: Final = "__headrace_slot"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What of the rows is wanted.

    Attributes:
        names: Columns of the frames that are handed out.
        predicate: Exact filter, which rows meet after their event times have been taken in.
        event_time: Its column; None: no watermarks.
        schema: Types of all columns, system columns included.
    """

    names: Sequence[str]
    predicate: pl.Expr | None
    event_time: str | None
    schema: pl.Schema

    @classmethod
    def of(cls, request: ReadRequest, schema: pl.Schema, event_time: str | None) -> Wanted:
        """What a request wants of a source with these payload columns."""
        # A frame without columns would lose its height.
        names = list(schema) if request.columns is None else list(request.columns) or list(schema)[:1]
        return cls(names, request.predicate, event_time, pl.Schema({**schema, **system.SYSTEM}))

    @property
    def read(self) -> list[str]:
        """The columns that must be read: also those that only the predicate or the watermark needs."""
        roots = self.predicate.meta.root_names() if self.predicate is not None else []
        time = [self.event_time] if self.event_time else []
        needed = dict.fromkeys([*self.names, *roots, *time, system.TOPIC, system.PARTITION, system.OFFSET])
        return [name for name in needed if name != system.ROW_WATERMARK]

    @property
    def empty(self) -> pl.DataFrame:
        """No rows."""
        return pl.DataFrame(schema={name: self.schema[name] for name in self.names})


class LakeTail:
    """See :class:`hybrid_source.tail_protocols.Replay`.

    Guarantee: each row of the version whose offset is at or above the position and below the ends is handed out once,
    in offset order within its partition, also where the table holds it twice.

    Args:
        read: Gives the rows of a window.
        wanted: Columns and predicate.
        watermark: The tail's watermark, begun at the floor.
        position: The tail's position.
        ends: Where the topic goes on (exclusive); other partitions stay where they are.
        window_rows: Offsets in a window; in one that has been widened, rows at most.
    """

    def __init__(
        self,
        read: ReadWindow,
        wanted: Wanted,
        watermark: TailWatermark,
        position: TailPosition,
        ends: Mapping[TopicPartition, int],
        *,
        window_rows: int = WINDOW_ROWS,
    ) -> None:
        self._read = read
        self._wanted = wanted
        self._watermark = watermark
        self._at = position
        self._ends = ends
        self._window_rows = window_rows
        self._widened = 1
        self._silent: frozenset[TopicPartition] = frozenset()

    def poll(self) -> TailBatch | None:
        """See :meth:`hybrid_source.tail_protocols.Replay.poll`."""
        if self.finished:
            return None
        window, found = self._next_rows()
        rows, places = in_offset_order(found)
        for at in places.values():
            self._watermark.heard(at)
        stamped, maybe_late = self._stamped(rows, places)
        times = self._watermark.max_event_times
        self._at = self._at.with_partitions(
            {at: PartitionState(end, times.get(at), self._at.partitions[at].first) for at, (_, end) in window.items()}
        )
        watermark = self._watermark.advance(self._silent.__contains__)
        if self._wanted.predicate is not None:
            stamped = stamped.filter(self._wanted.predicate)
        frame = stamped.select(self._wanted.names)
        return TailBatch(
            frame, self._at.to_json(), watermark, maybe_late, None, rows.height, int(rows.estimated_size())
        )

    @property
    def finished(self) -> bool:
        """See :attr:`hybrid_source.tail_protocols.Replay.finished`."""
        return not next_window(self._at.nexts, self._ends, self._window_rows)

    @property
    def arrived(self) -> Collection[TopicPartition]:
        """See :attr:`hybrid_source.tail_protocols.Replay.arrived`."""
        return [at for at, offset in self._at.nexts.items() if offset >= self._ends.get(at, 0)]

    def rest(self, begins: Begins) -> None:
        """See :meth:`hybrid_source.tail_protocols.Replay.rest`."""
        self._silent = frozenset(at for at, time in begins.items() if time is None)
        for at, time in begins.items():
            if time is not None:
                self._watermark.expect(at, time)

    def lag(self) -> Sequence[Mapping[str, Json]]:
        """See :meth:`hybrid_source.tail_protocols.Replay.lag`."""
        return [
            {"topic": at.topic, "partition": at.partition, "next": offset, "end": max(offset, self._ends.get(at, 0))}
            for at, offset in self._at.nexts.items()
        ]

    def _next_rows(self) -> tuple[Window, pl.DataFrame]:
        """The next window and its rows: as wide as its rows allow, never narrower than without holes."""
        while True:
            window = next_window(self._at.nexts, self._ends, self._window_rows * self._widened)
            found = self._read(window, self._window_rows if self._widened > 1 else None)
            if found is not None:
                if 2 * found.height <= self._window_rows:
                    self._widened *= 2
                return window, found
            self._widened //= 2

    def _stamped(self, rows: pl.DataFrame, places: Mapping[int, TopicPartition]) -> tuple[pl.DataFrame, bool]:
        stamps, late = None, False
        if self._wanted.event_time is not None and rows.height:
            times = event_times(rows[self._wanted.event_time])
            stamps = self._watermark.rows(rows[_SLOT], times, places)
            late = stamps is not None and bool((times < stamps).any())
        never = pl.lit(None, pl.Int64)
        return rows.with_columns((never if stamps is None else stamps).alias(system.ROW_WATERMARK)), late


def next_window(nexts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], most: int) -> Window:
    """The next offsets to read, about ``most`` of them; empty when all partitions have arrived."""
    left = {at: ends[at] - offset for at, offset in nexts.items() if ends.get(at, 0) > offset}
    windows = -(-sum(left.values()) // most)
    return {at: (nexts[at], nexts[at] + -(-count // windows)) for at, count in left.items()}


def within(window: Window, topic: pl.Expr | None, partition: pl.Expr, offset: pl.Expr) -> pl.Expr:
    """True for the rows of a window.

    Args:
        window: The window, not empty.
        topic: None where all rows are of the one topic that the window has. Rows that name none (null) are of it, too,
            and of several topics they may be of any.
        partition: Of each row.
        offset: Of each row.
    """
    each = []
    for at, (begin, end) in window.items():
        one = (partition == at.partition) & (offset >= begin) & (offset < end)
        each.append(one if topic is None else one & (topic.is_null() | (topic == at.topic)))
    lowest, highest = min(begin for begin, _ in window.values()), max(end for _, end in window.values())
    # The outer bounds prune by themselves, without a look at every partition.
    return (offset >= lowest) & (offset < highest) & _any_of(each)


def _any_of(each: Sequence[pl.Expr]) -> pl.Expr:
    """True where one of them is, at least one given: as a balanced tree, since thousands in a chain take minutes."""
    if len(each) == 1:
        return each[0]
    middle = len(each) // 2
    return _any_of(each[:middle]) | _any_of(each[middle:])


def in_offset_order(rows: pl.DataFrame) -> tuple[pl.DataFrame, Mapping[int, TopicPartition]]:
    """Rows by partition and offset, each offset once, with a number for the partition of each.

    Returns:
        The rows, and what the numbers stand for.
    """
    found = rows.select(system.TOPIC, system.PARTITION).unique().sort(system.TOPIC, system.PARTITION)
    numbered = found.with_row_index(_SLOT).with_columns(pl.col(_SLOT).cast(pl.Int32))
    places = {slot: TopicPartition(topic, partition) for slot, topic, partition in numbered.iter_rows()}
    placed = rows.join(numbered, on=[system.TOPIC, system.PARTITION], how="left")
    return placed.sort(_SLOT, system.OFFSET).unique([_SLOT, system.OFFSET], keep="first", maintain_order=True), places
