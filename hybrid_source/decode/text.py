"""Strict, vectorised parsing of text columns: timestamps, dates, times, decimals, enums.

Each function takes strings (nulls stay null) and gives a series of the wanted type in which what does not parse is
null; comparing nulls before and after finds the offenders.
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation, localcontext
from typing import Final

import polars as pl

_DATE: Final = r"(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})-[0-9]{2}-[0-9]{2}"
_CLOCK: Final = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
_TIME: Final = rf"{_CLOCK}(?:\.[0-9]{{1,9}})?"
_ZONE: Final = r"(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"

DATE: Final = f"^{_DATE}$"
TIME: Final = f"^{_TIME}$"
LOCAL_TIMESTAMP: Final = f"^{_DATE}[Tt ]{_TIME}$"
TIMESTAMP: Final = f"^{_DATE}[Tt ]{_TIME}{_ZONE}$"
"""RFC 3339 with seconds 00 to 59 and years 1 to 9999; ``T`` or one space between date and time."""

_NUMBER: Final = r'^"?(-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?)"?$'
_EXPONENT_NUMBER: Final = r'^"?(-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?[eE][+-]?[0-9]{1,3})"?$'
_FRACTIONS: Final = {19: 0, 23: 3, 26: 6}
"""Digits of the fraction by length, without a zone."""
_MANY: Final = 2048
"""From so many timestamps on it pays to look for one shape first."""
_FIRST_US: Final = -62_135_596_800_000_000
_LAST_US: Final = 253_402_300_799_999_999
_EXACT_DIGITS: Final = 2000


def timestamps(texts: pl.Series, dtype: pl.Datetime) -> pl.Series:
    """RFC 3339 timestamps: with a zone for a column that has one, without for a column that has none.

    Digits of a fraction beyond the column's unit are cut off, towards the past.
    """
    many = texts.len() >= _MANY and dtype.time_unit == "us"
    quick = _same_shape(texts, "Z" if dtype.time_zone else "") if many else None
    if quick is not None:
        return _in_zone(quick, dtype.time_zone)
    pattern = TIMESTAMP if dtype.time_zone else LOCAL_TIMESTAMP
    plain = _matching(texts, pattern)
    zoned = plain if dtype.time_zone else plain + "Z"
    in_us = zoned.str.to_datetime("%+", time_unit="us", time_zone="UTC", strict=False, cache=False)
    in_range = in_us.cast(pl.Int64).is_between(_FIRST_US, _LAST_US)
    if dtype.time_unit == "us":
        parsed = in_us
    else:
        # Polars wraps what a nanosecond column cannot hold when it parses, but not when it casts.
        in_range &= in_us.cast(pl.Datetime(dtype.time_unit, "UTC"), strict=False).is_not_null()
        parsed = zoned.str.to_datetime("%+", time_unit=dtype.time_unit, time_zone="UTC", strict=False, cache=False)
    if not in_range.all():
        parsed = parsed.set(~in_range, None)
    return _in_zone(parsed, dtype.time_zone)


def _same_shape(texts: pl.Series, suffix: str) -> pl.Series | None:
    """Timestamps in UTC and microseconds, if all have one of the usual shapes; twice as fast as the general way.

    Minutes repeat in a stream, so that parsing them with a cache is nearly free; the rest is digits.
    """
    lengths = texts.str.len_bytes()
    shape = lengths.max() if lengths.min() == lengths.max() else None
    digits = _FRACTIONS.get(shape - len(suffix)) if isinstance(shape, int) else None
    fraction = f"[.][0-9]{{{digits}}}" if digits else ""
    if digits is None or not texts.str.contains(f"^{_DATE}T{_CLOCK}{fraction}{suffix}$").all():
        return None
    minutes = texts.str.head(16).str.to_datetime("%Y-%m-%dT%H:%M", time_unit="us", strict=False, cache=True)
    us = minutes.to_physical() + texts.str.slice(17, 2).cast(pl.Int64) * 1_000_000
    if digits:
        us += texts.str.slice(20, digits).cast(pl.Int64) * 10 ** (6 - digits)
    return us.cast(pl.Datetime("us", "UTC"))


def _in_zone(instants: pl.Series, zone: str | None) -> pl.Series:
    if zone is None:
        return instants.dt.replace_time_zone(None)
    return instants if zone == "UTC" else instants.dt.convert_time_zone(zone)


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
