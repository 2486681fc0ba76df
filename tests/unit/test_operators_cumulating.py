"""Cumulating windows: a brute-force model over cuts, orders, restarts and late rows, state, refusals."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.kernel.errors import SpecError
from headrace.kernel.protocols import MAIN, Determinism
from headrace.testing import operator_context
from operators.window import CumulatingWindow
from tests.windows import AGGREGATES, CUTS, NAMES, RESTARTS, ROWS, Row, aggregated, frame_of, play, tail_of

SPANS = st.sampled_from([(12, 4), (10, 1), (9, 9), (30, 15)])


def cumulating(size: int, step: int, offset: int = 0, **changes) -> CumulatingWindow:
    return CumulatingWindow("w", "t", size, step, AGGREGATES, by=["k"], offset_us=offset, **changes)


def model(rows, marks, size, step, offset, lateness=0):
    """Windows, and which rows are late: those whose windows had all closed at the row's watermark."""
    groups, late = defaultdict(list), []
    for row, mark in zip(rows, marks, strict=True):
        start = (row.t - offset) // size * size + offset
        ends = [end for end in range(start + step, start + size + 1, step) if end > row.t]
        still_open = [end for end in ends if mark is None or end + lateness > mark]
        if not still_open:
            late.append(row.t)
        for end in still_open:
            groups[row.k, start, end].append(row)
    return {key: aggregated(members) for key, members in groups.items()}, late


@settings(max_examples=40, deadline=None)
@given(ROWS, ROWS, CUTS, st.integers(0, 30), RESTARTS, SPANS, st.integers(-3, 3), st.sampled_from([0, 7]))
def test_history_then_tail_equals_the_model_whatever_the_cut(
    history, tail, cuts, bound, restarts, spans, offset, lateness
) -> None:
    size, step = spans
    arriving = tail_of(tail, bound)
    operator = cumulating(size, step, offset, allowed_lateness_us=lateness)
    found = play(operator, history, arriving, cuts, restarts)
    marks = [*[None] * len(history), *arriving.marks]
    expected, late = model([*history, *tail], marks, size, step, offset, lateness)
    assert found.rows(*NAMES) == expected
    assert found.late == late
    assert (found.held, found.counts["dropped_late"]) == (0, 0)


def test_a_key_is_given_out_for_every_longer_window_of_its_row() -> None:
    operator = cumulating(30, 10)
    instance = operator.open(operator.partial(frame_of([]).lazy()).collect_schema(), operator_context())
    instance.process(operator.partial(frame_of([Row(1, "a"), Row(12, "b"), Row(31, "a")]).lazy()).collect())
    out = instance.advance(20)[MAIN]
    assert out.select("k", "window_start", "window_end", "n").with_columns(
        out["window_start"].to_physical(), out["window_end"].to_physical()
    ).rows() == [("a", 0, 10, 1), ("a", 0, 20, 1), ("b", 0, 20, 1)]
    assert instance.rows_held() == 3
    assert instance.outgoing_watermark(20) == 0
    assert instance.advance(30)[MAIN]["k"].to_list() == ["a", "b"]
    assert instance.rows_held() == 1
    assert instance.outgoing_watermark(30) == 30


def test_fingerprint_and_determinism() -> None:
    base = cumulating(30, 10)
    others = [cumulating(30, 5), cumulating(60, 10), cumulating(30, 10, 10)]
    assert len({base.fingerprint, *(other.fingerprint for other in others)}) == 4
    assert base.determinism is Determinism.EXACT


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: cumulating(10, 3), "size that is no multiple of its step"),
        (lambda: cumulating(10, 0), "has step 0 us"),
        (lambda: cumulating(10, 20), "no multiple of its step"),
    ],
)
def test_definitions_that_cannot_be_are_refused(make, message) -> None:
    with pytest.raises(SpecError, match=message):
        make()
