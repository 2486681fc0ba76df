"""Sizes as people write them."""

from __future__ import annotations

import re
from typing import Any, Final

_SIZE: Final = re.compile(r"(\d+)\s*(B|kB|KB|KiB|MB|MiB|GB|GiB)?")
_UNITS: Final = {
    None: 1,
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "KiB": 2**10,
    "MB": 10**6,
    "MiB": 2**20,
    "GB": 10**9,
    "GiB": 2**30,
}


def parse_size(value: Any) -> int:
    """Bytes: a positive number of them, or text like ``64MiB`` or ``1GB``.

    Raises:
        ValueError: It is something else.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if not match or int(match[1]) == 0:
        raise ValueError(f"{value!r} is no size; write a number of bytes, or for example 64MiB or 1GB")
    return int(match[1]) * _UNITS[match[2]]
