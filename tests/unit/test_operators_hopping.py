"""Hopping windows: the case WIN-03, a brute-force model over cuts, orders, restarts and late rows, state, refusals."""

from __future__ import annotations

import itertools
from collections import defaultdict

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from headrace.kernel import columns
from headrace.kernel.errors import GraphChangedError, SpecError
from headrace.kernel.protocols import MAIN, Determinism
from headrace.testing import operator_context
from operators.window import HoppingWindow
from tests.windows import (
    AGGREGATES,
    CUTS,
    NAMES,
    RESTARTS,
    ROWS,
    Row,
    aggregated,
    frame_of,
    play,
    stored,
    tail_of,
)

MINUTE = 60_000_000
SPANS = st.sampled_from([(10, 5), (10, 4), (12, 3), (7, 7), (9, 6), (60, 1), (40, 2)])


def hopping(size: int, hop: int, offset: int = 0, **changes) -> HoppingWindow:
    return HoppingWindow("w", "t", size, hop, AGGREGATES, by=["k"], offset_us=offset, **changes)


def windows_of(t: int, size: int, hop: int, offset: int) -> list[int]:
    """The starts of all windows that hold a time, found by trying."""
    return [start for start in range(t - size, t + 1) if (start - offset) % hop == 0 and start <= t < start + size]


def model(rows, marks, size, hop, offset, lateness=0):
    """Windows, and which rows are late: those whose windows had all closed at the row's watermark."""
    groups, late = defaultdict(list), []
    for row, mark in zip(rows, marks, strict=True):
        starts = windows_of(row.t, size, hop, offset)
        still_open = [s for s in starts if mark is None or s + size + lateness > mark]
        if not still_open:
            late.append(row.t)
        for start in still_open:
            groups[row.k, start, start + size].append(row)
    return {key: aggregated(members) for key, members in groups.items()}, late


@settings(max_examples=40, deadline=None)
@given(ROWS, ROWS, CUTS, st.integers(0, 30), RESTARTS, SPANS, st.integers(-3, 3), st.sampled_from([0, 5, 30]))
def test_history_then_tail_equals_the_model_whatever_the_cut(
    history, tail, cuts, bound, restarts, spans, offset, lateness
) -> None:
    size, hop = spans
    arriving = tail_of(tail, bound)
    operator = hopping(size, hop, offset, allowed_lateness_us=lateness)

    def closed(out: pl.DataFrame, watermark: int) -> None:
        assert (out["window_end"].to_physical() + lateness <= watermark).all()

    found = play(operator, history, arriving, cuts, restarts, closed)
    marks = [*[None] * len(history), *arriving.marks]
    expected, late = model([*history, *tail], marks, size, hop, offset, lateness)
    assert found.rows(*NAMES) == expected
    assert found.late == late
    assert (found.held, found.counts["dropped_late"]) == (0, 0)


@pytest.mark.parametrize("cut", [[4], [1, 2, 3], [2]], ids=["whole", "one-by-one", "switch"])
def test_win_03_every_row_is_in_all_its_windows_however_it_is_cut(cut) -> None:
    rows = [Row(minute * MINUTE, "a") for minute in (1, 4, 7, 12)]
    operator = hopping(10 * MINUTE, 5 * MINUTE)
    instance = operator.open(operator.partial(frame_of([]).lazy()).collect_schema(), operator_context())
    edges = [0, *cut] if 4 in cut else [0, *cut, 4]
    for low, high in itertools.pairwise(edges):
        instance.process(operator.partial(frame_of(rows[low:high]).lazy()).collect())
        instance = operator.open(
            operator.partial(frame_of([]).lazy()).collect_schema(), operator_context(stored(instance.snapshot()))
        )
    out = instance.drain()[MAIN]
    starts = [start // MINUTE for start in out["window_start"].to_physical()]
    assert dict(zip(starts, out["n"], strict=True)) == {-5: 2, 0: 3, 5: 2, 10: 1}


def test_a_row_counts_only_in_windows_that_were_open_at_its_own_watermark() -> None:
    operator = hopping(10, 5)
    frame = frame_of([Row(7, "a"), Row(7, "a"), Row(7, "a")], [None, 12, 15])
    assert operator.late(frame.lazy()).collect().height == 1
    instance = operator.open(operator.partial(frame.lazy()).collect_schema(), operator_context())
    instance.process(operator.partial(frame.lazy()).collect())
    out = instance.drain()[MAIN]
    assert dict(zip(out["window_start"].to_physical(), out["n"], strict=True)) == {0: 1, 5: 2}
    assert instance.rows_held() == 0


def test_many_windows_per_row_are_put_together_by_halves_and_give_the_same() -> None:
    rows = [Row(t * 3 % 997, "ab"[t % 2], t % 7, 0.1 * t) for t in range(600)]
    operator = hopping(100, 1)
    found = play(operator, [], tail_of(rows, 2000), [])
    by_one = play(operator, [], tail_of(sorted(rows, key=lambda row: row.t), 0), list(range(0, 600, 5)))
    expected, late = model(rows, [None] * 600, 100, 1, 0)
    assert found.late == by_one.late == late == []
    assert found.rows("n", "total", "most") == {key: (n, s, hi) for key, (n, s, _, hi) in expected.items()}
    assert_frame_equal(
        pl.concat(found.main).sort("k", "window_start"), pl.concat(by_one.main).sort("k", "window_start")
    )


def test_both_forms_of_partials_have_one_schema() -> None:
    operator = hopping(10, 5)
    with_marks = operator.partial(frame_of([Row(1)], [None]).lazy()).collect()
    without = operator.partial(frame_of([Row(1)]).lazy()).collect()
    assert_frame_equal(with_marks, without)
    assert operator.output_schema(without.schema).names() == ["k", "window_start", "window_end", *NAMES]


def test_rows_without_event_time_leave_late() -> None:
    operator = hopping(10, 5)
    frame = frame_of([Row(1, "a")], [None]).with_columns(t=pl.lit(None, pl.Datetime("us", "UTC")))
    assert operator.late(frame.lazy()).collect().height == 1
    partials = operator.partial(frame.drop(columns.ROW_WATERMARK).lazy()).collect()
    assert operator.leaves_out(partials)
    instance = operator.open(partials.schema, operator_context())
    instance.process(partials)
    assert instance.counts["null_event_time"] == 1
    assert instance.drain() == {}


def test_state_and_fingerprint_are_bound_to_the_definition() -> None:
    base = hopping(10, 5)
    assert base.determinism is Determinism.EXACT
    others = [hopping(10, 2), hopping(20, 5), hopping(10, 5, 1), hopping(10, 5, allowed_lateness_us=1)]
    assert len({base.fingerprint, *(other.fingerprint for other in others)}) == 5
    assert hopping(10, 5, 5).fingerprint == base.fingerprint
    schema = base.partial(frame_of([]).lazy()).collect_schema()
    state = base.open(schema, operator_context()).snapshot()
    with pytest.raises(GraphChangedError, match="does not fit"):
        base.open(pl.Schema({**schema, "more": pl.Int8()}), operator_context(state))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: hopping(10, 11), "hop longer than its size"),
        (lambda: hopping(10, 0), "has hop 0 us"),
        (lambda: hopping(0, 1), "has size 0 us"),
        (lambda: hopping(10, 5, allowed_lateness_us=-1), "negative allowed lateness"),
        (lambda: hopping(10, 5, time_zone="Europe/Paris"), "size is not a whole number of days"),
    ],
)
def test_definitions_that_cannot_be_are_refused(make, message) -> None:
    with pytest.raises(SpecError, match=message):
        make()


@pytest.mark.parametrize("watermark", [-(2**63), -(2**63) + 5])
def test_a_watermark_before_all_time_closes_nothing(watermark) -> None:
    operator = hopping(10, 5, allowed_lateness_us=30)
    instance = operator.open(operator.partial(frame_of([]).lazy()).collect_schema(), operator_context())
    assert instance.advance(watermark) == {}
    instance.process(operator.partial(frame_of([Row(7, "a")]).lazy()).collect())
    assert instance.advance(watermark + 1) == {}
    assert instance.advance(45)[MAIN]["n"].to_list() == [1, 1]
