"""Parquet files of Iceberg tables, and what manifests say of them."""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg import types as ice
from pyiceberg.io.pyarrow import (
    MetricModeTypes,
    MetricsMode,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.typedef import Record

_FLOATS: Final = (ice.FloatType, ice.DoubleType)
_BOUNDED: Final = frozenset({MetricModeTypes.TRUNCATE, MetricModeTypes.FULL})
_COUNTED: Final = _BOUNDED | {MetricModeTypes.COUNTS}
_TIMES: Final[Mapping[type[ice.IcebergType], struct.Struct]] = {
    ice.DateType: struct.Struct("<i"),
    ice.TimestampType: struct.Struct("<q"),
    ice.TimestamptzType: struct.Struct("<q"),
}
"""How bounds of times stand in manifests: days, or microseconds."""


def write_parquet(
    frame: pl.DataFrame, table: Table, location: str, spec_id: int, partition: Record, compression: str
) -> DataFile:
    """Write one Parquet file with the table's field ids, and describe it with its statistics.

    Polars writes it: faster than pyiceberg's own writer, which moreover (0.12) turns a null list of structs into an
    empty one.

    Args:
        frame: Rows with exactly the table's columns and types.
        table: Where they belong; its current schema gives field ids.
        location: The file's full name.
        spec_id: The partition spec that ``partition`` follows.
        partition: The partition's values.
        compression: A Parquet compression codec as Polars names it.
    """
    schema = table.schema()
    buffer = io.BytesIO()
    frame.write_parquet(
        buffer,
        compression=compression,  # type: ignore[arg-type] # a table property; Polars refuses unknown ones
        arrow_schema=_file_schema(schema),
    )
    content = buffer.getvalue()
    with table.io.new_output(location).create(overwrite=True) as stream:
        stream.write(content)
    buffer.seek(0)
    data_file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=location,
        file_format=FileFormat.PARQUET,
        partition=partition,
        file_size_in_bytes=len(content),
        sort_order_id=None,
        equality_ids=None,
        key_metadata=None,
        **_statistics(frame, pq.read_metadata(buffer), table),
    )
    data_file.spec_id = spec_id
    return data_file


def _file_schema(schema: Schema) -> pa.Schema:
    """The table's schema with its field ids; fields of structs are optional in files.

    A required field of a struct that is itself null holds no value, which Polars does not tell from a null in it.
    :func:`catalog.fitting.cast` has looked for those.
    """
    arrow = schema_to_pyarrow(schema, include_field_ids=True)
    return pa.schema([field.with_type(_optional_fields(field.type)) for field in arrow], arrow.metadata)


def _optional_fields(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_optional_fields(field.type)).with_nullable(True) for field in kind])
    if pa.types.is_map(kind):
        key, item = (field.with_type(_optional_fields(field.type)) for field in (kind.key_field, kind.item_field))
        return pa.map_(key, item)
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_optional_fields(kind.value_type)))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_optional_fields(kind.value_type)))
    return kind


def _statistics(frame: pl.DataFrame, metadata: pq.FileMetaData, table: Table) -> dict[str, Any]:
    """What a manifest says of a file, as far as the table's properties want it.

    pyiceberg makes Python's times of bounds, which end with the year 9999 (and begin with the year 1), and counts no
    NaN (which is in no bounds, so that others would think of none). Both come from the rows.
    """
    schema = table.schema()
    plan = compute_statistics_plan(schema, table.properties)
    bounded = [f for f in schema.fields if type(f.field_type) in _TIMES and plan[f.field_id].mode.type in _BOUNDED]
    for field in bounded:
        plan[field.field_id] = replace(plan[field.field_id], mode=MetricsMode(MetricModeTypes.COUNTS))
    found = data_file_statistics_from_parquet_metadata(metadata, plan, parquet_path_to_id_mapping(schema))
    floats = [f for f in schema.fields if isinstance(f.field_type, _FLOATS) and plan[f.field_id].mode.type in _COUNTED]
    facts = found.to_serialized_dict()
    facts["nan_value_counts"] = {field.field_id: int(frame[field.name].is_nan().sum()) for field in floats}
    for field in bounded:
        days_or_us = frame[field.name].to_physical()
        for side, bound in (("lower_bounds", days_or_us.min()), ("upper_bounds", days_or_us.max())):
            if bound is not None:
                facts[side][field.field_id] = _TIMES[type(field.field_type)].pack(bound)
    return facts
