"""What every history does to the rows of a scan: system columns, the exact predicate, the projection, the trim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from headrace.kernel import columns as system
from headrace.kernel.errors import NotFoundError


@dataclass(frozen=True, slots=True)
class Trim:
    """Leave out rows at or above the boundary: the tail will give them.

    Attributes:
        next_offsets: Per partition, the next offset (exclusive). Rows of a partition that is not in it are left out
            as a whole, since the tail reads that partition from its beginning.
        partition: Column with the Kafka partition; ``a.b`` names a field of a struct.
        offset: Column with the Kafka offset, likewise.
        topic_column: Column with the topic, when the history holds more than one; rows of others stay.
        topic: The topic that the boundary is of.
        rest: The next offset of partitions that are not in it, where the rows are not left to the tail.

    Rows whose partition or offset is null never were in the topic, and stay.
    """

    next_offsets: Mapping[int, int]
    partition: str = system.PARTITION
    offset: str = system.OFFSET
    topic_column: str | None = None
    topic: str | None = None
    rest: int = 0

    def predicate(self, schema: pl.Schema) -> pl.Expr:
        """True for the rows that stay."""
        partition, offset = column(schema, self.partition), column(schema, self.offset)
        highest = max((self.rest, *self.next_offsets.values()))
        limit = partition.cast(pl.Int64).replace_strict(
            list(self.next_offsets.keys()), list(self.next_offsets.values()), default=self.rest, return_dtype=pl.Int64
        )
        below = offset.is_null() | (offset < highest)  # prunes whole files by their bounds
        stays = below & (offset.is_null() | partition.is_null() | (offset < limit))
        return stays if self.topic_column is None else stays | (column(schema, self.topic_column) != self.topic)


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
