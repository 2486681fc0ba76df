"""Cut-invariance of tumbling windows against a brute-force model: cuts, orders, batches, restarts, late rows."""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.kernel import columns
from headrace.kernel.protocols import MAIN
from headrace.testing import operator_context
from operators.window import TumblingWindow
from tests.windows import stored

SIZE, OFFSET = 10, 3
SCHEMA = {"t": pl.Datetime("us", "UTC"), "k": pl.String, "x": pl.Int32, "y": pl.Float64}
AGGREGATES = {
    "n": "count(*)",
    "known": "count(x)",
    "total": "sum(x)",
    "mean": "avg(y)",
    "floats": "sum(y)",
    "least": "min(y)",
    "most": "max(x)",
}


@dataclass(frozen=True)
class Row:
    t: int
    k: str | None
    x: int | None
    y: float | None


ROWS = st.lists(
    st.builds(
        Row,
        st.integers(-45, 45),
        st.sampled_from(["a", "b", None]),
        st.none() | st.integers(-9, 9),
        st.none() | st.sampled_from([0.1, 0.2, -0.3, 1e10, 0.0, -0.0]),
    ),
    max_size=40,
)


def operator() -> TumblingWindow:
    return TumblingWindow("w", "t", SIZE, AGGREGATES, by=["k"], offset_us=OFFSET)


def frame_of(rows: list[Row], marks: list[int | None] | None = None) -> pl.DataFrame:
    frame = pl.DataFrame([(r.t, r.k, r.x, r.y) for r in rows], schema={**SCHEMA, "t": pl.Int64}, orient="row")
    frame = frame.with_columns(pl.col("t").cast(SCHEMA["t"]))
    return frame if marks is None else frame.with_columns(pl.Series(columns.ROW_WATERMARK, marks, dtype=pl.Int64))


def start_of(t: int) -> int:
    return (t - OFFSET) // SIZE * SIZE + OFFSET


def model(rows: list[Row]) -> dict[tuple[int, str | None], tuple]:
    """What each group holds, computed row by row."""
    groups: dict[tuple[int, str | None], list[Row]] = defaultdict(list)
    for row in rows:
        groups[start_of(row.t), row.k].append(row)
    out = {}
    for key, members in groups.items():
        xs = [r.x for r in members if r.x is not None]
        ys = [r.y for r in members if r.y is not None]
        out[key] = (
            len(members),
            len(xs),
            sum(xs) if xs else None,
            round(sum(ys), 4) if ys else None,
            min(ys, default=None),
            max(xs, default=None),
        )
    return out


def observed(emitted: list[pl.DataFrame]) -> dict[tuple[int, str | None], tuple]:
    out = {}
    for frame in emitted:
        for row in frame.with_columns(pl.col("window_start").to_physical()).iter_rows(named=True):
            key = row["window_start"], row["k"]
            assert key not in out, "a window was given out twice"
            floats = None if row["floats"] is None else round(row["floats"], 4)
            out[key] = (row["n"], row["known"], row["total"], floats, row["least"], row["most"])
    return out


def pieces(rows: list[Row], cuts: list[int]) -> list[list[Row]]:
    edges = [0, *sorted({cut % (len(rows) + 1) for cut in cuts}), len(rows)]
    return [rows[a:b] for a, b in itertools.pairwise(edges)]


CUTS = st.lists(st.integers(0, 50), max_size=6)


@settings(max_examples=100, deadline=None)
@given(ROWS, CUTS, st.randoms(use_true_random=False))
def test_batches_and_order_do_not_matter(rows: list[Row], cuts: list[int], random) -> None:
    whole = operator().open(operator().partial(frame_of([]).lazy()).collect_schema(), operator_context())
    whole.process(operator().partial(frame_of(rows).lazy()).collect())
    expected = whole.drain().get(MAIN)
    shuffled = list(rows)
    random.shuffle(shuffled)
    cut = operator().open(operator().partial(frame_of([]).lazy()).collect_schema(), operator_context())
    for piece in pieces(shuffled, cuts):
        cut.process(operator().partial(frame_of(piece).lazy()).collect())
    found = cut.drain().get(MAIN)
    assert (expected is None) == (found is None) == (not rows)
    if expected is not None and found is not None:
        assert expected.rows() == found.rows()
        assert expected["floats"].cast(pl.String).to_list() == found["floats"].cast(pl.String).to_list()
        assert observed([found]) == model(rows)


@settings(max_examples=100, deadline=None)
@given(ROWS, ROWS, CUTS, st.integers(0, 30), st.sets(st.integers(0, 12)))
def test_history_then_tail_equals_the_model_whatever_the_cut(
    history: list[Row], tail: list[Row], cuts: list[int], bound: int, restarts: set[int]
) -> None:
    """History rows are never late. A tail row is late iff its window ended by the watermark made of earlier tail rows.

    The tail arrives in any order; restarts take the state through a checkpoint at random points.
    """
    floor = min((row.t for row in tail[:1]), default=10**6) - bound
    marks, highest = [], None
    for row in tail:
        mark = floor if highest is None else max(floor, highest - bound)
        marks.append(mark)
        highest = row.t if highest is None else max(highest, row.t)
    on_time = [r for r, mark in zip(tail, marks, strict=True) if start_of(r.t) + SIZE > mark]
    late = [r for r, mark in zip(tail, marks, strict=True) if start_of(r.t) + SIZE <= mark]

    window = operator()
    schema = window.partial(frame_of([], []).lazy()).collect_schema()
    instance = window.open(schema, operator_context())
    emitted, left_out, steps = [], [], 0

    def step(frame: pl.DataFrame, watermark: int) -> None:
        nonlocal instance, steps
        instance.process(window.partial(frame.lazy()).collect())
        left_out.extend(window.late(frame.lazy()).collect()["t"].to_physical().to_list())
        emitted.extend(instance.advance(watermark).values())
        assert all((f["window_start"].to_physical() + SIZE <= watermark).all() for f in emitted)
        if steps in restarts:
            instance = window.open(schema, operator_context(stored(instance.snapshot())))
        steps += 1

    lower = min((row.t for row in history), default=0) - 1
    for piece in pieces(history, cuts):
        step(frame_of(piece, [None] * len(piece)), min(lower, floor))
    position = 0
    for piece in pieces(tail, cuts):
        frame = frame_of(piece, marks[position : position + len(piece)])
        position += len(piece)
        reached = max((row.t for row in tail[:position]), default=None)
        step(frame, floor if reached is None else max(floor, reached - bound))
    emitted.extend(instance.drain().values())

    assert observed(emitted) == model([*history, *on_time])
    assert left_out == [row.t for row in late]
    assert instance.counts == {"dropped_late": 0, "null_event_time": 0}


@settings(max_examples=60, deadline=None)
@given(ROWS, st.integers(-60, 60))
def test_partial_and_late_share_the_rows_out(rows: list[Row], mark: int) -> None:
    frame = frame_of(rows, [mark] * len(rows))
    kept = operator().partial(frame.lazy()).collect()["rows:"].sum()
    assert kept + operator().late(frame.lazy()).collect().height == len(rows)


@settings(max_examples=60, deadline=None)
@given(st.integers(-(10**12), 10**12), st.integers(1, 10**9), st.integers(-(10**9), 10**9))
def test_start_is_at_or_before_the_time_and_end_behind_it(t: int, size: int, offset: int) -> None:
    window = TumblingWindow("w", "t", size, {"n": "count(*)"}, offset_us=offset)
    frame = pl.DataFrame({"t": pl.Series([t]).cast(pl.Datetime("us"))})
    start = window.partial(frame.lazy()).collect()["window_start"].to_physical().item()
    assert start <= t < start + size
    assert (start - offset) % size == 0


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 400), min_size=5, max_size=40), st.integers(1, 40))
def test_watermarks_hold_for_a_window_of_windows(times: list[int], bound: int) -> None:
    """Nothing that a window gives out later lies below the outgoing watermark it promised."""
    window = operator()
    instance = window.open(window.partial(frame_of([]).lazy()).collect_schema(), operator_context())
    highest, promised = None, None
    for t in times:
        highest = t if highest is None else max(highest, t)
        row = Row(max(t, highest - bound), "a", 1, 0.5)
        instance.process(window.partial(frame_of([row]).lazy()).collect())
        for frame in instance.advance(highest - bound).values():
            assert promised is None or frame["window_start"].to_physical().min() >= promised
        outgoing = instance.outgoing_watermark(highest - bound)
        assert promised is None or outgoing >= promised
        assert outgoing <= highest - bound
        promised = outgoing
