"""HyperLogLog: about how many different values there are, in 4096 registers of which only those in use are held.

A value is hashed to 64 bits; the first 12 name a register, and the number of zeros that follow is its *rank*. A
register keeps the largest rank (Flajolet et al., 2007). The estimate is Ertl's (2017, "New cardinality estimation
algorithms for HyperLogLog sketches", section 4), which is unbiased for small counts, too; its standard error is
1.04 / sqrt(4096) = 1.6 %. What is held are *codes*, ``register * 64 + rank``, sorted. Merging takes the largest of each
register, so a result never depends on how rows were cut.

Polars keeps its hash stable within a release only. So codes are held in a column whose name says which hash they are
of (:func:`family`): under another release a restored state is refused as one of other columns, never mixed.
"""

from __future__ import annotations

import functools
import math
from typing import Final

import numpy as np
import polars as pl

_BITS: Final = 12
_REGISTERS: Final = 1 << _BITS
_RANKS: Final = 64
_SEED: Final = 0x1234_5678
_TERMS: Final = 22
_MIXERS: Final = (0xFF51_AFD7_ED55_8CCD, 0xC4CE_B9FE_1A85_EC53)


def codes(value: pl.Expr) -> pl.Expr:
    """The code of each value, Int32; null for null."""
    mixed = value.hash(_SEED)
    for factor in _MIXERS:  # MurmurHash3's finalizer: all bits depend on all
        mixed = (mixed ^ (mixed // 2**33)) * pl.lit(factor, pl.UInt64)
    mixed = mixed ^ (mixed // 2**33)
    register = (mixed // 2 ** (64 - _BITS)).cast(pl.Int32)
    zeros = (mixed * 2**_BITS).bitwise_leading_zeros().clip(upper_bound=64 - _BITS)
    return pl.when(value.is_not_null()).then(register * _RANKS + zeros.cast(pl.Int32) + 1)


def largest(found: pl.Expr) -> pl.Expr:
    """Of codes, without nulls, the largest of each register; sorted."""
    ordered = found.sort()
    register = ordered // _RANKS
    return ordered.filter(register.ne_missing(register.shift(-1)))


def estimate(held: pl.Expr) -> pl.Expr:
    """About how many values made the codes of a list that holds the largest of each register. Int64."""
    empty = (_REGISTERS - held.list.len().cast(pl.Float64)) / _REGISTERS
    powers = held.list.eval(pl.lit(2.0).pow(-(pl.element() % _RANKS).cast(pl.Float64))).list.sum()
    # Ertl's sigma: what empty registers add; its terms vanish, unless all are empty and the estimate is 0
    sigma = pl.sum_horizontal(empty, *(empty.pow(2.0**k) * 2.0 ** (k - 1) for k in range(1, _TERMS)))
    counted = _REGISTERS**2 / (2 * math.log(2)) / (powers + _REGISTERS * sigma)
    return pl.when(empty < 1).then(counted.round().cast(pl.Int64)).otherwise(0)


@functools.cache
def family() -> str:
    """How columns of codes are named: which hash they are of; changes when the hash of values does.

    Asked for when it is needed: a query while modules are imported starts Polars' threads, which no fork takes along.
    """
    samples = [pl.Series(["", "a", "headrace" * 9]), pl.Series([0, 1, -1]), pl.Series([0.0, 1.5, -1e300])]
    hashes = pl.concat([sample.hash(_SEED) for sample in samples])
    mixed = (hashes * pl.Series(range(1, 2 * hashes.len(), 2), dtype=pl.UInt64)).to_numpy()
    return f"codes:{int(np.bitwise_xor.reduce(mixed)) & 0xFFFF_FFFF:08x}"
