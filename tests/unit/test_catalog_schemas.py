"""Iceberg and Polars schemas, and whether frames fit a table."""

# ruff: noqa: DTZ001 - naive datetimes are part of what is tested
from __future__ import annotations

import datetime as dt
from decimal import Decimal

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg import types as ice
from pyiceberg.schema import Schema

from catalog.fitting import cast, fit
from catalog.schemas import to_iceberg, to_polars
from headrace.kernel.errors import SchemaError

leaves = st.sampled_from(
    [
        pl.Boolean(),
        pl.Int32(),
        pl.Int64(),
        pl.Float32(),
        pl.Float64(),
        pl.String(),
        pl.Binary(),
        pl.Date(),
        pl.Time(),
        pl.Datetime("us"),
        pl.Datetime("us", "UTC"),
        pl.Decimal(10, 2),
        pl.Decimal(38, 0),
    ]
)
types = st.recursive(
    leaves,
    lambda inner: st.one_of(
        inner.map(pl.List),
        st.dictionaries(st.text("abc", min_size=1, max_size=3), inner, min_size=1, max_size=3).map(pl.Struct),
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.text("xyz_", min_size=1, max_size=4), types, min_size=1, max_size=5))
def test_types_that_iceberg_has_round_trip(columns: dict[str, pl.DataType]) -> None:
    assert to_polars(to_iceberg(columns)) == pl.Schema(columns)


@pytest.mark.parametrize(
    ("source", "iceberg"),
    [
        (pl.Int8(), ice.IntegerType()),
        (pl.UInt16(), ice.IntegerType()),
        (pl.UInt32(), ice.LongType()),
        (pl.Categorical(), ice.StringType()),
        (pl.Enum(["a"]), ice.StringType()),
        (pl.Datetime("ns", "America/New_York"), ice.TimestamptzType()),
        (pl.Datetime("ms"), ice.TimestampType()),
    ],
)
def test_types_that_widen(source: pl.DataType, iceberg: ice.IcebergType) -> None:
    assert to_iceberg({"c": source}).find_type("c") == iceberg


@pytest.mark.parametrize("kind", [pl.UInt64(), pl.Duration("us"), pl.Null(), pl.Int128(), pl.List(pl.UInt64())])
def test_types_without_a_counterpart_name_column_and_cure(kind: pl.DataType) -> None:
    with pytest.raises(SchemaError) as caught:
        to_iceberg({"column_c": kind})
    assert "column_c" in caught.value.message
    assert caught.value.hint


def test_iceberg_only_types() -> None:
    schema = Schema(
        ice.NestedField(1, "u", ice.UUIDType()),
        ice.NestedField(2, "f", ice.FixedType(4)),
        ice.NestedField(3, "m", ice.MapType(4, ice.StringType(), 5, ice.IntegerType())),
    )
    assert to_polars(schema) == pl.Schema(
        {"u": pl.Binary, "f": pl.Binary, "m": pl.List(pl.Struct({"key": pl.String, "value": pl.Int32}))}
    )


TABLE = to_iceberg(
    {
        "i": pl.Int64(),
        "f": pl.Float64(),
        "d": pl.Decimal(12, 2),
        "ts": pl.Datetime("us"),
        "tz": pl.Datetime("us", "UTC"),
        "s": pl.Struct({"a": pl.Int64(), "b": pl.String()}),
        "l": pl.List(pl.Struct({"x": pl.Int64(), "y": pl.String()})),
    }
)


def fitted(frame: pl.DataFrame) -> pl.DataFrame:
    return cast(frame, fit(frame.schema, TABLE, "lake.ns.t"), "lake.ns.t")


def test_exact_upcasts_and_missing_columns() -> None:
    out = fitted(
        pl.DataFrame(
            {
                "f": pl.Series([1.5, None], dtype=pl.Float32),
                "i": pl.Series([1, None], dtype=pl.Int16),
                "d": pl.Series([Decimal("1.1"), None], dtype=pl.Decimal(5, 1)),
                "ts": pl.Series([dt.datetime(2024, 1, 1), None], dtype=pl.Datetime("ms")),
            }
        )
    )
    assert out.schema == to_polars(TABLE)
    assert out["d"].to_list() == [Decimal("1.10"), None]
    assert out["tz"].to_list() == [None, None]


def test_structs_are_matched_by_name_with_null_and_empty_kept_apart() -> None:
    rows = pl.DataFrame(
        {
            "s": pl.Series([{"b": "x", "a": 1}, None], dtype=pl.Struct({"b": pl.String, "a": pl.Int32})),
            "l": pl.Series([[], None], dtype=pl.List(pl.Struct({"y": pl.String}))),
        }
    )
    out = fitted(rows)
    assert out["s"].to_list() == [{"a": 1, "b": "x"}, None]
    assert out["l"].to_list() == [[], None]
    more = fitted(pl.DataFrame({"l": pl.Series([[{"y": "q"}, None]], dtype=pl.List(pl.Struct({"y": pl.String})))}))
    assert more["l"].to_list() == [[{"x": None, "y": "q"}, None]]


def test_typ_04_zones() -> None:
    local = dt.datetime(2024, 7, 1, 12)
    for unit in ("ms", "us", "ns"):
        for zone in ("America/New_York", "Etc/UTC"):
            rows = pl.DataFrame({"tz": pl.Series([local], dtype=pl.Datetime(unit)).dt.replace_time_zone(zone)})
            expected = rows["tz"].dt.convert_time_zone("UTC").dt.cast_time_unit("us")
            assert fitted(rows)["tz"].equals(expected)
    with pytest.raises(SchemaError, match="'tz'"):
        fitted(pl.DataFrame({"tz": [local]}))
    with pytest.raises(SchemaError, match="'ts'"):
        fitted(pl.DataFrame({"ts": [local]}).with_columns(pl.col("ts").dt.replace_time_zone("UTC")))


def test_nanoseconds_that_do_not_fit_are_refused_not_truncated() -> None:
    exact = pl.DataFrame({"ts": pl.Series([1_000, 2_000]).cast(pl.Datetime("ns"))})
    assert fitted(exact)["ts"].dt.timestamp("us").to_list() == [1, 2]
    with pytest.raises(SchemaError) as caught:
        fitted(pl.DataFrame({"ts": pl.Series([1_000, 2_001]).cast(pl.Datetime("ns"))}))
    assert caught.value.code == "VALUE_NOT_EXACT"


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ("i", pl.Float64()),
        ("i", pl.UInt64()),
        ("i", pl.String()),
        ("d", pl.Decimal(12, 4)),
        ("d", pl.Decimal(13, 2)),
        ("s", pl.Struct({"z": pl.Int64()})),
        ("l", pl.List(pl.Struct({"x": pl.Float64()}))),
    ],
)
def test_anything_else_is_refused(column: str, kind: pl.DataType) -> None:
    with pytest.raises(SchemaError, match=f"'{column}'"):
        fit({column: kind}, TABLE, "lake.ns.t")


def test_extra_and_required_columns() -> None:
    with pytest.raises(SchemaError) as caught:
        fit({"nope": pl.Int64()}, TABLE, "lake.ns.t")
    assert caught.value.code == "COLUMN_UNKNOWN"
    required = Schema(ice.NestedField(1, "k", ice.LongType(), required=True))
    with pytest.raises(SchemaError) as caught:
        fit({}, required, "lake.ns.t")
    assert caught.value.code == "COLUMN_MISSING"
    rows = pl.DataFrame({"k": [1, None]})
    with pytest.raises(SchemaError) as caught:
        cast(rows, fit(rows.schema, required, "lake.ns.t"), "lake.ns.t")
    assert caught.value.code == "VALUE_NULL"


def test_binary_values_of_the_wrong_length() -> None:
    table = Schema(ice.NestedField(1, "f", ice.FixedType(4)))
    good, bad = pl.DataFrame({"f": [b"abcd", None]}), pl.DataFrame({"f": [b"abcd", b"abc"]})
    assert cast(good, fit(good.schema, table, "t"), "t").equals(good)
    with pytest.raises(SchemaError) as caught:
        cast(bad, fit(bad.schema, table, "t"), "t")
    assert caught.value.code == "VALUE_LENGTH"


ENTRY = ice.StructType(
    ice.NestedField(11, "x", ice.LongType(), required=True), ice.NestedField(12, "y", ice.LongType())
)
NESTED = Schema(
    ice.NestedField(1, "s", ENTRY),
    ice.NestedField(2, "l", ice.ListType(13, ice.LongType(), element_required=True)),
    ice.NestedField(3, "ls", ice.ListType(14, ice.StructType(*ENTRY.fields), element_required=False)),
    ice.NestedField(4, "m", ice.MapType(15, ice.StringType(), 16, ice.LongType(), value_required=True)),
)


@pytest.mark.parametrize(
    ("column", "value", "path"),
    [
        ("s", {"x": None, "y": 1}, "s.x"),
        ("l", [1, None], "l.element"),
        ("ls", [None, {"x": None, "y": 1}], "ls.element.x"),
        ("m", [{"key": None, "value": 1}], "m.key"),
        ("m", [{"key": "a", "value": None}], "m.value"),
    ],
)
def test_what_is_required_inside_of_a_column_is_no_null(column: str, value: object, path: str) -> None:
    kinds = to_polars(NESTED)
    how = fit(kinds, NESTED, "lake.ns.t")
    nothing: dict[str, object] = {"s": None, "l": None, "ls": [], "m": []}
    with pytest.raises(SchemaError, match=f"'{path}'") as caught:
        cast(pl.DataFrame([nothing, {**nothing, column: value}], schema=kinds), how, "lake.ns.t")
    assert caught.value.code == "VALUE_NULL"
    more = {"s": {"x": 1, "y": None}, "l": [], "ls": [None], "m": None}
    rows = pl.DataFrame([nothing, more], schema=kinds)
    assert cast(rows, how, "lake.ns.t").equals(rows), "what lies in a null is not there"


def test_rows_without_a_required_field_of_a_struct_do_not_fit() -> None:
    for column, kind in (("s", pl.Struct({"y": pl.Int64()})), ("ls", pl.List(pl.Struct({"y": pl.Int64()})))):
        with pytest.raises(SchemaError, match=rf"requires column '{column}\.(element\.)?x'") as caught:
            fit({column: kind}, NESTED, "lake.ns.t")
        assert caught.value.code == "COLUMN_MISSING"
