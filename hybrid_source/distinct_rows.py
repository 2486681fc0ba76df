"""Rows that a writer has stored twice are read once: the first of a topic, partition and offset in the history's order.

Duplicates may lie in different files, and a job may stop between them. So every split is asked for its offsets first,
and those of all splits before it are known, as runs of consecutive offsets: few, however many rows there are. A restart
reads the offset columns of what lies before its cursor again.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from hybrid_source.history_rows import column
from hybrid_source.resolution import OffsetNames

_TOPIC: Final = "__headrace_topic"
_PARTITION: Final = "__headrace_partition"
_OFFSET: Final = "__headrace_offset"
_PLACE: Final = [_TOPIC, _PARTITION]
_KEY: Final = [*_PLACE, _OFFSET]
_RUN: Final = pl.Schema({_TOPIC: pl.String(), _PARTITION: pl.Int64(), "start": pl.Int64(), "next": pl.Int64()})


class DistinctRows:
    """What has been seen of a history so far.

    Args:
        stored: The stored columns.
        names: The columns that make the key; rows in which one of them is null are no records, and stay.
    """

    def __init__(self, stored: pl.Schema, names: OffsetNames) -> None:
        topic = column(stored, names.topic) if names.topic is not None else pl.lit("")
        self._key = (
            topic.cast(pl.String).alias(_TOPIC),
            column(stored, names.partition).cast(pl.Int64).alias(_PARTITION),
            column(stored, names.offset).cast(pl.Int64).alias(_OFFSET),
        )
        self._seen = pl.DataFrame(schema=_RUN)

    def skip(self, rows: pl.LazyFrame) -> None:
        """Take a split as read."""
        self._add(self._keys(rows))

    def first(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """The rows of a split that no split before has given, each key once; then takes it as read.

        Reads the offset columns of the split now; the rows stay lazy, and keep their order.
        """
        keys = self._keys(rows)
        again = self._again(keys)
        keyed = rows.with_columns(self._key)
        if again.height:
            keyed = keyed.join(again.lazy(), on=_KEY, how="anti", maintain_order="left")
        if keys["rows"].sum() > keys.height:
            known = pl.all_horizontal(pl.col(name).is_not_null() for name in _KEY)
            keyed = keyed.filter(pl.struct(_KEY).is_first_distinct() | ~known)
        self._add(keys)
        return keyed.drop(_KEY) if again.height or keys["rows"].sum() > keys.height else rows

    def _keys(self, rows: pl.LazyFrame) -> pl.DataFrame:
        """The distinct keys of a split and how often each is there, in order."""
        return rows.select(self._key).drop_nulls().group_by(_KEY).len("rows").collect(engine="streaming").sort(_KEY)

    def _again(self, keys: pl.DataFrame) -> pl.DataFrame:
        """The keys that were seen before."""
        if not self._seen.height:
            return keys.clear().select(_KEY)
        within = keys.sort(_OFFSET).join_asof(
            self._seen.sort("start"),
            left_on=_OFFSET,
            right_on="start",
            by=_PLACE,
            strategy="backward",
            check_sortedness=False,
        )
        return within.filter(pl.col(_OFFSET) < pl.col("next")).select(_KEY)

    def _add(self, keys: pl.DataFrame) -> None:
        runs = (
            keys.with_columns(run=pl.col(_OFFSET) - pl.int_range(pl.len()).over(_PLACE))
            .group_by(*_PLACE, "run")
            .agg(start=pl.col(_OFFSET).min(), next=pl.col(_OFFSET).max() + 1)
            .select(list(_RUN))
        )
        self._seen = _merged(pl.concat([self._seen, runs]))


def _merged(runs: pl.DataFrame) -> pl.DataFrame:
    """Runs that touch or overlap as one."""
    reached = pl.col("next").cum_max().shift(1).over(_PLACE)
    return (
        runs.sort(*_PLACE, "start")
        .with_columns(group=(pl.col("start") > reached).fill_null(value=False).cum_sum().over(_PLACE))
        .group_by(*_PLACE, "group")
        .agg(pl.col("start").min(), pl.col("next").max())
        .select(list(_RUN))
        .sort(*_PLACE, "start")
    )
