"""JSON decoding: one strict semantics, held against a slow reference built on the json module."""

from __future__ import annotations

import base64
import json
import re
import struct
from datetime import UTC, date, datetime, time
from decimal import Decimal
from fractions import Fraction
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.kernel.errors import SchemaError
from hybrid_source.decode import Decoded, JsonDecoder
from hybrid_source.decode import text as text_columns

# ------------------------------------------------------------------------------------------------------- reference


class RefusedError(Exception):
    """The reference refuses a record."""


class Number(str):
    """A JSON number's text."""

    __slots__ = ()


RANGES = {
    pl.Int8: (-(2**7), 2**7 - 1),
    pl.Int32: (-(2**31), 2**31 - 1),
    pl.Int64: (-(2**63), 2**63 - 1),
    pl.UInt8: (0, 2**8 - 1),
    pl.UInt64: (0, 2**64 - 1),
}


def reference(value: bytes, schema: dict[str, Any]) -> dict[str, Any]:
    """The row of one record, or RefusedError."""

    def constant(text: str) -> Any:
        raise RefusedError(text)

    try:
        text = value.decode()
        parsed = json.loads(text, parse_int=Number, parse_float=Number, parse_constant=constant)
        json.dumps(parsed, ensure_ascii=False).encode()
    except (ValueError, UnicodeError) as error:
        raise RefusedError(str(error)) from error
    if not isinstance(parsed, dict):
        raise RefusedError("not an object")
    return {name: fit(parsed.get(name), dtype) for name, dtype in schema.items()}


def fit(value: Any, dtype: Any) -> Any:  # noqa: PLR0911 - one return for each type
    if value is None:
        return None
    if isinstance(dtype, pl.Struct):
        need(type(value) is dict)
        return {field.name: fit(value.get(field.name), field.dtype) for field in dtype.fields}
    if isinstance(dtype, pl.List):
        need(type(value) is list)
        return [fit(item, dtype.inner) for item in value]
    kind = dtype.base_type() if isinstance(dtype, pl.DataType) else dtype
    if kind in RANGES:
        need(type(value) is Number and re.fullmatch(r"-?\d+", value) is not None)
        need(RANGES[kind][0] <= int(value) <= RANGES[kind][1])
        return int(value)
    if kind in (pl.Float64, pl.Float32):
        need(type(value) is Number)
        return single(float(value)) if kind is pl.Float32 else finite(float(value))
    if kind is pl.Boolean:
        need(type(value) is bool)
        return value
    if kind is pl.Decimal:
        need(
            type(value) in (Number, str)
            and re.fullmatch(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d{1,3})?", value) is not None
        )
        scaled = Fraction(value) * 10**dtype.scale
        need(scaled.denominator == 1 and abs(scaled) < 10**dtype.precision)
        return Decimal(value)
    need(type(value) is str)
    return fit_text(value, kind, dtype)


def fit_text(value: str, kind: Any, dtype: Any) -> Any:
    try:
        if kind is pl.Binary:
            return base64.b64decode(value, validate=True)
        if kind is pl.Date:
            need(re.fullmatch(r"\d{4}-\d\d-\d\d", value, re.ASCII) is not None)
            return date.fromisoformat(value)
        if kind is pl.Time:
            need(re.fullmatch(r"\d\d:\d\d:\d\d(\.\d{1,6})?", value, re.ASCII) is not None)
            return time.fromisoformat(value)
        if kind is pl.Datetime:
            zone = "(Z|[+-]\\d\\d:\\d\\d)" if dtype.time_zone else ""
            need(re.fullmatch(rf"\d{{4}}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d{{1,6}})?{zone}", value, re.ASCII) is not None)
            need(not value[-2:].isdigit() or not dtype.time_zone or int(value[-2:]) < 60)
            parsed = datetime.fromisoformat(value)
            return parsed.astimezone(UTC) if dtype.time_zone else parsed
    except (ValueError, OverflowError) as error:
        raise RefusedError(str(error)) from error
    if kind is pl.Enum:
        need(value in dtype.categories)
    return value


def finite(value: float) -> float:
    need(abs(value) != float("inf"))
    return value


def single(value: float) -> float:
    finite(value)
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError as error:
        raise RefusedError(str(error)) from error


def need(condition: bool) -> None:
    if not condition:
        raise RefusedError


def rows_of(decoded: Decoded, count: int) -> dict[int, Any]:
    kept = range(count) if decoded.kept is None else decoded.kept
    assert decoded.height == len(kept)
    if decoded.frame.width:
        assert decoded.frame.height == decoded.height
    rows = decoded.frame.to_dicts() if decoded.frame.width else [{} for _ in kept]
    return dict(zip(kept, rows, strict=True))


def check(values: list[bytes | None], schema: dict[str, Any]) -> Decoded:
    """Decode a batch and compare every record with the reference."""
    decoded = JsonDecoder(pl.Schema(schema)).decode(values)
    expected, refused = {}, []
    for index, value in enumerate(values):
        if value is None:
            continue
        try:
            expected[index] = reference(value, schema)
        except RefusedError:
            refused.append(index)
    assert [index for index, _ in decoded.errors] == refused
    assert all(reason for _, reason in decoded.errors)
    assert rows_of(decoded, len(values)) == expected
    assert decoded.tombstones == values.count(None)
    assert decoded.frame.schema == pl.Schema(schema)
    return decoded


# ------------------------------------------------------------------------------------------------------------ cases


@pytest.mark.parametrize(
    ("dtype", "values", "good"),
    [
        (pl.List(pl.Int64), [b'{"a":[1]}', b"[1],[2", b"3]", b'{"a":[2]}'], [0, 3]),
        (pl.Int64, [b'{"a":0}', b'{"a":1},{"a":2', b'"b":3}', b'{"a":4}'], [0, 3]),
        (pl.Int64, [b'{"a":0}', b'{"a":1} {"a":2}', b"", b'{"a":4}'], [0, 3]),
        (pl.Int64, [b'{"a":0}', b'{"a":1', b',"b":3}', b'{"a":4}{"a":5}', b'{"a":6}'], [0, 4]),
        (pl.Int64, [b'{"a":0}', b'{"a":', b"1}", b'{"a":4}'], [0, 3]),
        (pl.Int64, [b'{"a":0}', b"\n", b'{"a":1}\n{"a":2}', b'{"a":4}'], [0, 3]),
        (pl.Int64, [b'{"a":0}\n', b'{\n  "a": 1\n}', b'\r\n{"a"\t:\n2}', b'{"a":3}'], [0, 1, 2, 3]),
        (pl.String, [b'{"a":"x"}', b'{"a":"', b'"}', b'{"a":"y"}'], [0, 3]),
        (pl.String, [b'{"a":"\xc3', b'\xa9"}', b'{"a":"\xc3\xa9"}'], [2]),
    ],
)
def test_dec_01_a_value_never_touches_its_neighbours(dtype: Any, values: list[bytes | None], good: list[int]) -> None:
    decoded = check(values, {"a": dtype})
    assert (decoded.kept if decoded.kept is not None else list(range(len(values)))) == good


@pytest.mark.parametrize("bad", [b"{bad", b'{"a":1e999}', b'{"a":' + b"9" * 400 + b"}", b"", b"null", b"[]", b"7"])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_dec_02_a_bad_record_is_isolated(bad: bytes, at: int) -> None:
    values: list[bytes | None] = [b'{"a":1}', b'{"a":3}']
    values.insert(at, bad)
    decoded = check(values, {"a": pl.Int64})
    assert decoded.frame["a"].to_list() == [1, 3]
    assert [index for index, _ in decoded.errors] == [at]


def test_dec_02_a_bad_record_alone() -> None:
    decoded = check([b"{bad"], {"a": pl.Int64})
    assert decoded.frame.height == 0
    assert decoded.errors[0][0] == 0


@pytest.mark.parametrize("dtype", [pl.Float64, pl.Float32, pl.Decimal(38, 2)])
def test_dec_02_numbers_beyond_the_type(dtype: Any) -> None:
    check([b'{"a":1e999}', b'{"a":1}', b'{"a":' + b"9" * 400 + b"}", b'{"a":1e-5}', b'{"a":-1e39}'], {"a": dtype})


def test_dec_03_only_integers_in_range_are_integers() -> None:
    texts = ["9223372036854775807", "9223372036854775808", "327267367867168100000", "1.5", "1.0", "true", '"7"', "1e2"]
    decoded = check([f'{{"a":{text}}}'.encode() for text in texts], {"a": pl.Int64})
    assert decoded.frame["a"].to_list() == [2**63 - 1]
    assert "at `$.a`" in decoded.errors[0][1]


@pytest.mark.parametrize("dtype", [pl.UInt8, pl.Int32, pl.Int8, pl.UInt64])
def test_dec_03_small_integers(dtype: Any) -> None:
    texts = ["300", "-1", "3000000000", "0", "-0", "255", "127", "18446744073709551615", "18446744073709551616"]
    check([f'{{"b":{text}}}'.encode() for text in texts], {"b": dtype})


def test_dec_04_decimals_and_large_ids_keep_their_digits() -> None:
    schema = {"amt": pl.Decimal(38, 2), "id": pl.Int64}
    values: list[bytes | None] = [
        b'{"amt":123456789012345.67,"id":9007199254740993}',
        b'{"amt":99999999999999999999.99}',
        b'{"amt":"99999999999999999999.99"}',
        b'{"amt":-0.01}',
        b'{"amt":1.500e1}',
        b'{"amt":7}',
        b'{"amt":1.230000}',
    ]
    decoded = check(values, schema)
    assert decoded.errors == []
    assert [str(value) for value in decoded.frame["amt"]] == [
        "123456789012345.67",
        "99999999999999999999.99",
        "99999999999999999999.99",
        "-0.01",
        "15.00",
        "7.00",
        "1.23",
    ]
    assert decoded.frame["id"][0] == 9007199254740993


def test_dec_04_a_decimal_is_never_rounded() -> None:
    texts = [
        "1.005",
        '"1.005"',
        "1e-3",
        "99999999999",
        "1000000000",
        "99999999.99",
        '"NaN"',
        '"1_0"',
        '" 1"',
        '""',
        "true",
    ]
    decoded = check([f'{{"a":{text}}}'.encode() for text in texts], {"a": pl.Decimal(10, 2)})
    assert decoded.kept == [5]


def test_kaf_02_a_tombstone_is_counted_and_an_empty_value_is_an_error() -> None:
    decoded = check([b'{"v":1}', None, b'{"v":2}', None, b""], {"v": pl.Int64})
    assert decoded.frame["v"].to_list() == [1, 2]
    assert decoded.kept == [0, 2]
    assert decoded.tombstones == 2
    assert [index for index, _ in decoded.errors] == [4]


def test_timestamps() -> None:
    texts = [
        "2026-01-01T00:00:00Z",
        "2026-01-01 00:00:00.5+02:00",
        "2026-01-01T00:00:00",
        "2026-01-01",
        "2026-02-30T00:00:00Z",
        "2026-01-01T24:00:00Z",
        "2026-01-01T23:59:60Z",
        "2026-1-01T00:00:00Z",
        " 2026-01-01T00:00:00Z",
        "2026-01-01T00:00:00.123456-11:30",
        "0001-01-01T00:00:00+14:00",
        "9999-12-31T23:59:59-14:00",
        "9999-12-31T23:59:59.999999Z",
        "0000-01-01T00:00:00Z",
        "1969-12-31T23:59:59.999999Z",
        "",
    ]
    values: list[bytes | None] = [json.dumps({"t": text}).encode() for text in texts]
    values += [b'{"t":1767225600}', b'{"t":null}']
    assert check(values, {"t": pl.Datetime("us", "UTC")}).kept == [0, 1, 9, 12, 14, 17]
    assert check(values, {"t": pl.Datetime("us")}).kept == [2, 17]
    assert check(values, {"t": pl.Date}).kept == [3, 17]


@pytest.mark.parametrize(
    "texts",
    [
        ["2026-01-01T00:00:00", "2026-02-28T23:59:59", "1969-12-31T23:59:59", "0001-01-01T00:00:00"],
        ["2026-01-01T00:00:00.001", "2026-02-29T23:59:59.999", "1969-12-31T23:59:59.999", "2024-02-29T12:30:01.010"],
        ["2026-01-01T00:00:00.000001", "2026-04-31T23:59:59.999999", "1969-12-31T23:59:59.999999"],
        ["2026-01-01T00:00:00", "2026-01-01T24:00:00"],
        ["2026-01-01T00:00:00", "2026-01-01T23:60:00"],
        ["2026-01-01T00:00:00", "2026-01-01T00:00:60"],
        ["2026-01-01T00:00:00.123", "2026-01-01T00:00:00,123"],
        ["2026-01-01T00:00:00.123", "2026-01-01T00:00:00.1x3"],
        ["2026-01-01 00:00:00", "2026-13-01 00:00:00"],
        ["2026-01-01T00:00:0٣"],
    ],
)
def test_timestamps_of_one_shape_and_of_many_mean_the_same(texts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_columns, "_MANY", 0)
    zoned: list[bytes | None] = [json.dumps({"t": f"{text}Z"}).encode() for text in texts]
    local: list[bytes | None] = [json.dumps({"t": text}).encode() for text in texts]
    for values, dtype in ((zoned, pl.Datetime("us", "UTC")), (local, pl.Datetime("us"))):
        alone = check(values, {"t": dtype})
        other = json.dumps({"t": "2026-01-01T00:00:00.1" + ("Z" if dtype.time_zone else "")}).encode()
        mixed = check([*values, other, b"{}"], {"t": dtype})
        assert mixed.frame["t"].to_list()[:-2] == alone.frame["t"].to_list()


def test_a_fraction_finer_than_the_column_is_cut() -> None:
    values: list[bytes | None] = [b'{"t":"2026-01-01T00:00:00.123456789Z"}', b'{"t":"1969-12-31T23:59:59.999999999Z"}']
    in_us = JsonDecoder(pl.Schema({"t": pl.Datetime("us", "UTC")})).decode(values)
    assert in_us.frame["t"].to_physical().to_list() == [1767225600_123456, -1]
    in_ns = JsonDecoder(pl.Schema({"t": pl.Datetime("ns", "UTC")})).decode(values)
    assert in_ns.frame["t"].to_physical().to_list() == [1767225600_123456789, -1]
    in_ms = JsonDecoder(pl.Schema({"t": pl.Datetime("ms", "UTC")})).decode(values)
    assert in_ms.frame["t"].to_physical().to_list() == [1767225600_123, -1]


def test_a_time_beyond_nanoseconds_is_refused_not_wrapped() -> None:
    decoder = JsonDecoder(pl.Schema({"t": pl.Datetime("ns", "UTC")}))
    decoded = decoder.decode([b'{"t":"2262-12-31T00:00:00Z"}', b'{"t":"1500-01-01T00:00:00Z"}', b'{"t":null}'])
    assert decoded.kept == [2]


def test_another_time_zone_keeps_the_instant() -> None:
    decoder = JsonDecoder(pl.Schema({"t": pl.Datetime("us", "Europe/Paris")}))
    decoded = decoder.decode([b'{"t":"2026-01-01T00:00:00Z"}'])
    assert decoded.frame["t"][0] == datetime(2026, 1, 1, tzinfo=UTC)
    assert decoded.frame.schema["t"] == pl.Datetime("us", "Europe/Paris")


def test_only_the_pushed_columns_are_checked_but_every_record_is_parsed() -> None:
    values: list[bytes | None] = [b'{"a":1,"b":"text"}', b'{"a":2,"b":}', b'{"a":3,"b":"\xff"}', b'{"a":4,"b":1e999}']
    decoded = check(values, {"a": pl.Int64})
    assert decoded.frame["a"].to_list() == [1, 4]
    none_read = JsonDecoder(pl.Schema({})).decode(values)
    assert none_read.kept == [0, 3]
    assert none_read.height == 2


def test_a_lone_surrogate_is_an_error_wherever_it_stands() -> None:
    values: list[bytes | None] = [
        b'{"a":"\\ud800"}',
        b'{"b":"\\udc00"}',
        b'{"\\ud800":1}',
        b'{"b":"\\ud800x"}',
        b'{"a":"\\ud83d\\ude00"}',
    ]
    for schema in ({"a": pl.String}, {}):
        assert check(values, dict(schema)).kept == [4]


def test_duplicate_keys_the_last_wins() -> None:
    decoded = check([b'{"a":1,"a":2}', b'{"a":1,"a":null}', b'{"\\u0061":5}'], {"a": pl.Int64})
    assert decoded.frame["a"].to_list() == [2, None, 5]


def test_nested_values() -> None:
    inner = pl.Struct({"x": pl.Int8, "t": pl.Datetime("us", "UTC"), "d": pl.Decimal(6, 1)})
    schema = {"s": inner, "l": pl.List(inner), "ll": pl.List(pl.List(pl.Int64)), "u": pl.List(pl.UInt64)}
    check(
        [
            b'{"s":{"x":1,"t":"2026-01-01T00:00:00Z","d":1.5,"more":[]},"l":[{"x":2},null,{}],"ll":[[1,null],[],null]}',
            b'{"s":null,"l":null,"ll":null}',
            b'{"l":[],"ll":[]}',
            b"{}",
            b'{"l":[{"x":200}]}',
            b'{"l":[{"x":1},{"t":"2026-01-01"}]}',
            b'{"s":{"d":1.55}}',
            b'{"u":[1,18446744073709551615]}',
            b'{"u":[18446744073709551616]}',
            b'{"s":[]}',
            b'{"ll":[1]}',
            b'{"l":[{"d":"9.9"},{"x":-128}]}',
        ],
        schema,
    )


def test_nesting_beyond_the_limit_is_an_error_of_its_record() -> None:
    deep = b'{"b":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    decoded = JsonDecoder(pl.Schema({"a": pl.Int64})).decode([b'{"a":1}', deep, b'{"a":2}'])
    assert decoded.frame["a"].to_list() == [1, 2]
    assert decoded.errors == [(1, "nested too deeply")]


def test_an_empty_batch() -> None:
    decoded = check([], {"a": pl.Int64, "l": pl.List(pl.Struct({"x": pl.Date}))})
    assert decoded.frame.height == 0


@pytest.mark.parametrize("dtype", [pl.Duration("us"), pl.Object(), pl.Array(pl.Int64, 2), pl.List(pl.Duration("us"))])
def test_a_type_that_json_cannot_carry_is_refused_when_the_decoder_is_built(dtype: Any) -> None:
    with pytest.raises(SchemaError, match="'a"):
        JsonDecoder(pl.Schema({"a": dtype}))


def test_a_name_that_cannot_be_matched_is_refused() -> None:
    with pytest.raises(SchemaError, match="quote"):
        JsonDecoder(pl.Schema({'a"b': pl.Int64()}))


# ------------------------------------------------------------------------------------------------------- properties

SCHEMA: dict[str, Any] = {
    "i": pl.Int64,
    "u": pl.UInt8,
    "f": pl.Float64,
    "g": pl.Float32,
    "b": pl.Boolean,
    "s": pl.String,
    "x": pl.Binary,
    "t": pl.Datetime("us", "UTC"),
    "n": pl.Datetime("us"),
    "d": pl.Date,
    "h": pl.Time,
    "m": pl.Decimal(12, 3),
    "e": pl.Enum(["red", "green"]),
    "l": pl.List(pl.Int8),
    "o": pl.Struct({"i": pl.Int64, "l": pl.List(pl.Decimal(5, 1))}),
}

numbers = st.one_of(
    st.integers(-(2**70), 2**70).map(str),
    st.integers(-300, 300).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(10**10), max_value=10**10).map(str),
    st.from_regex(r"-?(0|[1-9][0-9]{0,20})(\.[0-9]{1,6})?([eE][+-]?[0-9]{1,2})?", fullmatch=True),
)
texts = st.one_of(
    st.text(max_size=8),
    st.sampled_from(["red", "green", "YWJj", "YQ==", "1.5", "NaN", "", "true", "2026-13-01"]),
    st.datetimes().map(lambda value: value.isoformat()),
    st.datetimes(timezones=st.just(UTC)).map(lambda value: value.isoformat().replace("+00:00", "Z")),
    st.dates().map(lambda value: value.isoformat()),
    st.times().map(lambda value: value.isoformat()),
    st.binary(max_size=6).map(lambda value: base64.b64encode(value).decode()),
).map(json.dumps)
scalars = st.one_of(numbers, texts, st.sampled_from(["null", "true", "false"]))
names = st.sampled_from([*SCHEMA, "other"])


def obj(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    entries = st.dictionaries(names, values, max_size=5)
    return entries.map(lambda given: "{" + ",\n ".join(f'"{key}" : {value}' for key, value in given.items()) + "}")


documents = st.recursive(
    scalars,
    lambda inner: st.one_of(obj(inner), st.lists(inner, max_size=3).map(lambda x: f"[{', '.join(x)}]")),
    max_leaves=6,
)
records = obj(documents).map(str.encode)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    value = draw(records)
    at = draw(st.integers(0, len(value)))
    cut = draw(st.integers(0, 3))
    return value[:at] + draw(st.binary(max_size=2)) + value[at + cut :]


values = st.lists(st.one_of(st.none(), records, records, records, damaged(), documents.map(str.encode)), max_size=6)
schemas = st.lists(st.sampled_from(list(SCHEMA)), unique=True, max_size=5).map(
    lambda keys: {key: SCHEMA[key] for key in keys}
)


@settings(max_examples=400, deadline=None)
@given(values, schemas)
def test_decoding_equals_the_reference(values: list[bytes | None], schema: dict[str, Any]) -> None:
    check(values, schema)


@settings(max_examples=100, deadline=None)
@given(values, schemas, st.data())
def test_a_batch_is_the_sum_of_its_parts(
    values: list[bytes | None], schema: dict[str, Any], data: st.DataObject
) -> None:
    decoder = JsonDecoder(pl.Schema(schema))
    at = data.draw(st.integers(0, len(values)))
    whole, head, tail = (decoder.decode(part) for part in (values, values[:at], values[at:]))
    joined = rows_of(head, at) | {index + at: row for index, row in rows_of(tail, len(values) - at).items()}
    assert rows_of(whole, len(values)) == joined
    assert list(whole.errors) == [*head.errors, *((index + at, reason) for index, reason in tail.errors)]
