"""The watch on retention: what threatens is said once."""

from collections.abc import Sequence

from headrace.kernel.boundary import TopicPartition
from headrace.kernel.protocols import Json
from headrace.testing import ManualClock
from hybrid_source.retention_watch import EVERY_S, RetentionWatch, warning
from hybrid_source.stages import Expiry

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
PERIOD_US = int(EVERY_S * 1e6)


class Tail:
    """Estimates as a script."""

    def __init__(self) -> None:
        self.found: Sequence[Expiry] = ()
        self.asked = 0

    def expiries(self, position: Json) -> Sequence[Expiry]:
        self.asked += 1
        return self.found


def test_a_partition_is_named_when_the_history_may_outlast_it_and_again_after_it_was_safe() -> None:
    tail, clock = Tail(), ManualClock()
    watch = RetentionWatch(tail, clock)  # type: ignore[arg-type]

    def look(seconds: float | None, history_s: float | None) -> list[TopicPartition]:
        clock.advance(PERIOD_US)
        tail.found = [Expiry(P0, 5, 0, seconds), Expiry(P1, 5, 0, None)]
        return [found.at for found in watch.look({}, history_s)]

    assert look(1000, 100) == []
    assert look(120, 100) == [P0]
    assert look(110, 100) == []
    assert look(1000, 100) == []
    assert look(0, 100) == [P0]
    assert look(1000, None) == []
    assert look(800, None) == [P0]
    assert look(None, 10**9) == []
    assert tail.asked == 8
    assert [found.at for found in watch.expiries] == [P0, P1]


def test_it_looks_once_a_minute() -> None:
    tail, clock = Tail(), ManualClock()
    watch = RetentionWatch(tail, clock)  # type: ignore[arg-type]
    for _ in range(10):
        watch.look({}, None)
        clock.advance(PERIOD_US // 6 + 1)
    assert tail.asked == 2


def test_words() -> None:
    soon = warning(Expiry(P0, 5, 0, 90.4), 3600.0)
    assert soon.startswith("retention may delete t[0] from offset 5 on in 1m30s, and the history takes about 1h")
    assert warning(Expiry(P0, 5, 9, 0.0), None) == "retention has deleted t[0] up to offset 9; wanted is 5"
