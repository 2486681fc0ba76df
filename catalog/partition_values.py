"""The partition value of each row, for every transform of the Iceberg spec."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import polars as pl
from pyiceberg import types as ice
from pyiceberg.partitioning import PartitionField, PartitionFieldValue, PartitionKey, partition_record_value
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.typedef import Record

from catalog.iceberg_internals import bucket_hash
from headrace.kernel.errors import SchemaError

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table

_KEY: Final = "__headrace_partition_"
_HOUR_US: Final = 3_600_000_000
_NS_PER_US: Final = 1000
_INT_MIN: Final = -(2**31)
_LONG_MIN: Final = -(2**63)
_DIGITS: Final = decimal.Context(prec=50)
_PHYSICAL: Final[Mapping[object, pl.DataType]] = {
    ice.TimestampType: pl.Int64(),
    ice.TimestamptzType: pl.Int64(),
    ice.DateType: pl.Int32(),
    ice.TimeType: pl.Int64(),
}
_NAMED: Final[Mapping[type[ice.IcebergType], pl.DataType]] = {
    ice.DateType: pl.Date(),
    ice.TimestampType: pl.Datetime("us"),
    ice.TimestamptzType: pl.Datetime("us"),
}
_NAMED_TIMES: Final = (dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999_999))  # noqa: DTZ001 - UTC
_RESULT: Final[Mapping[object, pl.DataType]] = {ice.IntegerType: pl.Int32(), ice.LongType: pl.Int64()}


class _Key(PartitionKey):
    """pyiceberg's own key takes the result of every transform of a time column for a time of day."""

    @cached_property
    def partition(self) -> Record:
        """The values as they stand in manifests."""
        return Record(
            *(
                partition_record_value(pair.field, pair.value, self.schema)
                if isinstance(pair.field.transform, IdentityTransform)
                else pair.value
                for pair in self.field_values
            )
        )


def split_by_partition(frame: pl.DataFrame, table: Table) -> Iterator[tuple[PartitionKey | None, pl.DataFrame]]:
    """The rows of each partition under the table's current spec; without partitioning all rows at once."""
    spec, schema = table.spec(), table.schema()
    if frame.is_empty():
        return
    if spec.is_unpartitioned():
        yield None, frame
        return
    for field in spec.fields:
        _check_times(frame, field, schema)
    names = [f"{_KEY}{position}" for position, _ in enumerate(spec.fields)]
    keyed = frame.with_columns(
        _partition_value(frame, field, schema).alias(name) for field, name in zip(spec.fields, names, strict=True)
    )
    for values, rows in keyed.partition_by(names, as_dict=True, include_key=False).items():
        pairs = [PartitionFieldValue(field, value) for field, value in zip(spec.fields, values, strict=True)]
        yield _Key(pairs, spec, schema), rows


def _check_times(frame: pl.DataFrame, field: PartitionField, schema: Schema) -> None:
    """Refuse times whose partition neither pyiceberg nor, for some of them, Polars can name.

    Raises:
        SchemaError: ``PARTITION_VALUE``.
    """
    kind = type(schema.find_field(field.source_id).field_type)
    if kind not in _NAMED or isinstance(field.transform, VoidTransform | BucketTransform):
        return
    first, last = (pl.lit(time, pl.Datetime("us")).cast(_NAMED[kind]).to_physical() for time in _NAMED_TIMES)
    at = _source(schema, field).to_physical()
    if beyond := frame.select(at.filter(~at.is_between(first, last)).head(1)).to_series().to_list():
        unit = "days" if kind is ice.DateType else "µs"
        raise SchemaError(
            f"a time has no partition: {field.transform} of {schema.find_column_name(field.source_id)!r} is before the "
            "year 1 or after the year 9999",
            detail=f"partition field {field.name!r}; the value is {beyond[0]} {unit} from 1970-01-01; seconds, "
            "milliseconds and microseconds may have been mixed up",
            hint="filter the row out before the sink, or partition the table otherwise",
            code="PARTITION_VALUE",
        )


def _partition_value(frame: pl.DataFrame, field: PartitionField, schema: Schema) -> pl.Expr:
    value = _source(schema, field)
    transform, kind = field.transform, schema.find_field(field.source_id).field_type
    match transform:
        case IdentityTransform():
            return value
        case VoidTransform():
            return pl.lit(None, pl.Int32)
        case YearTransform() | MonthTransform() | DayTransform() | HourTransform():
            return _period(value, transform)
        case BucketTransform() if isinstance(kind, (ice.IntegerType, ice.LongType, ice.StringType, ice.BinaryType)):
            hashed = value.cast(pl.Int64) if isinstance(kind, ice.IntegerType) else value
            return ((bucket_hash(hashed) & 0x7FFFFFFF) % transform.num_buckets).cast(pl.Int32)
        case _:
            return _by_distinct_value(frame.select(value).to_series(), field, kind, value)


def _source(schema: Schema, field: PartitionField) -> pl.Expr:
    """What a partition field is computed of."""
    column, *steps = _path(schema.as_struct(), field.source_id)
    value = pl.col(column)
    for step in steps:
        value = value.struct.field(step)
    return value


def _path(kind: ice.IcebergType, field_id: int) -> list[str]:
    """The names that lead to a field, from the outside in; names may have dots in them. Empty: it is not in there."""
    for field in kind.fields if isinstance(kind, ice.StructType) else ():
        if field.field_id == field_id:
            return [field.name]
        if below := _path(field.field_type, field_id):
            return [field.name, *below]
    return []


def _period(value: pl.Expr, transform: Transform[Any, Any]) -> pl.Expr:
    match transform:
        case YearTransform():
            return value.dt.year() - 1970
        case MonthTransform():
            return (value.dt.year() - 1970) * 12 + value.dt.month().cast(pl.Int32) - 1
        case DayTransform():
            return value.cast(pl.Date).cast(pl.Int32)
        case _:
            return (value.cast(pl.Int64) // _HOUR_US).cast(pl.Int32)


def _by_distinct_value(values: pl.Series, field: PartitionField, kind: ice.IcebergType, value: pl.Expr) -> pl.Expr:
    """A transform through pyiceberg's own function, called once for each distinct value."""
    values = values.cast(_PHYSICAL.get(type(kind), values.dtype))
    value = value.cast(values.dtype)
    distinct = values.unique().drop_nulls()
    transform = field.transform.transform(kind)
    result = _RESULT.get(type(field.transform.result_type(kind)), values.dtype)
    transformed = [transform(item // _NS_PER_US if isinstance(kind, ice.TimeType) else item) for item in distinct]
    for item, cut in zip(distinct, transformed, strict=True):
        if isinstance(field.transform, TruncateTransform) and not _holds(kind, cut):
            raise SchemaError(
                f"the value {item} has no partition: {field.transform} of it is below all values of {kind}",
                detail=f"partition field {field.name!r}; engines disagree about such rows, and some lose them",
                hint="filter the row out before the sink, or partition the table otherwise",
                code="PARTITION_VALUE",
            )
    return value.replace_strict(distinct, pl.Series(transformed, dtype=result), default=None, return_dtype=result)


def _holds(kind: ice.IcebergType, cut: Any) -> bool:
    """Whether a truncated value is one of its column's type: truncation goes down, also from the smallest ones."""
    match kind:
        case ice.IntegerType() | ice.LongType():
            return bool(cut >= (_INT_MIN if isinstance(kind, ice.IntegerType) else _LONG_MIN))
        case ice.DecimalType():
            return bool(abs(cut.scaleb(kind.scale, _DIGITS)) < 10**kind.precision)
        case _:
            return True
