"""Top-N without windows: a changelog that comes to the first rows of each key, over rows and over changelogs."""

from __future__ import annotations

import random
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.kernel import columns
from headrace.kernel.errors import GraphChangedError, SpecError
from headrace.kernel.protocols import Determinism
from headrace.testing import operator_context
from operators.running_top import RunningTop
from tests.changelogs import Running

ROWS = pl.Schema({"k": pl.String(), "v": pl.Float64(), "at": pl.Datetime("us", "UTC"), "tags": pl.List(pl.Int64)})
CHANGES = pl.Schema({**ROWS, columns.WEIGHT: pl.Int64()})
BEST = RunningTop("best", 2, [("v", True)], ["k"], "place", "at")


def rows(*given: tuple[Any, ...]) -> pl.DataFrame:
    return pl.DataFrame(given, schema=ROWS, orient="row")


def row(key: str | None, value: float | None, second: int = 0) -> tuple[Any, ...]:
    return (key, value, second * 1_000_000, [second])


def table(changes: list[pl.DataFrame]) -> list[str]:
    """What a changelog comes to, as text (NaN is not equal to itself); no row may be taken back that was not there."""
    whole = pl.concat(changes)
    names = [name for name in whole.columns if name != columns.WEIGHT]
    summed = whole.group_by(names).agg(pl.col(columns.WEIGHT).sum()).filter(pl.col(columns.WEIGHT) != 0)
    assert (summed[columns.WEIGHT] > 0).all()
    copies = summed.select(pl.int_range(pl.len()).repeat_by(columns.WEIGHT).explode(empty_as_null=False)).to_series()
    return sorted(map(repr, summed[copies].select(names).rows()))


def test_a_better_row_pushes_the_others_down() -> None:
    run = Running(BEST, ROWS)
    first = run.feed(rows(row("a", 1.0), row("a", 2.0), row("a", 0.0), row(None, 5.0)))
    assert first.select("k", "v", "place", columns.WEIGHT).rows() == [
        (None, 5.0, 1, 1),
        ("a", 2.0, 1, 1),
        ("a", 1.0, 2, 1),
    ]
    then = run.feed(rows(row("a", 3.0), row("a", 0.5)))
    assert then.select("v", "place", columns.WEIGHT).rows() == [(2.0, 1, -1), (1.0, 2, -1), (3.0, 1, 1), (2.0, 2, 1)]
    assert run.feed(rows(row("a", 1.0))).height == 0
    assert run.instance.rows_held() == 3


def test_of_a_changelog_the_next_row_moves_up() -> None:
    run = Running(RunningTop("last", 1, [("at", True)], ["k"], event_time="at"), CHANGES)
    given = pl.DataFrame([(*row("a", 1.0, 1), 1), (*row("a", 2.0, 2), 1)], schema=CHANGES, orient="row")
    assert run.feed(given).select("v", columns.WEIGHT).rows() == [(2.0, 1)]
    taken = pl.DataFrame([(*row("a", 2.0, 2), -1)], schema=CHANGES, orient="row")
    assert run.feed(taken).select("v", columns.WEIGHT).rows() == [(2.0, -1), (1.0, 1)]
    taken = pl.DataFrame([(*row("a", 1.0, 1), -1)], schema=CHANGES, orient="row")
    assert run.feed(taken).select("v", columns.WEIGHT).rows() == [(1.0, -1)]
    assert run.instance.rows_held() == 0


VALUES = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", None]),
        st.one_of(st.none(), st.sampled_from([0.0, 1.0, 2.0, float("nan")])),
        st.integers(-3, 3),
    ),
    max_size=25,
)


@settings(deadline=None, max_examples=25)
@given(VALUES, st.randoms(use_true_random=False), st.integers(2, 9), st.integers(1, 3), st.booleans())
def test_whatever_the_order_and_the_batches_the_first_rows_are_kept(
    values: list[Any], dice: random.Random, size: int, n: int, alone: bool
) -> None:
    operator = RunningTop("top", n, [("v", True), ("at", False)], [] if alone else ["k"], "place", "at")
    given = [row(*value) for value in values]
    once = Running(operator, ROWS).feed(rows(*given))
    dice.shuffle(given)
    run = Running(operator, ROWS)
    found = [run.feed(rows(*given[at : at + size])) for at in range(0, len(given), size)]
    assert table([once.clear(), *found]) == table([once])
    wanted = [
        entry
        for key in ({None} if alone else {value[0] for value in values})
        for entry in enumerate(sorted(_place(one) for one in given if alone or one[0] == key)[:n], 1)
    ]
    assert sorted(map(repr, once.select("place", "v", "at").rows())) == sorted(
        repr((place, value, at)) for place, (_, _, at, value) in _named(wanted)
    )


def _place(one: tuple[Any, ...]) -> tuple[Any, ...]:
    """Largest value first (NaN is the largest number, null comes last), then the earliest."""
    value = one[1]
    rank = 2 if value is None else 0 if value != value else 1  # noqa: PLR0124 - NaN
    return (rank, -(value if rank == 1 else 0.0), one[2], repr(value))


def _named(wanted: list[Any]) -> list[Any]:
    """Places with values as frames give them."""
    frame = pl.DataFrame({"at": [entry[1][2] for entry in wanted]}, schema={"at": pl.Int64})
    at = frame["at"].cast(pl.Datetime("us", "UTC")).to_list()
    words = {"None": None, "nan": float("nan")}
    return [
        (place, (rank, key, moment, words[text] if text in words else float(text)))
        for (place, (rank, key, _, text)), moment in zip(wanted, at, strict=True)
    ]


@settings(deadline=None, max_examples=25)
@given(VALUES, st.randoms(use_true_random=False), st.integers(2, 9))
def test_what_is_taken_back_was_never_there(values: list[Any], dice: random.Random, size: int) -> None:
    gone = [value for value in values if dice.random() < 0.4]
    log = [(*row(*value), 1) for value in values]
    for value in gone:
        taken = (*row(*value), -1)
        log.insert(dice.randrange(_index(log, (*row(*value), 1)) + 1, len(log) + 1), taken)
    run = Running(BEST, CHANGES)
    found = [
        run.feed(pl.DataFrame(log[at : at + size], schema=CHANGES, orient="row")) for at in range(0, len(log), size)
    ]
    left = list(map(repr, (row(*value) for value in values)))
    for value in gone:
        left.remove(repr(row(*value)))
    kept = [one for one in (row(*value) for value in values) if repr(one) in left and not left.remove(repr(one))]  # type: ignore[func-returns-value] # each once
    wanted = Running(BEST, ROWS).feed(rows(*kept))
    assert table([wanted.clear(), *found]) == table([wanted])


def _index(log: list[Any], wanted: tuple[Any, ...]) -> int:
    return [repr(entry) for entry in log].index(repr(wanted))


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(SpecError, match="keeps 0 rows"):
        RunningTop("t", 0, [("v", True)])
    with pytest.raises(SpecError, match="no order"):
        RunningTop("t", 1, [])
    with pytest.raises(SpecError, match="'nope'"):
        RunningTop("t", 1, [("v", True)], ["nope"]).partial(pl.LazyFrame(schema=ROWS))
    with pytest.raises(SpecError, match="'tags' has type"):
        RunningTop("t", 1, [("tags", True)]).partial(pl.LazyFrame(schema=ROWS))
    with pytest.raises(SpecError, match="would add 'k'"):
        RunningTop("t", 1, [("v", True)], rank="k").partial(pl.LazyFrame(schema=ROWS))
    assert BEST.determinism is Determinism.EXACT_TABLE


HELD = pl.Schema({"k": pl.String(), "v": pl.Int64(), "w": pl.Float64(), "tags": pl.List(pl.Float64)})
ALIKE = [
    ("a", 1, 2.0, [1.0]),
    ("a", 1, -0.0, [0.0]),
    ("a", 1, 0.0, [-0.0]),
    ("a", 1, None, [1.0]),
    ("a", 1, float("nan"), None),
    ("a", 1, 2.0, None),
    ("b", 1, 0.0, []),
]


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("turned", [False, True])
def test_what_rows_hold_decides_where_their_places_are_equal(size: int, turned: bool) -> None:
    given = pl.DataFrame(ALIKE[::-1] if turned else ALIKE, schema=HELD, orient="row")
    run = Running(RunningTop("top", 4, [("v", True)], ["k"], "place"), HELD)
    found = pl.concat([run.feed(given.slice(at, size)) for at in range(0, given.height, size)])
    # The two zeros are one row that is there twice.
    zero = pl.when(pl.col("w") == 0).then(0.0).otherwise("w").alias("w")
    tags = pl.col("tags").list.eval(pl.when(pl.element() == 0).then(0.0).otherwise(pl.element()))
    first = [(0.0, [0.0], 1), (0.0, [0.0], 2), (2.0, [1.0], 3), (2.0, None, 4)]
    wanted = [*(("a", 1, *row) for row in first), ("b", 1, 0.0, [], 1)]
    assert table([found.with_columns(zero, tags)]) == sorted(map(repr, wanted))


@pytest.mark.parametrize("size", [1, 2, 5])
def test_equal_rows_are_given_out_as_often_as_they_are_there(size: int) -> None:
    log = [("a", 1, 1.0, None, 1)] * 5 + [("a", 2, 1.0, None, 1)] * 2 + [("a", 2, 1.0, None, -1)]
    given = pl.DataFrame(log, schema={**HELD, columns.WEIGHT: pl.Int64()}, orient="row")
    run = Running(RunningTop("top", 3, [("v", True)], ["k"]), given.schema)
    found = pl.concat([run.feed(given.slice(at, size)) for at in range(0, given.height, size)])
    assert table([found]) == [repr(("a", 1, 1.0, None))] * 2 + [repr(("a", 2, 1.0, None))]


def test_state_of_other_columns_is_refused() -> None:
    state = Running(BEST, ROWS).instance.snapshot()
    other = pl.Schema({**ROWS, "v": pl.Int64()})
    partials = BEST.partial(pl.LazyFrame(schema=other)).collect_schema()
    with pytest.raises(GraphChangedError):
        BEST.open(partials, operator_context(state))
