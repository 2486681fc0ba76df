"""JSON objects, one per message, into columns. Strict: a value fits its column exactly, or the record is an error.

The rules (docs: the JSON format):

* A value is one JSON object (RFC 8259) in UTF-8, with white space and newlines wherever JSON allows them; no byte order
  mark, no ``NaN`` or ``Infinity``, no unpaired surrogate, nothing after it. Every record is parsed to its end. An empty
  value is an error; a null value (a tombstone) is counted and gives no row.
* Only the decoder's own columns are built and type-checked. Unknown keys are ignored, a missing key and an explicit
  ``null`` are null. Of a key that occurs twice the last one counts.
* Integers: a number without fraction and exponent (``1.0`` is none), inside the column's range.
* Floats: any number, integers too, that does not overflow. Booleans: ``true``, ``false``. Strings: strings.
* Decimals: a number, or a string with a number, that the type holds exactly; digits never pass through a float.
* Timestamps: RFC 3339 strings, e.g. ``2026-01-01T12:00:00.5+01:00``, with a zone for a column with a zone and without
  for one without (see :mod:`hybrid_source.decode.text`); no epoch numbers, for their unit would be a guess. Dates:
  ``YYYY-MM-DD``. Times: ``hh:mm:ss``.
* Binary: a string in base64 with padding (RFC 4648, section 4). Enums: one of the members.
* Structs and lists: objects and arrays of the above.

Anything else is an error of that record, never a null, never a conversion.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgspec
import polars as pl

from headrace.kernel.errors import InternalError
from hybrid_source.decode.base import Decoded
from hybrid_source.decode.plan import Member, columns, record


class JsonDecoder:
    """Decodes JSON objects into the columns of ``schema``.

    The whole batch is decoded at once; only when that fails is it decoded record by record.

    Raises:
        SchemaError: A column's type or name cannot be read from JSON.
    """

    def __init__(self, schema: pl.Schema) -> None:
        self._schema = pl.Schema(schema)
        kind, self._members = record("", dict(self._schema))
        self._decode_one = msgspec.json.Decoder(kind).decode

    @property
    def schema(self) -> pl.Schema:
        """See :attr:`Decoder.schema`."""
        return self._schema

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        """See :meth:`Decoder.decode`."""
        raw = pl.Series(values, dtype=pl.Binary)
        if not raw.null_count():
            return self._decode_present(cast("Sequence[bytes]", values), raw)
        index = [index for index, value in enumerate(values) if value is not None]
        inner = self._decode_present([value for value in values if value is not None], raw.drop_nulls())
        return Decoded(
            inner.frame,
            inner.height,
            index if inner.kept is None else [index[kept] for kept in inner.kept],
            [(index[failed], reason) for failed, reason in inner.errors],
            len(values) - len(index),
            inner.nbytes,
        )

    def _decode_present(self, values: Sequence[bytes], raw: pl.Series) -> Decoded:
        kept: list[int] | None = None
        errors: list[tuple[int, str]] = []
        try:
            # msgspec looks only at the strings it builds; a record must not be good or bad by which columns are read.
            raw.cast(pl.String)
            rows = list(map(self._decode_one, values))
        except (msgspec.DecodeError, pl.exceptions.ComputeError, RecursionError):
            rows, kept, errors = self._each(values)
        series, refused = columns(rows, self._members)
        frame = pl.DataFrame(series)
        if refused is not None:
            frame = frame.filter(~refused)
            index = kept if kept is not None else range(len(values))
            flags = refused.to_list()
            errors += [(at, _why(row, self._members)) for at, row, bad in zip(index, rows, flags, strict=True) if bad]
            errors.sort()
            kept = [at for at, bad in zip(index, flags, strict=True) if not bad]
        return Decoded(frame, len(values) - len(errors), kept, errors, nbytes=int(raw.bin.size().sum()))

    def _each(self, values: Sequence[bytes]) -> tuple[list[Any], list[int], list[tuple[int, str]]]:
        rows: list[Any] = []
        kept: list[int] = []
        errors: list[tuple[int, str]] = []
        for index, value in enumerate(values):
            try:
                value.decode()
                rows.append(self._decode_one(value))
                kept.append(index)
            except UnicodeDecodeError as error:
                errors.append((index, f"not valid UTF-8 (byte {error.start})"))
            except msgspec.DecodeError as error:
                errors.append((index, str(error)))
            except RecursionError:
                errors.append((index, "nested too deeply"))
        return rows, kept, errors


def _why(row: Any, members: Sequence[Member]) -> str:
    for member in members:
        _, bad = member.node.build([getattr(row, member.attribute)])
        if bad is not None and bad.any():
            return f"column {member.name!r}: not a valid {member.node.dtype}"
    raise InternalError("a record was refused without a reason")
