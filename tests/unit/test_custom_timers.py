"""Timers that are kept: a model of set, moved, removed and fired ones, over restarts; what is kept beside them."""

from __future__ import annotations

from typing import Any

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.kernel.protocols import OperatorState
from headrace.testing import operator_context
from operators.custom_alarms import KeptTimers

KEY = pl.Schema({"k": pl.String()})
SCHEMA = pl.Schema({**KEY, "timer": pl.String(), "time": pl.Int64()})
TIMERS = st.tuples(
    st.sampled_from(["a", "b", "c", None]), st.sampled_from(["x", "y"]), st.none() | st.integers(-20, 20)
)


def opened(state: OperatorState | None = None, spare: int = 0) -> KeptTimers:
    return KeptTimers("timers", KEY, 1, operator_context(state), spare=spare)


def rows(*timers: tuple[Any, ...]) -> pl.DataFrame:
    return pl.DataFrame(timers, schema=SCHEMA, orient="row")


def listed(frames: list[pl.DataFrame]) -> list[tuple[Any, ...]]:
    return sorted((row for frame in frames for row in frame.rows()), key=repr)


class Pair:
    """Timers, and what should be set."""

    def __init__(self) -> None:
        self.timers = opened()
        self.model: dict[tuple[Any, ...], int] = {}

    def note(self, timers: list[tuple[Any, ...]]) -> None:
        for key, name, time in timers:
            self.model.pop((key, name), None)
            if time is not None:
                self.model[key, name] = time

    def add(self, timers: list[tuple[Any, ...]]) -> None:
        self.timers.add(rows(*timers))
        self.note(timers)

    def change(self, timers: list[tuple[Any, ...]]) -> None:
        near = self.timers.near([rows(*timers)])
        near.add(rows(*timers))
        self.timers.absorb(near)
        self.note(timers)

    def fire(self, limit: int) -> None:
        due = self.timers.due(limit)
        wanted: dict[Any, tuple[int, str]] = {}
        for (key, name), time in self.model.items():
            if time <= limit:
                wanted[key] = min((time, name), wanted.get(key, (time, name)))
        found = due.rows()
        assert sorted(found, key=repr) == sorted(((key, name, time) for key, (time, name) in wanted.items()), key=repr)
        assert [(time, name) for _, name, time in found] == sorted((time, name) for _, name, time in found)
        if limit % 2:  # or it turns out that nothing is fired
            self.timers.remove(due)
            self.note([(key, name, None) for key, name, _ in found])

    def restore(self, _: int) -> None:
        self.timers = opened(OperatorState(1, keyed={"timers": self.timers.snapshot()}))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(TIMERS, max_size=4)),
        st.tuples(st.just("change"), st.lists(TIMERS, min_size=1, max_size=4)),
        st.tuples(st.just("fire"), st.integers(-25, 25)),
        st.tuples(st.just("restore"), st.just(0)),
    ),
    max_size=15,
)


@settings(deadline=None, max_examples=60)
@given(STEPS)
def test_the_earliest_timer_of_each_key_is_due_whatever_was_set_before(steps: list[Any]) -> None:
    pair = Pair()
    for step, value in steps:
        getattr(pair, step)(value)
        assert listed(list(pair.timers.rows())) == sorted(((*who, at) for who, at in pair.model.items()), key=repr)
        assert pair.timers.alarms >= len(pair.model)


def test_a_timer_that_is_moved_again_and_again_leaves_few_alarms() -> None:
    timers = opened(spare=10)
    for time in range(200):
        timers.add(rows(("a", "x", time), ("b", "x", time)))
        assert timers.alarms <= 2 * timers.height + 10
    assert timers.due(198).rows() == []
    assert sorted(timers.due(199).rows()) == [("a", "x", 199), ("b", "x", 199)]
