"""What a decoder is: message values in, columns out, row for row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import polars as pl


@dataclass(frozen=True, slots=True)
class Decoded:
    """A decoded batch.

    Attributes:
        frame: The decoder's columns, in its schema's order and types; ``height`` rows.
        height: Number of rows (a frame without columns does not know it).
        kept: For each row the index of its value in the input, ascending; None when row i is value i for all i.
        errors: Index and reason of each value that could not be decoded, ascending.
        tombstones: Number of null values, which give no row and are no error.
        nbytes: Bytes of all values.
    """

    frame: pl.DataFrame
    height: int
    kept: Sequence[int] | None = None
    errors: Sequence[tuple[int, str]] = field(default=())
    tombstones: int = 0
    nbytes: int = 0


class Decoder(Protocol):
    """Decodes message values of one format into the columns it was built for.

    Guarantee: what becomes of a value depends on that value alone, never on its neighbours in the batch.
    """

    @property
    def schema(self) -> pl.Schema:
        """The columns it builds, and no others."""

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        """Decode a batch. Never raises for bad data: it is in ``errors``."""
