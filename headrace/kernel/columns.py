"""Names and types of the columns that Headrace itself adds to a source's rows.

They take part in projection pushdown like any other column: a source builds them only when an operator, a sink or
the user's own expressions ask for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import polars as pl

TOPIC: Final = "_kafka_topic"
PARTITION: Final = "_kafka_partition"
OFFSET: Final = "_kafka_offset"
TIMESTAMP: Final = "_kafka_timestamp"
KEY: Final = "_kafka_key"
ROW_WATERMARK: Final = "_row_watermark"
DELETED: Final = "_kafka_deleted"
WEIGHT: Final = "_weight"

METADATA: Final = pl.Schema(
    {
        TOPIC: pl.String(),
        PARTITION: pl.Int32(),
        OFFSET: pl.Int64(),
        TIMESTAMP: pl.Datetime("us", "UTC"),
        KEY: pl.Binary(),
    }
)
"""Where a row came from. Null in history rows of tables that do not carry them."""

SYSTEM: Final = pl.Schema({**METADATA, ROW_WATERMARK: pl.Int64(), DELETED: pl.Boolean()})
"""Metadata, the row's watermark, and whether the row is a tombstone.

The row's watermark: microseconds, the event time below which rows were late when this row came. It is the watermark of
the row's own partition made from earlier offsets only, raised to the source's watermark where an idle partition let
that pass. Null where no row can be late: in history, and in batches of the tail with no late row.

A tombstone is a record with a key and a null value. Sources that are read as changelogs give it as a row with the key's
columns, all others null, and true here; null stands for false.
"""

INTERNAL: Final = frozenset({ROW_WATERMARK})
"""Columns that nobody is to name: rows carry them for Headrace alone."""


def listed(names: Iterable[str]) -> list[str]:
    """Names of columns as messages and plans list them: without those that nobody is to name."""
    return [name for name in names if name not in INTERNAL]


WEIGHT_TYPE: Final = pl.Int64()
"""The weight of a changelog's row: +1 inserts it, -1 takes an equal one back. Rows without the column weigh +1.

Linear operators (filter, select, joins with a static table) let it pass; a sink turns rows into upserts and deletes, or
keeps it as a column.
"""

ERRORS: Final = pl.Schema(
    {
        "topic": pl.String(),
        "partition": pl.Int32(),
        "offset": pl.Int64(),
        "timestamp": pl.Datetime("us", "UTC"),
        "key": pl.Binary(),
        "value": pl.Binary(),
        "reason": pl.String(),
    }
)
"""The ``errors`` port of a source: one row for each record that could not be decoded (a dead letter)."""
