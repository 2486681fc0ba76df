"""The handover on its own, thousands of times: every record once and nothing late, wherever rows come from.

Random logs with holes over partitions and topics; a table that grows while the job reads; a topic that forgets; kills.
The source is driven as the runtime does: rows count when a position behind them has been kept.
"""

from __future__ import annotations

import json
import os
import random
from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.kernel import columns as system
from headrace.kernel.protocols import ReadRequest
from headrace.testing.script import World
from headrace.testing.stages import source_of
from hybrid_source.hybrid_position import HybridPosition
from tests.worlds import first_ends, random_log, random_script, rows_below, with_end, with_silence

if TYPE_CHECKING:
    from headrace.kernel.protocols import Position
    from headrace.testing.script import Script, ScriptedLog
    from hybrid_source.hybrid import HybridReader

KEY = [system.TOPIC, system.PARTITION, system.OFFSET]
EXAMPLES = int(os.environ.get("HEADRACE_EXAMPLES", "1200"))

pytestmark = pytest.mark.timeout(900)  # so many examples that the default is too close on a slow machine
MOST_STEPS = 2000
NO_TIME = 2**62
"""No row is so far from the epoch: a watermark there would be a bound that is none, handed out as a time."""


class Driver:
    """Drives a source as the runtime does, and dies at random."""

    def __init__(self, dice: random.Random, log: ScriptedLog, script: Script) -> None:
        self.dice, self.world = dice, World(log, script)
        self.source = replace(source_of(self.world), concurrency=dice.choice([0, 0, 0, 3]))
        self.request = ReadRequest(["ts", "v", *KEY, system.ROW_WATERMARK], None, "caught-up", collected, goes_on=True)
        self.timeout = 1.0 if self.source.concurrency else 0.0
        self.reader: HybridReader = self.source.open(self.request, None)
        self.kept: Position = self.reader.position
        self.rows: list[pl.DataFrame] = []
        self.pending: list[pl.DataFrame] = []

    def run(self) -> pl.DataFrame:
        """All rows, in the order in which they were kept."""
        deaths = self.dice.choice([0, 0.05, 0.3])
        for _ in range(MOST_STEPS):
            if self.reader.finished:
                self.keep()
                return pl.concat(self.rows) if self.rows else pl.DataFrame()
            self.step()
            what = self.dice.random()
            if what < deaths:
                self.die()
            elif what < 0.6:
                self.keep()
        pytest.fail("the source comes to no end")

    def run_again(self) -> pl.DataFrame:
        """All rows, those of the next run included."""
        self.reader.close()
        self.world.step()
        self.reader = self.source.open(replace(self.request, goes_on=False), self.kept)
        self.kept = self.reader.position
        return self.run()

    def step(self) -> None:
        before = HybridPosition.from_json(self.reader.position).watermark
        batch = self.reader.poll(self.timeout)
        if batch is None:
            return
        frame = batch.computed if isinstance(batch.computed, pl.DataFrame) else batch.rows.collect()
        late = [] if before is None else frame.filter(pl.col("ts").dt.epoch("us") < before).rows()
        assert not late, f"rows behind the watermark {before}: {late}"
        assert batch.watermark is None or before is None or batch.watermark >= before
        assert batch.watermark is None or abs(batch.watermark) < NO_TIME
        assert not batch.maybe_late
        assert batch.position == self.reader.position
        self.pending.append(frame)

    def keep(self) -> None:
        self.rows += self.pending
        self.pending, self.kept = [], json.loads(json.dumps(self.reader.position))

    def die(self) -> None:
        self.reader.close()
        self.pending = []
        self.reader = self.source.open(self.request, self.kept)


def collected(rows: pl.LazyFrame, *_: object, **__: object) -> pl.DataFrame:
    return rows.collect()


def check(found: pl.DataFrame, expected: pl.DataFrame) -> None:
    expected = expected.select("ts", "v", *KEY).sort(KEY)
    if found.height or expected.height:
        assert found.select("ts", "v", *KEY).sort(KEY).rows() == expected.rows()


def check_seed(seed: int) -> None:
    dice = random.Random(seed)
    log = random_log(dice)
    log, script = with_silence(dice, log, random_script(dice, log))
    script = with_end(dice, log, script)
    driver = Driver(dice, log, script)
    ends = first_ends(log, script)
    check(driver.run(), rows_below(log, ends))
    final = HybridPosition.from_json(driver.reader.position)
    assert final.phase == "tail"
    covered = driver.reader.coverage(driver.reader.position)
    assert covered is not None
    assert covered.nexts == ends
    check(driver.run_again(), log.rows())
    covered = driver.reader.coverage(driver.reader.position)
    assert covered is not None
    assert covered.nexts == {at: log.end(at) for at in log.partitions}


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.integers(0, 2**63))
def test_every_record_is_handed_out_once_and_none_is_late(seed: int) -> None:
    check_seed(seed)


@pytest.mark.full
@pytest.mark.timeout(3600)
@settings(max_examples=10 * EXAMPLES, deadline=None)
@given(st.integers(0, 2**63))
def test_every_record_is_handed_out_once_in_many_more_worlds(seed: int) -> None:
    check_seed(seed)
