"""Where history ends and the tail begins: one small module per writer and rule, tried in order."""

from hybrid_source.boundary.auto import auto_rules
from hybrid_source.boundary.connect_replay import ConnectReplay
from hybrid_source.boundary.empty import EmptyHistory
from hybrid_source.boundary.explicit import ExplicitOffsets
from hybrid_source.boundary.offset_columns import NamedColumns, OwnColumns
from hybrid_source.boundary.recorded import RecordedBoundary
from hybrid_source.boundary.rule import (
    BoundaryContext,
    BoundaryRule,
    Trial,
    Unusable,
    resolve_boundary,
    try_rules,
)
from hybrid_source.boundary.timestamp import TimeBoundary

__all__ = [
    "BoundaryContext",
    "BoundaryRule",
    "ConnectReplay",
    "EmptyHistory",
    "ExplicitOffsets",
    "NamedColumns",
    "OwnColumns",
    "RecordedBoundary",
    "TimeBoundary",
    "Trial",
    "Unusable",
    "auto_rules",
    "resolve_boundary",
    "try_rules",
]
