"""A frozen set of Parquet files as history."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, cast

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.lib import ArrowInvalid

from headrace.kernel.errors import SchemaError, UserError
from headrace.kernel.protocols import Json
from hybrid_source.history import HistoryPlan, HistoryQuery
from hybrid_source.history_rows import source_schema
from hybrid_source.iceberg_plan import PlanReport
from hybrid_source.parquet_listing import ListedFile, Listing, ParquetStore, restore
from hybrid_source.splits import NO_EVENT_TIME, HistoryFile, Split, SplitPlan
from hybrid_source.storage import from_boto3

_FOOTERS_AT_ONCE: Final = 8
_MOST_DIGITS: Final = 38
_LIKE_FOOTERS: Final = pl.ScanCastOptions(
    datetime_cast=["nanosecond-downcast", "millisecond-upcast", "convert-timezone"]
)
"""For times of other units and zones than :func:`_schema` takes them for."""
_DAY_US: Final = 86_400_000_000
_PER_US: Final = {"milliseconds": (1000, 1), "microseconds": (1, 1), "nanoseconds": (1, 1000)}


def open_parquet(pattern: str, *, storage: Mapping[str, Any] | None = None, pin: Json = None) -> ParquetHistory:
    """Freeze the listing of a pattern and read the files' footers.

    Args:
        pattern: See :class:`hybrid_source.parquet_listing.ParquetStore`.
        storage: boto3 client options for ``s3://``.
        pin: A pin from earlier: files that came since are left out.

    Raises:
        NotFoundError: Nothing matches.
        SnapshotGoneError: A pinned file is gone or has changed.
        SchemaError: Two files have one column in different types.
    """
    store = ParquetStore(pattern, storage or {})
    found = store.list()
    listing = found if pin is None else restore(found, pin)
    with ThreadPoolExecutor(_FOOTERS_AT_ONCE) as pool:
        footers = list(pool.map(lambda file: _footer(store, file), listing.files))
    return ParquetHistory(store, listing, footers, from_boto3(storage or {}))


@dataclass(frozen=True, slots=True)
class _Footer:
    file: ListedFile
    schema: pl.Schema
    groups: tuple[int, ...]
    bounds: Mapping[str, int | None]
    """Smallest value of each date or timestamp column in microseconds; None without statistics."""
    numbers: Mapping[str, tuple[int, int]]
    """Smallest and largest value of each integer column, by its path, where no value is null and all groups say so."""

    def low(self, event_time: str) -> int | None:
        return self.bounds.get(event_time) if event_time in self.schema else NO_EVENT_TIME


class ParquetHistory:
    """Parquet files under one schema: the union of their columns, by name; a file may lack some (null)."""

    def __init__(
        self, store: ParquetStore, listing: Listing, footers: Sequence[_Footer], storage: Mapping[str, str]
    ) -> None:
        self._store = store
        self._listing = listing
        self._footers = footers
        self._by_path = {footer.file.path: footer for footer in footers}
        self._storage = dict(storage)
        self._stored = _union(store.pattern, footers)

    @property
    def name(self) -> str:
        """See :class:`hybrid_source.history.History`."""
        return self._store.pattern

    @property
    def stored(self) -> pl.Schema:
        """See :class:`hybrid_source.history.History`."""
        return self._stored

    @property
    def schema(self) -> pl.Schema:
        """See :class:`hybrid_source.history.History`."""
        return source_schema(self._stored)

    @property
    def pin(self) -> Json:
        """``{"parquet", "digest", ...}``; see :attr:`hybrid_source.parquet_listing.Listing.pin`."""
        return self._listing.pin

    @property
    def is_empty(self) -> bool:
        """See :class:`hybrid_source.history.History`."""
        return not any(sum(footer.groups) for footer in self._footers)

    @property
    def files(self) -> Sequence[ListedFile]:
        """The pinned files, by path."""
        return self._listing.files

    def beside(self, name: str) -> tuple[ListedFile, bytes] | None:
        """See :meth:`hybrid_source.parquet_listing.ParquetStore.beside`."""
        return self._store.beside(name)

    def unchanged(self) -> bool:
        """Whether the pattern still matches exactly the pinned files."""
        return self._store.list() == self._listing

    def plan(self, query: HistoryQuery) -> HistoryPlan:
        """See :class:`hybrid_source.history.History`. Row groups are pruned when they are read, by their statistics."""
        files = [
            HistoryFile(
                footer.file.path,
                sum(footer.groups),
                footer.file.size,
                footer.low(query.event_time) if query.event_time else None,
                bounds=tuple(footer.numbers.get(column) for column in query.bounds),
            )
            for footer in self._footers
        ]
        nbytes, records = sum(file.nbytes for file in files), sum(file.records for file in files)
        report = PlanReport(len(files), nbytes, records, len(files), nbytes, records)
        splits = SplitPlan(files, query.target, lambda file: self._by_path[file.path].groups)
        scan = partial(self._scan, statistics=query.by_bounds(self._stored))
        return HistoryPlan(splits, report, (), self._stored, query, scan, self._check)

    def _scan(self, split: Split, *, statistics: bool) -> pl.LazyFrame:
        rows = pl.scan_parquet(
            [file.path for file in split.files],
            glob=False,
            hive_partitioning=False,
            schema=self._stored,
            use_statistics=statistics,
            missing_columns="insert",
            cast_options=_LIKE_FOOTERS,
            storage_options=self._storage or None,
        )
        return rows if split.rows is None else rows.slice(*split.rows)

    def _check(self, split: Split) -> None:
        self._store.check(self._by_path[file.path].file for file in split.files)


def _footer(store: ParquetStore, file: ListedFile) -> _Footer:
    try:
        with store.system.open_input_file(store.inner(file.path)) as stream:
            opened = pq.ParquetFile(stream, coerce_int96_timestamp_unit="us")
            meta, fields = opened.metadata, opened.schema_arrow
    except ArrowInvalid as error:
        raise UserError(
            f"{file.path} is no Parquet file",
            detail=str(error),
            hint="restore the file, or name a pattern that leaves it out",
            code="TABLE_UNSUPPORTED",
        ) from error
    groups = [meta.row_group(index) for index in range(meta.num_row_groups)]
    return _Footer(
        file,
        _schema(file.path, fields),
        tuple(group.num_rows for group in groups),
        {
            meta.schema.column(index).name: _smallest(groups, index, scale)
            for index in range(meta.num_columns)
            if (scale := _to_us(meta.schema.column(index))) is not None
        },
        {
            meta.schema.column(index).path: bound
            for index in range(meta.num_columns)
            if _is_number(meta.schema.column(index)) and (bound := _bounds(groups, index)) is not None
        },
    )


def _schema(path: str, fields: pa.Schema) -> pl.Schema:
    """The columns of a file; timestamps in 96 bits are taken as microseconds, as Spark and Iceberg do.

    As nanoseconds, which they are made of, they would end in the year 2262. Times with a zone are instants, which are
    given in UTC: the zone is a note of some writers, and others' files of one folder may lack it.
    """
    twice = [name for name, times in Counter(fields.names).items() if times > 1]
    if twice:
        raise SchemaError(
            f"{path} has several columns {twice[0]!r}",
            hint="rewrite the file with one column of each name, or name a pattern that leaves it out",
            context={"column": twice[0], "file": path},
        )
    for field in fields:
        if pa.types.is_decimal(field.type) and field.type.precision > _MOST_DIGITS:
            raise SchemaError(
                f"column {field.name!r} of {path} has decimals of {field.type.precision} digits",
                detail=f"no more than {_MOST_DIGITS} can be read",
                hint="rewrite the file with a narrower type",
                context={"column": field.name, "file": path},
            )
    return pl.Schema({name: _in_utc(dtype) for name, dtype in pl.Schema(fields).items()})


def _in_utc(dtype: Any) -> pl.DataType:
    if isinstance(dtype, pl.Datetime) and dtype.time_zone is not None:
        return pl.Datetime(dtype.time_unit, "UTC")
    if isinstance(dtype, pl.List):
        return pl.List(_in_utc(dtype.inner))
    if isinstance(dtype, pl.Struct):
        return pl.Struct({field.name: _in_utc(field.dtype) for field in dtype.fields})
    return cast("pl.DataType", dtype)


def _is_number(leaf: Any) -> bool:
    plain = json.loads(leaf.logical_type.to_json())["Type"] in {"None", "Int"}
    return plain and not leaf.max_repetition_level and leaf.physical_type in {"INT32", "INT64"}


def _bounds(groups: Sequence[Any], index: int) -> tuple[int, int] | None:
    found = [group.column(index).statistics for group in groups if group.num_rows]
    if not found or not all(stats and stats.has_min_max and stats.null_count == 0 for stats in found):
        return None
    return min(stats.min for stats in found), max(stats.max for stats in found)


def _to_us(leaf: Any) -> tuple[int, int] | None:
    """(times, divided by) that turns a leaf column's stored integers into microseconds; None for other types."""
    if leaf.max_repetition_level or "." in leaf.path or leaf.physical_type not in {"INT32", "INT64"}:
        return None
    logical = json.loads(leaf.logical_type.to_json())
    if logical["Type"] == "Date":
        return _DAY_US, 1
    return _PER_US[logical["timeUnit"]] if logical["Type"] == "Timestamp" else None


def _smallest(groups: Sequence[Any], index: int, scale: tuple[int, int]) -> int | None:
    lows: list[int] = []
    for group in groups:
        stats = group.column(index).statistics
        if stats is not None and stats.has_min_max:
            lows.append(stats.min_raw * scale[0] // scale[1])
        elif group.num_rows and not (stats is not None and stats.has_null_count and stats.null_count == group.num_rows):
            return None
    return min(lows, default=NO_EVENT_TIME)


def _union(pattern: str, footers: Sequence[_Footer]) -> pl.Schema:
    columns: dict[str, pl.DataType] = {}
    origin: dict[str, str] = {}
    for footer in footers:
        for name, dtype in footer.schema.items():
            if columns.setdefault(name, dtype) != dtype:
                raise SchemaError(
                    f"column {name} has two types in the files of {pattern}",
                    detail=f"{columns[name]} in {origin[name]}, {dtype} in {footer.file.path}",
                    hint="rewrite the files with one type, or read them as two sources",
                    context={"column": name, "file": footer.file.path},
                )
            origin.setdefault(name, footer.file.path)
    return pl.Schema(columns)
