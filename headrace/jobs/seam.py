"""The seam proof: shows, partition by partition, that history and tail meet without a hole and without an overlap.

What the job decided (snapshot, boundary, start of the tail) comes from its newest checkpoint; what the lake really
holds comes from a scan of the two offset columns of the pinned snapshot, when it has them. The scan is done once, and
what it found is stored with the job (:mod:`headrace.jobs.seam_store`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

import polars as pl

from headrace.jobs.compile import CompiledJob
from headrace.jobs.seam_store import LakeSide, SeamStore, Sides
from headrace.kernel.boundary import PartitionRange, TopicPartition
from headrace.kernel.errors import NotFoundError
from headrace.kernel.protocols import Json
from headrace.state.checkpoint import CheckpointStore
from headrace.state.stores import open_store
from hybrid_source.history import History, HistoryQuery
from hybrid_source.history_rows import column
from hybrid_source.history_sequence import last_stage
from hybrid_source.history_stage import LakeHistory
from hybrid_source.hybrid import HybridPosition, HybridSource
from hybrid_source.hybrid_position import Switch
from hybrid_source.resolution import OffsetNames, Resolution
from hybrid_source.tail_position import TailPosition

SHOWN_HOLES: Final = 20
_PARTITION: Final = "partition"
_OFFSET: Final = "offset"


@dataclass(frozen=True, slots=True)
class PartitionSeam:
    """The seam of one partition. All offsets but ``LakeSide.first`` and ``last`` are *next* offsets (exclusive).

    Attributes:
        topic: Its topic.
        partition: Its number.
        covered_from: The first offset that the history covers.
        boundary: The next offset that it does not cover; None for a partition that it does not know.
        tail_start: Where the tail stood when it took over; None before the handover, and for partitions found later.
        tail_first: Offset of the first record that it gave; None: none yet. What lies between ``tail_start`` and it
            are holes of the log: markers, aborted records, compaction.
        tail_next: Where the tail stands.
        lake: The lake's side; None when its rows carry no offsets.
        lost: Ranges (first inclusive, next exclusive) that were gone when wanted, under ``on_gap: record``.
    """

    topic: str
    partition: int
    covered_from: int | None
    boundary: int | None
    tail_start: int | None
    tail_first: int | None
    tail_next: int | None
    lake: LakeSide | None
    lost: Sequence[tuple[int, int]] = ()

    @property
    def missing(self) -> int:
        """Offsets between the end of the history and the start of the tail."""
        if self.tail_start is None:
            return 0
        return max(0, self.tail_start - (self.boundary or 0))

    @property
    def overlap(self) -> int:
        """Offsets that both sides would give."""
        if self.tail_start is None or self.boundary is None:
            return 0
        return max(0, self.boundary - self.tail_start)

    @property
    def exact(self) -> bool:
        """Nothing is missing, nothing is there twice."""
        return not (self.missing or self.overlap or self.lost or (self.lake and self.lake.duplicates))

    def to_json(self) -> dict[str, Json]:
        """The seam as JSON values."""
        return asdict(self) | {"missing": self.missing, "overlap": self.overlap, "exact": self.exact}


@dataclass(frozen=True, slots=True)
class SourceSeam:
    """The seam of one source: the pinned version of its history, how the boundary was found, and its partitions.

    ``switches`` are the last passages between lake and topic, oldest first.
    """

    source: str
    phase: str
    pin: Json
    rule: str
    evidence: str
    partitions: Sequence[PartitionSeam]
    switches: Sequence[Switch] = ()

    @property
    def exact(self) -> bool:
        """All of its partitions are."""
        return all(partition.exact for partition in self.partitions)

    def to_json(self) -> dict[str, Json]:
        """The seam as JSON values."""
        return {
            "source": self.source,
            "phase": self.phase,
            "pin": self.pin,
            "rule": self.rule,
            "evidence": self.evidence,
            "partitions": [partition.to_json() for partition in self.partitions],
            "switches": [switch.to_json() for switch in self.switches],
            "exact": self.exact,
        }


@dataclass(frozen=True, slots=True)
class SeamProof:
    """The seams of a job at one epoch."""

    job_uid: str
    epoch: int
    sources: Sequence[SourceSeam]

    @property
    def exact(self) -> bool:
        """All of them are."""
        return all(source.exact for source in self.sources)

    def to_json(self) -> dict[str, Json]:
        """The proof as JSON values."""
        sources = [source.to_json() for source in self.sources]
        return {"job": self.job_uid, "epoch": self.epoch, "exact": self.exact, "sources": sources}


def prove_seam(job: CompiledJob) -> SeamProof:
    """Prove the seams of a job from its newest checkpoint and its pinned histories.

    Takes nothing over, and writes nothing but what a scan has found.

    Raises:
        NotFoundError: The job has no checkpoint yet, or no source with both history and tail.
        SnapshotGoneError: The pinned snapshot is no longer there to be looked at, and never was.
    """
    store = open_store(job.store, job.config.object_stores)
    head = store.head.read()
    if head is None or head.record is None:
        raise NotFoundError(
            f"job {job.uid!r} has no checkpoint yet", detail=f"looked in {job.store}", code="CHECKPOINT_NOT_FOUND"
        )
    record = CheckpointStore(store, job.uid).read(head.record)
    scans = SeamStore(store.blobs)
    found = [
        seam
        for name, position in record.positions.items()
        if isinstance(source := job.sources.get(name), HybridSource)
        and (seam := _source(source, HybridPosition.from_json(position), record.epoch, scans)) is not None
    ]
    if not found:
        raise NotFoundError(f"job {job.uid!r} has no source with both history and tail", code="SEAM_NOT_FOUND")
    return SeamProof(job.uid, record.epoch, found)


def _source(source: HybridSource, at: HybridPosition, epoch: int, scans: SeamStore) -> SourceSeam | None:
    if source.tail is None or source.history is None or at.resolution is None:
        return None
    history, pin = last_stage(source.history, at.pin)
    if not isinstance(history, LakeHistory):
        return None
    ranges = at.resolution.boundary.ranges
    tail = TailPosition.from_json(at.tail)
    lake = scans.find(source.name, at)
    if lake is None and at.resolution.columns is not None:
        lake = _lake(history.open_history(pin), at.resolution)
        if lake is not None:
            scans.keep(source.name, at, epoch, lake)
    starts = at.handover or {}
    partitions = [
        PartitionSeam(
            *place,
            ranges[place].start if place in ranges else None,
            ranges[place].next if place in ranges else None,
            starts.get(place),
            tail.partitions[place].first if place in tail.partitions else None,
            tail.nexts.get(place),
            lake.get(place) if lake is not None else None,
            tail.lost_of(place),
        )
        for place in sorted({*ranges, *starts, *tail.partitions, *(lake or {})})
    ]
    return SourceSeam(
        source.name, at.phase, at.pin, at.resolution.rule, at.resolution.evidence, partitions, at.switches
    )


def _lake(history: History, resolution: Resolution) -> Sides | None:
    names, topics = resolution.columns, resolution.boundary.topics
    if names is None or (len(topics) > 1 and names.topic is None):
        return None
    sides = {}
    for topic, covered in topics.items():
        found = scan_lake(history, names, topic, covered.partitions)
        if found is None:
            return None
        for number, side in found.items():
            sides[TopicPartition(topic, number)] = side.once() if resolution.distinct else side
    return sides


def scan_lake(
    history: History, names: OffsetNames, topic: str, ranges: Mapping[int, PartitionRange]
) -> Mapping[int, LakeSide] | None:
    """Scan the offset columns of a history, split by split.

    Memory is bounded by one split and by the number of runs of consecutive offsets, not by the number of rows.

    Returns:
        The lake's side by partition, or None when its rows carry no offsets.
    """
    if not names.within(history.stored):
        return None
    nexts = pl.DataFrame(
        {_PARTITION: list(ranges), "boundary": [covered.next for covered in ranges.values()]},
        schema={_PARTITION: pl.Int64, "boundary": pl.Int64},
    )
    runs = [_runs(rows, nexts) for rows in _offsets(history, names, topic)]
    if not runs:
        return {}
    return _sides(pl.concat(runs))


def _offsets(history: History, names: OffsetNames, topic: str) -> Iterator[pl.DataFrame]:
    stored = history.stored
    partition, offset = column(stored, names.partition), column(stored, names.offset)
    where = partition.is_not_null() & offset.is_not_null()
    if names.topic is not None:
        where &= column(stored, names.topic).is_null() | (column(stored, names.topic) == topic)
    wanted = {name for expr in (partition, offset) for name in expr.meta.root_names()}
    for split in history.plan(HistoryQuery(columns=sorted(wanted), where=where)).splits_from():
        yield split.rows.select(
            partition.cast(pl.Int64).alias(_PARTITION), offset.cast(pl.Int64).alias(_OFFSET)
        ).collect(engine="streaming")


def _runs(rows: pl.DataFrame, nexts: pl.DataFrame) -> pl.DataFrame:
    """Runs of consecutive offsets: partition, start, next (exclusive), rows, whether they lie below the boundary."""
    below = pl.col(_OFFSET) < pl.col("boundary").fill_null(0)
    return (
        rows.join(nexts, on=_PARTITION, how="left")
        .with_columns(below=below)
        .group_by(_PARTITION, "below", _OFFSET)
        .len("rows")
        .sort(_PARTITION, "below", _OFFSET)
        .with_columns(run=pl.col(_OFFSET) - pl.int_range(pl.len()).over(_PARTITION, "below"))
        .group_by(_PARTITION, "below", "run")
        .agg(
            start=pl.col(_OFFSET).min(),
            next=pl.col(_OFFSET).max() + 1,
            rows=pl.col("rows").sum().cast(pl.Int64),
        )
        .drop("run")
    )


def _sides(runs: pl.DataFrame) -> Mapping[int, LakeSide]:
    above = runs.filter(~pl.col("below")).group_by(_PARTITION).agg(pl.col("rows").sum())
    trimmed: dict[int, int] = dict(above.iter_rows())
    sides: dict[int, LakeSide] = {}
    for (partition,), part in runs.filter("below").sort("start").group_by(_PARTITION, maintain_order=True):
        reached = part.with_columns(before=pl.col("next").cum_max().shift(1, fill_value=part["start"].min()))
        fresh = pl.col("next") - pl.max_horizontal("start", "before")
        distinct = reached.select(fresh.clip(lower_bound=0).sum()).item()
        holes = reached.filter(pl.col("start") > pl.col("before")).select("before", "start").head(SHOWN_HOLES)
        rows = int(part["rows"].sum())
        sides[int(str(partition))] = LakeSide(
            rows,
            int(part["start"][0]),
            int(reached["next"].max()) - 1,  # type: ignore[arg-type] # an integer column
            rows - int(distinct),
            [(int(start), int(end)) for start, end in holes.iter_rows()],
            trimmed.get(partition, 0),
        )
    empty = {key: LakeSide(0, None, None, 0, (), rows) for key, rows in trimmed.items() if key not in sides}
    return sides | empty
