"""Types that hold every value of two types as it is: where streams meet, types are widened and values never changed."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import Final

import polars as pl

_SIGNED: Final[dict[pl.DataType, int]] = {pl.Int8(): 8, pl.Int16(): 16, pl.Int32(): 32, pl.Int64(): 64}
_UNSIGNED: Final[dict[pl.DataType, int]] = {pl.UInt8(): 8, pl.UInt16(): 16, pl.UInt32(): 32, pl.UInt64(): 64}
_WHOLE: Final[dict[pl.DataType, int]] = {**_SIGNED, **_UNSIGNED}
_FLOATS: Final[dict[pl.DataType, int]] = {pl.Float32(): 24, pl.Float64(): 53}
"""The bits of whole numbers that a float holds."""

_DIGITS: Final = {8: 3, 16: 5, 32: 10, 64: 20}
"""The most digits of a whole number of so many bits."""

_PRECISION: Final = 38


def common_type(types: Iterable[pl.DataType]) -> pl.DataType | None:
    """The narrowest type that holds every value of some types as it is; None: there is none, or no type is given.

    Whole numbers become wider ones, floats of 64 bits or decimals; ``Null`` becomes whatever the others are.
    """
    found = iter(types)
    first = next(found, None)
    return reduce(lambda known, more: None if known is None else _of_two(known, more), found, first)


def _of_two(a: pl.DataType, b: pl.DataType) -> pl.DataType | None:
    if a == b or isinstance(b, pl.Null):
        return a
    if isinstance(a, pl.Null):
        return b
    if a in _WHOLE and b in _WHOLE:
        return _whole(a, b)
    if isinstance(a, pl.Decimal) or isinstance(b, pl.Decimal):
        return _decimal(a, b)
    wide = [dtype for dtype, bits in _FLOATS.items() if all(_bits(one) <= bits for one in (a, b))]
    return wide[0] if wide else None


def _whole(a: pl.DataType, b: pl.DataType) -> pl.DataType | None:
    for kind in (_SIGNED, _UNSIGNED):
        if a in kind and b in kind:
            return max(a, b, key=kind.__getitem__)
    needed = max(2 * bits if dtype in _UNSIGNED else bits for dtype, bits in ((a, _WHOLE[a]), (b, _WHOLE[b])))
    return next((dtype for dtype, bits in _SIGNED.items() if bits >= needed), None)


def _bits(dtype: pl.DataType) -> float:
    """The bits that a float needs to hold every value; infinite for what is no number."""
    return _WHOLE.get(dtype) or _FLOATS.get(dtype) or float("inf")


def _decimal(a: pl.DataType, b: pl.DataType) -> pl.DataType | None:
    shapes = [_shape(dtype) for dtype in (a, b)]
    if None in shapes:
        return None
    scale = max(shape[1] for shape in shapes if shape)
    whole = max(shape[0] - shape[1] for shape in shapes if shape)
    return pl.Decimal(whole + scale, scale) if whole + scale <= _PRECISION else None


def _shape(dtype: pl.DataType) -> tuple[int, int] | None:
    """Precision and scale."""
    if isinstance(dtype, pl.Decimal):
        return dtype.precision or _PRECISION, dtype.scale
    return (_DIGITS[_WHOLE[dtype]], 0) if dtype in _WHOLE else None
