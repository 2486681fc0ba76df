"""The passages of a hybrid source as changes of its position. Nothing is opened or asked here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headrace.kernel.boundary import PartitionRange
from headrace.kernel.protocols import Json
from hybrid_source.history_protocols import LakeStage
from hybrid_source.history_sequence import HistorySequence, increment_of, with_last
from hybrid_source.hybrid_position import HybridPosition, LakeRead, Switch, SwitchKind
from hybrid_source.lake_versions import NewerVersion
from hybrid_source.resolution import Resolution
from hybrid_source.run_ends import Offsets


def into_topic(at: HybridPosition, nexts: Offsets, history: LakeStage | HistorySequence | None) -> HybridPosition:
    """The topic takes over at some offsets: from the history, or from the lake."""
    rule = at.lake.resolution.rule if at.lake else at.resolution.rule if at.resolution else ""
    if at.lake is not None and at.handover is None and at.resolution is not None and history is not None:
        # The lake has been read further than the history went, or a bounded run ended within it: there is the seam.
        resolution = replace(_ending_at(at.lake.resolution, nexts), ends=at.resolution.ends)
        at = replace(at, pin=with_last(history, at.pin, at.lake.pin), resolution=resolution)
    handover = {**nexts, **(at.handover or {})} if at.phase == "history" or at.handover is None else at.handover
    after = replace(at, phase="tail", cursor=None, lake=None, live=frozenset(), handover=handover)
    return after.switched(Switch("handover", nexts, rule))


def into_lake(at: HybridPosition, nexts: Offsets, newer: NewerVersion, kind: SwitchKind) -> HybridPosition:
    """A newer version of the table is read in the place of the topic, from some offsets on."""
    if at.live:  # some partitions have met the topic: there is the seam of all
        at = replace(at, handover={**nexts, **(at.handover or {})})
    read = LakeRead(newer.pin, newer.resolution, kind)
    after = replace(at, phase="tail", cursor=None, live=frozenset(), lake=read)
    return after.switched(Switch(kind, nexts, newer.resolution.rule, newer.pin))


def into_increment(
    at: HybridPosition, nexts: Offsets, newer: NewerVersion, history: LakeStage | HistorySequence, tail: Json
) -> HybridPosition:
    """What the table has got since is read as history, which ends where a position of the tail begins."""
    ends = at.resolution.ends if at.resolution is not None else ()
    resolution = replace(newer.resolution, ends=ends)
    after = replace(at, pin=increment_of(history, newer.pin), cursor=None, resolution=resolution, tail=tail)
    return after.switched(Switch("chase", nexts, newer.resolution.rule, newer.pin))


def _ending_at(resolution: Resolution, nexts: Offsets) -> Resolution:
    """A resolution none of whose ranges goes beyond some offsets; of one that begins beyond them nothing was read."""
    boundary, found = resolution.boundary, resolution.boundary.ranges
    topics: dict[str, Mapping[int, PartitionRange]] = {
        name: {
            at.partition: replace(covered, next=min(covered.next, nexts.get(at, covered.next)))
            for at, covered in found.items()
            if at.topic == name and nexts.get(at, covered.next) >= covered.start
        }
        for name in boundary.topics
    }
    known = boundary.topics
    ending = {name: replace(known[name], partitions=ranges) for name, ranges in topics.items()}
    return replace(resolution, boundary=replace(boundary, topics=ending))
