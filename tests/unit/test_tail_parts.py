"""Parts of the tail that need no broker: watermarks, positions, bounds, rate, offsets."""

from __future__ import annotations

import json
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.kafka import OffsetRange
from headrace.kernel.boundary import TopicPartition
from headrace.kernel.errors import GapError, IdentityError, InternalError, SchemaError, UnavailableError
from headrace.kernel.protocols import ReadRequest
from headrace.testing import ManualClock
from hybrid_source.decode import JsonDecoder
from hybrid_source.source_values import EventTime
from hybrid_source.tail_bounds import Bounds
from hybrid_source.tail_offsets import AtOffsets, LogOffsets
from hybrid_source.tail_position import LostRange, PartitionState, TailPosition
from hybrid_source.tail_rate import RateLimit
from hybrid_source.tail_rows import RowBuilder
from hybrid_source.tail_watermark import TailWatermark, row_watermarks

rows = st.lists(st.tuples(st.integers(0, 2), st.one_of(st.none(), st.integers(-100, 100))), max_size=30)


P0, P1, P2, P12 = (TopicPartition("t", partition) for partition in (0, 1, 2, 12))
SECOND = 1_000_000
PLACES = {0: P0, 1: P1, 2: P2}


def always(_: TopicPartition) -> bool:
    return True


def never(_: TopicPartition) -> bool:
    return False


def stamps(tracker: TailWatermark, part: list[tuple[int, int | None]]) -> list[int | None]:
    partitions = pl.Series([partition for partition, _ in part], dtype=pl.Int32)
    times = pl.Series([time for _, time in part], dtype=pl.Int64)
    floor, behind = tracker.value, tracker._out_of_orderness_us
    before = {slot: tracker.max_event_times.get(at) for slot, at in PLACES.items()}
    exact = row_watermarks(partitions, times, before=before, floor=floor, out_of_orderness_us=behind)
    stamped = tracker.rows(partitions, times, PLACES)
    if stamped is None:
        assert not (times < exact).any()
    else:
        assert stamped.to_list() == exact.to_list()
    return exact.to_list()


@settings(max_examples=200, deadline=None)
@given(rows, st.integers(0, 30), st.one_of(st.none(), st.integers(-50, 50)), st.integers(0, 20))
def test_row_watermarks_equal_the_slow_rule_however_rows_are_batched(
    data: list[tuple[int, int | None]], cut: int, floor: int | None, out_of_orderness: int
) -> None:
    expected: list[int | None] = []
    largest: dict[int, int] = {}
    for partition, time in data:
        own = largest[partition] - out_of_orderness if partition in largest else None
        known = [value for value in (own, floor) if value is not None]
        expected.append(max(known) if known else None)
        if time is not None:
            largest[partition] = max(time, largest.get(partition, time))
    clock = ManualClock()
    tracker = TailWatermark(clock, dict.fromkeys(PLACES.values()), floor, out_of_orderness_us=out_of_orderness)
    assert stamps(tracker, data[:cut]) + stamps(tracker, data[cut:]) == expected
    known = {at.partition: time for at, time in tracker.max_event_times.items() if time is not None}
    assert known == largest
    watermark = tracker.advance(never)
    full = min(largest.values()) - out_of_orderness if len(largest) == 3 else None
    bounds = [value for value in (full, floor) if value is not None]
    assert watermark == (max(bounds) if bounds else None)


def test_a_batch_within_the_disorder_is_not_stamped() -> None:
    tracker = TailWatermark(ManualClock(), {P0: 100, P1: None}, 85, out_of_orderness_us=10)
    partitions, times = pl.Series([0, 1, 0, 1]), pl.Series([105, 90, 95, None])
    assert tracker.rows(partitions, times, PLACES) is None
    assert tracker.max_event_times == {P0: 105, P1: 90}
    assert tracker.rows(partitions, times.set(times == 95, 94), PLACES) is not None
    assert tracker.rows(pl.Series([1]), pl.Series([84]), PLACES) is not None


@settings(max_examples=100, deadline=None)
@given(st.lists(rows, max_size=5), st.booleans())
def test_the_source_watermark_never_goes_back(parts: list[list[tuple[int, int | None]]], silent: bool) -> None:
    clock = ManualClock()
    tracker = TailWatermark(clock, dict.fromkeys(PLACES.values()), -20, idle_us=10)
    last = -20
    for part in parts:
        stamps(tracker, part)
        clock.advance(20 if silent else 1)
        now = tracker.advance(always)
        assert now is not None
        assert now >= last
        last = now


def test_a_partition_is_idle_only_at_its_end_and_silent() -> None:
    clock = ManualClock()
    tracker = TailWatermark(clock, {P0: 100, P1: 10}, None, idle_us=1000)
    assert tracker.advance(always) == 10
    clock.advance(999)
    tracker.heard(P0)
    assert tracker.advance(always) == 10
    clock.advance(1)
    assert tracker.advance(lambda at: at == P0) == 10
    assert tracker.advance(always) == 100
    tracker.heard(P1)
    assert stamps(tracker, [(1, 50)]) == [100]
    assert tracker.advance(always) == 100


def test_without_idleness_a_silent_partition_holds() -> None:
    clock = ManualClock()
    tracker = TailWatermark(clock, {P0: 100, P1: None}, None)
    clock.advance(10**12)
    assert tracker.advance(always) is None


def test_partitions_that_hold_the_watermark_in_silence_are_named() -> None:
    clock = ManualClock()
    tracker = TailWatermark(clock, {P0: 100, P1: None}, None, idle_us=60 * SECOND)
    assert tracker.silent(always) == []
    clock.advance(10 * SECOND)
    assert tracker.silent(always) == [P1]
    assert tracker.silent(lambda at: at == P0) == []  # it has records to give, or they are hidden
    stamps(tracker, [(1, 50)])
    assert tracker.silent(always) == [P1]  # behind the other one
    tracker.heard(P1)
    assert tracker.silent(always) == []
    stamps(tracker, [(1, 100)])
    clock.advance(10 * SECOND)
    assert tracker.silent(always) == []  # as far as the other one
    stamps(tracker, [(1, 200)])
    clock.advance(50 * SECOND)
    assert tracker.advance(always) == 200
    assert tracker.silent(always) == []  # idle: nobody waits
    alone = TailWatermark(clock, {P0: None}, 100)
    clock.advance(10 * SECOND)
    assert alone.silent(always) == [P0]


def test_a_new_partition_holds_the_watermark() -> None:
    clock = ManualClock()
    tracker = TailWatermark(clock, {P0: 100}, None, idle_us=1000)
    assert tracker.advance(never) == 100
    tracker.add(P1)
    stamps(tracker, [(0, 200)])
    assert tracker.advance(always) == 100
    stamps(tracker, [(1, 150)])
    assert tracker.advance(always) == 150


def test_a_position_survives_json() -> None:
    at = TailPosition({P0: PartitionState(2**53 + 1, -5), P12: PartitionState(0)}, (LostRange(P0, 1, 4),))
    assert TailPosition.from_json(json.loads(json.dumps(at.to_json()))) == at
    with pytest.raises(InternalError, match="version 2"):
        TailPosition.from_json({"version": 2})


class Broker:
    """Metadata as a script."""

    def __init__(self, **held: tuple[int, int]) -> None:
        self.held = {TopicPartition("t", int(key[1:])): OffsetRange(*value) for key, value in held.items()}

    def ranges(self, partitions: Any) -> dict[TopicPartition, OffsetRange]:
        return {at: self.held[at] for at in partitions}

    def earliest(self, partitions: Any) -> dict[TopicPartition, int]:
        return {at: self.held[at].earliest for at in partitions}

    def latest(self, partitions: Any) -> dict[TopicPartition, int]:
        return {at: self.held[at].latest for at in partitions}


def offsets(broker: Broker, on_gap: Any = "fail") -> LogOffsets:
    return LogOffsets(broker, on_gap)  # type: ignore[arg-type]


def test_hyb_04_an_empty_partition_whose_records_are_gone_is_a_gap() -> None:
    with pytest.raises(GapError, match="wanted offset 3 is gone, available are 7 to 7"):
        offsets(Broker(p0=(7, 7))).resume({P0: 3}, (P0,))


def test_hyb_04_the_end_of_the_log_is_no_gap() -> None:
    assert offsets(Broker(p0=(7, 7))).resume({P0: 7}, (P0,)).nexts == {P0: 7}


def test_hyb_04_two_gaps_stand_in_the_ledger() -> None:
    at = TailPosition({P0: PartitionState(3, 99)})
    at = offsets(Broker(p0=(7, 9)), "record").checked(at, (P0,))
    at = offsets(Broker(p0=(8, 9), p1=(2, 2)), "record").checked(at, (P0, P1))
    assert at.partitions == {P0: PartitionState(8, 99), P1: PartitionState(2)}
    assert at.lost == (LostRange(P0, 3, 7), LostRange(P0, 7, 8), LostRange(P1, 0, 2))


def test_hyb_04_a_gap_that_nothing_closes_is_skipped_by_policy() -> None:
    at = TailPosition({P0: PartitionState(3, 99)})
    with pytest.raises(GapError) as raised:
        offsets(Broker(p0=(7, 9))).checked(at, (P0,))
    assert offsets(Broker(), "record").skip(at, raised.value).lost == (LostRange(P0, 3, 7),)
    deletions = GapError("gone", context={"topic": "t", "partition": 0, "wanted": 3, "needed": 7})
    for policy, gap in (("fail", raised.value), ("record", deletions)):
        with pytest.raises(GapError):
            offsets(Broker(), policy).skip(at, gap)


def test_hyb_05_recording_gaps_does_not_excuse_a_recreated_topic() -> None:
    with pytest.raises(IdentityError, match="beyond the end 10") as raised:
        offsets(Broker(p0=(0, 10)), "record").resume({P0: 11}, (P0,))
    assert raised.value.code == "TOPIC_RECREATED"


def test_explicit_offsets_leave_the_others_at_their_earliest() -> None:
    assert offsets(Broker(p0=(5, 9), p1=(2, 9))).resolve(AtOffsets({P0: 6}), (P0, P1)).nexts == {P0: 6, P1: 2}


def test_bounds_forget_a_partition_that_moves() -> None:
    clock = ManualClock()
    bounds = Bounds({P0: 10}, clock, transaction_wait_s=5)
    bounds.wait_for_transactions({P0: 3})
    clock.advance(4_000_000)
    bounds.wait_for_transactions({P0: 4})
    clock.advance(4_000_000)
    bounds.wait_for_transactions({P0: 4})
    bounds.wait_for_transactions({})
    clock.advance(4_000_000)
    bounds.wait_for_transactions({P0: 10})
    bounds.wait_for_transactions({P0: 4})
    clock.advance(5_000_000)
    with pytest.raises(UnavailableError, match="from offset 4 on"):
        bounds.wait_for_transactions({P0: 4})
    assert not bounds.finished({P0: 9})
    assert bounds.finished({P0: 10, P1: 0})


def test_a_rate_limit_holds_one_second_at_most() -> None:
    clock = ManualClock()
    limit = RateLimit(10, clock)
    assert limit.allowed(100) == 10
    limit.take(10)
    assert limit.allowed(100) == 0
    assert limit.wait() == pytest.approx(0.1)
    clock.advance(100_000)
    assert limit.allowed(100) == 1
    clock.advance(10**9)
    assert limit.allowed(100) == 10
    assert limit.allowed(3) == 3


def test_no_rate_limit() -> None:
    limit = RateLimit(None, ManualClock())
    limit.take(10**9)
    assert limit.allowed(7) == 7
    assert limit.wait() == 0


def test_a_slow_rate_still_lets_one_row_pass() -> None:
    clock = ManualClock()
    limit = RateLimit(0.5, clock)
    assert limit.allowed(9) == 0
    clock.advance(int(limit.wait() * 1e6) + 1)
    assert limit.allowed(9) == 1


def test_an_event_time_that_is_no_timestamp_is_refused() -> None:
    with pytest.raises(SchemaError, match="'n'"):
        RowBuilder("t", pl.Schema({"n": pl.Int64()}), ReadRequest(columns=[]), EventTime("n"), JsonDecoder)
