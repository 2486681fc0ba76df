"""Where two stages of a history share offsets: whether both mean the same records by them.

What an older stage has of the shared offsets is left out, as the later one gives it. That loses rows where the offsets
are of another incarnation of the topic, of another cluster, or of rows that the later stage does not have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import polars as pl

from headrace.kernel import columns as system
from headrace.kernel.boundary import Boundary, TopicPartition
from headrace.kernel.errors import BoundaryError
from headrace.kernel.protocols import Json
from hybrid_source.history_protocols import LakeStage
from hybrid_source.resolution import OffsetNames

STAGES_NOT_IN_ORDER: Final = "STAGES_NOT_IN_ORDER"
ORDER: Final = "order of the history stages"
"""The rule that stages are held to, as refusals name it."""

SAMPLE: Final = 1 << 17
"""Offsets that are looked at, at either end of what is shared, over all partitions."""

PLACE: Final = (system.TOPIC, system.PARTITION, system.OFFSET)
_SECOND_US: Final = 1_000_000
_Span: TypeAlias = Mapping[TopicPartition, tuple[int, int]]
_OTHER: Final = "_of_the_other"


@dataclass(frozen=True, slots=True)
class StagePart:
    """One stage as it is pinned.

    Attributes:
        number: Its place in the list.
        stage: It.
        pin: Its version.
        held: The offsets that it holds.
        columns: Where rows of the last stage carry them, if that is known.
    """

    number: int
    stage: LakeStage
    pin: Json
    held: Boundary
    columns: OffsetNames | None = None


def check_same_records(old: StagePart, new: StagePart) -> None:
    """Refuse two stages of whose shared offsets a sample shows that they are not those of the same records.

    At either end of the shared offsets the rows that the later stage would give are compared by their event time (to
    the second, as writers round), or by all plain columns where the source has none. One row that agrees is enough:
    rows may have been changed or deleted since.

    Raises:
        BoundaryError: ``STAGES_NOT_IN_ORDER``.
    """
    for window in _ends(shared(old.held, new.held)):
        mine, other = (_rows(part, window, new.stage.where) for part in (old, new))
        if mine is None or other is None or mine.is_empty():
            continue
        both = mine.join(other, on=PLACE, how="inner", suffix=_OTHER, nulls_equal=True)
        if both.is_empty():
            raise _refusal(old, new, _first(mine), "which stage {new} does not have")
        compared = [name for name in mine.columns if name not in PLACE and f"{name}{_OTHER}" in both.columns]
        agree = [_agrees(name, both.schema[name]).alias(name) for name in compared]
        telling = both.select(*PLACE, *agree).filter(pl.any_horizontal(pl.col(compared).is_not_null()))
        same = telling.filter(pl.all_horizontal(pl.col(compared).fill_null(value=True)))
        if telling.height and same.is_empty():
            raise _refusal(old, new, _first(telling), "which is another record in stage {new}")


def _rows(part: StagePart, window: _Span, where: pl.Expr | None) -> pl.DataFrame | None:
    found = part.stage.at_offsets(part.pin, tuple(part.held.topics), part.columns, window, where)
    return None if found is None else found.unique(PLACE, keep="first")


def shared(old: Boundary, new: Boundary) -> Mapping[TopicPartition, tuple[int, int]]:
    """The offsets that both may hold, by partition, from (inclusive) and to (exclusive)."""
    later = new.ranges
    both = {at: (held, later[at]) for at, held in old.ranges.items() if at in later}
    spans = {at: (max(one.start, two.start), min(one.next, two.next)) for at, (one, two) in both.items()}
    return {at: (begin, end) for at, (begin, end) in spans.items() if begin < end}


def _ends(shared: _Span) -> Sequence[_Span]:
    if not shared:
        return ()
    most = max(1, SAMPLE // len(shared))
    first = {at: (begin, min(end, begin + most)) for at, (begin, end) in shared.items()}
    last = {at: (max(begin, end - most), end) for at, (begin, end) in shared.items()}
    return (first,) if first == last else (first, last)


def _agrees(name: str, dtype: pl.DataType) -> pl.Expr:
    """Whether a value is the same in both; null where either does not say."""
    mine, other = pl.col(name), pl.col(f"{name}{_OTHER}")
    if isinstance(dtype, pl.Datetime):
        return (mine.dt.epoch("us") - other.dt.epoch("us")).abs() < _SECOND_US
    return mine == other


def _first(rows: pl.DataFrame) -> tuple[TopicPartition, int]:
    topic, partition, offset = rows.sort(PLACE).select(PLACE).row(0)
    return TopicPartition(topic or "", partition), offset


def _refusal(old: StagePart, new: StagePart, place: tuple[TopicPartition, int], what: str) -> BoundaryError:
    at, offset = place
    held = [part.held.ranges.get(at) for part in (old, new)]
    spans = [[one.start, one.next] if one is not None else None for one in held]
    return BoundaryError(
        f"history stage {old.number} has offset {offset} of"
        + (f" topic {at.topic}," if at.topic else "")
        + f" partition {at.partition}, {what.format(new=new.number)}",
        detail=f"offsets that both have are read from stage {new.number}: rows of stage {old.number} would be lost; "
        f"rule tried: {ORDER}, by a sample at either end of the offsets that they share",
        hint="if the earlier stage is of a former incarnation of the topic or of another cluster, leave the offset "
        "columns out of its files, or let the table's record say so (headrace boundary reset); if the later stage "
        "lacks rows that it should have, restrict it with where",
        code=STAGES_NOT_IN_ORDER,
        context={
            "topic": at.topic,
            "partition": at.partition,
            "stages": [old.number, new.number],
            "wanted": offset,
            "available": spans,
            "rule": ORDER,
        },
    )
