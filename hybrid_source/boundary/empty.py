"""Rule: a history without rows covers nothing."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.kernel.boundary import Boundary, TopicBoundary
from hybrid_source.boundary.rule import BoundaryContext
from hybrid_source.resolution import Resolution


@dataclass(frozen=True, slots=True)
class EmptyHistory:
    """A table without a snapshot, or without data files: the tail begins at the earliest offsets."""

    name: str = "empty history"
    looks_for: str = "a history without data files"

    def resolve(self, context: BoundaryContext) -> Resolution | None:
        """See :class:`hybrid_source.boundary.rule.BoundaryRule`."""
        if not context.history.is_empty:
            return None
        return Resolution(
            Boundary({context.topic: TopicBoundary({})}), self.name, f"{context.history.name} has no data files"
        )
