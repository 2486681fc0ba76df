"""Session windows: the case WIN-05, a brute-force model over cuts, orders, restarts and late rows, state, refusals."""

from __future__ import annotations

import itertools
from dataclasses import replace

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.kernel.errors import GraphChangedError, SpecError
from headrace.kernel.protocols import MAIN, Determinism, OperatorState
from headrace.testing import operator_context
from operators.session import SessionWindow
from tests.windows import AGGREGATES, CUTS, NAMES, RESTARTS, ROWS, Row, aggregated, frame_of, play, stored, tail_of

SECOND = 1_000_000
GAP = 6


def session(gap: int = GAP, **changes) -> SessionWindow:
    return SessionWindow("w", "t", gap, AGGREGATES, **{"by": ["k"], **changes})


def model(rows: list[Row], gap: int):
    """Sessions of rows that are not late."""
    out = {}
    for key in {row.k for row in rows}:
        members = sorted((row for row in rows if row.k == key), key=lambda row: row.t)
        begins = [0] + [i + 1 for i, (a, b) in enumerate(itertools.pairwise(members)) if b.t - a.t >= gap]
        for low, high in itertools.pairwise([*begins, len(members)]):
            held = members[low:high]
            out[key, held[0].t, held[-1].t + gap] = aggregated(held)
    return out


@settings(max_examples=50, deadline=None)
@given(ROWS, ROWS, CUTS, st.integers(0, 30), RESTARTS, st.integers(1, 20), st.sampled_from([0, 5, 30]))
def test_history_then_tail_equals_the_model_whatever_the_cut(
    history, tail, cuts, bound, restarts, gap, lateness
) -> None:
    arriving = tail_of(tail, bound)

    def closed(out: pl.DataFrame, watermark: int) -> None:
        assert (out["window_end"].to_physical() + lateness <= watermark).all()

    found = play(session(gap, allowed_lateness_us=lateness), history, arriving, cuts, restarts, closed)
    late = [mark - lateness > row.t for row, mark in zip(tail, arriving.marks, strict=True)]
    on_time = [row for row, is_late in zip(tail, late, strict=True) if not is_late]
    assert found.rows(*NAMES) == model([*history, *on_time], gap)
    assert found.late == [row.t for row, is_late in zip(tail, late, strict=True) if is_late]
    assert (found.held, found.counts["dropped_late"]) == (0, 0)


@pytest.mark.parametrize("order", [(0, 40, 20), (0, 20, 40)])
@pytest.mark.parametrize("restarts", [set(), {2}], ids=["through", "restart"])
@pytest.mark.parametrize("history", [0, 1, 2, 3])
def test_win_05_a_row_that_bridges_two_sessions_makes_one_of_them(order, restarts, history) -> None:
    rows = [Row(t * SECOND, "k") for t in order] + [Row(t * SECOND, "j") for t in (0, 30)]
    operator = session(30 * SECOND, allowed_lateness_us=60 * SECOND)
    found = play(operator, rows[:history], tail_of(rows[history:], 0), [1, 2, 3, 4], restarts)
    assert {key: values[0] for key, values in found.rows(*NAMES).items()} == {
        ("k", 0, 70 * SECOND): 3,
        ("j", 0, 30 * SECOND): 1,
        ("j", 30 * SECOND, 60 * SECOND): 1,
    }
    assert found.late == []


def test_a_session_is_given_out_when_the_watermark_reaches_its_end_and_not_before() -> None:
    operator = session(10, by=[])
    instance = operator.open(operator.partial(frame_of([]).lazy()).collect_schema(), operator_context())
    instance.process(operator.partial(frame_of([Row(5), Row(14)]).lazy()).collect())
    assert instance.advance(23) == {}
    assert instance.outgoing_watermark(23) == 5
    assert instance.advance(24)[MAIN].select("n").rows() == [(2,)]
    assert instance.outgoing_watermark(24) == 24
    assert instance.advance(24) == {}
    assert instance.drain() == {}


def test_a_drained_session_is_never_given_out_again() -> None:
    operator = session(10)
    instance = operator.open(operator.partial(frame_of([]).lazy()).collect_schema(), operator_context())
    instance.process(operator.partial(frame_of([Row(5, "a"), Row(25, "b")]).lazy()).collect())
    assert instance.drain()[MAIN].height == 2
    resumed = operator.open(
        operator.partial(frame_of([]).lazy()).collect_schema(), operator_context(stored(instance.snapshot()))
    )
    resumed.process(operator.partial(frame_of([Row(6, "a"), Row(35, "a")]).lazy()).collect())
    assert resumed.counts["dropped_late"] == 1
    assert resumed.drain()[MAIN]["window_start"].to_physical().to_list() == [35]


def test_state_and_fingerprint_are_bound_to_the_definition() -> None:
    base = session(10)
    others = [session(11), session(10, by=[]), session(10, allowed_lateness_us=1)]
    assert len({base.fingerprint, *(other.fingerprint for other in others)}) == 4
    assert base.determinism is Determinism.EXACT
    schema = base.partial(frame_of([]).lazy()).collect_schema()
    state = base.open(schema, operator_context()).snapshot()
    newer = {"sessions": replace(state.held["sessions"], version=9)}
    with pytest.raises(GraphChangedError, match="version 9"):
        base.open(schema, operator_context(OperatorState(9, state.values, held=newer)))


@pytest.mark.parametrize(
    ("make", "message"),
    [(lambda: session(0), "has gap 0 us"), (lambda: session(by=["window_start"]), "'window_start' twice")],
)
def test_definitions_that_cannot_be_are_refused(make, message) -> None:
    with pytest.raises(SpecError, match=message):
        make()
