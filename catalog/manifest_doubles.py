"""Doubles in manifests, with all their digits.

The compiled Avro decoder of pyiceberg 0.12 gives a ``double`` back as a C ``float`` (apache/iceberg-python#3808: fixed
after that release). Partition values of doubles are rounded by it when a manifest is read, so that files of ``v = 0.1``
are pruned, and when one is read and written again: a staged manifest, or merged ones, even those of other writers.
tests/contract/test_iceberg_internals.py fails when it is no longer needed.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from pyiceberg.avro.reader import DoubleReader

if TYPE_CHECKING:
    from pyiceberg.avro.decoder import BinaryDecoder

_DOUBLE: Final = struct.Struct("<d")


def read_doubles_whole() -> None:
    """From now on this process reads doubles as they were written. May be called again."""
    DoubleReader.read = _read  # type: ignore[assignment] # the decoder itself is compiled


def _read(_reader: DoubleReader, decoder: BinaryDecoder) -> float:
    value: float = _DOUBLE.unpack(decoder.read(_DOUBLE.size))[0]
    return value
