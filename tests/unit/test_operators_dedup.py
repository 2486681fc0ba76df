"""Deduplication: the case OPS-02, a brute-force model over cuts, orders, restarts and late rows, state, refusals."""

from __future__ import annotations

import itertools

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from headrace.kernel import columns
from headrace.kernel.errors import GraphChangedError, SpecError
from headrace.kernel.protocols import MAIN, Determinism
from headrace.testing import operator_context
from operators.dedup import Dedup
from tests.windows import CUTS, RESTARTS, Row, frame_of, pieces, stored, tail_of

ROWS = st.lists(
    st.builds(Row, st.integers(-20, 40), st.sampled_from(["a", "b", None]), st.none() | st.integers(0, 3)), max_size=30
)


def dedup(keep="first", ttl=None, **changes) -> Dedup:
    return Dedup("d", "t", ["k"], keep, ttl, **changes)


def model(rows: list[Row], keep: str, ttl: int | None) -> list[tuple]:
    """What is kept of rows that are not late: (time, key, x)."""
    out = []
    for key in {row.k for row in rows}:
        members = sorted(
            ((row.t, row.x is not None, row.x or 0, row) for row in rows if row.k == key), key=lambda m: m[:3]
        )
        begins = [0] + [
            i + 1 for i, (a, b) in enumerate(itertools.pairwise(members)) if ttl is not None and b[0] - a[0] >= ttl
        ]
        for low, high in itertools.pairwise([*begins, len(members)]):
            row = members[low if keep == "first" else high - 1][3]
            out.append((row.t, key, row.x))
    return sorted(out, key=str)


@settings(max_examples=60, deadline=None)
@given(
    ROWS,
    ROWS,
    CUTS,
    st.integers(0, 20),
    RESTARTS,
    st.sampled_from([("first", None), ("first", 5), ("first", 10), ("first", 15), ("last", 7)]),
    st.sampled_from([0, 9]),
)
def test_history_then_tail_equals_the_model_whatever_the_cut(
    history, tail, cuts, bound, restarts, kind, lateness
) -> None:
    keep, ttl = kind
    operator = dedup(keep, ttl, allowed_lateness_us=lateness)
    arriving = tail_of(tail, bound)
    schema = operator.partial(frame_of([], []).lazy()).collect_schema()
    instance = operator.open(schema, operator_context())
    out, late, steps, promised = [], [], itertools.count(), None

    def step(frame: pl.DataFrame, watermark: int) -> None:
        nonlocal instance, promised
        assert instance.process(operator.partial(frame.lazy()).collect()) == {}
        late.extend(operator.late(frame.lazy()).collect()["t"].to_physical().to_list())
        for rows in instance.advance(watermark).values():
            assert promised is None or rows["t"].to_physical().min() >= promised
            out.extend(rows.select(pl.col("t").to_physical(), "k", "x").rows())
        outgoing = instance.outgoing_watermark(watermark)
        assert promised is None or promised <= outgoing <= watermark
        promised = outgoing
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
        out.extend(rows.select(pl.col("t").to_physical(), "k", "x").rows())

    is_late = [row.t < mark - lateness for row, mark in zip(tail, arriving.marks, strict=True)]
    on_time = [row for row, gone in zip(tail, is_late, strict=True) if not gone]
    assert late == [row.t for row, gone in zip(tail, is_late, strict=True) if gone]
    assert sorted(out, key=str) == model([*history, *on_time], keep, ttl)
    assert instance.counts == {"dropped_late": 0, "null_event_time": 0}


@pytest.mark.parametrize("keep", ["first", "last"])
def test_ops_02_the_same_row_whatever_engine_and_wherever_the_switch(keep) -> None:
    n = 20_000
    frame = pl.select(
        pl.int_range(n).cast(pl.Int32).mod(3).alias(columns.PARTITION),
        pl.int_range(n).alias(columns.OFFSET),
        (pl.int_range(n) * 7919 % 1000).alias("k"),
        (pl.int_range(n) * 104_729 % 50).cast(pl.Datetime("us", "UTC")).alias("t"),
        pl.int_range(n).alias("v"),
    )
    order = ["t", columns.PARTITION, columns.OFFSET]
    expected = frame.sort(order).unique("k", keep=keep, maintain_order=True).sort("k")
    operator = dedup(keep, None if keep == "first" else 10**6)
    schema = operator.partial(frame.clear().lazy()).collect_schema()
    for cuts, engine in [
        ([n], "in-memory"),
        ([n], "streaming"),
        ([n // 2, n], "streaming"),
        ([1, 9000, n], "in-memory"),
    ]:
        instance, low = operator.open(schema, operator_context()), 0
        for high in cuts:
            piece = frame[low:high].sample(fraction=1, shuffle=True, seed=high)
            instance.process(operator.partial(piece.lazy()).collect(engine=engine))
            low = high
        assert_frame_equal(instance.drain()[MAIN].sort("k"), expected)


def test_a_key_of_the_history_that_comes_again_in_the_tail_is_one_row() -> None:
    operator = dedup()
    schema = operator.partial(frame_of([]).lazy()).collect_schema()
    instance = operator.open(schema, operator_context())
    instance.process(operator.partial(frame_of([Row(5, "a", 1)]).lazy()).collect())
    assert instance.advance(5) == {}
    assert instance.advance(6)[MAIN]["x"].to_list() == [1]
    resumed = operator.open(schema, operator_context(stored(instance.snapshot())))
    resumed.process(operator.partial(frame_of([Row(9, "a", 2), Row(9, "b", 3)]).lazy()).collect())
    assert resumed.drain()[MAIN]["x"].to_list() == [3]
    resumed.process(operator.partial(frame_of([Row(8, "c", 4)]).lazy()).collect())
    assert resumed.counts["dropped_late"] == 1
    assert resumed.drain() == {}


def test_known_keys_are_forgotten_after_the_ttl() -> None:
    operator = dedup(ttl=10)
    schema = operator.partial(frame_of([]).lazy()).collect_schema()
    instance = operator.open(schema, operator_context())
    for t, held in [(0, 1), (9, 1), (19, 1), (40, 1)]:
        instance.process(operator.partial(frame_of([Row(t, "a", t)]).lazy()).collect())
        emitted = instance.advance(t + 1)
        assert bool(emitted) == (t in {0, 19, 40})
        assert instance.rows_held() == held


def test_rows_without_event_time_leave_late_and_columns_come_back_as_they_were() -> None:
    operator = dedup()
    frame = frame_of([Row(1, "a", 7, -0.0)], [None])
    assert (
        operator.output_schema(operator.partial(frame.lazy()).collect_schema())
        == frame.drop(columns.ROW_WATERMARK).schema
    )
    timeless = frame.with_columns(t=pl.lit(None, frame.schema["t"]))
    assert operator.late(timeless.lazy()).collect().height == 1
    partials = operator.partial(timeless.lazy()).collect()
    assert operator.leaves_out(partials)
    instance = operator.open(partials.schema, operator_context())
    instance.process(partials)
    assert instance.counts["null_event_time"] == 1


@pytest.mark.parametrize("engine", ["in-memory", "streaming"])
@pytest.mark.parametrize("keep", ["first", "last"])
def test_rows_of_one_time_are_told_apart_by_nested_columns_too(engine, keep) -> None:
    rows = frame_of([Row(1, "a")] * 4).with_columns(
        l=pl.Series([[2], [1, 5], [1], None]), s=pl.Series([{"x": [1]}, {"x": None}, {"x": [0]}, None])
    )
    operator = dedup(keep, None if keep == "first" else 5)
    found = []
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]):
        instance = operator.open(operator.partial(rows.clear().lazy()).collect_schema(), operator_context())
        for at in order:
            instance.process(operator.partial(rows[at : at + 1].lazy()).collect(engine=engine))
        found.append(instance.drain()[MAIN])
    assert_frame_equal(found[0], found[1])
    assert_frame_equal(found[0], found[2])
    assert found[0]["l"].to_list() == ([None] if keep == "first" else [[2]])
    assert found[0].schema == rows.schema


def test_state_and_fingerprint_are_bound_to_the_definition() -> None:
    base = dedup(ttl=5)
    others = [dedup(), dedup(ttl=6), dedup("last", 5), dedup(ttl=5, allowed_lateness_us=1)]
    assert len({base.fingerprint, *(other.fingerprint for other in others)}) == 5
    assert base.determinism is Determinism.EXACT
    schema = base.partial(frame_of([]).lazy()).collect_schema()
    state = base.open(schema, operator_context()).snapshot()
    other = base.partial(frame_of([]).with_columns(more=pl.lit(1)).lazy()).collect_schema()
    with pytest.raises(GraphChangedError, match="does not fit"):
        base.open(other, operator_context(state))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Dedup("d", "t", []), "has no key"),
        (lambda: dedup("last"), "without a ttl there may always come a later one"),
        (lambda: dedup(ttl=0), "has ttl 0 us"),
        (lambda: Dedup("d", "t", ["kk"]).partial(frame_of([]).lazy()), "names column 'kk'"),
        (
            lambda: Dedup("d", "t", ["l"]).partial(frame_of([]).with_columns(l=pl.lit([1], pl.List(pl.Int8))).lazy()),
            "key 'l' has type List",
        ),
    ],
)
def test_definitions_that_cannot_be_are_refused(make, message) -> None:
    with pytest.raises(SpecError, match=message):
        make()
