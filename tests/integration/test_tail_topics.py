"""Several topics as one source: lists, patterns, topics that come and go."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace

import polars as pl
import pytest

from headrace.kernel import columns as system
from headrace.kernel.boundary import TopicPartition
from headrace.kernel.errors import IdentityError, NotFoundError
from headrace.kernel.protocols import ReadRequest
from headrace.testing import ManualClock
from hybrid_source.source_values import EventTime
from hybrid_source.tail import AtOffsets
from hybrid_source.tail_topics import TopicList, TopicPattern
from tests.jobs import Site, assert_same, encoded, readings, source
from tests.kafka import KafkaHelper
from tests.tail import CAUGHT_UP, MINUTE, events, read_bounded, read_until, tail_of, values

pytestmark = pytest.mark.services

PLACES = ["v", system.TOPIC, system.PARTITION, system.OFFSET]
INTERVAL_US = 31_000_000


def test_two_topics_are_read_as_one(kafka: KafkaHelper) -> None:
    first, second = sorted(kafka.topic(partitions) for partitions in (2, 2))
    kafka.produce(first, values(1, 2), partition=1)
    kafka.produce(second, [*values(3), b"{bad", *values(5)], partition=1)
    kafka.produce(second, values(6))
    tail = tail_of(kafka, TopicList((second, first)))
    read = read_bounded(tail, request=replace(CAUGHT_UP, columns=PLACES))
    expected = [(1, first, 1, 0), (2, first, 1, 1), (3, second, 1, 0), (5, second, 1, 2), (6, second, 0, 0)]
    assert sorted(read.rows.rows()) == expected
    assert read.errors.select("topic", "partition", "offset").rows() == [(second, 1, 1)]
    nexts = {topic: {p: state["next"] for p, state in found.items()} for topic, found in read.position.items()}
    assert nexts == {first: {"0": 0, "1": 2}, second: {"0": 1, "1": 3}}
    begun = tail_of(kafka, TopicList((first, second)), start_at=AtOffsets({TopicPartition(second, 1): 2}))
    assert sorted(read_bounded(begun).column()) == [1, 2, 5, 6]


def test_the_watermark_is_the_lowest_of_all_topics(kafka: KafkaHelper) -> None:
    first, second = kafka.topic(), kafka.topic()
    kafka.produce(first, events(30, 31))
    kafka.produce(second, events(10, 5))
    tail = tail_of(kafka, TopicList((first, second)), event_time=EventTime("t", MINUTE))
    request = replace(CAUGHT_UP, columns=[system.TOPIC, system.ROW_WATERMARK])
    read = read_bounded(tail, request=request)
    assert read.batches[-1].watermark == 9 * MINUTE
    slow = read.rows.filter(pl.col(system.TOPIC) == second)[system.ROW_WATERMARK]
    assert slow.to_list() == [None, 9 * MINUTE]
    places = [TopicPartition(first, 0), TopicPartition(second, 0)]
    position = {"version": 1, "topics": {topic: {"0": {"next": 0}} for topic in (first, second)}}
    assert tail.first_event_times(position, places) == {places[0]: 30 * MINUTE, places[1]: 10 * MINUTE}


def test_a_topic_that_matches_later_is_read_from_its_beginning(kafka: KafkaHelper) -> None:
    prefix, clock = f"match-{uuid.uuid4().hex[:8]}", ManualClock()
    kafka.topic_named(f"{prefix}-a")
    kafka.topic_named(f"other-{prefix}-a")
    kafka.produce(f"other-{prefix}-a", values(99))
    kafka.produce(f"{prefix}-a", values(1, 2))
    tail = tail_of(kafka, TopicPattern(f"{prefix}-[a-z]"), clock=clock)
    reader = tail.open(ReadRequest(columns=PLACES), tail.start(None), None)
    assert read_until(reader, lambda read: sum(batch.records for batch in read.batches) == 2).column() == [1, 2]
    kafka.topic_named(f"{prefix}-b", 2)
    kafka.produce(f"{prefix}-b", values(3, 4), partition=1)
    clock.advance(INTERVAL_US)
    read = read_until(reader, lambda read: sum(batch.records for batch in read.batches) == 2)
    assert read.rows.rows() == [(3, f"{prefix}-b", 1, 0), (4, f"{prefix}-b", 1, 1)]
    assert list(reader.identities) == [f"{prefix}-a", f"{prefix}-b"]
    kafka.produce(f"{prefix}-a", values(5))
    assert read_until(reader, lambda read: bool(read.batches)).column() == [5]
    position = reader.position
    kafka.produce(f"{prefix}-b", values(6))
    reader.close()
    assert read_bounded(tail, position).column() == [6]


def test_a_topic_that_is_deleted_ends_the_read(kafka: KafkaHelper) -> None:
    prefix, clock = f"gone-{uuid.uuid4().hex[:8]}", ManualClock()
    names = [kafka.topic_named(f"{prefix}-{name}") for name in "ab"]
    tail = tail_of(kafka, TopicPattern(f"{prefix}-.*"), clock=clock)
    position = tail.start(None)
    reader = tail.open(ReadRequest(), position, None)
    kafka.delete_topic(names[1])
    clock.advance(INTERVAL_US)
    with pytest.raises(IdentityError, match=f"{names[1]}.*no longer there") as raised:
        read_until(reader, lambda _: False)
    assert raised.value.code == "TOPIC_DELETED"
    reader.close()
    with pytest.raises(IdentityError, match="no longer there"):
        tail.open(ReadRequest(), position, None)
    with pytest.raises(NotFoundError, match=names[1]) as missing:
        tail_of(kafka, TopicList(tuple(names))).start(None)
    assert missing.value.code == "TOPIC_NOT_FOUND"


def test_a_pattern_without_a_match_names_what_there_is(kafka: KafkaHelper) -> None:
    with pytest.raises(NotFoundError, match="no topic matches 'nothing-") as raised:
        tail_of(kafka, TopicPattern("nothing-.*")).identities()
    assert raised.value.code == "TOPIC_NOT_FOUND"
    internal = tail_of(kafka, TopicPattern("__.*"))
    with pytest.raises(NotFoundError):
        internal.identities()


def test_a_job_over_two_topics_hands_over_and_can_be_handed_over_from(site: Site) -> None:
    """Rows of two topics in one table; the table that the job writes is the history of the next job."""
    topics = [site.kafka.topic(2) for _ in range(2)]
    rows = {topic: readings(40, first_id=100 * number) for number, topic in enumerate(topics)}
    held = []
    for number, topic in enumerate(topics):
        site.produce(topic, rows[topic], 2)
        part = (
            rows[topic]
            .with_row_index("n")
            .with_columns(
                pl.lit(topic).alias(system.TOPIC),
                (pl.col("n") % 2).cast(pl.Int32).alias(system.PARTITION),
                (pl.col("n") // 2).cast(pl.Int64).alias(system.OFFSET),
            )
        )
        held.append(part[: 10 + 10 * number].drop("n"))
    history = site.table("history", pl.concat(held))
    both = pl.concat(rows.values())

    def run(name: str, lake: str) -> None:
        read = source(topics[0], lake, tail={"topic": topics}) | {"metadata": True}
        sink = {"iceberg": {"table": site.name(name), "create": True}}
        site.finish(site.job({"name": name, "sources": {"readings": read}, "sinks": [sink]}))

    run("first", history)
    assert_same(site.read("first").select(both.columns), both, "rows of both topics")
    counts = dict(site.read("first").group_by(system.TOPIC).len().iter_rows())
    assert counts == dict.fromkeys(topics, 40)
    shown = json.loads(site.cli("boundary", "show", site.name("first"), "--json"))
    found = shown["boundary"]["topics"]
    nexts = {topic: {key: at["next"] for key, at in found[topic]["partitions"].items()} for topic in topics}
    assert nexts == {topic: {"0": 20, "1": 20} for topic in topics}
    more = readings(3, first_id=900)
    site.kafka.produce(topics[1], encoded(more))
    run("second", site.name("first"))
    assert_same(site.read("second").select(both.columns), pl.concat([both, more]), "rows of both topics")
    seam = json.loads(site.cli("seam", site.folder / "second.yaml", "--json"))
    assert seam["exact"] is True
    assert {(part["topic"], part["partition"]): part["tail_start"] for part in seam["sources"][0]["partitions"]} == {
        (topic, partition): 20 for topic in topics for partition in range(2)
    }
