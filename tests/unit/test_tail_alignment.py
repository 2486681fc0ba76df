"""Alignment: who waits for whom, and that somebody always goes on."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.kernel.boundary import TopicPartition
from hybrid_source.tail_alignment import Alignment

A, B, C = (TopicPartition("t", number) for number in range(3))
times = st.dictionaries(st.sampled_from([A, B, C]), st.one_of(st.none(), st.integers(-(2**62), 2**62)))


def test_a_partition_that_is_ahead_waits_until_it_is_ahead_by_half() -> None:
    alignment = Alignment(10)
    assert alignment.measure({A: 110, B: 100}) == frozenset()
    assert alignment.measure({A: 111, B: 100}) == {A}
    assert alignment.measure({A: 111, B: 105}) == {A}
    assert alignment.measure({A: 111, B: 106}) == frozenset()
    assert alignment.measure({A: 116, B: 106}) == frozenset()


def test_one_at_its_end_or_without_a_time_holds_nobody_up() -> None:
    alignment = Alignment(10)
    assert alignment.measure({A: 200, B: 100, C: None}) == {A}
    assert alignment.measure({A: 200, C: None}) == frozenset()
    assert alignment.measure({}) == frozenset()


def test_a_partition_that_has_given_nothing_yet_is_waited_for() -> None:
    alignment = Alignment(10)
    assert alignment.measure({A: 200, B: None}, unheard=True) == {A}
    assert alignment.measure({A: 200, B: 199}) == frozenset()
    assert Alignment(None).measure({A: 200, B: None}, unheard=True) == frozenset()


def test_all_wait_for_what_is_read_elsewhere() -> None:
    alignment = Alignment(10)
    assert alignment.measure({A: 110, B: 112}, beside=100) == {B}
    assert alignment.measure({A: 111, B: 112}, beside=100) == {A, B}
    assert alignment.measure({A: 111, B: 112}, beside=106) == {B}
    assert alignment.measure({A: 111, B: 112}) == frozenset()


def test_without_a_limit_nobody_waits() -> None:
    assert Alignment(None).measure({A: 2**62, B: 0}) == frozenset()


@given(st.lists(times, max_size=8), st.integers(1, 100))
def test_somebody_always_goes_on_and_nobody_is_further_ahead_than_the_limit(
    steps: list[dict[TopicPartition, int | None]], limit: int
) -> None:
    alignment = Alignment(limit)
    for behind in steps:
        waiting = alignment.measure(behind)
        assert waiting <= behind.keys()
        assert not behind or waiting != behind.keys()
        known = [time for time in behind.values() if time is not None]
        going = [time for at, time in behind.items() if time is not None and at not in waiting]
        assert not known or max(going) - min(known) <= limit
