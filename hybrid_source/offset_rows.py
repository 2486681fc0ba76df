"""Rows of a pinned version by ranges of offsets, where they carry them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import polars as pl

from headrace.kernel import columns as system
from hybrid_source.history import History, HistoryQuery
from hybrid_source.history_rows import column
from hybrid_source.lake_tail import Window, within
from hybrid_source.predicates import all_of
from hybrid_source.read_errors import reading
from hybrid_source.resolution import OffsetNames

_PLACE: Final = (system.TOPIC, system.PARTITION, system.OFFSET)


@dataclass(frozen=True, slots=True)
class OffsetRows:
    """Reads windows of offsets.

    Attributes:
        history: The pinned version.
        names: Its columns that say where a row came from.
        query: Columns (topic, partition and offset among them) and the job's restriction.
        topics: The topics that are read.
    """

    history: History
    names: OffsetNames
    query: HistoryQuery
    topics: Sequence[str]

    def read(self, window: Window) -> pl.DataFrame:
        """The rows of a window; see :data:`hybrid_source.lake_tail.ReadWindow`.

        Raises:
            SnapshotGoneError: A file is gone.
        """
        columns, stored = list(self.query.columns or ()), self.history.stored
        partition, offset = column(stored, self.names.partition), column(stored, self.names.offset)
        topic = column(stored, self.names.topic) if self.names.topic else None
        place = (pl.lit(self.topics[0]) if topic is None else topic, partition, offset)
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
        types = {**self.history.schema, **self.query.absent}
        return pl.concat(frames) if frames else pl.DataFrame(schema={name: types[name] for name in columns})
