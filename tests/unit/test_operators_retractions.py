"""Running aggregates over changelogs: every aggregate follows what is taken back, through several levels."""

from __future__ import annotations

import random
from typing import Any

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.kernel import columns
from headrace.kernel.protocols import StatefulOperator
from operators.keyed_aggregate import KeyedAggregate
from tests.changelogs import Running

CHANGES = pl.Schema({"g": pl.Int64, "k": pl.String, "v": pl.Float64, "n": pl.Int64, columns.WEIGHT: pl.Int64})
EVERY = {
    "rows": "count(*)",
    "known": "count(v)",
    "total": "sum(v)",
    "least": "min(v)",
    "most": "max(n)",
    "different": "count(distinct n)",
    "middle": "median(n)",
}


def held(changes: list[pl.DataFrame]) -> list[tuple[Any, ...]]:
    """The table that a changelog comes to; no row may be there twice, or taken back without having been there."""
    whole = pl.concat(changes)
    names = [name for name in whole.columns if name != columns.WEIGHT]
    summed = whole.group_by(names).agg(pl.col(columns.WEIGHT).sum()).filter(pl.col(columns.WEIGHT) != 0)
    assert summed[columns.WEIGHT].to_list() == [1] * summed.height
    return sorted(summed.select(names).rows(), key=repr)


def once(operator: StatefulOperator, rows: pl.DataFrame) -> pl.DataFrame:
    return Running(operator, rows.schema).feed(rows)


ROWS = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.sampled_from("ab"),
        st.one_of(st.none(), st.integers(-3, 3).map(float), st.just(-0.0)),
        st.integers(0, 3),
    ),
    max_size=20,
)


@settings(deadline=None, max_examples=25)
@given(ROWS, st.randoms(use_true_random=False), st.integers(1, 5))
def test_every_aggregate_follows_what_is_taken_back(
    rows: list[tuple[Any, ...]], dice: random.Random, size: int
) -> None:
    gone = [row for row in rows if dice.random() < 0.4]
    changes = [(*row, 1) for row in rows]
    for row in gone:
        changes.insert(dice.randrange(changes.index((*row, 1)) + 1, len(changes) + 1), (*row, -1))
    left = list(rows)
    for row in gone:
        left.remove(row)

    operator = KeyedAggregate("a", EVERY, ["g"])
    run = Running(operator, CHANGES)
    found = []
    for at in range(0, len(changes), size):
        found.append(run.feed(pl.DataFrame(changes[at : at + size], schema=CHANGES, orient="row")))
        held(found)

    appended = pl.Schema({name: dtype for name, dtype in CHANGES.items() if name != columns.WEIGHT})
    wanted = once(operator, pl.DataFrame(left, schema=appended, orient="row"))
    assert held([wanted.clear(), *found]) == held([wanted])


@settings(deadline=None, max_examples=15)
@given(ROWS, st.integers(1, 4))
def test_aggregates_of_aggregates_of_aggregates(rows: list[tuple[Any, ...]], size: int) -> None:
    schema = pl.Schema({name: dtype for name, dtype in CHANGES.items() if name != columns.WEIGHT})
    inner = KeyedAggregate("inner", {"most": "max(v)", "n": "count(*)"}, ["g", "k"])
    middle = KeyedAggregate("middle", {"least": "min(most)", "spread": "count(distinct n)", "n": "sum(n)"}, ["g"])
    outer = KeyedAggregate("outer", {"top": "max(least)", "n": "max(n)", "all": "sum(spread)"})

    first = Running(inner, schema)
    second = Running(middle, first.output)
    third = Running(outer, second.output)
    found = [pl.DataFrame(schema=third.output)]
    for at in range(0, len(rows), size):
        batch = pl.DataFrame(rows[at : at + size], schema=schema, orient="row")
        found.append(third.feed(second.feed(first.feed(batch))))
        held(found)

    whole = pl.DataFrame(rows, schema=schema, orient="row")
    table = once(inner, whole).drop(columns.WEIGHT)
    table = once(middle, table).drop(columns.WEIGHT)
    assert held(found) == held([once(outer, table)])
