"""Changelogs through operators: aggregates of aggregates, windows over changelogs, unions; the table they come to."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.kernel import columns
from headrace.kernel.errors import SpecError
from headrace.kernel.protocols import MAIN, Determinism
from headrace.testing import operator_context
from operators.keyed_aggregate import KeyedAggregate
from operators.running_top import RunningTop
from operators.union import Union
from operators.window import CumulatingWindow, HoppingWindow, TumblingWindow
from tests.windows import pieces, stored

ROWS = pl.Schema({"t": pl.Datetime("us", "UTC"), "k": pl.String, "g": pl.Int64, "v": pl.Int64})
CHANGES = pl.Schema({**ROWS, columns.WEIGHT: columns.WEIGHT_TYPE})
AGGREGATES = {
    "n": "count(*)",
    "total": "sum(v)",
    "least": "min(v)",
    "most": "max(v)",
    "kinds": "count(distinct v)",
    "half": "median(v)",
    "first": "first(v)",
    "last": "last(v)",
    "all": "list(v)",
    "top": "arg_max(k, v)",
    "spread": "var_pop(v)",
    "some": "count(*) filter (where v > 2)",
}


class Chain:
    """Operators one behind the other, fed with whole batches; remembers all that came out, and checks every prefix."""

    def __init__(self, schema: pl.Schema, *operators) -> None:
        self.operators, self.schemas, self.instances = operators, [], []
        for operator in operators:
            partials = operator.partial(pl.LazyFrame(schema=schema)).collect_schema()
            self.schemas.append(partials)
            self.instances.append(operator.open(partials, operator_context()))
            schema = operator.output_schema(partials)
        self.out = pl.DataFrame(schema=schema)

    def feed(self, frame: pl.DataFrame) -> None:
        for operator, instance in zip(self.operators, self.instances, strict=True):
            given = instance.process(operator.partial(frame.lazy()).collect()).get(MAIN)
            if given is None:
                return
            assert given.schema == operator.output_schema(operator.partial(frame.lazy()).collect_schema())
            frame = given
        self.out = pl.concat([self.out, frame])
        held = self.consolidated()
        assert held[columns.WEIGHT].to_list() == [1] * held.height

    def restart(self) -> None:
        self.instances = [
            operator.open(schema, operator_context(stored(instance.snapshot())))
            for operator, schema, instance in zip(self.operators, self.schemas, self.instances, strict=True)
        ]

    def consolidated(self) -> pl.DataFrame:
        names = [name for name in self.out.columns if name != columns.WEIGHT]
        summed = self.out.group_by(names).agg(pl.col(columns.WEIGHT).sum())
        return summed.filter(pl.col(columns.WEIGHT) != 0).sort(names)


@st.composite
def changelogs(draw):
    """Changes in an order in which each row is there before it is taken back; and the rows that are left."""
    held, changes = [], []
    for _ in range(draw(st.integers(0, 25))):
        if held and draw(st.booleans()):
            row = held.pop(draw(st.integers(0, len(held) - 1)))
            changes.append((*row, -1))
        else:
            row = (
                draw(st.integers(0, 29)),
                draw(st.sampled_from("ab")),
                draw(st.integers(0, 1)),
                draw(st.integers(0, 4)),
            )
            held.append(row)
            changes.append((*row, 1))
    return changes, held


def frame_of(rows, schema: pl.Schema) -> pl.DataFrame:
    frame = pl.DataFrame(rows, schema={**schema, "t": pl.Int64}, orient="row")
    return frame.with_columns(pl.col("t").cast(ROWS["t"]))


def table(chain: Chain) -> list[tuple]:
    return chain.consolidated().drop(columns.WEIGHT).rows()


@settings(deadline=None, max_examples=12)
@given(changelogs(), st.lists(st.integers(0, 40), max_size=4), st.booleans())
def test_what_a_changelog_comes_to_is_the_batch_result(log, cuts, restart) -> None:
    changes, held = log
    chain = Chain(CHANGES, KeyedAggregate("a", AGGREGATES, ["k"], "t"))
    for piece in pieces(changes, cuts):
        chain.feed(frame_of(piece, CHANGES))
        if restart:
            chain.restart()
    batch = Chain(ROWS, KeyedAggregate("a", AGGREGATES, ["k"], "t"))
    batch.feed(frame_of(held, ROWS))
    assert table(chain) == table(batch)


@settings(deadline=None, max_examples=12)
@given(changelogs(), st.lists(st.integers(0, 40), max_size=4), st.booleans())
def test_aggregates_of_tops_of_aggregates(log, cuts, restart) -> None:
    changes, held = log
    chain = Chain(
        CHANGES,
        KeyedAggregate("best", {"best": "max(v)", "at": "last(t)"}, ["k", "g"], "t"),
        RunningTop("first", 1, [("best", True), ("g", False)], ["k"]),
        KeyedAggregate("mean", {"mean": "avg(best)", "least": "min(best)", "n": "count(*)"}),
    )
    for piece in pieces(changes, cuts):
        chain.feed(frame_of(piece, CHANGES))
        if restart:
            chain.restart()
    best = frame_of(held, ROWS).group_by("k", "g").agg(pl.col("v").max()).group_by("k").agg(pl.col("v").max())["v"]
    assert table(chain) == ([(best.mean(), best.min(), best.len())] if best.len() else [])


WINDOWS = [
    TumblingWindow("w", "t", 10, AGGREGATES, by=["k"]),
    HoppingWindow("w", "t", 10, 5, AGGREGATES, by=["k"]),
    CumulatingWindow("w", "t", 10, 5, AGGREGATES, by=["k"]),
]


@pytest.mark.parametrize("operator", WINDOWS, ids=["tumbling", "hopping", "cumulating"])
@settings(deadline=None, max_examples=6)
@given(changelogs(), st.lists(st.integers(0, 40), max_size=4))
def test_windows_over_changelogs_take_rows_back_until_they_close(operator, log, cuts) -> None:
    changes, held = log

    def closed(frames, schema) -> list[tuple]:
        partials = operator.partial(pl.LazyFrame(schema=schema)).collect_schema()
        instance = operator.open(partials, operator_context())
        for frame in frames:
            instance.process(operator.partial(frame.lazy()).collect())
            instance = operator.open(partials, operator_context(stored(instance.snapshot())))
        given = instance.drain().get(MAIN)
        return [] if given is None else given.rows()

    found = closed([frame_of(piece, CHANGES) for piece in pieces(changes, cuts)], CHANGES)
    assert found == closed([frame_of(held, ROWS)], ROWS)


def test_a_row_taken_back_after_its_window_closed_is_left_out() -> None:
    operator = TumblingWindow("w", "t", 10, {"n": "count(*)"}, revised=True)
    assert operator.determinism is Determinism.NOT_INVARIANT
    partials = operator.partial(pl.LazyFrame(schema=CHANGES)).collect_schema()
    instance = operator.open(partials, operator_context())
    instance.process(operator.partial(frame_of([(3, "a", 0, 1, 1)], CHANGES).lazy()).collect())
    assert instance.advance(10)[MAIN]["n"].to_list() == [1]
    instance.process(operator.partial(frame_of([(3, "a", 0, 1, -1)], CHANGES).lazy()).collect())
    assert instance.drain() == {}
    assert instance.counts["dropped_late"] == 1


def test_a_union_of_rows_and_changes_is_a_changelog() -> None:
    rows, changes = frame_of([(1, "a", 0, 1)], ROWS), frame_of([(1, "a", 0, 1, -1)], CHANGES)
    union = Union("u", CHANGES)
    assert union.apply(rows.lazy()).collect()[columns.WEIGHT].to_list() == [1]
    assert union.apply(changes.lazy()).collect().equals(changes)
    with pytest.raises(SpecError, match="different columns"):
        Union("u", ROWS).apply(changes.lazy())


def test_first_and_last_need_an_event_time() -> None:
    with pytest.raises(SpecError, match="needs an event time"):
        KeyedAggregate("a", {"f": "first(v)"}, ["k"]).partial(pl.LazyFrame(schema=ROWS))
    chain = Chain(ROWS, KeyedAggregate("a", {"f": "first(v)", "l": "last(v)"}, ["k"], "t"))
    for row in [(5, "a", 0, 1), (3, "a", 0, 2), (4, "a", 0, 3)]:
        chain.feed(frame_of([row], ROWS))
    assert table(chain) == [("a", 2, 1)]
