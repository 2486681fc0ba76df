"""Changelogs: versions by key into insertions and retractions, and running aggregates over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.kernel import columns
from headrace.kernel.errors import DataError, GraphChangedError, SpecError
from headrace.kernel.protocols import Determinism, OperatorState
from operators.changelog import ChangelogNormalize
from operators.keyed_aggregate import KeyedAggregate
from tests.changelogs import Running

VERSIONS = pl.Schema({"k": pl.String, "v": pl.Float64, columns.OFFSET: pl.Int64, columns.DELETED: pl.Boolean})
NORMALIZE = ChangelogNormalize("log", ["k"], ["k", "v"])


def versions(*rows: tuple[str, float | None, int | None, bool | None]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=VERSIONS, orient="row")


def table(changes: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """What a changelog comes to; every row must come to zero or one."""
    whole = pl.concat(changes)
    names = [name for name in whole.columns if name != columns.WEIGHT]
    summed = whole.group_by(names).agg(pl.col(columns.WEIGHT).sum()).filter(pl.col(columns.WEIGHT) != 0)
    assert summed[columns.WEIGHT].to_list() == [1] * summed.height
    return summed.drop(columns.WEIGHT).sort(names)


def test_an_update_takes_the_old_row_back() -> None:
    run = Running(NORMALIZE, VERSIONS)
    assert run.feed(versions(("a", 1.0, 0, None), ("b", 2.0, 1, False))).rows() == [("a", 1.0, 1), ("b", 2.0, 1)]
    assert run.feed(versions(("a", 3.0, 2, None))).rows() == [("a", 1.0, -1), ("a", 3.0, 1)]
    assert run.feed(versions(("a", 3.0, 3, None))).rows() == []
    assert run.feed(versions(("b", None, 4, True))).rows() == [("b", 2.0, -1)]
    assert run.feed(versions(("b", None, 5, None))).rows() == [("b", None, 1)]


def test_only_the_newest_version_of_a_batch_shows() -> None:
    run = Running(NORMALIZE, VERSIONS)
    out = run.feed(versions(("a", 9.0, 7, None), ("a", 1.0, 3, None), ("a", None, 5, True)))
    assert out.rows() == [("a", 9.0, 1)]


def test_an_older_version_that_comes_later_changes_nothing_and_does_not_bring_a_key_back() -> None:
    run = Running(NORMALIZE, VERSIONS)
    run.feed(versions(("a", 1.0, 10, None), ("b", None, 11, True)))
    assert run.feed(versions(("a", 5.0, 4, None), ("b", 5.0, 5, None))).height == 0
    assert run.feed(versions(("b", 5.0, 6, None))).height == 0


def test_a_state_without_offsets_is_older_than_every_version() -> None:
    run = Running(NORMALIZE, VERSIONS)
    run.feed(versions(("a", 5.0, 0, None)))
    assert run.feed(versions(("a", 1.0, None, None))).height == 0
    assert run.feed(versions(("b", 1.0, None, None))).rows() == [("b", 1.0, 1)]


@pytest.mark.parametrize("split", [False, True])
def test_a_state_that_holds_a_key_twice_is_refused(split: bool) -> None:
    run = Running(NORMALIZE, VERSIONS)
    first, second = versions(("a", 1.0, None, None)), versions(("a", 2.0, None, None))
    if split:
        run.feed(first)
    else:
        second = pl.concat([first, second])
    with pytest.raises(DataError, match="more than once") as caught:
        run.feed(second)
    assert caught.value.code == "CHANGELOG_KEY_TWICE"
    assert "k = 'a'" in caught.value.detail


def test_state_of_other_columns_is_refused() -> None:
    state = Running(NORMALIZE, VERSIONS).instance.snapshot()
    with pytest.raises(GraphChangedError):
        Running(ChangelogNormalize("log", ["k"], ["k"]), VERSIONS, state)
    with pytest.raises(GraphChangedError):
        Running(NORMALIZE, VERSIONS, OperatorState(99, keyed={"rows": replace(state.keyed["rows"], version=99)}))
    assert NORMALIZE.determinism is Determinism.EXACT_TABLE


HISTORY = st.lists(
    st.tuples(st.sampled_from("abc"), st.one_of(st.none(), st.floats(-1e6, 1e6)), st.booleans()), max_size=30
)


@settings(deadline=None, max_examples=40)
@given(log=HISTORY, order=st.randoms(use_true_random=False), cuts=st.lists(st.integers(1, 6), min_size=1))
def test_whatever_the_order_and_the_batches_the_table_is_the_same(log, order, cuts) -> None:
    rows = [(key, None if gone else value, offset, gone) for offset, (key, value, gone) in enumerate(log)]
    newest = {key: (value, gone) for key, value, _, gone in rows}
    wanted = sorted((key, value) for key, (value, gone) in newest.items() if not gone)
    order.shuffle(rows)
    run, total = Running(NORMALIZE, VERSIONS), Running(SUMS, CHANGES)
    changes, results, at = [], [], 0
    for cut in [*cuts, len(rows)]:
        changes.append(run.feed(versions(*rows[at : at + cut])))
        results.append(total.feed(changes[-1]))
        at += cut
    found = table(changes)
    assert sorted(found.rows(), key=repr) == sorted(wanted, key=repr)
    once = Running(SUMS, CHANGES).feed(found.with_columns(pl.lit(1, pl.Int64).alias(columns.WEIGHT)))
    assert sorted(table(results).rows(), key=repr) == sorted(table([once]).rows(), key=repr)


CHANGES = pl.Schema({"k": pl.String, "v": pl.Float64, columns.WEIGHT: pl.Int64})
SUMS = KeyedAggregate("sums", {"n": "count(*)", "known": "count(v)", "total": "sum(v)", "mean": "avg(v)"})


def changes(*rows: tuple[str | None, float | None, int]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=CHANGES, orient="row")


def test_a_running_aggregate_follows_its_input_and_forgets_empty_groups() -> None:
    run = Running(KeyedAggregate("a", {"n": "count(*)", "s": "sum(v)"}, ["k"]), CHANGES)
    assert run.feed(changes(("x", 0.1, 1), ("x", 0.2, 1), (None, 1.0, 1))).rows() == [
        (None, 1, 1.0, 1),
        ("x", 2, 0.1 + 0.2, 1),
    ]
    assert run.feed(changes(("x", 0.1, -1))).rows() == [("x", 1, 0.2, 1), ("x", 2, 0.1 + 0.2, -1)][::-1]
    assert run.feed(changes(("x", 0.2, -1))).rows() == [("x", 1, 0.2, -1)]
    assert run.instance.rows_held() == 1
    assert run.feed(changes((None, 1.0, -1), (None, 1.0, 1))).height == 0


def test_over_append_only_rows_extremes_run_too() -> None:
    schema = pl.Schema({"k": pl.String, "v": pl.Float64})
    run = Running(KeyedAggregate("a", {"n": "count(*)", "top": "max(v)"}), schema)
    assert run.feed(pl.DataFrame({"k": ["a", "b"], "v": [1.0, 3.0]})).rows() == [(2, 3.0, 1)]
    assert run.feed(pl.DataFrame({"k": ["c"], "v": [2.0]})).rows() == [(2, 3.0, -1), (3, 3.0, 1)]
    assert run.feed(pl.DataFrame(schema=schema)).height == 0


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(SpecError, match="no aggregate"):
        KeyedAggregate("a", {})
    with pytest.raises(SpecError, match="twice"):
        KeyedAggregate("a", {"k": "count(*)"}, ["k"])
    with pytest.raises(SpecError, match="'nope'"):
        KeyedAggregate("a", {"n": "count(*)"}, ["nope"]).partial(pl.LazyFrame(schema=CHANGES))
