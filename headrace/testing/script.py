"""What is scripted: a log with holes, a table over it that grows, a topic that forgets."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl

from headrace.kernel import columns as system
from headrace.kernel.boundary import TopicPartition
from headrace.testing.clock import ManualClock
from hybrid_source.gaps import Gap, gap_error
from hybrid_source.hybrid import HandoverPolicy
from hybrid_source.source_values import EventTime
from hybrid_source.tail_offsets import OnGap

TOPIC = "scripted"

Cut = Mapping[TopicPartition, int]
"""Next offset by partition, exclusive; any offset, also one inside a hole."""


@dataclass(frozen=True, slots=True)
class ScriptedLog:
    """Topics as they would be: payload rows by partition, in offset order.

    Attributes:
        payload: Schema of the rows.
        partitions: Rows by partition.
        event_time: Column and out-of-orderness.
        offsets: The rows' offsets by partition, ascending; what is not in it (markers, aborted records) is a hole. The
            number of the row for partitions that are left out.
        ends: End of the log by partition, exclusive; behind the last row for partitions that are left out.
    """

    payload: pl.Schema
    partitions: Mapping[TopicPartition, pl.DataFrame]
    event_time: EventTime
    offsets: Mapping[TopicPartition, Sequence[int]] = field(default_factory=dict)
    ends: Cut = field(default_factory=dict)

    def rows(self) -> pl.DataFrame:
        """All rows with their topic, partition and offset."""
        return pl.concat([self.part(at, 0, self.end(at)) for at in self.partitions])

    def part(self, at: TopicPartition, begin: int, end: int) -> pl.DataFrame:
        """The rows of one partition in a range of offsets, with their topic, partition and offset."""
        offsets = self.numbers(at)
        first, last = bisect_left(offsets, begin), bisect_left(offsets, end)
        return self.partitions[at][first:last].with_columns(
            pl.lit(at.topic).alias(system.TOPIC),
            pl.lit(at.partition, pl.Int32).alias(system.PARTITION),
            pl.Series(system.OFFSET, offsets[first:last], pl.Int64),
        )

    def numbers(self, at: TopicPartition) -> Sequence[int]:
        """The offsets of a partition's rows."""
        return self.offsets[at] if at in self.offsets else range(self.partitions[at].height)

    def end(self, at: TopicPartition) -> int:
        """The end of a partition, exclusive."""
        offsets = self.numbers(at)
        return self.ends.get(at, offsets[-1] + 1 if offsets else 0)

    def times(self, frame: pl.DataFrame) -> pl.Series:
        """Event times of rows, in microseconds."""
        return frame[self.event_time.column].cast(pl.Datetime("us")).to_physical()


@dataclass(frozen=True, slots=True)
class Script:
    """What happens to a log.

    Attributes:
        versions: The table's versions: what each covers. They grow; the first is there from the beginning.
        splits: For each split, the numbers of its rows (modulo their count); what no split takes makes one more.
        polls: Endless pattern of (number of the partition, in their order; number of records) for the tail's polls.
        commits: After how many steps (splits and polls) each further version of the table is there.
        truncations: After how many steps the topic loses everything below which offsets.
        offsets: The table's rows carry topic, partition and offset.
        policy: The source's.
        window_rows: Offsets per window, where the table is read in the order of its offsets.
        on_gap: The tail's.
        step_us: How much time passes with each step.
        until: Where a bounded run ends that is asked for before anything has been read; partitions that are left out,
            and later runs, end with the log.
    """

    versions: Sequence[Cut]
    splits: Sequence[Sequence[int]] = ()
    polls: Sequence[tuple[int, int]] = ((0, 1),)
    commits: Sequence[int] = ()
    truncations: Sequence[tuple[int, Cut]] = ()
    offsets: bool = True
    policy: HandoverPolicy = field(default_factory=lambda: HandoverPolicy(worthwhile=1))
    window_rows: int = 7
    on_gap: OnGap = "fail"
    step_us: int = 0
    until: Cut | None = None


@dataclass(slots=True)
class World:
    """A log and its table as they stand; goes on through restarts of the source."""

    log: ScriptedLog
    script: Script
    steps: int = 0
    clock: ManualClock = field(default_factory=ManualClock)

    def step(self) -> None:
        """Something has been read."""
        self.steps += 1
        self.clock.advance(self.script.step_us)

    @property
    def version(self) -> int:
        """The newest version of the table."""
        return min(sum(at <= self.steps for at in self.script.commits), len(self.script.versions) - 1)

    def log_start(self, at: TopicPartition) -> int:
        """The first offset that a partition still has."""
        gone = [cut.get(at, 0) for steps, cut in self.script.truncations if steps <= self.steps]
        return max(gone, default=0)

    def run_ends(self) -> Cut:
        """The ends of a bounded run that is asked for now: the script's, as long as nothing has been read."""
        first = (self.script.until or {}) if self.steps == 0 else {}
        return {at: min(first.get(at, end), end) for at in self.log.partitions for end in [self.log.end(at)]}

    def check(self, nexts: Cut) -> None:
        """Raise what some partitions lack."""
        starts = {at: self.log_start(at) for at in sorted(nexts)}
        gaps = [Gap(at, nexts[at], start, self.log.end(at)) for at, start in starts.items() if nexts[at] < start]
        if gaps:
            raise gap_error(gaps)
