"""64-bit integers in JSON.

Many JSON readers hold numbers as doubles, which round beyond 2**53: snapshot ids are beyond it, offsets can be. In
documents whose shape is not fixed (plan, progress, error context) every integer is therefore written as a decimal
string, as in the JSON form of Protocol Buffers; fractions stay numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def with_text_integers(value: Any) -> Any:
    """A copy of a JSON value in which integers are decimal strings."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return str(value)
    if isinstance(value, Mapping):
        return {key: with_text_integers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [with_text_integers(item) for item in value]
    return value
