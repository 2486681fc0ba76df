"""Frames of a restored state."""

from __future__ import annotations

import polars as pl

from headrace.kernel.layouts import check_layout, part_of
from headrace.kernel.protocols import OperatorState


def fitting(state: OperatorState, frame: str, schema: pl.Schema, version: int, where: str) -> pl.DataFrame:
    """A frame of a restored state, checked.

    Args:
        state: The state.
        frame: The frame's name in it.
        schema: The columns that it must have, in any order.
        version: The version of the layout that is read.
        where: Names the operator in error messages.

    Raises:
        GraphChangedError: The state lacks it, or has another version or other columns.
    """
    found = part_of(state.frames, frame, where)
    check_layout(state.version, found.schema, version, schema, where)
    return found.select(schema.names())
