"""JSON texts of rows: exact, for every type, checked by another decoder."""

from __future__ import annotations

import base64
import json
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import msgspec
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.kernel.errors import SchemaError
from headrace.sinks.json_encode import json_object, record_key


def texts(frame: pl.DataFrame) -> list[str]:
    return frame.select(json_object(frame.schema).alias("v")).to_series().to_list()


def read(frame: pl.DataFrame) -> list[dict[str, Any]]:
    return [json.loads(text, parse_float=Decimal, parse_constant=pytest.fail) for text in texts(frame)]


def keys(frame: pl.DataFrame, *columns: str) -> list[str | bytes | None]:
    return frame.select(record_key(frame.schema, columns).alias("k")).to_series().to_list()


def test_dec_04_the_same_digits_out_as_in() -> None:
    amounts = [Decimal("123456789012345.67"), Decimal("99999999999999999999.99"), Decimal("1.10"), None]
    frame = pl.DataFrame(
        {
            "id": [9007199254740993, 2**63 - 1, -(2**63), None],
            "amt": pl.Series(amounts, dtype=pl.Decimal(38, 2)),
            "u": pl.Series([2**64 - 1, 0, 1, None], dtype=pl.UInt64),
        }
    )
    assert texts(frame)[:2] == [
        '{"id":9007199254740993,"amt":123456789012345.67,"u":18446744073709551615}',
        '{"id":9223372036854775807,"amt":99999999999999999999.99,"u":0}',
    ]
    assert [row["amt"] for row in read(frame)] == amounts
    assert [row["id"] for row in read(frame)] == frame["id"].to_list()


def test_decimals_are_exact_at_any_depth() -> None:
    one = Decimal("99999999999999999999999999999999.999999")
    dtype = pl.Decimal(38, 6)
    frame = pl.DataFrame(
        {
            "s": [
                {"d": one, "x": "a", "l": [one, None]},
                None,
                {"d": None, "x": None, "l": None},
                {"d": one, "x": "}", "l": []},
            ],
            "l": [[{"d": one}, None], [], None, [{"d": None}]],
            "ll": [[[one]], [[], None], None, []],
        },
        schema={
            "s": pl.Struct({"d": dtype, "x": pl.String, "l": pl.List(dtype)}),
            "l": pl.List(pl.Struct({"d": dtype})),
            "ll": pl.List(pl.List(dtype)),
        },
    )
    assert read(frame) == frame.to_dicts()


def test_times_are_iso_and_utc() -> None:
    berlin = datetime(2026, 7, 1, 12, 0, 0, 5, tzinfo=timezone(timedelta(hours=2)))
    frame = pl.DataFrame(
        {
            "utc": pl.Series([datetime(2026, 1, 1, tzinfo=UTC), None], dtype=pl.Datetime("us", "UTC")),
            "zone": pl.Series([berlin, None], dtype=pl.Datetime("us", "Europe/Berlin")),
            "naive": pl.Series(
                [datetime(1969, 12, 31, 23, 59, 59, 999000, tzinfo=UTC).replace(tzinfo=None), None],
                dtype=pl.Datetime("ms"),
            ),
            "nested": [[{"at": datetime(2026, 1, 1, tzinfo=UTC)}, None], None],
            "day": [date(2026, 1, 1), None],
            "time": [time(1, 2, 3, 4), None],
            "length": [timedelta(seconds=90), None],
        }
    )
    first, second = read(frame)
    assert first == {
        "utc": "2026-01-01T00:00:00Z",
        "zone": "2026-07-01T10:00:00.000005Z",
        "naive": "1969-12-31T23:59:59.999",
        "nested": [{"at": "2026-01-01T00:00:00Z"}, None],
        "day": "2026-01-01",
        "time": "01:02:03.000004",
        "length": "PT90S",
    }
    assert set(second.values()) == {None}


def test_other_types() -> None:
    frame = pl.DataFrame(
        {
            'na"me\né': ['q"uote\\ \n \x00 \u2028 é 😀', ""],
            "bytes": [b"\x00\xff", None],
            "in": [[b"a"], None],
            "float": [0.1, float("nan")],
            "inf": [float("inf"), float("-inf")],
            "cat": pl.Series(["a", None], dtype=pl.Categorical()),
            "enum": pl.Series(["a", None], dtype=pl.Enum(["a"])),
            "bool": [True, None],
            "none": [None, None],
            "arr": pl.Series([[1, 2], None], dtype=pl.Array(pl.Int64, 2)),
            "arrd": pl.Series([[Decimal("1.0")], None], dtype=pl.Array(pl.Decimal(9, 1), 1)),
            "big": pl.Series([2**100, None], dtype=pl.Int128),
        }
    )
    first, second = read(frame)
    assert first['na"me\né'] == 'q"uote\\ \n \x00 \u2028 é 😀'
    assert base64.b64decode(first["bytes"]) == b"\x00\xff"
    assert first["in"] == ["YQ=="]
    assert (first["float"], first["inf"], second["float"], second["inf"]) == (Decimal("0.1"), None, None, None)
    assert (first["cat"], first["enum"], first["bool"], first["none"]) == ("a", "a", True, None)
    assert (first["arr"], first["arrd"], first["big"]) == ([1, 2], [Decimal("1.0")], 2**100)
    assert second['na"me\né'] == ""


# Polars reads these as patterns of names, wherever a column is named.
names_of_columns = st.text().filter(lambda name: name != "*" and not (name.startswith("^") and name.endswith("$")))
decimals = st.decimals(min_value=-(10**29), max_value=10**29, places=8, allow_nan=False)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.none() | st.integers(-(2**63), 2**63 - 1),
            st.none() | decimals,
            st.none() | st.text(),
            st.none() | st.floats(allow_nan=False, allow_infinity=False),
            st.none() | st.binary(),
        ),
        max_size=5,
    ),
    st.lists(names_of_columns, min_size=5, max_size=5, unique=True),
)
def test_rows_round_trip_through_two_decoders(rows: list[tuple[Any, ...]], names: list[str]) -> None:
    types = [pl.Int64(), pl.Decimal(38, 8), pl.String(), pl.Float64(), pl.Binary()]
    frame = pl.DataFrame(rows, schema=dict(zip(names, types, strict=True)), orient="row")
    for text, row in zip(texts(frame), rows, strict=True):
        by_json = json.loads(text, parse_float=Decimal)
        assert list(by_json) == names
        number, amount, string, real, raw = by_json.values()
        assert (number, string) == (row[0], row[2])
        assert amount == row[1]
        assert (None if real is None else float(real)) == row[3]
        assert (None if raw is None else base64.b64decode(raw)) == row[4]
        assert msgspec.json.decode(text, type=dict[str, msgspec.Raw]).keys() == by_json.keys()


def test_keys() -> None:
    frame = pl.DataFrame(
        {
            "s": ['a"b', None],
            "i": [2**62 + 1, None],
            "d": pl.Series([Decimal("1.10"), None], dtype=pl.Decimal(9, 2)),
            "t": [datetime(2026, 1, 1, tzinfo=UTC), None],
            "day": [date(2026, 1, 1), None],
            "b": [b"\xff", None],
            "ok": [True, None],
        }
    )
    assert keys(frame, "s") == ['a"b', None]
    assert keys(frame, "i") == [str(2**62 + 1), None]
    assert keys(frame, "d") == ["1.10", None]
    assert keys(frame, "t") == ["2026-01-01T00:00:00Z", None]
    assert keys(frame, "day") == ["2026-01-01", None]
    assert keys(frame, "b") == [b"\xff", None]
    assert keys(frame, "ok") == ["true", None]
    assert keys(frame, "i", "s") == [f'{{"i":{2**62 + 1},"s":"a\\"b"}}', '{"i":null,"s":null}']
    assert keys(frame) == [None]


def test_what_cannot_be_written_is_named() -> None:
    schema = pl.Schema({"ok": pl.Int64(), "o": pl.List(pl.Object())})
    with pytest.raises(SchemaError, match=r"o\[\]"):
        json_object(schema)
    with pytest.raises(SchemaError, match="gone"):
        record_key(schema, ["gone"])
