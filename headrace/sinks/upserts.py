"""A changelog's rows as upserts: for each key of a frame its newest row, or null where it is gone (a tombstone)."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from headrace.kernel import columns
from headrace.kernel.errors import DataError, SpecError


def check_upsert_key(sink_id: str, key: Sequence[str]) -> None:
    """Refuse a changelog without a key to upsert by.

    Raises:
        SpecError: There is none.
    """
    if not key:
        raise SpecError(
            f"sink {sink_id!r} takes a changelog and has no key",
            hint="name the columns that identify a row: key: [...]; each update and delete is a record of that key",
            code="UPSERT_WITHOUT_KEY",
        )


def upserts(records: pl.DataFrame, sink_id: str) -> pl.DataFrame:
    """One record for each key of a batch of changes.

    A key that is inserted anywhere in the batch gets its last inserted value, whatever else is retracted: of rows that
    move from key to key, each key keeps the one that holds. A key that is only retracted gets null.

    Args:
        records: ``key`` and ``value`` (String or Binary), and ``_weight``; a retraction before its replacement.
        sink_id: For messages.

    Returns:
        ``key`` and ``value`` (null: delete), each key once, in the order of their first occurrence.

    Raises:
        DataError: ``UPSERT_KEY_NULL``: a record has no key.
    """
    if records["key"].has_nulls():
        raise DataError(
            f"sink {sink_id!r}: a row of the changelog has a null key",
            hint="filter such rows out before the sink; a record without a key cannot be updated or deleted",
            code="UPSERT_KEY_NULL",
        )
    inserted = pl.col("value").filter(pl.col(columns.WEIGHT) > 0).last()
    return records.group_by("key", maintain_order=True).agg(inserted)
