"""What tests of windows share: rows, watermarks as the tail stamps them, checkpoints, and a run over cuts."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
from hypothesis import strategies as st

from headrace.kernel import columns
from headrace.kernel.protocols import OperatorContext, OperatorState
from headrace.state.backend import StateOptions
from headrace.state.keyed import Sizes
from headrace.testing import operator_context

SCHEMA = {"t": pl.Datetime("us", "UTC"), "k": pl.String, "x": pl.Int32, "y": pl.Float64}


@dataclass(frozen=True)
class Row:
    t: int
    k: str | None = None
    x: int | None = None
    y: float | None = None


ROWS = st.lists(
    st.builds(
        Row,
        st.integers(-45, 45),
        st.sampled_from(["a", "b", None]),
        st.none() | st.integers(-9, 9),
        st.none() | st.sampled_from([0.1, 0.2, -0.3, 1e10, 0.0, -0.0]),
    ),
    max_size=30,
)
CUTS = st.lists(st.integers(0, 50), max_size=6)
RESTARTS = st.sets(st.integers(0, 12))


@dataclass(frozen=True)
class Tail:
    """Tail rows, the watermark of each (as the source stamps it), and where the source's watermark begins."""

    rows: Sequence[Row]
    marks: Sequence[int]
    floor: int
    bound: int

    def reached(self, count: int) -> int:
        """The watermark after the first ``count`` rows."""
        newest = max((row.t for row in self.rows[:count]), default=None)
        return self.floor if newest is None else max(self.floor, newest - self.bound)


def tail_of(rows: Sequence[Row], bound: int) -> Tail:
    floor = (rows[0].t if rows else 10**6) - bound
    marks, newest = [], None
    for row in rows:
        marks.append(floor if newest is None else max(floor, newest - bound))
        newest = row.t if newest is None else max(newest, row.t)
    return Tail(rows, marks, floor, bound)


def frame_of(rows: Sequence[Row], marks: Sequence[int | None] | None = None) -> pl.DataFrame:
    frame = pl.DataFrame([(r.t, r.k, r.x, r.y) for r in rows], schema={**SCHEMA, "t": pl.Int64}, orient="row")
    frame = frame.with_columns(pl.col("t").cast(SCHEMA["t"]))
    return frame if marks is None else frame.with_columns(pl.Series(columns.ROW_WATERMARK, marks, dtype=pl.Int64))


def small_context(state: OperatorState | None = None) -> OperatorContext:
    """What an operator is opened with, where little state is much: it lies in many files."""
    sizes = Sizes(small=2, fan=2, segment=8, whole=2, searched=3, few=1, scans=1)
    return operator_context(state, options=StateOptions(2000, sizes=sizes))


def stored(state: OperatorState) -> OperatorState:
    """The state as it comes back from a checkpoint."""
    frames = {}
    for name, frame in state.frames.items():
        data = io.BytesIO()
        frame.write_ipc(data)
        frames[name] = pl.read_ipc(io.BytesIO(data.getvalue()))
    return OperatorState(state.version, dict(state.values), frames, state.keyed, state.held)


def pieces(rows: Sequence[Any], cuts: Sequence[int]) -> list[Any]:
    edges = [0, *sorted({cut % (len(rows) + 1) for cut in cuts}), len(rows)]
    return [rows[a:b] for a, b in itertools.pairwise(edges)]


@dataclass(frozen=True)
class Outcome:
    """What came out: frames of the main port in order, and the times of late rows."""

    main: list[pl.DataFrame]
    late: list[int]
    held: int
    counts: dict[str, int]

    def rows(self, *names: str) -> dict[tuple[Any, ...], tuple[Any, ...]]:
        """(key, start, end) to the columns ``names``; no window may come twice."""
        out: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        for frame in self.main:
            for row in frame.with_columns(pl.col("window_start", "window_end").to_physical()).iter_rows(named=True):
                key = row["k"], row["window_start"], row["window_end"]
                assert key not in out, "a window was given out twice"
                out[key] = tuple(row[name] for name in names)
        return out


def play(
    operator: Any,
    history: Sequence[Row],
    tail: Tail,
    cuts: Sequence[int],
    restarts: set[int] | frozenset[int] = frozenset(),
    check: Callable[[pl.DataFrame, int], None] | None = None,
) -> Outcome:
    """History rows, which are never late, then the tail, batch by batch; restarts go through a checkpoint."""
    schema = operator.partial(frame_of([], []).lazy()).collect_schema()
    instance = operator.open(schema, small_context())
    main: list[pl.DataFrame] = []
    late: list[int] = []
    promised: int | None = None
    steps = itertools.count()

    def step(frame: pl.DataFrame, watermark: int) -> None:
        nonlocal instance, promised
        judged = frame
        if frame[columns.ROW_WATERMARK].null_count() == frame.height:
            judged = frame.drop(columns.ROW_WATERMARK)
        emitted = dict(instance.process(operator.partial(judged.lazy()).collect()))
        late.extend(operator.late(judged.lazy()).collect()["t"].to_physical().to_list())
        emitted |= instance.advance(watermark)
        for out in emitted.values():
            main.append(out)
            if check:
                check(out, watermark)
            assert promised is None or out["window_start"].to_physical().min() >= promised
        outgoing = instance.outgoing_watermark(watermark)
        assert outgoing <= watermark
        assert promised is None or outgoing >= promised
        promised = outgoing
        if next(steps) in restarts:
            instance = operator.open(schema, small_context(stored(instance.snapshot())))

    lower = min((row.t for row in history), default=0) - 1
    for piece in pieces(history, cuts):
        step(frame_of(piece, [None] * len(piece)), min(lower, tail.floor))
    position = 0
    for piece in pieces(tail.rows, cuts):
        frame = frame_of(piece, tail.marks[position : position + len(piece)])
        position += len(piece)
        step(frame, tail.reached(position))
    main.extend(instance.drain().values())
    return Outcome([frame for frame in main if frame.height], late, instance.rows_held(), dict(instance.counts))


def aggregated(members: Sequence[Row]) -> tuple[Any, ...]:
    """What the columns of ``AGGREGATES`` hold, computed row by row."""
    xs = [r.x for r in members if r.x is not None]
    ys = [r.y for r in members if r.y is not None]
    return len(members), sum(xs) if xs else None, min(ys, default=None), max(xs, default=None)


AGGREGATES = {"n": "count(*)", "total": "sum(x)", "least": "min(y)", "most": "max(x)"}
NAMES = tuple(AGGREGATES)
