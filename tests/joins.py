"""What tests of joins share: two streams that come in pieces of each, their watermarks, and a run over them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
from hypothesis import strategies as st

from headrace.kernel import columns
from operators.join_sides import JoinInput, JoinSide, JoinSides
from tests.windows import Row, Tail, frame_of, pieces, small_context, stored, tail_of

HOWS = ("inner", "left", "right", "full", "semi", "anti")
WHERE = "x is null or r_x is null or x <= r_x"
ROWS = st.lists(
    st.builds(Row, st.integers(-30, 30), st.sampled_from(["a", "b", None]), st.none() | st.integers(0, 3)), max_size=14
)
TURNS = st.lists(st.booleans(), max_size=12)
TIMED = {"left": "t", "right": "t"}


def sides_of(how: str, *, timed: bool = True, where: str | None = None, later: str | None = None, **more: Any):
    schema = frame_of([], []).schema
    left = pl.Schema({**schema, **more.pop("left", {})})
    right = pl.Schema({**schema, **more.pop("right", {})})
    time = "t" if timed else None
    return JoinSides("j", how, JoinSide(left, ["k"], time), JoinSide(right, ["k"], time, "r_"), where, later)


def tagged(sides: JoinSides, side: str, frame: pl.DataFrame) -> pl.LazyFrame:
    return JoinInput(f"j.{side}", sides, side).apply(frame.lazy())


def schema_of(operator: Any) -> pl.Schema:
    empty = tagged(operator.sides, "left", pl.DataFrame(schema=operator.sides.left.schema))
    return operator.partial(empty).collect_schema()


@dataclass(frozen=True)
class Joined:
    """What came out: rows of the main port, late rows as (side, key), and what the operator still held."""

    main: list[pl.DataFrame]
    late: list[tuple[str, str | None]]
    instance: Any

    def rows(self) -> list[tuple[Any, ...]]:
        """All rows with times as numbers, sorted."""
        return in_order(row for frame in self.main for row in plain(frame).rows())


def plain(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(pl.col(pl.Datetime).to_physical())


def in_order(rows: Any) -> list[tuple[Any, ...]]:
    return sorted(rows, key=lambda row: tuple((value is None, str(type(value)), value or 0) for value in row))


@dataclass(frozen=True)
class Streams:
    """Both inputs as they come: histories first, whose rows are never late, then the tails."""

    histories: tuple[Sequence[Row], Sequence[Row]]
    tails: tuple[Tail, Tail]

    def on_time(self, lateness: int = 0) -> tuple[list[Row], list[Row]]:
        found = []
        for history, tail in zip(self.histories, self.tails, strict=True):
            kept = [row for row, mark in zip(tail.rows, tail.marks, strict=True) if row.t >= mark - lateness]
            found.append([*history, *kept])
        return found[0], found[1]

    def late(self, lateness: int = 0) -> list[tuple[str, str | None]]:
        return in_order(
            (side, row.k)
            for side, tail in zip(("left", "right"), self.tails, strict=True)
            for row, mark in zip(tail.rows, tail.marks, strict=True)
            if row.t < mark - lateness
        )


STREAMS = st.builds(
    lambda a, b, c, d, bound: Streams((a, b), (tail_of(c, bound), tail_of(d, bound))),
    ROWS,
    ROWS,
    ROWS,
    ROWS,
    st.integers(0, 20),
)


def play(
    operator: Any,
    streams: Streams,
    cuts: tuple[Sequence[int], Sequence[int]],
    turns: Sequence[bool],
    restarts: set[int] | frozenset[int] = frozenset(),
    *,
    time: str | None = None,
    shape: Callable[[pl.DataFrame, str], pl.DataFrame] = lambda frame, side: frame,
) -> Joined:
    """Run the operator over both streams, their pieces in turns; restarts go through a checkpoint.

    Args:
        operator: The join.
        streams: What comes.
        cuts: Where each stream is cut.
        turns: Whose piece comes next, true for the right one.
        restarts: After which steps the operator is opened anew.
        time: The output's event-time column, whose promise is checked.
        shape: What is done to a side's rows first.
    """
    sides = operator.sides
    schema = schema_of(operator)
    instance = operator.open(schema, small_context())
    main: list[pl.DataFrame] = []
    late: list[tuple[str, str | None]] = []
    promised: int | None = None
    steps = itertools.count()

    def give(emission: Any) -> None:
        for frame in emission.values():
            assert frame.schema == operator.output_schema(schema)
            if time is not None and promised is not None:
                assert frame[time].to_physical().min() >= promised
            main.append(frame)

    waiting = [_steps(streams, number, cuts[number]) for number in (0, 1)]
    marks = [min(_lower(streams.histories[number]), streams.tails[number].floor) for number in (0, 1)]
    order = iter(turns)
    while any(waiting):
        right = next(order, not waiting[0]) if all(waiting) else not waiting[0]
        frame, marks[right] = waiting[right].pop(0)
        side = ("left", "right")[right]
        if frame[columns.ROW_WATERMARK].null_count() == frame.height:
            frame = frame.drop(columns.ROW_WATERMARK)
        rows = tagged(sides, side, shape(frame, side))
        gone = operator.late(rows).collect()
        late += zip(gone["_side"], gone["k"], strict=True)
        give(instance.process(operator.partial(rows).collect()))
        watermark = min(marks)
        give(instance.advance(watermark))
        outgoing = instance.outgoing_watermark(watermark)
        assert outgoing <= watermark
        assert promised is None or outgoing >= promised
        promised = outgoing
        if next(steps) in restarts:
            instance = operator.open(schema, small_context(stored(instance.snapshot())))
    give(instance.drain())
    return Joined(main, in_order(late), instance)


def _lower(history: Sequence[Row]) -> int:
    return min((row.t for row in history), default=0) - 1


def _steps(streams: Streams, number: int, cuts: Sequence[int]) -> list[tuple[pl.DataFrame, int]]:
    """The pieces of one stream with the watermark behind each."""
    history, tail = streams.histories[number], streams.tails[number]
    floor = min(_lower(history), tail.floor)
    out = [(frame_of(piece, [None] * len(piece)), floor) for piece in pieces(history, cuts)]
    position = 0
    for piece in pieces(tail.rows, cuts):
        frame = frame_of(piece, tail.marks[position : position + len(piece)])
        position += len(piece)
        out.append((frame, tail.reached(position)))
    return out


def matches(left: Row, right: Row, *, where: bool) -> bool:
    """Equal keys, and :data:`WHERE`."""
    if left.k is None or left.k != right.k:
        return False
    return not where or left.x is None or right.x is None or left.x <= right.x


def model(
    how: str, left: Sequence[Row], right: Sequence[Row], match: Callable[[Row, Row], bool], later: bool = False
) -> list[tuple[Any, ...]]:
    """What a join gives out, row by row: t, k, x, y of the left, t, x, y of the right."""
    out: list[tuple[Any, ...]] = []
    if how in {"semi", "anti"}:
        return in_order((a.t, a.k, a.x, a.y) for a in left if any(match(a, b) for b in right) == (how == "semi"))

    def row(a: Row | None, b: Row | None) -> tuple[Any, ...]:
        key = a.k if a else b.k if b else None
        mine = (a.t, key, a.x, a.y) if a else (None, key, None, None)
        other = (b.t, b.x, b.y) if b else (None, None, None)
        both = [r.t for r in (a, b) if r is not None]
        return (*mine, *other, *((max(both),) if later else ()))

    for a in left:
        found = [row(a, b) for b in right if match(a, b)]
        out += found or ([row(a, None)] if how in {"left", "full"} else [])
    if how in {"right", "full"}:
        out += [row(None, b) for b in right if not any(match(a, b) for a in left)]
    return in_order(out)
