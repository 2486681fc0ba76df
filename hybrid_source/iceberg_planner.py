"""Which manifests and files of an Iceberg table may hold rows of a filter, by partition and statistics."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, TypeVar

from pyiceberg.expressions import (
    And,
    BooleanExpression,
    LiteralPredicate,
    Or,
    Reference,
    SetPredicate,
    UnboundPredicate,
)
from pyiceberg.manifest import DataFile, ManifestFile
from pyiceberg.table import ManifestGroupPlanner
from pyiceberg.transforms import DayTransform, HourTransform, MonthTransform, YearTransform

_T = TypeVar("_T")
_TIMES: Final = (YearTransform, MonthTransform, DayTransform, HourTransform)


class Planner(ManifestGroupPlanner):
    """pyiceberg's planner, for the files of older writers, too.

    Before version 0.11 Iceberg's Java library truncated the years, months, days and hours of times before 1970 towards
    zero: the partition of 1969-12-31 23:00 by day was 0, not -1. Its readers look for both values since, and so does
    this one.
    """

    def _build_partition_projection(self, spec_id: int) -> BooleanExpression:
        fields = self.table_metadata.specs()[spec_id].fields
        times = {field.name for field in fields if isinstance(field.transform, _TIMES)}
        return _widened(super()._build_partition_projection(spec_id), times)

    def _build_metrics_evaluator(self) -> Callable[[DataFile], bool]:
        return _if_readable(super()._build_metrics_evaluator())

    def _build_manifest_evaluator(self, spec_id: int) -> Callable[[ManifestFile], bool]:
        return _if_readable(super()._build_manifest_evaluator(spec_id))


def _if_readable(may_hold: Callable[[_T], bool]) -> Callable[[_T], bool]:
    """Keep what has bounds of a type that the column had earlier and pyiceberg does not promote (date to timestamp)."""

    def evaluate(of: _T) -> bool:
        try:
            return may_hold(of)
        except struct.error:
            return True

    return evaluate


def _widened(projection: BooleanExpression, times: set[str]) -> BooleanExpression:
    """An inclusive projection (one without negations) that takes the value after each one before 1970, too."""
    if isinstance(projection, (And, Or)):
        return type(projection)(_widened(projection.left, times), _widened(projection.right, times))
    term = projection.term if isinstance(projection, UnboundPredicate) else None
    if not isinstance(term, Reference) or term.name not in times:
        return projection
    if isinstance(projection, LiteralPredicate) and projection.literal.value < 0:
        return Or(projection, type(projection)(term, projection.literal.value + 1))
    if isinstance(projection, SetPredicate):
        after = {literal.value + 1 for literal in projection.literals if literal.value < 0}
        return Or(projection, type(projection)(term, after)) if after else projection
    return projection
