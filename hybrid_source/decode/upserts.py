"""Records of a changelog: a value is the newest version of the row with its key, a null value deletes that row.

A null value (a tombstone) becomes a row with the key's columns, read from the record's key, all others null, and
``_kafka_deleted`` true. An empty value is no tombstone but a value that cannot be decoded. A null value without a key,
or whose key cannot be read, is an error of that record, and so is a value in which a column of the key is null: what it
updates or deletes is not known.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, Literal, TypeAlias

import polars as pl

from headrace.kernel import columns
from headrace.kernel.errors import InternalError
from hybrid_source.decode.base import Decoded
from hybrid_source.decode.json_decoder import JsonDecoder

KeyFormat: TypeAlias = Literal["text", "json"]

_PLAIN: Final = re.compile(rb"true|false|[-+.0-9eE]+")
_NO_KEY: Final = "null key in a changelog"


class UpsertRows:
    """Adds tombstones to decoded values, and checks keys.

    Args:
        key: Types of the key's columns.
        key_format: ``text``: one column as plain text, as Headrace's own sink writes it (strings as they are, binary
            as its bytes, other types as in JSON without quotes). ``json``: an object.
    """

    def __init__(self, key: pl.Schema, key_format: KeyFormat) -> None:
        if key_format == "text" and len(key) != 1:
            raise InternalError("a key of several columns has no plain text")
        self._key = list(key)
        self._keys = JsonDecoder(key)
        self._as_json = _text_to_json(*next(iter(key.items()))) if key_format == "text" else _as_it_is

    def apply(self, decoded: Decoded, values: Sequence[bytes | None], keys: Sequence[bytes | None]) -> Decoded:
        """The batch with a row for each tombstone and the column ``_kafka_deleted``.

        Args:
            decoded: What became of the values that are not null.
            values: All values.
            keys: All keys.
        """
        held = self._held(decoded, len(values))
        gone = [index for index, value in enumerate(values) if value is None]
        return _merged(held, self._gone(gone, [keys[index] for index in gone]), decoded) if gone else held

    def _held(self, decoded: Decoded, count: int) -> Decoded:
        frame = decoded.frame.with_columns(pl.lit(value=False).alias(columns.DELETED))
        keyless = frame.select(pl.any_horizontal(pl.col(self._key).is_null())).to_series()
        if not keyless.any():
            return replace(decoded, frame=frame, tombstones=0)
        index = list(range(count)) if decoded.kept is None else list(decoded.kept)
        flags = keyless.to_list()
        lost = [(at, self._without(frame.row(row, named=True))) for row, at in enumerate(index) if flags[row]]
        return Decoded(
            frame.filter(~keyless),
            frame.height - len(lost),
            [at for at, flag in zip(index, flags, strict=True) if not flag],
            sorted([*decoded.errors, *lost]),
            nbytes=decoded.nbytes,
        )

    def _without(self, row: dict[str, object]) -> str:
        missing = next(name for name in self._key if row[name] is None)
        return f"null in column {missing!r}, which is of the changelog's key"

    def _gone(self, index: Sequence[int], keys: Sequence[bytes | None]) -> Decoded:
        texts = [None if key is None else self._as_json(key) for key in keys]
        read = self._keys.decode(texts)
        kept = range(len(index)) if read.kept is None else read.kept
        nothing = [(at, _NO_KEY) for at, text in zip(index, texts, strict=True) if text is None]
        errors = [(index[failed], f"key: {reason}") for failed, reason in read.errors]
        rows = Decoded(read.frame, read.height, [index[at] for at in kept], sorted([*errors, *nothing]))
        found = self._held(rows, len(index)) if read.height else rows
        return replace(found, frame=found.frame.with_columns(pl.lit(value=True).alias(columns.DELETED)))


def _merged(held: Decoded, gone: Decoded, decoded: Decoded) -> Decoded:
    """Both kinds of rows in the order of their records."""
    index = [*(held.kept or ()), *(gone.kept or ())]
    frame = pl.concat([held.frame, gone.frame], how="diagonal").select(held.frame.columns)
    order = sorted(range(len(index)), key=index.__getitem__)
    return Decoded(
        frame[order],
        len(index),
        sorted(index),
        sorted([*held.errors, *gone.errors]),
        nbytes=decoded.nbytes,
    )


def _as_it_is(key: bytes) -> bytes:
    return key


def _text_to_json(name: str, dtype: pl.DataType) -> Callable[[bytes], bytes]:
    """Plain text as the JSON object that holds it; what is no text of the type stays no JSON of it."""
    label = json.dumps(name).encode()
    if dtype == pl.Binary:
        return lambda key: b'{%b:"%b"}' % (label, base64.b64encode(key))
    if (dtype.is_numeric() and not isinstance(dtype, pl.Decimal)) or dtype == pl.Boolean:
        return lambda key: b"{%b:%b}" % (label, key if _PLAIN.fullmatch(key) else _quoted(key))
    return lambda key: b"{%b:%b}" % (label, _quoted(key))


def _quoted(key: bytes) -> bytes:
    """Bytes that are no UTF-8 stay so, for the decoder to refuse."""
    try:
        return json.dumps(key.decode()).encode()
    except UnicodeDecodeError:
        return b'"' + key + b'"'
