"""Temporal joins: a brute-force model over cuts, turns, disorder, late rows and restarts; deletions, refusals."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.kernel import columns
from headrace.kernel.errors import GraphChangedError, SpecError
from headrace.kernel.protocols import MAIN, Determinism
from headrace.testing import operator_context
from operators.join_sides import JoinSide, JoinSides
from operators.version_join import VersionJoin
from tests.joins import STREAMS, TURNS, WHERE, in_order, plain, play, schema_of, sides_of, tagged
from tests.windows import CUTS, RESTARTS, Row, frame_of, stored

KINDS = st.sampled_from([("backward", None), ("backward", 5), ("forward", 5), ("nearest", 5), ("nearest", 12)])


def joined(how="left", kind=("backward", None), lateness=0, **more) -> VersionJoin:
    return VersionJoin("j", sides_of(how, **more), *kind, lateness)


def version(row: Row, right: list[Row], direction: str, within: int | None) -> Row | None:
    mine = [b for b in right if b.k is not None and b.k == row.k]
    if within is not None:
        mine = [b for b in mine if abs(b.t - row.t) <= within]
    if direction != "nearest":
        mine = [b for b in mine if (b.t <= row.t if direction == "backward" else b.t >= row.t)]
    near = min(((abs(b.t - row.t), -b.t) for b in mine), default=None)
    if near is None:
        return None
    return max((b for b in mine if b.t == -near[1]), key=lambda b: (b.x is not None, b.x or 0))


def model(how: str, left: list[Row], right: list[Row], kind: tuple[str, int | None]) -> list[tuple]:
    out = []
    for a in left:
        b = version(a, right, *kind)
        if b is not None or how == "left":
            out.append((a.t, a.k, a.x, a.y, *((b.t, b.x, b.y) if b else (None, None, None))))
    return in_order(out)


@settings(max_examples=50, deadline=None)
@given(STREAMS, CUTS, CUTS, TURNS, RESTARTS, st.sampled_from(["left", "inner"]), KINDS, st.sampled_from([0, 6]))
def test_equals_the_model_whatever_the_cuts_and_turns(
    streams, cuts, others, turns, restarts, how, kind, lateness
) -> None:
    operator = joined(how, kind, lateness)
    found = play(operator, streams, (cuts, others), turns, restarts, time="t")
    left, right = streams.on_time(lateness)
    assert found.rows() == model(how, left, right, kind)
    assert found.late == streams.late(lateness)
    assert found.instance.counts == {"dropped_late": 0, "null_event_time": 0}


def test_versions_that_nobody_takes_any_more_are_let_go_of() -> None:
    operator = joined()
    instance = operator.open(schema_of(operator), operator_context())
    for t in range(-9, 40, 7):
        give(operator, instance, "right", frame_of([Row(t, "a", t)]))
        instance.advance(t)
        assert instance.rows_held() <= 3
    give(operator, instance, "left", frame_of([Row(40, "a"), Row(39, None)]))
    assert instance.outgoing_watermark(39) == 39
    assert plain(instance.advance(41)[MAIN]).select("t", "k", "r_x").rows() == [(39, None, None), (40, "a", 33)]
    for within, kept in ((5, 1), (50, 2)):
        operator = joined(kind=("backward", within))
        instance = operator.open(schema_of(operator), operator_context())
        give(operator, instance, "right", frame_of([Row(0, "a"), Row(20, "b")]))
        instance.advance(21)
        assert sum(frame.height for frame in instance._versions.rows()) == kept


def test_the_last_of_two_versions_of_one_time_holds_whenever_they_come() -> None:
    more = {columns.OFFSET: pl.Int64()}
    operator = joined(right=more)
    for order in ([0, 1], [1, 0]):
        instance = operator.open(schema_of(operator), operator_context())
        rows = frame_of([Row(-5, "a", 9), Row(-5, "a", 1)]).with_columns(pl.Series(columns.OFFSET, [3, 4]))
        for at in order:
            give(operator, instance, "right", rows[at : at + 1])
        give(operator, instance, "left", frame_of([Row(-5, "a")]))
        assert instance.drain()[MAIN]["r_x"].to_list() == [1]


def test_ops_01_each_key_is_sorted_by_time_whenever_its_versions_come() -> None:
    for kind, found in ((("backward", None), [1, None]), (("nearest", 200), [1, None])):
        for cuts in ([2], [1, 2]):
            operator = joined(kind=kind)
            instance = operator.open(schema_of(operator), operator_context())
            versions = frame_of([Row(-122, "a", 1), Row(-214, "a", 3), Row(-1, None, 4)])
            low = 0
            for high in [*cuts, 3]:
                give(operator, instance, "right", versions[low:high])
                low = high
            give(operator, instance, "left", frame_of([Row(0, "a"), Row(0, None)]))
            assert instance.drain()[MAIN].sort("k", nulls_last=True)["r_x"].to_list() == found


@pytest.mark.parametrize("direction", ["forward", "nearest"])
def test_a_row_waits_for_versions_that_come_behind_it(direction: str) -> None:
    operator = joined(kind=(direction, 5))
    instance = operator.open(schema_of(operator), operator_context())
    give(operator, instance, "left", frame_of([Row(0, "a")]))
    assert instance.advance(3) == {}
    give(operator, instance, "right", frame_of([Row(4, "a", 1)]))
    assert instance.advance(5) == {}
    assert instance.advance(6)[MAIN]["r_x"].to_list() == [1]


def test_the_version_that_holds_stays_when_the_next_one_comes() -> None:
    operator = joined()
    instance = operator.open(schema_of(operator), operator_context())
    give(operator, instance, "right", frame_of([Row(-10, "a", 1)]))
    instance.advance(0)
    give(operator, instance, "right", frame_of([Row(5, "a", 2)]))
    give(operator, instance, "left", frame_of([Row(3, "a")]))
    assert instance.drain()[MAIN]["r_x"].to_list() == [1]


def deleting(how: str) -> VersionJoin:
    schema = frame_of([]).schema
    right = pl.Schema({**schema, columns.TIMESTAMP: pl.Datetime("us", "UTC"), columns.DELETED: pl.Boolean()})
    sides = JoinSides("j", how, JoinSide(schema, ["k"], "t"), JoinSide(right, ["k"], "t", "r_", columns.TIMESTAMP))
    return VersionJoin("j", sides)


@pytest.mark.parametrize(("how", "found"), [("left", [None, 1, None, 2]), ("inner", [1, 2])])
def test_a_deletion_ends_what_held(how: str, found: list) -> None:
    operator = deleting(how)
    instance = operator.open(schema_of(operator), operator_context())
    versions = frame_of([Row(0, "a", 1), Row(20, "a", 2), Row(99, "a")]).with_columns(
        pl.when(pl.col("x").is_null()).then(None).otherwise(pl.col("t")).alias("t"),
        pl.lit(10).cast(pl.Datetime("us", "UTC")).alias(columns.TIMESTAMP),
        pl.col("x").is_null().replace(False, None).alias(columns.DELETED),
    )
    give(operator, instance, "right", versions)
    give(operator, instance, "left", frame_of([Row(t, "a") for t in (-1, 9, 10, 20)]))
    rows = instance.drain()[MAIN]
    assert rows["r_x"].to_list() == found
    assert rows.filter(pl.col("r_x").is_null())[f"r_{columns.DELETED}"].null_count() == found.count(None)


def test_state_and_fingerprint_are_bound_to_the_definition() -> None:
    base = joined()
    others = [joined("inner"), joined(kind=("backward", 5)), joined(kind=("nearest", 5)), joined(lateness=1)]
    assert len({base.fingerprint, *(other.fingerprint for other in others)}) == 5
    assert base.determinism is Determinism.EXACT
    state = base.open(schema_of(base), operator_context()).snapshot()
    for more in (joined(left={"more": pl.Int8()}), joined(right={"more": pl.Int8()})):
        with pytest.raises(GraphChangedError, match=r"more.*is new"):
            more.open(schema_of(more), operator_context(stored(state)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: joined("full"), "left or inner, not full"),
        (lambda: joined(where=WHERE), "takes one version by its time"),
        (lambda: joined(kind=("forward", None)), "may come at any time"),
        (lambda: joined(right={columns.DELETED: pl.Boolean()}), "deletions of the right side have no time"),
    ],
)
def test_what_cannot_be_is_refused(make, message) -> None:
    with pytest.raises(SpecError, match=message):
        make()


def give(operator, instance, side, frame) -> None:
    assert instance.process(operator.partial(tagged(operator.sides, side, frame)).collect()) == {}
