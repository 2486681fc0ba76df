"""What every history does to the rows of a scan: system columns, the exact predicate, the projection, the trim."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

import polars as pl

from headrace.kernel import columns as system
from headrace.kernel.errors import NotFoundError
from hybrid_source.resolution import OffsetNames

_TOPIC: Final = 1 << 32
"""A topic's number times this, and a partition, is a place as one number."""


@dataclass(frozen=True, slots=True)
class Trim:
    """Leave out rows at or above the boundary: the tail will give them.

    Attributes:
        next_offsets: Per topic and partition, the next offset (exclusive).
        names: The columns that say where a row came from. Without one for the topic all rows are of every topic.
        rest: The next offset of partitions that are not in it. With 0 their rows are left out as a whole, since the
            tail reads them from their beginning.
        others: Rows of other topics may be there. They stay, and no file can be left out by its offsets.

    Rows whose partition or offset is null never were in the topic, and stay. Rows whose topic is null may be of any of
    them, and stay below the next offsets of all; :meth:`undecided` are those of which that may be wrong.
    """

    next_offsets: Mapping[str, Mapping[int, int]]
    names: OffsetNames
    rest: int = 0
    others: bool = True

    def predicate(self, schema: pl.Schema) -> pl.Expr | None:
        """True for the rows that stay; None: all do. One look-up for a row, however many topics there are."""
        if not self.next_offsets:
            return None
        partition, offset = column(schema, self.names.partition), column(schema, self.names.offset)
        of = column(schema, self.names.topic) if self.names.topic else None
        placed = offset.is_null() | partition.is_null()
        highest = max(self.rest, *(next_ for nexts in self.next_offsets.values() for next_ in nexts.values()), 0)
        below = placed | (offset < highest)  # prunes whole files by their bounds
        stays = placed | (offset < self._limit(of, partition.cast(pl.Int64)))
        if of is None or not self.others:
            return below & stays
        return stays | ~of.is_in(list(self.next_offsets))

    def undecided(self, schema: pl.Schema) -> pl.Expr | None:
        """True for rows that name no topic where one topic wants them and another does not; None: there are none."""
        if self.names.topic is None or len(self.next_offsets) <= 1:
            return None
        partition, offset = column(schema, self.names.partition).cast(pl.Int64), column(schema, self.names.offset)
        lowest, highest = (self._looked_up(partition, self._of_any(which)) for which in (min, max))
        between = partition.is_not_null() & (offset >= lowest) & (offset < highest)
        return column(schema, self.names.topic).is_null() & between

    def _limit(self, of: pl.Expr | None, partition: pl.Expr) -> pl.Expr:
        """The next offset of each row's place."""
        if of is None or len(self.next_offsets) == 1:
            return self._looked_up(partition, self._of_any(min))
        of_all = enumerate((self._of_any(min), *self.next_offsets.values()))
        limits = {number * _TOPIC + at: next_ for number, nexts in of_all for at, next_ in nexts.items()}
        number = of.cast(pl.String).replace_strict(
            [None, *self.next_offsets], range(len(self.next_offsets) + 1), default=-1, return_dtype=pl.Int64
        )
        return self._looked_up(number * _TOPIC + partition, limits)

    def _looked_up(self, place: pl.Expr, limits: Mapping[int, int]) -> pl.Expr:
        return place.replace_strict(list(limits), list(limits.values()), default=self.rest, return_dtype=pl.Int64)

    def _of_any(self, which: Callable[[Iterable[int]], int]) -> Mapping[int, int]:
        """By partition, the lowest or the highest next offset of all topics."""
        every = self.next_offsets.values()
        return {at: which(nexts.get(at, self.rest) for nexts in every) for at in dict.fromkeys(chain(*every))}


def of_topics(topic: pl.Expr, topics: Sequence[str], pattern: str | None = None) -> pl.Expr:
    """True for the rows of some topics, and for those of none.

    Args:
        topic: Of each row; null: it never was in a topic.
        topics: Their names.
        pattern: A regular expression, as Polars takes it: topics whose whole name matches it belong to them.
    """
    named = topic.is_null() | topic.is_in(list(topics))  # prunes whole files by their bounds
    return named if pattern is None else named | topic.str.contains(f"^(?:{pattern})$")


def column(schema: pl.Schema, name: str) -> pl.Expr:
    """A column by name, or a field of a struct column by ``column.field``.

    Raises:
        NotFoundError: ``COLUMN_NOT_FOUND``.
    """
    if name in schema:
        return pl.col(name)
    outer, _, inner = name.partition(".")
    dtype = schema.get(outer)
    if inner and isinstance(dtype, pl.Struct) and any(field.name == inner for field in dtype.fields):
        return pl.col(outer).struct.field(inner)
    raise NotFoundError(f"no column {name}", detail=f"columns: {', '.join(schema)}", code="COLUMN_NOT_FOUND")


def source_schema(stored: pl.Schema) -> pl.Schema:
    """The schema of a history as a source: payload columns, then ``columns.SYSTEM``."""
    payload = {name: dtype for name, dtype in stored.items() if name not in system.SYSTEM}
    return pl.Schema({**payload, **system.SYSTEM})


def shape(
    rows: pl.LazyFrame,
    stored: pl.Schema,
    columns: Sequence[str] | None,
    predicate: pl.Expr | None,
    absent: Mapping[str, pl.DataType] | None = None,
) -> pl.LazyFrame:
    """Wanted columns of wanted rows.

    Args:
        rows: All stored columns.
        stored: Their schema.
        columns: Payload and system columns; None for all payload columns.
        predicate: Exact filter, over ``source_schema(stored)`` and ``absent``.
        absent: Payload columns that are not stored; null.
    """
    names = (
        [name for name in (*stored, *(absent or {})) if name not in system.SYSTEM] if columns is None else list(columns)
    )
    needed = {*names, *(predicate.meta.root_names() if predicate is not None else ())}
    built = [
        _system_column(name, dtype, stored)
        for name, dtype in system.SYSTEM.items()
        if name in needed and stored.get(name) != dtype
    ]
    built += [pl.lit(None, dtype).alias(name) for name, dtype in (absent or {}).items() if name in needed]
    if built:
        rows = rows.with_columns(built)
    if predicate is not None:
        rows = rows.filter(predicate)
    # A frame without columns would lose its height.
    return rows.select(names or list(stored)[:1])


def _system_column(name: str, dtype: pl.DataType, stored: pl.Schema) -> pl.Expr:
    found = stored.get(name) if name != system.ROW_WATERMARK else None
    if found is None:
        return pl.lit(None, dtype).alias(name)
    if isinstance(found, pl.Datetime) and found.time_zone is None and isinstance(dtype, pl.Datetime):
        return pl.col(name).dt.replace_time_zone("UTC").cast(dtype)
    if isinstance(dtype, pl.Datetime) and found.is_integer():
        return pl.from_epoch(name, "ms").dt.replace_time_zone("UTC").cast(dtype).alias(name)
    return pl.col(name).cast(dtype)


def net(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Rows with weights, without those that cancel out; each with weight -1 or +1, what is taken back first.

    Rows that agree in the columns that are there are the same row. Without the column of the weights nothing is done.
    """
    names = rows.collect_schema().names()
    if system.WEIGHT not in names:
        return rows
    weight, others = pl.col(system.WEIGHT), [name for name in names if name != system.WEIGHT]
    summed = rows.group_by(others).agg(weight.sum()) if others else rows.select(weight.sum())
    times = weight.sign().repeat_by(weight.abs())
    return summed.filter(weight != 0).with_columns(times).explode(system.WEIGHT).select(names).sort(system.WEIGHT)
