"""Decoded records into the rows that the plan asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import polars as pl

from headrace.kernel import columns as system
from headrace.kernel.errors import NotFoundError, SchemaError
from headrace.kernel.protocols import ReadRequest
from hybrid_source.decode import Decoder
from hybrid_source.decode.upserts import UpsertRows
from hybrid_source.source_values import EventTime
from hybrid_source.tail_batch import Records
from hybrid_source.tail_compaction import UpsertKey
from hybrid_source.tail_watermark import TailWatermark


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one poll.

    Attributes:
        frame: Requested columns of the records that decoded and meet the predicate.
        errors: Dead letters, or None.
        maybe_late: Some row, before the predicate, lies below its row watermark.
        tombstones: Number of null values.
        nbytes: Bytes of all values.
    """

    frame: pl.DataFrame
    errors: pl.DataFrame | None
    maybe_late: bool
    tombstones: int
    nbytes: int


class RowBuilder:
    """Builds requested columns from records, and nothing that nobody asked for.

    Args:
        name: What is read, for messages.
        schema: Payload columns that the tail can give.
        request: Columns and predicate.
        event_time: Its column is decoded in any case: the watermark needs it.
        decoder: Makes a decoder for some of the payload columns.
        upserts: How versions by key are read; None: records are rows of their own.

    Raises:
        NotFoundError: ``COLUMN_NOT_FOUND``: a column is not in the schema.
        SchemaError: The event-time column is no timestamp, or a column cannot be decoded.
    """

    def __init__(
        self,
        name: str,
        schema: pl.Schema,
        request: ReadRequest,
        event_time: EventTime | None,
        decoder: Callable[[pl.Schema], Decoder],
        upserts: UpsertKey | None = None,
    ) -> None:
        self._predicate = request.predicate
        self._event_time = event_time
        # A frame without columns would lose its height.
        self._names = list(schema) if request.columns is None else list(request.columns) or list(schema)[:1]
        roots = request.predicate.meta.root_names() if request.predicate is not None else []
        needed = dict.fromkeys([*self._names, *roots])
        self._metadata = [name for name in needed if name in system.METADATA]
        self._stamped = system.ROW_WATERMARK in needed
        payload = [name for name in needed if name not in system.SYSTEM]
        if event_time is not None:
            payload = list(dict.fromkeys([*payload, event_time.column]))
        self._decoder = decoder(_subset(name, schema, payload))
        if event_time is not None:
            _check_event_time(event_time.column, self._decoder.schema[event_time.column])
        self._upserts = None
        if upserts is not None:
            key = _subset(name, self._decoder.schema, upserts.columns)
            self._upserts = UpsertRows(key, upserts.key_format)
        types = {**schema, **system.SYSTEM}
        self.empty = pl.DataFrame(schema={name: types[name] for name in self._names})

    def build(self, records: Records, watermark: TailWatermark) -> Rows:
        """The rows of some records; takes their event times into the watermark."""
        values = records.values()
        decoded = self._decoder.decode(values)
        if self._upserts is not None:
            decoded = self._upserts.apply(decoded, values, records.keys())
        columns = [*decoded.frame.get_columns(), *records.metadata(self._metadata, decoded)]
        stamps, maybe_late = None, False
        if self._event_time is not None:
            times = event_times(decoded.frame[self._event_time.column])
            stamps = watermark.rows(records.decoded_slots(decoded), times, records.places)
            maybe_late = stamps is not None and bool((times < stamps).any())
        if self._stamped:
            never = pl.Series([None], dtype=pl.Int64).new_from_index(0, decoded.height)
            columns.append((never if stamps is None else stamps).alias(system.ROW_WATERMARK))
        frame = pl.DataFrame(columns)
        if self._predicate is not None:
            frame = frame.filter(self._predicate)
        return Rows(
            frame.select(self._names),
            records.errors(decoded),
            maybe_late,
            decoded.tombstones,
            decoded.nbytes,
        )


def event_times(column: pl.Series) -> pl.Series:
    """Event times as microseconds since the epoch (Int64); a column without a zone is UTC."""
    return column.cast(pl.Datetime("us", getattr(column.dtype, "time_zone", None))).cast(pl.Int64)


def _subset(tail: str, schema: pl.Schema, names: Sequence[str]) -> pl.Schema:
    for name in names:
        if name not in schema:
            raise NotFoundError(
                f"the tail of {tail} has no column {name!r}",
                detail=f"its columns are {', '.join(schema)}",
                hint="add the column to the tail's schema",
                code="COLUMN_NOT_FOUND",
            )
    return pl.Schema({name: schema[name] for name in names})


def _check_event_time(name: str, dtype: pl.DataType) -> None:
    if not isinstance(dtype, pl.Datetime | pl.Date):
        raise SchemaError(
            f"event-time column {name!r} has type {dtype}, which is no timestamp",
            hint="declare it as timestamp or date in the schema",
        )
