"""Rows of a pinned version by ranges of offsets, where they carry them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import polars as pl

from headrace.kernel import columns as system
from headrace.kernel.errors import BoundaryError
from hybrid_source.history import History, HistoryQuery
from hybrid_source.history_rows import Trim, column
from hybrid_source.lake_tail import Window, within
from hybrid_source.predicates import all_of
from hybrid_source.read_errors import reading
from hybrid_source.resolution import OffsetNames

ROWS_WITHOUT_TOPIC: Final = "ROWS_WITHOUT_TOPIC"
ROWS_WITHOUT_OFFSET: Final = "ROWS_WITHOUT_OFFSET"

_PLACE: Final = (system.TOPIC, system.PARTITION, system.OFFSET)


@dataclass(frozen=True, slots=True)
class OffsetRows:
    """Reads windows of offsets.

    Attributes:
        history: The pinned version.
        names: Its columns that say where a row came from.
        query: Columns (topic, partition and offset among them) and the job's restriction.
        topics: The topics that are read. Where it is one, rows that name none are of it.
        named: Rows that name no topic are refused where they may be of any; else they come as they are.
    """

    history: History
    names: OffsetNames
    query: HistoryQuery
    topics: Sequence[str]
    named: bool = False

    def read(self, window: Window, most: int | None = None) -> pl.DataFrame | None:
        """The rows of a window; see :data:`hybrid_source.lake_tail.ReadWindow`.

        Gives up after the split that is beyond ``most`` rows, so that no more than that are held.

        Raises:
            SnapshotGoneError: A file is gone.
            BoundaryError: Rows do not say which of several topics they are of (``ROWS_WITHOUT_TOPIC``).
        """
        columns, stored = list(self.query.columns or ()), self.history.stored
        partition, offset = column(stored, self.names.partition), column(stored, self.names.offset)
        topic = column(stored, self.names.topic) if self.names.topic else None
        place = (self._topic(topic), partition, offset)
        roots = [name for expression in place for name in expression.meta.root_names()]
        query = replace(
            self.query,
            columns=list(dict.fromkeys([*(name for name in columns if name not in _PLACE), *roots])),
            where=all_of(self.query.where, within(window, topic, partition, offset)),
        )
        placed = [found.cast(system.METADATA[name]).alias(name) for name, found in zip(_PLACE, place, strict=True)]
        frames = []
        for split in self.history.plan(query).splits_from():
            with reading(f"table {self.history.name}", split.files):
                frames.append(split.rows.with_columns(placed).select(columns).collect(engine="streaming"))
            if most is not None and sum(frame.height for frame in frames) > most:
                return None
        if self.named and topic is not None:
            self._refuse_unnamed(frames)
        types = {**self.history.schema, **self.query.absent}
        return pl.concat(frames) if frames else pl.DataFrame(schema={name: types[name] for name in columns})

    def _topic(self, column: pl.Expr | None) -> pl.Expr:
        if column is None:
            return pl.lit(self.topics[0])
        return column.fill_null(self.topics[0]) if len(self.topics) == 1 else column

    def _refuse_unnamed(self, frames: Sequence[pl.DataFrame]) -> None:
        unnamed = [frame.filter(pl.col(system.TOPIC).is_null()) for frame in frames]
        first = next((frame for frame in unnamed if frame.height), None)
        if first is None:
            return
        raise _without_topic(
            self.history.name,
            sum(frame.height for frame in unnamed),
            first.select(system.PARTITION, system.OFFSET).row(0),
            self.names,
            detail=f"it may be any of {', '.join(self.topics)}, in whose place the table is read",
            hint="fill the column, or let the source read the table as history only (handover: {chase: off, "
            "switch_back: {on_truncation: false}}, late: {history: include})",
            topics=self.topics,
        )


def check_named(history: History, trim: Trim, query: HistoryQuery) -> None:
    """Refuse rows that name none of several topics where one has them in the history and another in the tail.

    Reads no file whose statistics say that every row names its topic.

    Args:
        history: The pinned version.
        trim: What it leaves to the tail.
        query: The job's restriction of the history.

    Raises:
        BoundaryError: ``ROWS_WITHOUT_TOPIC``.
    """
    where = trim.undecided(history.stored)
    if where is None:
        return
    place = [column(history.stored, name) for name in (trim.names.partition, trim.names.offset)]
    columns = sorted({name for one in place for name in one.meta.root_names()})
    splits = history.plan(replace(query, columns=columns, where=all_of(query.where, where))).splits_from()
    plain = [one.alias(name) for name, one in zip(_PLACE[1:], place, strict=True)]
    found = [split.rows.select(plain).collect(engine="streaming") for split in splits]
    rows = pl.concat(found).sort(_PLACE[1:]) if found else pl.DataFrame()
    if rows.height:
        raise _without_topic(
            history.name,
            rows.height,
            rows.row(0),
            trim.names,
            detail=f"of {', '.join(trim.next_offsets)} the history covers the offset for some and not for others",
            hint="fill the column, or leave those rows out with where",
            topics=list(trim.next_offsets),
        )


def _without_topic(
    name: str,
    count: int,
    first: tuple[int, int],
    names: OffsetNames,
    *,
    detail: str,
    hint: str,
    topics: Sequence[str],
) -> BoundaryError:
    partition, offset = first
    available = f"a null in {names.topic}"
    return BoundaryError(
        f"{count} rows of {name} do not say which topic they are of, the first at partition {partition} offset "
        f"{offset}",
        detail=f"available is {available}; {detail}",
        hint=hint,
        code=ROWS_WITHOUT_TOPIC,
        context={"topic": list(topics), "partition": partition, "wanted": offset, "available": available},
    )


def check_placed(unplaced: int, names: OffsetNames, topics: Sequence[str]) -> None:
    """Refuse a history that is read in the order of its offsets where some of its rows have none.

    Raises:
        BoundaryError: ``ROWS_WITHOUT_OFFSET``.
    """
    if unplaced:
        raise BoundaryError(
            f"{unplaced} rows of the history of {', '.join(topics)} have no partition or no offset, and would be left "
            "out of a history that is read as_live",
            detail=f"wanted are {names.partition} and {names.offset} in every row; there they are null",
            hint="use late: {history: include}, fill the columns, or leave those rows out with where",
            code=ROWS_WITHOUT_OFFSET,
            context={"topic": list(topics), "wanted": [names.partition, names.offset], "available": unplaced},
        )
