"""Operators that give rows out once, over changelogs: they give what they would give of the rows that are left."""

from __future__ import annotations

import itertools
from collections import Counter

import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.kernel import columns
from headrace.kernel.errors import GraphChangedError
from headrace.kernel.protocols import LATE, MAIN, Determinism
from headrace.testing import operator_context
from operators.dedup import Dedup
from operators.interval_join import IntervalJoin
from operators.join_sides import TIME, How, JoinSide, JoinSides
from operators.over import Over
from operators.over_frames import Frame
from operators.session import SessionWindow
from operators.settled import Settled
from operators.slices import Slices
from operators.time_scales import Utc
from operators.top import TopN
from operators.version_join import VersionJoin
from operators.window_join import WindowJoin
from tests.windows import CUTS, RESTARTS, Row, frame_of, pieces, small_context, stored, tail_of

ROWS = st.lists(
    st.builds(Row, st.integers(-20, 40), st.sampled_from(["a", "b", None]), st.none() | st.integers(0, 3)), max_size=20
)
BACK = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=12)
"""Rows to take back: which, and how many changes later."""
OPERATORS = {
    "first": lambda late: Dedup("s", "t", ["k"], "first", 9, allowed_lateness_us=late),
    "ever": lambda late: Dedup("s", "t", ["k", "x"], allowed_lateness_us=late),
    "last": lambda late: Dedup("s", "t", ["k"], "last", 7, allowed_lateness_us=late),
    "top": lambda late: TopN("s", "t", 2, [("x", True), ("t", False)], ["k"], 10, "n", late),
    "session": lambda late: SessionWindow(
        "s", "t", 6, {"n": "count(*)", "total": "sum(x)", "first": "first(x)"}, ["k"], late
    ),
    "over": lambda late: Over(
        "s", "t", {"n": "count(*)", "total": "sum(x)"}, ["k"], Frame(preceding=2), allowed_lateness_us=late
    ),
}
JOINS = {
    "close": lambda late: IntervalJoin("s", sides("left"), -3, 3, late),
    "one window": lambda late: WindowJoin("s", sides("full"), Slices(10, 10, 0, Utc()), late),
    "version": lambda late: VersionJoin("s", sides("left"), "backward", None, late),
}
"""Of rows with a small ``x`` with the others."""


def sides(how: How) -> JoinSides:
    schema = pl.Schema({**frame_of([]).schema, columns.WEIGHT: columns.WEIGHT_TYPE})
    return JoinSides("s", how, JoinSide(schema, ["k"], "t"), JoinSide(schema, ["k"], "t", "r_"))


def entering(kind: str, frame: pl.DataFrame) -> pl.LazyFrame:
    """Rows as the operator gets them: of joins, with the columns of both sides."""
    if kind not in JOINS:
        return frame.lazy()
    both, small = sides("full"), (pl.col("x") < 2).fill_null(value=True)
    parts = [both.tagged("left", frame.lazy().filter(small)), both.tagged("right", frame.lazy().filter(~small))]
    tagged = pl.concat(parts)
    return tagged if columns.WEIGHT in frame.columns else tagged.drop(columns.WEIGHT)


def changes_of(rows: list[Row], back: list[tuple[int, int]]) -> list[tuple[Row, int]]:
    """Insertions in this order, and each retraction somewhere behind its insertion, at most one for each row."""
    placed: dict[int, list[Row]] = {}
    for which, later in {which % len(rows): later for which, later in back}.items() if rows else ():
        placed.setdefault(min(which + later, len(rows) - 1), []).append(rows[which])
    return [
        change for at, row in enumerate(rows) for change in [(row, 1), *((gone, -1) for gone in placed.get(at, []))]
    ]


def weighed(changes: list[tuple[Row, int]], marks: list[int | None]) -> pl.DataFrame:
    weights = pl.Series(columns.WEIGHT, [weight for _, weight in changes], columns.WEIGHT_TYPE)
    return frame_of([row for row, _ in changes], marks).with_columns(weights)


def listed(frames: list[pl.DataFrame]) -> list[str]:
    return sorted(str(row) for frame in frames for row in frame.rows())


def over_rows(kind: str, operator, rows: list[Row]) -> list[str]:
    partials = operator.partial(entering(kind, frame_of(rows))).collect()
    instance = operator.open(partials.schema, operator_context())
    at_once = instance.process(partials)
    return listed([*at_once.values(), *instance.drain().values()])


@pytest.mark.parametrize("kind", [*OPERATORS, *JOINS])
@settings(max_examples=25, deadline=None)
@given(ROWS, BACK, ROWS, BACK, CUTS, st.integers(0, 20), RESTARTS, st.sampled_from([0, 9]))
@example([Row(0, "a"), Row(0, "b"), Row(0), Row(1, "a")], [], [Row(0, "a")], [(0, 0)], [1], 0, {0, 1, 2, 3}, 0)
def test_what_is_left_in_time_is_all_that_counts_whatever_the_cut(
    kind, history, gone, tail, back, cuts, bound, restarts, lateness
) -> None:
    plain = {**OPERATORS, **JOINS}[kind](lateness)
    size = 10 if kind in {"top", "one window"} else 1
    if kind in JOINS:
        operator = Settled(plain, TIME, plain.key_columns, lateness, size)
    else:
        operator = Settled(plain, "t", ["k", "x"] if kind == "ever" else ["k"], lateness, size)
    old, new = changes_of(history, gone), changes_of(tail, back)
    arriving = tail_of([row for row, _ in new], bound)
    schema = operator.partial(entering(kind, weighed([], []))).collect_schema()
    output = operator.output_schema(schema)
    instance, steps = operator.open(schema, small_context()), itertools.count()
    out: list[pl.DataFrame] = []
    late: list[tuple[int, int]] = []
    promised = None

    def step(frame: pl.DataFrame, watermark: int) -> None:
        nonlocal instance, promised
        assert instance.process(operator.partial(entering(kind, frame)).collect()) == {}
        gone = operator.late(entering(kind, frame)).collect()
        times = gone.select(pl.coalesce("^(t|r_t)$").to_physical()).to_series()
        late.extend(zip(times, gone[columns.WEIGHT], strict=True))
        for rows in instance.advance(watermark).values():
            assert rows.schema == output
            out.append(rows)
        outgoing = instance.outgoing_watermark(watermark)
        assert promised is None or promised <= outgoing <= watermark
        promised = outgoing
        if next(steps) in restarts:
            instance = operator.open(schema, small_context(stored(instance.snapshot())))

    lower = min((row.t for row in history), default=0) - 1
    for piece in pieces(old, cuts):
        step(weighed(piece, [None] * len(piece)), min(lower, arriving.floor))
    position = 0
    for piece in pieces(new, cuts):
        frame = weighed(piece, arriving.marks[position : position + len(piece)])
        position += len(piece)
        step(frame, arriving.reached(position))
    out.extend(instance.drain().values())

    ends = [row.t // size * size + size - 1 for row, _ in new]
    is_late = [end < mark - lateness for end, mark in zip(ends, arriving.marks, strict=True)]
    left = Counter[Row]()
    for row, weight in [*old, *(change for change, gone in zip(new, is_late, strict=True) if not gone)]:
        left[row] += weight
    assert sorted(late) == sorted((row.t, weight) for (row, weight), gone in zip(new, is_late, strict=True) if gone)
    assert listed(out) == over_rows(kind, plain, list(left.elements()))
    assert set(instance.counts.values()) == {0}


def test_changes_of_closed_time_and_without_time_are_counted() -> None:
    operator = Settled(OPERATORS["session"](0), "t", ["k"])
    rows = weighed([(Row(3, "a"), 1), (Row(30, "a"), 1)], [None, None])
    partials = operator.partial(rows.lazy()).collect()
    instance = operator.open(partials.schema, operator_context())
    instance.process(partials)
    instance.advance(10)
    instance = operator.open(partials.schema, operator_context(stored(instance.snapshot())))
    timeless = rows.with_columns(pl.lit(None, rows.schema["t"]).alias("t"))
    instance.process(operator.partial(pl.concat([rows, timeless]).lazy()).collect())
    assert dict(instance.counts) == {"dropped_late": 1, "null_event_time": 2}
    assert operator.leaves_out(operator.partial(timeless.lazy()).collect())
    assert operator.late(timeless.lazy()).collect().height == 2


def test_what_it_says_of_itself() -> None:
    plain = OPERATORS["top"](5)
    operator = Settled(plain, "t", ["k"], 5)
    assert (operator.id, operator.ports, operator.determinism) == ("s", (MAIN, LATE), Determinism.EXACT)
    assert Settled(plain, "t", ["k"], 5, revised=True).determinism is Determinism.NOT_INVARIANT
    assert operator.fingerprint.startswith(plain.fingerprint)
    assert operator.fingerprint != plain.fingerprint


def test_rows_that_wait_are_shown_and_held() -> None:
    operator = Settled(OPERATORS["top"](0), "t", ["k"])
    partials = operator.partial(weighed([(Row(3, "a", 1), 1), (Row(3, "a", 1), 1)], [None, None]).lazy()).collect()
    instance = operator.open(partials.schema, operator_context())
    instance.process(partials)
    assert instance.rows_held() == 1
    shown = operator.shown("unsettled", partials.lazy()).collect()
    assert shown.columns == ["t", "k", "x", "y", columns.WEIGHT]
    assert shown[columns.WEIGHT].to_list() == [2]


def test_state_over_other_columns_is_refused() -> None:
    operator = Settled(OPERATORS["session"](0), "t", ["k"])
    partials = operator.partial(weighed([(Row(3, "a"), 1)], [None]).lazy()).collect()
    instance = operator.open(partials.schema, operator_context())
    instance.process(partials)
    other = partials.with_columns(pl.col("x").cast(pl.Int64))
    with pytest.raises(GraphChangedError):
        operator.open(other.schema, operator_context(stored(instance.snapshot())))
