"""Where history ends and the tail begins: one small module per rule, tried in order."""

from hybrid_source.boundary.empty import EmptyHistory
from hybrid_source.boundary.explicit import ExplicitOffsets
from hybrid_source.boundary.offset_columns import OffsetColumns
from hybrid_source.boundary.recorded import RecordedBoundary
from hybrid_source.boundary.rule import BoundaryContext, BoundaryRule, resolve_boundary

__all__ = [
    "BoundaryContext",
    "BoundaryRule",
    "EmptyHistory",
    "ExplicitOffsets",
    "OffsetColumns",
    "RecordedBoundary",
    "resolve_boundary",
]
