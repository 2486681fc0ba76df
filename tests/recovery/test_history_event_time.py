"""Event time in histories as they are: files in no order, without statistics, with nulls and times out of all range."""

from __future__ import annotations

from datetime import UTC, datetime

import polars as pl
import pytest

from tests.jobs import PLACES, READINGS, Site, assert_same, readings, source, window_batch, windows_job

HISTORY, TAIL, FILES = 200, 100, 4
ODD = [
    (900, "a", None, 1),
    (901, "b", datetime(1, 1, 1, tzinfo=UTC), 2),
    (902, "c", datetime(2100, 1, 1, tzinfo=UTC), 3),
    (903, "c", datetime(9999, 12, 31, tzinfo=UTC), 4),
]

pytestmark = pytest.mark.services


@pytest.mark.parametrize("follow", [False, True], ids=["then-kafka", "alone"])
def test_windows_over_an_untidy_history_equal_the_batch(site: Site, *, follow: bool) -> None:
    rows, odd = readings(HISTORY + TAIL), pl.DataFrame(ODD, schema=READINGS, orient="row")
    past = pl.concat([rows[:HISTORY], odd]).sample(fraction=1, shuffle=True, seed=3)
    for number in range(FILES):
        history = site.table("history", past[number::FILES])  # each file spans the whole time
        table = site.catalogs.load(history)
        with table.transaction() as transaction:  # every second file has no statistics
            transaction.set_properties({"write.metadata.metrics.default": "none" if number % 2 == 0 else "full"})
    topic, target = site.kafka.topic(2), site.kafka.topic()
    site.produce(topic, rows, 2)
    read = source(topic, history, boundary={"offsets": dict.fromkeys(range(2), HISTORY // 2)})
    if follow:
        read = {"history": read["history"], "event_time": read["event_time"]}
    read["history"]["split_rows"] = 60
    spec = windows_job("untidy", read, site.table("places", PLACES), table=site.name("minutes"), topic=target)
    site.finish(site.job({**spec, "checkpoint": {"rows": 50}}))
    expected = window_batch(pl.concat([past if follow else pl.concat([rows, odd])]).filter(pl.col("at").is_not_null()))
    assert_same(site.read("minutes"), expected, "windows")
