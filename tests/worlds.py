"""Random worlds for the handover: logs with holes, tables that grow, topics that forget."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import polars as pl

from headrace.kernel import columns as system
from headrace.kernel.boundary import TopicPartition
from headrace.testing.script import Cut, Script, ScriptedLog
from hybrid_source.hybrid import EventTime, HandoverPolicy
from hybrid_source.tail_offsets import OnGap

if TYPE_CHECKING:
    import random

EPOCH = datetime(2026, 1, 1)  # noqa: DTZ001 - a naive event time
BOUND_S = 20
ON_GAP: tuple[OnGap, ...] = ("fail", "record")
LATE = "z"
"""Key of the rows that lie further behind than the bound allows, and of no others."""
WINDOW_S = 30
PAYLOAD = pl.Schema({"ts": pl.Datetime("us"), "k": pl.String(), "v": pl.Int64()})


def random_log(dice: random.Random, most: int = 12, late: float = 0) -> ScriptedLog:
    """Up to four partitions of one or two topics, with holes; a row lies at most BOUND_S behind an earlier one.

    Args:
        dice: What it depends on.
        most: Rows in a partition.
        late: Share of the rows that lie behind that by a window and more; their key is LATE.
    """
    partitions, offsets, ends = {}, {}, {}
    topics = ["one", "two"][: dice.randint(1, 2)]
    for number in range(dice.randint(1, 4)):
        at = TopicPartition(dice.choice(topics), number)
        newest, next_, rows, mine = dice.randint(-100, 100), dice.randint(0, 2), [], []
        for _ in range(dice.randint(0, most)):
            if dice.random() < 0.25:
                next_ += dice.randint(1, 4)
            seconds, key = newest + dice.randint(-BOUND_S, 30), dice.choice("abc")
            if late and dice.random() < late:
                seconds, key = newest - BOUND_S - WINDOW_S - dice.randint(1, 100), LATE
            newest = max(newest, seconds)
            time = None if dice.random() < 0.1 else EPOCH + timedelta(seconds=seconds)
            rows.append((time, key, dice.randint(-5, 5)))
            mine.append(next_)
            next_ += 1
        partitions[at] = pl.DataFrame(rows, schema=PAYLOAD, orient="row")
        offsets[at], ends[at] = mine, next_ + dice.randint(0, 2)
    return ScriptedLog(PAYLOAD, partitions, EventTime("ts", BOUND_S * 1_000_000), offsets, ends)


def random_script(dice: random.Random, log: ScriptedLog) -> Script:
    """Versions that grow, commits and truncations at random moments; what the topic forgets, the table has by then."""
    cut = {at: dice.randint(0, log.end(at)) for at in log.partitions if dice.random() < 0.9}
    versions, commits, truncations, step = [cut], [], [], 0
    offsets = dice.random() < 0.8
    for _ in range(dice.randint(0, 3)):
        cut = {at: dice.randint(cut.get(at, 0), log.end(at)) for at in log.partitions if at in cut or offsets}
        versions.append(cut)
        step += dice.randint(0, 8)
        commits.append(step)
        if offsets and dice.random() < 0.5:
            truncations.append((step + dice.randint(0, 3), {at: dice.randint(0, end) for at, end in cut.items()}))
    policy = HandoverPolicy(
        per_partition=dice.random() < 0.8,
        chase=dice.random() < 0.7,
        lag=dice.choice([None, 0, 3]),
        on_truncation=True,
        as_live=offsets and dice.random() < 0.2,
        worthwhile=dice.choice([1, 4, 10**6]),
        lag_every_s=0,
    )
    splits = [[dice.randint(0, 60) for _ in range(dice.randint(0, 10))] for _ in range(dice.randint(0, 4))]
    polls = [(dice.randint(0, 3), dice.randint(1, 5)) for _ in range(dice.randint(0, 5))]
    every = [(number, dice.randint(1, 5)) for number in range(len(log.partitions))]
    window = dice.choice([1, 5, 1000])
    on_gap = dice.choice(ON_GAP)
    return Script(versions, splits, polls + every, commits, truncations, offsets, policy, window, on_gap)


def with_silence(dice: random.Random, log: ScriptedLog, script: Script) -> tuple[ScriptedLog, Script]:
    """Time passes, and a partition may count as idle; in a script one at the end of its log is silent for ever."""
    idle_us = dice.choice([None, 0, 2_000_000])
    return (
        replace(log, event_time=replace(log.event_time, idle_us=idle_us)),
        replace(script, step_us=dice.choice([0, 400_000, 3_000_000])),
    )


def with_end(dice: random.Random, log: ScriptedLog, script: Script) -> Script:
    """The first bounded run may end before the log does."""
    until = {at: dice.randint(0, log.end(at)) for at in log.partitions}
    return replace(script, until=until) if dice.random() < 0.4 else script


def first_ends(log: ScriptedLog, script: Script) -> Cut:
    """Where the first bounded run ends: the history is read whole."""
    until, held = script.until or {}, script.versions[0]
    return {at: max(until.get(at, log.end(at)), held.get(at, 0)) for at in log.partitions}


def rows_below(log: ScriptedLog, ends: Cut) -> pl.DataFrame:
    """The rows of a log that lie below some ends."""
    return pl.concat([log.part(at, 0, end) for at, end in ends.items()])


def lateness(log: ScriptedLog, script: Script) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The rows that must be late, and those that may be; those without an event time are always.

    Those of the history never are, unless it is read as the topic. A row of the topic is where earlier rows of its
    partition that are no history have let the watermark pass its window; rows of the history may, too.
    """
    first = {} if script.policy.as_live else script.versions[0]
    sure = first if script.offsets else script.versions[-1]  # without offsets later versions are read as history
    rows, offset = log.rows(), pl.col(system.OFFSET)
    mark = pl.col("ts").cum_max().forward_fill().shift(1).over(system.TOPIC, system.PARTITION)
    passed = pl.col("ts").dt.truncate(f"{WINDOW_S}s") + timedelta(seconds=WINDOW_S) < mark - timedelta(seconds=BOUND_S)
    late, none = pl.col("k") == LATE, pl.col("ts").is_null()
    must = rows.filter(offset >= _lowest(sure)).filter(late & passed)
    return pl.concat([must, rows.filter(none)]), rows.filter((late & (offset >= _lowest(first))) | none)


def _lowest(cut: Cut) -> pl.Expr:
    """The offset that a cut has for a row's partition; 0 for partitions that are not in it."""
    found = pl.lit(0, pl.Int64)
    for at, offset in cut.items():
        here = (pl.col(system.TOPIC) == at.topic) & (pl.col(system.PARTITION) == at.partition)
        found = pl.when(here).then(pl.lit(offset, pl.Int64)).otherwise(found)
    return found
