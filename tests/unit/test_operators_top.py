"""Top-N: a brute-force model over cuts, orders, restarts and late rows, behind a window, state, refusals."""

from __future__ import annotations

import itertools

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from headrace.kernel.errors import SpecError
from headrace.kernel.protocols import MAIN, Determinism
from headrace.testing import operator_context
from operators.top import TopN
from operators.window import HoppingWindow
from tests.windows import CUTS, RESTARTS, Row, frame_of, pieces, stored, tail_of

ROWS = st.lists(
    st.builds(Row, st.integers(-20, 40), st.sampled_from(["a", None]), st.none() | st.integers(0, 4)), max_size=25
)


def top(n=2, size=10, **changes) -> TopN:
    return TopN("t", "t", n, [("x", True)], **{"by": ["k"], "size_us": size, "rank": "place", **changes})


def model(rows: list[Row], n: int, size: int) -> list[tuple]:
    out = []
    for start, key in {(row.t // size * size, row.k) for row in rows}:
        members = [row for row in rows if (row.t // size * size, row.k) == (start, key)]
        members.sort(key=lambda row: (row.x is None, -(row.x or 0), row.t))
        out += [(row.t, row.k, row.x, place) for place, row in enumerate(members[:n], 1)]
    return sorted(out, key=str)


@settings(max_examples=40, deadline=None)
@given(ROWS, ROWS, CUTS, st.integers(0, 20), RESTARTS, st.integers(1, 3), st.sampled_from([0, 9]))
def test_history_then_tail_equals_the_model_whatever_the_cut(history, tail, cuts, bound, restarts, n, lateness) -> None:
    operator = top(n, allowed_lateness_us=lateness)
    arriving = tail_of(tail, bound)
    schema = operator.partial(frame_of([], []).lazy()).collect_schema()
    instance = operator.open(schema, operator_context())
    out, late, steps = [], [], itertools.count()

    def take(rows: pl.DataFrame) -> None:
        out.extend(rows.select(pl.col("t").to_physical(), "k", "x", "place").rows())

    def step(frame: pl.DataFrame, watermark: int) -> None:
        nonlocal instance
        assert instance.process(operator.partial(frame.lazy()).collect()) == {}
        late.extend(operator.late(frame.lazy()).collect()["t"].to_physical().to_list())
        for rows in instance.advance(watermark).values():
            take(rows)
        if next(steps) in restarts:
            instance = operator.open(schema, operator_context(stored(instance.snapshot())))

    lower = min((row.t for row in history), default=0) - 1
    for piece in pieces(history, cuts):
        step(frame_of(piece, [None] * len(piece)), min(lower, arriving.floor))
    position = 0
    for piece in pieces(tail, cuts):
        frame = frame_of(piece, arriving.marks[position : position + len(piece)])
        position += len(piece)
        step(frame, arriving.reached(position))
    for rows in instance.drain().values():
        take(rows)
    gone = [row.t // 10 * 10 + 10 + lateness <= mark for row, mark in zip(tail, arriving.marks, strict=True)]
    assert late == [row.t for row, is_late in zip(tail, gone, strict=True) if is_late]
    on_time = [row for row, is_late in zip(tail, gone, strict=True) if not is_late]
    assert sorted(out, key=str) == model([*history, *on_time], n, 10)
    assert instance.rows_held() == 0


def test_the_best_of_each_window_behind_a_window() -> None:
    rows = [Row(t, "abc"[t % 3], t % 5) for t in range(40)]
    window = HoppingWindow("w", "t", 20, 10, {"s": "sum(x)"}, by=["k"])
    best = TopN("b", "window_start", 1, [("s", True), ("k", False)])
    upstream = window.open(window.partial(frame_of([]).lazy()).collect_schema(), operator_context())
    seen = pl.DataFrame(schema=window.output_schema(window.partial(frame_of([]).lazy()).collect_schema()))
    downstream = best.open(best.partial(seen.lazy()).collect_schema(), operator_context())
    out = []
    for piece in pieces(rows, [7, 19, 31]):
        upstream.process(window.partial(frame_of(piece).lazy()).collect())
        for frame in upstream.advance(piece[-1].t).values():
            seen = seen.vstack(frame)
            downstream.process(best.partial(frame.lazy()).collect())
        out += downstream.advance(upstream.outgoing_watermark(piece[-1].t)).values()
    for frame in upstream.drain().values():
        seen = seen.vstack(frame)
        downstream.process(best.partial(frame.lazy()).collect())
    out += downstream.drain().values()
    expected = seen.sort(["window_start", "s", "k"], descending=[False, True, False]).unique(
        "window_start", keep="first", maintain_order=True
    )
    assert_frame_equal(pl.concat(out), expected)


def test_engines_agree_and_ties_are_broken_by_what_rows_hold() -> None:
    rows = [Row(t % 7, "ab"[t % 2], t % 3, t / 7) for t in range(300)]
    operator = top(5, 100)
    outs = []
    for engine, piece in [("in-memory", rows), ("streaming", rows[::-1])]:
        instance = operator.open(operator.partial(frame_of([]).lazy()).collect_schema(), operator_context())
        instance.process(operator.partial(frame_of(piece).lazy()).collect(engine=engine))
        outs.append(instance.drain()[MAIN])
    assert_frame_equal(*outs)
    assert outs[0]["place"].to_list() == [1, 2, 3, 4, 5] * 2


def test_output_fingerprint_and_class() -> None:
    schema = top().partial(frame_of([]).lazy()).collect_schema()
    assert top().output_schema(schema).names() == ["t", "k", "x", "y", "place"]
    assert top(rank="").output_schema(schema).names() == ["t", "k", "x", "y"]
    others = [top(3), top(size=11), top(by=[]), top(size=None), top(allowed_lateness_us=1)]
    assert len({top().fingerprint, *(other.fingerprint for other in others)}) == 6
    assert top().determinism is Determinism.EXACT


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: top(0), "keeps 0 rows"),
        (lambda: TopN("t", "t", 1, []), "has no order"),
        (lambda: top(size=0), "has size 0 us"),
        (lambda: top(by=["kk"]).partial(frame_of([]).lazy()), "names column 'kk'"),
        (lambda: top(rank="k").partial(frame_of([]).lazy()), "would add 'k'"),
    ],
)
def test_definitions_that_cannot_be_are_refused(make, message) -> None:
    with pytest.raises(SpecError, match=message):
        make()
