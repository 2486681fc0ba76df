"""Arithmetic of determinism classes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from headrace.kernel.protocols import Determinism

_ORDER: Final = (
    Determinism.EXACT,
    Determinism.EXACT_TABLE,
    Determinism.WITHIN_TOLERANCE,
    Determinism.NOT_INVARIANT,
)


def weakest(classes: Iterable[Determinism]) -> Determinism:
    """The weakest of several promises: what a chain of operators promises. ``EXACT`` for none."""
    return max(classes, key=_ORDER.index, default=Determinism.EXACT)
