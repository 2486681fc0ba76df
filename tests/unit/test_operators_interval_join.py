"""Interval joins: a brute-force model over cuts, turns, disorder, late rows and restarts; watermarks; refusals."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.kernel.errors import GraphChangedError, SpecError
from headrace.kernel.protocols import MAIN, Determinism
from headrace.testing import operator_context
from operators.interval_join import IntervalJoin
from operators.join_sides import JoinSide, JoinSides
from tests.joins import HOWS, STREAMS, TURNS, WHERE, in_order, matches, model, plain, play, schema_of, sides_of, tagged
from tests.windows import CUTS, RESTARTS, Row, frame_of, stored

TIMES = pl.Datetime("us", "UTC")
BOUNDS = st.sampled_from([(0, 0), (-5, 5), (-20, 0), (0, 7), (3, 9), (-9, -4)])


def joined(how="inner", bounds=(-5, 5), *, where=None, later=None, lateness=0) -> IntervalJoin:
    return IntervalJoin("j", sides_of(how, where=where, later=later), *bounds, lateness)


@settings(max_examples=40, deadline=None)
@given(
    STREAMS, CUTS, CUTS, TURNS, RESTARTS, st.sampled_from(HOWS), BOUNDS, st.booleans(), st.booleans(),
    st.sampled_from([0, 6]),
)  # fmt: skip
def test_equals_the_model_whatever_the_cuts_and_turns(
    streams, cuts, others, turns, restarts, how, bounds, where, later, lateness
) -> None:
    named = "at" if later and how not in {"semi", "anti"} else None
    operator = joined(how, bounds, where=WHERE if where else None, later=named, lateness=lateness)
    time = named or {"right": "r_t", "full": None}.get(how, "t")
    found = play(operator, streams, (cuts, others), turns, restarts, time=time)
    left, right = streams.on_time(lateness)
    lower, upper = bounds

    def match(a: Row, b: Row) -> bool:
        return matches(a, b, where=where) and b.t + lower <= a.t <= b.t + upper

    assert found.rows() == model(how, left, right, match, later=named is not None)
    assert found.late == streams.late(lateness)
    assert found.instance.counts == {"dropped_late": 0, "null_event_time": 0}
    assert found.instance.rows_held() == 0 or how not in {"full", "anti"}


def limited(frame: pl.DataFrame, side: str) -> pl.DataFrame:
    """The right side's rows with the last time that they match: the more, the higher x is; never without."""
    until = (pl.col("t").to_physical() + 6 * pl.col("x")).cast(pl.Datetime("us", "UTC"))
    return frame.with_columns(until.alias("u")) if side == "right" else frame


@settings(max_examples=40, deadline=None)
@given(STREAMS, CUTS, CUTS, TURNS, RESTARTS, st.sampled_from(HOWS), st.sampled_from([0, -7, 3]), st.booleans())
def test_a_right_row_may_say_until_when_it_matches(streams, cuts, others, turns, restarts, how, lower, later) -> None:
    sides = sides_of(how, later="at" if later and how not in {"semi", "anti"} else None, right={"u": TIMES})
    until = JoinSides("j", how, sides.left, replace(sides.right, until="u"), later=sides.later)
    operator = IntervalJoin("j", until, lower, None)
    time = sides.later or {"right": "r_t", "full": None}.get(how, "t")
    found = play(operator, streams, (cuts, others), turns, restarts, time=time, shape=limited)

    def match(a: Row, b: Row) -> bool:
        return matches(a, b, where=False) and b.x is not None and b.t + lower <= a.t <= b.t + 6 * b.x

    rows = [row for frame in found.main for row in plain(frame.drop("r_u", strict=False)).rows()]
    assert in_order(rows) == model(how, *streams.on_time(), match, later=sides.later is not None)
    assert found.late == streams.late()


def test_rows_are_held_only_while_they_may_find_a_match() -> None:
    operator = joined("left", (-10, 0))
    instance = operator.open(schema_of(operator), operator_context())
    given = instance.process(_partials(operator, "left", [Row(5, "a", 1), Row(6, "b", 2)]))
    assert given == {}
    given = instance.process(_partials(operator, "right", [Row(15, "a", 3)]))
    assert plain(given[MAIN]).rows() == [(5, "a", 1, None, 15, 3, None)]
    assert instance.advance(15) == {}
    assert instance.rows_held() == 3
    assert instance.advance(16) == {}
    assert instance.rows_held() == 1
    assert plain(instance.advance(17)[MAIN]).rows() == [(6, "b", 2, None, None, None, None)]
    assert instance.outgoing_watermark(17) == 17
    assert instance.rows_held() == 0
    instance.process(_partials(operator, "right", [Row(t, "a") for t in (20, 30, 40, 50, 60, 70)]))
    for watermark, held in [(21, 6), (31, 4), (41, 3), (99, 0)]:  # rows without use stay until it pays to look at all
        instance.advance(watermark)
        assert instance.rows_held() == held


def test_rows_are_late_below_their_own_watermark_less_the_allowed_lateness() -> None:
    operator = joined(lateness=6)
    rows = tagged(operator.sides, "left", frame_of([Row(-2, "late"), Row(-1, "in"), Row(9, "in")], [5, 5, None]))
    assert operator.late(rows).collect()["k"].to_list() == ["late"]
    assert operator.partial(rows).collect()["k"].to_list() == ["in", "in"]


def test_the_watermark_is_held_by_rows_that_wait() -> None:
    operator = joined("inner", (-10, 0))
    instance = operator.open(schema_of(operator), operator_context())
    instance.process(_partials(operator, "left", [Row(5, "a")]))
    instance.advance(9)
    assert instance.outgoing_watermark(9) == 5
    instance.advance(15)
    assert instance.outgoing_watermark(15) == 5
    instance.advance(20)
    assert instance.outgoing_watermark(20) == 20


def test_a_self_join_pairs_each_row_with_itself_once() -> None:
    operator = joined("inner", (0, 0))
    instance = operator.open(schema_of(operator), operator_context())
    rows = [Row(-5, "a", 1), Row(-4, "a", 2), Row(-5, "a", 3)]
    first = instance.process(_partials(operator, "left", rows))
    second = instance.process(_partials(operator, "right", rows))
    assert first == {}
    assert sorted(plain(second[MAIN]).select("x", "r_x").rows()) == [(1, 1), (1, 3), (2, 2), (3, 1), (3, 3)]


def test_rows_of_both_sides_may_come_in_one_frame() -> None:
    operator = joined("full", (0, 0))
    instance = operator.open(schema_of(operator), operator_context())
    both = pl.concat(
        [_partials(operator, "left", [Row(1, "a", 1)]), _partials(operator, "right", [Row(1, "a", 2), Row(2, "c")])]
    )
    assert plain(instance.process(both)[MAIN]).rows() == [(1, "a", 1, None, 1, 2, None)]
    assert plain(instance.drain()[MAIN]).rows() == [(None, "c", None, None, 2, None, None)]


def test_a_hot_key_meets_near_rows_only() -> None:
    n = 30_000
    times = pl.Series("t", range(0, 10 * n, 10)).cast(pl.Datetime("us", "UTC"))
    frame = pl.DataFrame({"t": times, "k": ["hot"] * n, "x": [1] * n, "y": [0.5] * n}, schema=frame_of([]).schema)
    operator = joined("inner", (-10, 0))
    instance = operator.open(schema_of(operator), operator_context())
    instance.process(operator.partial(tagged(operator.sides, "left", frame)).collect())
    found = instance.process(operator.partial(tagged(operator.sides, "right", frame)).collect())
    assert found[MAIN].height == 2 * n - 1


def test_rows_without_event_time_leave_late_and_are_counted() -> None:
    operator = joined("left")
    timeless = frame_of([Row(1, "a", 7)], [None]).with_columns(t=pl.lit(None, pl.Datetime("us", "UTC")))
    rows = tagged(operator.sides, "right", timeless)
    assert operator.late(rows).collect().select("_side", "r_x").rows() == [("right", 7)]
    partials = operator.partial(rows).collect()
    assert operator.leaves_out(partials)
    instance = operator.open(schema_of(operator), operator_context())
    assert instance.process(partials) == {}
    assert instance.counts["null_event_time"] == 1
    instance.process(_partials(operator, "left", [Row(50, "a")]))
    instance.drain()
    instance.process(_partials(operator, "left", [Row(5, "a")]))
    assert instance.counts["dropped_late"] == 1


def test_state_and_fingerprint_are_bound_to_the_definition() -> None:
    base = joined()
    others = [joined("left"), joined(bounds=(-5, 6)), joined(where=WHERE), joined(lateness=1)]
    assert len({base.fingerprint, *(other.fingerprint for other in others)}) == 5
    assert base.determinism is Determinism.EXACT
    state = base.open(schema_of(base), operator_context()).snapshot()
    more = IntervalJoin("j", sides_of("inner", left={"more": pl.Int8()}), -5, 5)
    with pytest.raises(GraphChangedError, match=r"more.*is new"):
        more.open(schema_of(more), operator_context(stored(state)))


def _side(prefix="", **changes) -> JoinSide:
    schema = pl.Schema({name: dtype for name, dtype in ({**frame_of([]).schema, **changes}).items() if dtype})
    return JoinSide(schema, ["k"], "t", prefix)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: joined(bounds=(5, -5)), "lower bound above its upper one"),
        (lambda: joined(bounds=(0, None)), "an upper bound or until, one of them"),
        (lambda: joined(lateness=-1), "negative allowed lateness"),
        (lambda: JoinSides("j", "inner", _side(), _side()), "both sides have 't', 'x', 'y'"),
        (lambda: JoinSides("j", "inner", _side(), _side("r_"), later="x"), "both sides have 'x'"),
        (lambda: JoinSides("j", "inner", _side(), _side("r_", k=pl.Int8())), "'k' is String on the left"),
        (lambda: JoinSides("j", "inner", _side(), _side("r_", k=None)), "right side, names column 'k'"),
        (lambda: JoinSides("j", "inner", _side(), _side("r_"), where="zz > 1"), "names column 'zz'"),
        (lambda: JoinSides("j", "inner", _side(), _side("r_"), where="sum(x) > 1"), "aggregate"),
    ],
)
def test_what_cannot_be_is_refused(make, message) -> None:
    with pytest.raises(SpecError, match=message):
        make()


def _partials(operator, side, rows) -> pl.DataFrame:
    return operator.partial(tagged(operator.sides, side, frame_of(rows))).collect()
