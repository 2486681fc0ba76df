"""How long topics will still hold what a job needs of them."""

from __future__ import annotations

import json
import time

import pytest

from headrace.kernel.boundary import TopicPartition
from tests.jobs import Site, encoded, readings, source
from tests.kafka import KafkaHelper
from tests.tail import at, tail_of, values

pytestmark = pytest.mark.services

HOUR_S = 3600
HOUR = {"retention.ms": str(HOUR_S * 1000)}
SLACK_S = 60.0


def ago(seconds: float) -> int:
    """Milliseconds since the epoch, so many seconds ago."""
    return int((time.time() - seconds) * 1000)


def seconds_left(kafka: KafkaHelper, topic: str, **nexts: int) -> list[float | None]:
    return [found.seconds for found in tail_of(kafka, topic).expiries(at(topic, **nexts))]


def test_the_age_of_the_next_record_says_how_long_it_is_kept(kafka: KafkaHelper) -> None:
    topic = kafka.topic(3, config=HOUR)
    kafka.produce(topic, values(1), timestamp_ms=ago(1800))
    kafka.produce(topic, values(2, 3), timestamp_ms=ago(600))
    kafka.produce(topic, values(4), partition=2, timestamp_ms=ago(600))
    assert seconds_left(kafka, topic, p0=0, p1=0, p2=1) == [pytest.approx(1800, abs=SLACK_S), None, None]
    assert seconds_left(kafka, topic, p0=1, p2=0) == [pytest.approx(3000, abs=SLACK_S)] * 2


@pytest.mark.parametrize("config", [{"retention.ms": "-1"}, {"cleanup.policy": "compact"}])
def test_what_is_kept_for_ever(kafka: KafkaHelper, config: dict[str, str]) -> None:
    topic = kafka.topic(config=config)
    kafka.produce(topic, values(1), key=b"k", timestamp_ms=ago(10**6))
    assert seconds_left(kafka, topic, p0=0) == [None]


def test_a_limit_on_size_is_reached_at_the_rate_of_writing(kafka: KafkaHelper) -> None:
    topic = kafka.topic(config={"retention.ms": "-1", "retention.bytes": "1000000"})
    kafka.produce(topic, values(*range(10)), timestamp_ms=ago(600))
    assert seconds_left(kafka, topic, p0=6) == [pytest.approx(900, abs=SLACK_S)]
    assert seconds_left(kafka, topic, p0=0) == [0.0]


def test_an_open_transaction_hides_the_age_of_its_records(kafka: KafkaHelper) -> None:
    topic = kafka.topic(config=HOUR)
    with kafka.transaction() as hanging:
        hanging.produce(topic, values(1))
        assert seconds_left(kafka, topic, p0=0) == [None]


def test_what_has_been_deleted_has_passed(kafka: KafkaHelper) -> None:
    topic = kafka.topic(config=HOUR)
    kafka.produce(topic, values(1, 2, 3), timestamp_ms=ago(60))
    kafka.delete_records(topic, {0: 2})
    (found,) = tail_of(kafka, topic).expiries(at(topic, p0=1))
    assert (found.at, found.next, found.log_start, found.seconds) == (TopicPartition(topic, 0), 1, 2, 0.0)
    assert found.passed


def test_the_plan_says_how_long_the_start_of_the_tail_is_kept(site: Site) -> None:
    topic = site.kafka.topic(config=HOUR)
    rows = readings(20)
    site.kafka.produce(topic, encoded(rows), timestamp_ms=ago(600))
    read = source(topic, site.table("history", rows[:10]), boundary={"offsets": {0: 10}})
    sink = {"iceberg": {"table": site.name("out"), "create": True}}
    job = site.job({"name": "kept", "sources": {"readings": read}, "sinks": [sink]})
    plan = json.loads(site.cli("plan", job, "--json"))
    (partition,) = plan["sources"][0]["tail"]["partitions"]
    assert partition["kept_s"] == pytest.approx(3000, abs=SLACK_S)
    assert "kept for" in site.cli("plan", job)
