"""Records of a changelog: tombstones as rows, keys that cannot be read (case KAF-02, the source's half)."""

from __future__ import annotations

import polars as pl
import pytest

from headrace.kernel import columns
from hybrid_source.decode import Decoded, JsonDecoder
from hybrid_source.decode.upserts import KeyFormat, UpsertRows

GONE = columns.DELETED


def decode(
    records: list[tuple[bytes | None, bytes | None]], schema: dict[str, pl.DataType], key: list[str], form: KeyFormat
) -> Decoded:
    keys, values = [key for key, _ in records], [value for _, value in records]
    types = pl.Schema({name: schema[name] for name in key})
    return UpsertRows(types, form).apply(JsonDecoder(pl.Schema(schema)).decode(values), values, keys)


def test_kaf_02_tombstones_delete_and_bad_keys_are_errors_of_their_record() -> None:
    schema = {"k": pl.String(), "v": pl.Int64()}
    records = [
        (b"k1", b'{"k":"k1","v":1}'),
        (b"k1", None),
        (None, b'{"v":2}'),
        (None, None),
        (b"k3", b""),
        (b"k4", b'{"k":"k4"}'),
    ]
    out = decode(records, schema, ["k"], "text")
    assert out.frame.rows() == [("k1", 1, False), ("k1", None, True), ("k4", None, False)]
    assert out.frame.columns == ["k", "v", GONE]
    assert list(out.kept or ()) == [0, 1, 5]
    assert [index for index, _ in out.errors] == [2, 3, 4]
    assert "'k'" in out.errors[0][1]
    assert out.errors[1][1] == "null key in a changelog"
    assert (out.height, out.tombstones) == (3, 0)


def test_without_tombstones_the_batch_is_left_alone() -> None:
    out = decode([(b"a", b'{"k":"a"}')], {"k": pl.String()}, ["k"], "text")
    assert out.frame.rows() == [("a", False)]
    assert out.kept is None
    assert decode([], {"k": pl.String()}, ["k"], "text").height == 0


def test_a_batch_of_tombstones_alone() -> None:
    out = decode([(b"b", None), (b"a", None)], {"k": pl.String(), "v": pl.Int64()}, ["k"], "text")
    assert out.frame.rows() == [("b", None, True), ("a", None, True)]
    assert list(out.kept or ()) == [0, 1]


@pytest.mark.parametrize(
    ("dtype", "key", "value"),
    [
        (pl.Int64(), b"42", 42),
        (pl.Boolean(), b"true", True),
        (pl.String(), b'say "hi" \xc3\xa4', 'say "hi" \u00e4'),
        (pl.Binary(), b"\x00\xff", b"\x00\xff"),
        (pl.Date(), b"2026-01-31", "2026-01-31"),
        (pl.Decimal(38, 2), b"123456789012345.67", "123456789012345.67"),
    ],
)
def test_plain_keys_of_every_type(dtype: pl.DataType, key: bytes, value: object) -> None:
    out = decode([(key, None)], {"k": dtype}, ["k"], "text")
    found = out.frame["k"][0]
    assert (str(found) if isinstance(value, str) else found) == value


@pytest.mark.parametrize("key", [b"x", b"1.5", b'1,"k":2', b"", b"\xff", b"null"])
def test_a_plain_key_that_is_no_such_value_is_an_error(key: bytes) -> None:
    out = decode([(key, None), (b"7", None)], {"k": pl.Int64()}, ["k"], "text")
    assert out.frame.rows() == [(7, True)]
    assert list(out.kept or ()) == [1]
    assert [index for index, _ in out.errors] == [0]


def test_keys_as_objects() -> None:
    schema = {"a": pl.Int64(), "b": pl.String(), "v": pl.Int64()}
    records = [(b'{"a":1,"b":"x"}', None), (b'{"a":1}', None), (b"{", None), (b"", b'{"a":1,"b":"x","v":5}')]
    out = decode(records, schema, ["a", "b"], "json")
    assert out.frame.rows() == [(1, "x", None, True), (1, "x", 5, False)]
    assert [index for index, _ in out.errors] == [1, 2]
