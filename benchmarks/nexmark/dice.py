"""Random numbers and letters that are a function of (seed, what for, number of the event): the same in any batch.

Counter-based, as in Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011), with the finaliser of
SplitMix64 (Steele, Lea and Flood, 2014) as the mixing function.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

Numbers: TypeAlias = npt.NDArray[np.int64]
_Words: TypeAlias = npt.NDArray[np.uint64]

_GAMMA: Final = 0x9E3779B97F4A7C15
_BITS: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Dice:
    """What is drawn for some events.

    Args:
        seed: Other seeds give other numbers.
        events: Numbers of the events.
    """

    seed: int
    events: Numbers

    def below(self, limit: Numbers | int, salt: int) -> Numbers:
        """Integers from 0 up to but without ``limit`` (one, or one for each event; at most 2^31), evenly."""
        high = self._words(salt) >> np.uint64(33)
        return ((high * np.asarray(limit, dtype=np.uint64)) >> np.uint64(31)).astype(np.int64)

    def fraction(self, salt: int) -> npt.NDArray[np.float64]:
        """Numbers from 0 up to but without 1."""
        return (self._words(salt) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def letters(self, length: int, salt: int) -> pl.Series:
        """Texts of ``length`` small letters, a multiple of 8."""
        if length % 8:
            raise ValueError("a multiple of 8")
        count = self.events.size
        words = np.empty((count, length // 8), np.uint64)
        for column in range(length // 8):
            words[:, column] = self._words(salt * 1000 + column)
        octets = words.view(np.uint8).ravel()
        octets >>= 4
        octets += ord("a")
        offsets = np.arange(0, (count + 1) * length, length, dtype=np.int64)
        texts = pa.LargeStringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(octets))
        return pl.Series(texts)

    def _words(self, salt: int) -> _Words:
        start = np.uint64((self.seed * 0xD1342543DE82EF95 + salt * 0xA0761D6478BD642F) & _BITS)
        word = self.events.astype(np.uint64) * np.uint64(_GAMMA)
        word += start
        word ^= word >> np.uint64(30)
        word *= np.uint64(0xBF58476D1CE4E5B9)
        word ^= word >> np.uint64(27)
        word *= np.uint64(0x94D049BB133111EB)
        word ^= word >> np.uint64(31)
        return word
