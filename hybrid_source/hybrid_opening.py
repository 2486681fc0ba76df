"""Opens the parts of a hybrid source at a position of it, and refuses a position whose part the job does not name."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from headrace.kernel.boundary import TopicPartition
from headrace.kernel.errors import InternalError, SpecError
from headrace.kernel.protocols import ReadRequest
from hybrid_source.history_protocols import OpenHistory
from hybrid_source.hybrid_position import HybridPosition, LakeRead
from hybrid_source.lake_versions import reach
from hybrid_source.tail_protocols import OpenTail, Replay, TailStage

if TYPE_CHECKING:
    from hybrid_source.hybrid import HybridSource


def open_history(source: HybridSource, request: ReadRequest, at: HybridPosition) -> OpenHistory:
    """The history at a position that is in it.

    Raises:
        SpecError: The job names none.
    """
    if source.history is None:
        raise SpecError(
            f"source {source.name!r} is in its history by the checkpoint, but the job names no history",
            hint="restore the job's history, or give the job another uid",
        )
    return source.history.open(request, at.pin, at.resolution)


def open_lake(source: HybridSource, request: ReadRequest, at: HybridPosition, read: LakeRead) -> Replay:
    """The lake in the place of the topic, from a position on, as far as the run goes.

    Raises:
        SpecError: The job names no history.
    """
    lake, columns = source.lake, read.resolution.columns
    if lake is None or source.tail is None:
        raise SpecError(
            f"source {source.name!r} reads from its table by the checkpoint, but the job names no history",
            hint="restore the job's history, or give the job another uid",
        )
    if columns is None:
        raise InternalError(f"source {source.name!r} reads rows by offsets that they do not carry")
    ends = reach(read.resolution, source.tail.offsets(at.tail))
    return lake.replay(
        request,
        read.pin,
        columns,
        at.tail,
        ends if at.bound is None else at.bound.within(ends),
        time=source.event_time,
        floor=at.watermark,
        clock=source.clock,
    )


def open_tail(
    tail: TailStage, request: ReadRequest, at: HybridPosition, live: Collection[TopicPartition] | None = None
) -> OpenTail:
    """The tail at a position, as far as the run goes; see :meth:`hybrid_source.tail_protocols.TailStage.open`."""
    return tail.open(request, at.tail, at.watermark, live, None if at.bound is None else at.bound.ends)


def wanted_tail(source: HybridSource, tail: TailStage | None) -> TailStage:
    """The tail of a source whose position needs one.

    Raises:
        SpecError: The job names none.
    """
    if tail is None:
        raise SpecError(
            f"source {source.name!r} is in its tail by the checkpoint, but the job names no tail",
            hint="restore the job's tail, or give the job another uid",
        )
    return tail
