"""What a plan says of several history stages: what was compared of the offsets they share, and what a hole hides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from headrace.kernel.boundary import Boundary, TopicPartition
from headrace.kernel.errors import BoundaryError
from hybrid_source.stage_overlap import ORDER, SAMPLE, StagePart, shared

STAGE_WITHOUT_TOPIC = "STAGE_WITHOUT_TOPIC"


def compared(old: StagePart, new: StagePart) -> Iterator[str]:
    """What :func:`hybrid_source.stage_overlap.check_same_records` has proven of two stages, in words."""
    spans = shared(old.held, new.held)
    if not spans:
        return
    count, share = sum(end - begin for begin, end in spans.values()), max(1, SAMPLE // len(spans))
    what = "all of them" if all(end - begin <= share for begin, end in spans.values()) else f"{share} at either end"
    yield (
        f"history stages {old.number} and {new.number} share {_said(spans)}: they are read from stage {new.number}; of "
        f"these {count} offsets {what} were compared, and are of the same records where at least one agrees"
    )


def hidden(old: StagePart, later: Sequence[StagePart], ends: Boundary | None) -> Iterator[str]:
    """What an older stage holds of offsets that no later one has a file of, and that are left out all the same.

    By file statistics, where these tell: an older stage is read below the first offset that a later one holds.

    Args:
        old: The older stage.
        later: Those behind it.
        ends: Where the topic goes on; None: nothing follows the history.
    """
    found: dict[TopicPartition, list[tuple[int, int]]] = {}
    for part in later:
        spans = part.stage.spans(part.pin, tuple(part.held.topics), part.columns)
        if spans is None:
            return
        for at, ranges in spans.items():
            found.setdefault(at, []).extend(ranges)
    nexts = None if ends is None else ends.nexts
    for at, held in sorted(old.held.ranges.items()):
        last = held.next if nexts is None else min(held.next, nexts.get(at, 0))
        for begin, end in _between(sorted(found.get(at, ())), held.start, last):
            yield (
                f"history stage {old.number} may hold offsets {begin} to {end - 1} of {_place(at)}, of which no later "
                "stage has a file: they are left out, as a later stage begins below them; add them to it, or restrict "
                "the stages with where"
            )


def _between(spans: Sequence[tuple[int, int]], first: int, last: int) -> Iterator[tuple[int, int]]:
    """What lies behind the first of some ranges, from ``first`` to ``last``, and in none of them."""
    at = None
    for begin, end in spans:
        if at is not None and max(at, first) < min(begin, last):
            yield max(at, first), min(begin, last)
        at = end if at is None else max(at, end)
    if at is not None and max(at, first) < last:
        yield max(at, first), last


def check_topics_told(old: StagePart, later: Boundary) -> None:
    """Refuse a stage whose rows carry offsets of an unknown topic before stages of several that share these offsets.

    Which of its rows a later stage gives as well cannot be told, so that they would be read twice. A ``where`` of the
    stage is the job's word that it keeps them apart.

    Raises:
        BoundaryError: ``STAGE_WITHOUT_TOPIC``.
    """
    topics = sorted(topic for topic in later.topics if topic)
    if len(topics) < 2 or old.stage.where is not None:  # noqa: PLR2004
        return
    for at, held in sorted(old.held.ranges.items()):
        for other, covered in sorted(later.ranges.items()):
            if at.topic or other.partition != at.partition:
                continue
            begin, end = max(held.start, covered.start), min(held.next, covered.next)
            if begin < end:
                raise _untold(old, at, other, (begin, end), topics)


def _untold(
    old: StagePart, at: TopicPartition, other: TopicPartition, span: tuple[int, int], topics: Sequence[str]
) -> BoundaryError:
    return BoundaryError(
        f"rows of history stage {old.number} do not say which topic they are of, and share offsets {span[0]} to "
        f"{span[1]} (exclusive) of partition {at.partition} with topic {other.topic} of a later stage",
        detail=f"the later stages hold topics {', '.join(topics)}: whether they give these rows too cannot be told, "
        f"and they would be read twice; rule tried: {ORDER}",
        hint="give the files of the stage a column with the topic (_kafka_topic), read each topic as a source of its "
        "own, or say with where which rows of the stage the later ones do not have",
        code=STAGE_WITHOUT_TOPIC,
        context={
            "topic": other.topic,
            "partition": at.partition,
            "wanted": "a column with the topic",
            "available": list(span),
            "rule": ORDER,
        },
    )


def _said(spans: Mapping[TopicPartition, tuple[int, int]]) -> str:
    return ", ".join(f"{_place(at)} offsets {begin} to {end - 1}" for at, (begin, end) in sorted(spans.items()))


def _place(at: TopicPartition) -> str:
    return f"{at.topic}[{at.partition}]" if at.topic else f"partition {at.partition}"
