"""The watermark in a boundary record: how far event time has come for all that feeds a table."""

import pytest

from catalog.boundary_record import merged
from headrace.kernel.boundary import Boundary, PartitionRange, TopicBoundary

EARLY, LATE = "2026-01-01T00:00:00Z", "2026-01-01T02:00:00+01:00"


def record(topic: str, watermark: str | None) -> Boundary:
    return Boundary({topic: TopicBoundary({0: PartitionRange(0, 5)})}, "c", watermark)


@pytest.mark.parametrize(
    ("earlier", "ours", "watermark"),
    [
        (record("a", EARLY), record("a", LATE), LATE),
        (record("a", LATE), record("a", EARLY), EARLY),
        (record("a", EARLY), record("a", None), None),
        (record("a", EARLY), record("b", LATE), EARLY),
        (record("a", LATE), record("b", EARLY), EARLY),
        (record("a", None), record("b", LATE), None),
        (None, record("b", LATE), LATE),
    ],
)
def test_the_slowest_topic_decides(earlier: Boundary | None, ours: Boundary, watermark: str | None) -> None:
    assert merged(earlier, ours).watermark == watermark


@pytest.mark.parametrize("watermark", ["soon", 5])
def test_a_watermark_that_is_no_time_is_no_record(watermark: object) -> None:
    with pytest.raises(ValueError, match="does not follow the format"):
        Boundary.from_json({"version": 1, "topics": {}, "watermark": watermark})
