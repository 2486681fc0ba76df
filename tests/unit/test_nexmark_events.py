"""The events of Nexmark: a function of seed and number, in the benchmark's proportions."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from benchmarks.nexmark.events import FIRST_ID, SCHEMAS, Nexmark

EVENTS = Nexmark(seed=7, step_us=1000, disorder_us=50_000)


@given(st.integers(0, 5000), st.integers(0, 300), st.integers(0, 300))
def test_a_range_of_events_is_the_same_made_whole_or_in_parts(first: int, before: int, after: int) -> None:
    middle = first + before
    whole = EVENTS.events(first, middle + after)
    parts = EVENTS.events(first, middle), EVENTS.events(middle, middle + after)
    for kind, rows in whole.items():
        assert rows.schema == SCHEMAS[kind]
        assert_frame_equal(rows, pl.concat([part[kind] for part in parts]))


def test_of_fifty_events_one_is_a_person_and_three_are_auctions() -> None:
    found = EVENTS.events(0, 5000)
    assert {kind: rows.height for kind, rows in found.items()} == {"person": 100, "auction": 300, "bid": 4600}
    assert found["person"]["id"].to_list() == list(range(FIRST_ID, FIRST_ID + 100))
    assert found["auction"]["id"].to_list() == list(range(FIRST_ID, FIRST_ID + 300))


def test_events_lie_at_most_the_disorder_before_their_turn() -> None:
    found = EVENTS.events(0, 50_000)
    persons = found["person"]["dateTime"].to_physical() - EVENTS.base_us
    early = pl.int_range(0, 50_000, 50, eager=True) * EVENTS.step_us - persons
    assert early.min() >= 0  # type: ignore[operator] # an integer
    assert 40_000 < early.max() <= 50_000  # type: ignore[operator] # an integer
    assert (found["auction"]["expires"] > found["auction"]["dateTime"]).all()


def test_half_of_the_bids_are_for_hot_auctions() -> None:
    bids = EVENTS.events(0, 100_000)["bid"]
    hot = (bids["auction"] - FIRST_ID) % 100 == 0
    assert hot.mean() == pytest.approx(0.5, abs=0.02)
    assert bids["price"].is_between(100, 100_000_000).all()
    assert bids["channel"].is_in(["Google", "Facebook", "Baidu", "Apple"]).mean() == pytest.approx(0.5, abs=0.02)


def test_another_seed_gives_other_events() -> None:
    other = Nexmark(seed=8, step_us=1000).events(0, 1000)["bid"]
    assert not other["price"].equals(EVENTS.events(0, 1000)["bid"]["price"])
