"""Where the rows of each key stand in a segment: beside it on the local disk, mapped, made once it pays.

It holds half of each key's hash: what it finds may be of other keys, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from headrace.kernel.keyed import Hashes, RunFile
from headrace.state.runs import RunFolder, mapped_rows

Numbers: TypeAlias = npt.NDArray[np.int64]
_SCHEMA: Final = pl.Schema({"hash": pl.UInt32(), "row": pl.UInt32()})


@dataclass(frozen=True, slots=True, eq=False)
class KeyIndex:
    """The rows of a segment by the hash of their key.

    Attributes:
        file: Where it lies; it goes with this object.
        hashes: Of each row, ascending.
        rows: The row of each of them.
    """

    file: RunFile
    hashes: npt.NDArray[np.uint32]
    rows: npt.NDArray[np.uint32]

    @classmethod
    def made(cls, hashes: Hashes, runs: RunFolder) -> KeyIndex:
        """Of the hashes of all rows, in their order."""
        halves = _half(hashes)
        order = np.argsort(halves, kind="stable").astype(np.uint32)
        file = runs.write(pl.DataFrame({"hash": halves[order], "row": order}, schema=_SCHEMA))
        mapped = mapped_rows(file.path, _SCHEMA)
        return cls(file, mapped["hash"].to_numpy(), mapped["row"].to_numpy())

    def find(self, asked: Hashes) -> Numbers:
        """At least the rows that have one of some hashes, ascending."""
        halves = np.unique(_half(asked))
        first = np.searchsorted(self.hashes, halves)
        counts = np.searchsorted(self.hashes, halves, side="right") - first
        starts = np.repeat(first - (np.cumsum(counts) - counts), counts)
        return np.sort(self.rows[starts + np.arange(starts.size)].astype(np.int64))


def _half(hashes: Hashes) -> npt.NDArray[np.uint32]:
    return (hashes >> np.uint64(32)).astype(np.uint32)
