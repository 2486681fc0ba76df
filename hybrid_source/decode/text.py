"""Strict, vectorised parsing of text columns: timestamps, dates, times, decimals, enums.

Each function takes strings (nulls stay null) and gives a series of the wanted type in which what does not parse is
null; comparing nulls before and after finds the offenders.
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation, localcontext
from typing import Final

import polars as pl

_DATE: Final = r"(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})-[0-9]{2}-[0-9]{2}"
_TIME: Final = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?"
_ZONE: Final = r"(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"

DATE: Final = f"^{_DATE}$"
TIME: Final = f"^{_TIME}$"
LOCAL_TIMESTAMP: Final = f"^{_DATE}[Tt ]{_TIME}$"
TIMESTAMP: Final = f"^{_DATE}[Tt ]{_TIME}{_ZONE}$"
"""RFC 3339 with seconds 00 to 59 and years 1 to 9999; ``T`` or one space between date and time."""

_NUMBER: Final = r'^"?(-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?)"?$'
_EXPONENT_NUMBER: Final = r'^"?(-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?[eE][+-]?[0-9]{1,3})"?$'
_FIRST_US: Final = -62_135_596_800_000_000
_LAST_US: Final = 253_402_300_799_999_999
_EXACT_DIGITS: Final = 2000


def timestamps(texts: pl.Series, dtype: pl.Datetime) -> pl.Series:
    """RFC 3339 timestamps: with a zone for a column that has one, without for a column that has none.

    Digits of a fraction beyond the column's unit are cut off, towards the past.
    """
    pattern = TIMESTAMP if dtype.time_zone else LOCAL_TIMESTAMP
    plain = _matching(texts, pattern)
    zoned = plain if dtype.time_zone else plain + "Z"
    in_us = zoned.str.to_datetime("%+", time_unit="us", time_zone="UTC", strict=False, cache=False)
    in_range = in_us.to_physical().is_between(_FIRST_US, _LAST_US)
    if dtype.time_unit == "us":
        parsed = in_us
    else:
        # Polars wraps what a nanosecond column cannot hold when it parses, but not when it casts.
        in_range &= in_us.cast(pl.Datetime(dtype.time_unit, "UTC"), strict=False).is_not_null()
        parsed = zoned.str.to_datetime("%+", time_unit=dtype.time_unit, time_zone="UTC", strict=False, cache=False)
    if not in_range.all():
        parsed = parsed.set(~in_range, None)
    if dtype.time_zone is None:
        return parsed.dt.replace_time_zone(None)
    return parsed if dtype.time_zone == "UTC" else parsed.dt.convert_time_zone(dtype.time_zone)


def dates(texts: pl.Series) -> pl.Series:
    """``YYYY-MM-DD``."""
    return _matching(texts, DATE).str.to_date("%Y-%m-%d", strict=False)


def times(texts: pl.Series) -> pl.Series:
    """``hh:mm:ss`` with up to nine digits of fraction."""
    return _matching(texts, TIME).str.to_time("%H:%M:%S%.f", strict=False)


def enums(texts: pl.Series, dtype: pl.DataType) -> pl.Series:
    """Members of an enum or category."""
    return texts.cast(dtype, strict=False)


def decimals(texts: pl.Series, dtype: pl.Decimal) -> pl.Series:
    """JSON numbers, bare or in a string, that the type holds exactly: nothing is rounded."""
    digits = dtype.precision - dtype.scale
    number = texts.str.extract(_NUMBER)
    if number.null_count() > texts.null_count():
        number = number.zip_with(number.is_not_null(), _without_exponent(texts))
    number = number.str.replace(r"(\.[0-9]*?)0+$", "$1").str.strip_suffix(".")
    fits = number.str.contains(
        rf"^-?(?:0|[0-9]{{0,{digits}}})(?:\.[0-9]{{1,{dtype.scale}}})?$"
        if dtype.scale
        else rf"^-?(?:0|[0-9]{{1,{digits}}})$"
    )
    if not fits.all():
        number = number.set(~fits, None)
    return number.cast(dtype, strict=False)


def _without_exponent(texts: pl.Series) -> pl.Series:
    with localcontext() as context:
        context.prec = _EXACT_DIGITS
        return texts.str.extract(_EXPONENT_NUMBER).map_elements(_plain, return_dtype=pl.String)


def _plain(text: str) -> str | None:
    try:
        return format(Decimal(text), "f")
    except InvalidOperation:
        return None


def _matching(texts: pl.Series, pattern: str) -> pl.Series:
    fits = texts.str.contains(pattern)
    return texts if fits.all() else texts.set(~fits, None)
