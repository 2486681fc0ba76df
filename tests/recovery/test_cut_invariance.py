"""The promise above all: same output wherever the cut falls, however it is split, batched and killed.

Random logs whose disorder stays within the declared bound, random cuts, splits, polls, epochs and crashes, through the
real engine, handover and operators, against one plain group_by over all rows.
"""

import os
from datetime import datetime, timedelta

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.kernel.boundary import TopicPartition
from headrace.runtime.graph import Graph, SinkNode, SourceNode, StatefulNode, Stream, TransformNode
from headrace.runtime.job import CheckpointPolicy, RunOptions
from headrace.runtime.observer import SilentObserver, StopSignal
from headrace.runtime.restarts import run
from headrace.testing import (
    CRASH_POINTS,
    MemorySink,
    MemoryTable,
    SimulatedCrashError,
    StaticProgram,
    crash_at,
    memory_store,
)
from headrace.testing.stages import TOPIC, ScriptedLog
from hybrid_source.hybrid import EventTime
from operators.stateless import Filter
from operators.window import TumblingWindow

EPOCH = datetime(2026, 1, 1)  # noqa: DTZ001 - a naive event time
BOUND_S = 20
PAYLOAD = pl.Schema({"ts": pl.Datetime("us"), "k": pl.String(), "v": pl.Int64()})
POINTS = [point for point in CRASH_POINTS if not point.startswith(("iceberg", "kafka"))]
EXAMPLES = int(os.environ.get("HEADRACE_EXAMPLES", "300"))


@st.composite
def logs(draw):
    """Up to three partitions of one or two topics.

    A row lies at most BOUND_S behind the newest earlier row of its partition. Some rows have no event time: they belong
    to the late port, wherever they are read.
    """
    partitions = {}
    for partition in range(draw(st.integers(1, 3))):
        newest, rows = draw(st.integers(-100, 100)), []
        for _ in range(draw(st.integers(0, 25))):
            at = newest + draw(st.integers(-BOUND_S, 30))
            time = None if draw(st.integers(0, 9)) == 0 else EPOCH + timedelta(seconds=at)
            newest = newest if time is None else max(newest, at)
            rows.append((time, draw(st.sampled_from("abc")), draw(st.integers(-5, 5))))
        topic = draw(st.sampled_from([TOPIC, "another"]))
        partitions[TopicPartition(topic, partition)] = pl.DataFrame(rows, schema=PAYLOAD, orient="row")
    return ScriptedLog(PAYLOAD, partitions, EventTime("ts", BOUND_S * 1_000_000))


@st.composite
def ways(draw, log):
    """A way to run a log: the cut, splits, polls, epochs, and where to die."""
    cut = {p: draw(st.integers(0, frame.height)) for p, frame in log.partitions.items()}
    splits = draw(st.lists(st.lists(st.integers(0, 80), max_size=20), max_size=4))
    numbers = range(len(log.partitions))
    every = st.tuples(st.sampled_from(numbers), st.integers(1, 7))
    # Every partition has its turn, or the pattern would never end.
    polls = draw(st.lists(every, max_size=6)) + [(number, draw(st.integers(1, 7))) for number in numbers]
    rows = draw(st.integers(1, 30))
    crashes = draw(st.lists(st.tuples(st.sampled_from(POINTS), st.integers(1, 4)), max_size=3))
    return cut, splits, polls, rows, crashes


def job(source, windows, plain, late):
    return StaticProgram(
        "job",
        Graph(
            [
                SourceNode(TOPIC, source),
                TransformNode("keep", Stream(TOPIC), Filter("keep", "v <> 0")),
                StatefulNode(
                    "w",
                    Stream("keep"),
                    TumblingWindow(
                        "w",
                        event_time="ts",
                        size_us=30_000_000,
                        by=["k"],
                        aggregates={"n": "count(*)", "s": "sum(v)", "lo": "min(v)", "hi": "max(v)", "mean": "avg(v)"},
                    ),
                ),
                SinkNode("windows", Stream("w"), MemorySink("windows", windows), covers=None),
                SinkNode("late", Stream("w", "late"), MemorySink("late", late), covers=None),
                SinkNode("plain", Stream("keep"), MemorySink("plain", plain, commit_order=0), covers=TOPIC),
            ]
        ),
    )


def outcome(log, way):
    cut, splits, polls, rows, crashes = way
    windows, plain, late, store = MemoryTable(), MemoryTable(), MemoryTable(), memory_store()
    program = job(log.source(cut, splits, polls), windows, plain, late)
    policy = CheckpointPolicy(interval_us=10**12, rows=rows, timeout_s=60)

    def go():
        return run(program, store, policy, RunOptions("caught-up", "drain"), SilentObserver(), StopSignal())

    for point, nth in crashes:
        with crash_at(point, nth):
            try:
                go()
            except SimulatedCrashError:
                continue
    result = go()
    assert result.status == "finished"
    return windows.rows(), plain.rows(), late.rows()


def expected(log):
    rows = log.rows().filter(pl.col("v") != 0)
    windows = (
        rows.drop_nulls("ts")
        .group_by(pl.col("ts").dt.truncate("30s").alias("window_start"), "k")
        .agg(
            n=pl.len().cast(pl.Int64),
            s=pl.col("v").sum(),
            lo=pl.col("v").min(),
            hi=pl.col("v").max(),
            mean=pl.col("v").mean(),
        )
    )
    return windows, rows


def same(left, right, columns):
    left = left.select(columns).sort(columns) if left.width else pl.DataFrame(schema=dict.fromkeys(columns, pl.Int64))
    right = right.select(columns).sort(columns)
    assert left.rows() == right.rows()


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.data())
def test_output_is_the_same_for_every_cut_split_batch_and_crash(data):
    log = data.draw(logs())
    want_windows, want_rows = expected(log)
    windows, plain, late = outcome(log, data.draw(ways(log)))
    same(windows, want_windows, ["window_start", "k", "n", "s", "lo", "hi", "mean"])
    same(plain, want_rows, ["ts", "k", "v"])
    same(late, want_rows.filter(pl.col("ts").is_null()), ["ts", "k", "v"])
