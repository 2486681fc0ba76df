"""The words of the seams: JSON values, positions, ports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    import polars as pl

Json: TypeAlias = Any
"""A JSON value. 64-bit integers stay integers."""

Position: TypeAlias = Mapping[str, Json]
"""Where a source stands: versioned, JSON-serialisable, opaque to everybody but the source. *Next*, not last."""

PreCommit: TypeAlias = Mapping[str, Json]
"""What a sink hands over at the end of an epoch: enough to finish the commit later, idempotently."""

MAIN = "main"
ERRORS = "errors"
LATE = "late"

Origin: TypeAlias = Literal["history", "tail"]
"""Where the rows of a batch come from; decides only which Polars engine runs the first segment."""

Emission: TypeAlias = Mapping[str, "pl.DataFrame"]
"""What an operator gives out: frames by port (``main``, ``late``)."""
