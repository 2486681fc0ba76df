"""Regular joins: brute-force models over cuts, turns and restarts, with weights, retractions, ttl and null keys."""

from __future__ import annotations

from collections import Counter

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.kernel import columns
from headrace.kernel.errors import GraphChangedError
from headrace.kernel.protocols import MAIN, Determinism
from headrace.testing import operator_context
from operators.stream_join import StreamJoin
from tests.joins import HOWS, STREAMS, TURNS, WHERE, in_order, matches, model, plain, play, schema_of, sides_of, tagged
from tests.windows import CUTS, RESTARTS, Row, frame_of, stored

WEIGHT = {columns.WEIGHT: columns.WEIGHT_TYPE}


def joined(how="inner", *, ttl=None, where=None, lateness=0, weighted=()) -> StreamJoin:
    more = dict.fromkeys(weighted, WEIGHT)
    return StreamJoin("j", sides_of(how, timed=ttl is not None, where=where, **more), ttl, lateness)


def table_of(frames) -> list[tuple]:
    """The rows that are there in the end; none may be there less than never."""
    total = Counter()
    for frame in frames:
        names = [name for name in frame.columns if name != columns.WEIGHT]
        weights = frame[columns.WEIGHT] if columns.WEIGHT in frame.columns else [1] * frame.height
        for row, weight in zip(plain(frame).select(names).rows(), weights, strict=True):
            total[row] += weight
            assert weight
        assert min(total.values(), default=0) >= 0
    return in_order(total.elements())


@settings(max_examples=40, deadline=None)
@given(
    STREAMS, CUTS, CUTS, TURNS, RESTARTS, st.sampled_from(HOWS), st.sampled_from([None, 0, 9]), st.booleans(),
    st.sampled_from([0, 6]),
)  # fmt: skip
def test_equals_the_model_whatever_the_cuts_and_turns(
    streams, cuts, others, turns, restarts, how, ttl, where, lateness
) -> None:
    operator = joined(how, ttl=ttl, where=WHERE if where else None, lateness=lateness)
    found = play(operator, streams, (cuts, others), turns, restarts)
    if ttl is None:
        left, right = ([*h, *t.rows] for h, t in zip(streams.histories, streams.tails, strict=True))
    else:
        left, right = streams.on_time(lateness)

    def match(a: Row, b: Row) -> bool:
        return matches(a, b, where=where) and (ttl is None or abs(a.t - b.t) <= ttl)

    assert table_of(found.main) == model(how, list(left), list(right), match)
    assert found.late == ([] if ttl is None else streams.late(lateness))
    assert all((columns.WEIGHT in frame.columns) == (how not in {"inner", "semi"}) for frame in found.main)


CHANGES = st.lists(
    st.tuples(
        st.booleans(),
        st.builds(Row, st.integers(-3, 3), st.sampled_from(["a", "b", None]), st.none() | st.integers(0, 2)),
        st.booleans(),
    ),
    max_size=30,
)


@settings(max_examples=40, deadline=None)
@given(
    CHANGES, CUTS, RESTARTS, st.sampled_from(HOWS), st.booleans(),
    st.sampled_from([("left", "right"), ("left",), ("right",)]),
)  # fmt: skip
def test_changelogs_end_in_the_join_of_their_tables(changes, cuts, restarts, how, where, weighted) -> None:
    operator = joined(how, where=WHERE if where else None, weighted=weighted)
    schema = schema_of(operator)
    instance = operator.open(schema, operator_context())
    tables: dict[str, Counter[Row]] = {"left": Counter(), "right": Counter()}
    frames, pending = [], []

    def flush() -> None:
        nonlocal instance
        for side in ("left", "right"):
            mine = [(row, weight) for word, row, weight in pending if word == side]
            frame = frame_of([row for row, _ in mine])
            if side in weighted:
                frame = frame.with_columns(pl.Series(columns.WEIGHT, [w for _, w in mine], columns.WEIGHT_TYPE))
            rows = operator.partial(tagged(operator.sides, side, frame)).collect()
            if rows.height:
                frames.extend(instance.process(rows).values())
        pending.clear()

    for at, (is_right, row, back) in enumerate(changes):
        side = "right" if is_right else "left"
        weight = -1 if back and side in weighted and tables[side][row] else 1
        tables[side][row] += weight
        pending.append((side, row, weight))
        if at in cuts:
            flush()
        if at in restarts:
            instance = operator.open(schema, operator_context(stored(instance.snapshot())))
    flush()
    left, right = (list(tables[side].elements()) for side in ("left", "right"))
    assert table_of(frames) == model(how, left, right, lambda a, b: matches(a, b, where=where))
    assert operator.determinism is Determinism.EXACT_TABLE
    for frame in frames:
        assert frame[columns.WEIGHT].is_sorted()


def test_an_outer_row_is_taken_back_with_its_first_match_and_comes_again_after_the_last() -> None:
    operator = joined("left", weighted=("right",))
    instance = operator.open(schema_of(operator), operator_context())

    def give(side: str, row: Row, weight: int | None = None) -> list[tuple]:
        frame = frame_of([row])
        if weight is not None:
            frame = frame.with_columns(pl.lit(weight, columns.WEIGHT_TYPE).alias(columns.WEIGHT))
        out = instance.process(operator.partial(tagged(operator.sides, side, frame)).collect())
        return [row for frame in out.values() for row in frame.select("x", "r_x", columns.WEIGHT).rows()]

    assert give("left", Row(-1, "a", 1)) == [(1, None, 1)]
    assert give("right", Row(-2, "a", 5), 1) == [(1, None, -1), (1, 5, 1)]
    assert give("right", Row(-2, "a", 6), 2) == [(1, 6, 2)]
    assert give("right", Row(-2, "a", 5), -1) == [(1, 5, -1)]
    assert give("left", Row(-1, "a", 1)) == [(1, 6, 2)]
    assert give("right", Row(-2, "a", 6), -2) == [(1, 6, -4), (1, None, 2)]
    assert instance.rows_held() == 1
    assert give("left", Row(-1, None, 3)) == [(3, None, 1)]
    assert instance.rows_held() == 1  # no key, no match, no state


def test_rows_are_forgotten_a_ttl_after_the_watermark_has_passed_them() -> None:
    for how in ("inner", "semi"):
        operator = joined(how, ttl=10)
        instance = operator.open(schema_of(operator), operator_context())
        instance.process(operator.partial(tagged(operator.sides, "right", frame_of([Row(-5, "a")]))).collect())
        instance.advance(5)
        found = instance.process(operator.partial(tagged(operator.sides, "left", frame_of([Row(5, "a")]))).collect())
        assert found[MAIN].height == 1
        instance.advance(6)
        rows = list(instance.snapshot().keyed)
        assert rows == ["left", "right"]
        found = instance.process(operator.partial(tagged(operator.sides, "left", frame_of([Row(6, "a")]))).collect())
        assert found == {}


def test_nested_columns_are_joined_too() -> None:
    more = {"l": pl.List(pl.Int64), "s": pl.Struct({"x": pl.Int8})}
    operator = StreamJoin("j", sides_of("left", timed=False, left=more), None)
    instance = operator.open(schema_of(operator), operator_context())
    frame = frame_of([Row(1, "a", 1), Row(1, "a", 1)]).with_columns(
        l=pl.Series([[1, 2], [1, 2]]), s=pl.Series([{"x": 1}, {"x": 1}], dtype=more["s"])
    )
    instance.process(operator.partial(tagged(operator.sides, "left", frame)).collect())
    found = instance.process(operator.partial(tagged(operator.sides, "right", frame_of([Row(2, "a", 9)]))).collect())
    assert found[MAIN].select("l", "r_x", columns.WEIGHT).rows() == [([1, 2], None, -2), ([1, 2], 9, 2)]


def test_what_it_promises_and_what_its_state_is_bound_to() -> None:
    assert joined().determinism is Determinism.EXACT
    assert joined("semi", ttl=5).determinism is Determinism.EXACT
    assert joined("full").determinism is Determinism.EXACT_TABLE
    assert joined("inner", weighted=("left",)).determinism is Determinism.EXACT_TABLE
    assert joined("inner", ttl=5, weighted=("left",)).determinism is Determinism.NOT_INVARIANT
    base = joined("left")
    others = [joined(), joined("left", ttl=5), joined("left", where=WHERE)]
    assert len({base.fingerprint, *(other.fingerprint for other in others)}) == 4
    assert base.ports == (MAIN,)
    assert joined(ttl=5).ports == (MAIN, "late")
    state = base.open(schema_of(base), operator_context()).snapshot()
    more = StreamJoin("j", sides_of("left", timed=False, left={"more": pl.Int8()}))
    with pytest.raises(GraphChangedError, match=r"more.*is new"):
        more.open(schema_of(more), operator_context(stored(state)))
