"""Where rows go: two-phase sinks, and the epochs that they commit."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from headrace.kernel.protocols.stores import BlobStore
from headrace.kernel.protocols.values import PreCommit

if TYPE_CHECKING:
    import polars as pl

    from headrace.kernel.boundary import Boundary


@dataclass(frozen=True, slots=True)
class EpochId:
    """Names an epoch for all time: which job, which uninterrupted history of it, which epoch, which try."""

    job_uid: str
    lineage: str
    epoch: int
    attempt: str


class Entry(StrEnum):
    """How a lineage comes to a target, and from whom it may take the turn to write there."""

    BEGINS = "begins"
    """It has decided nothing: from one that has committed nothing."""
    RESTORED = "restored"
    """It goes on from another lineage's record: from anybody."""
    GOES_ON = "goes on"
    """It has had its turn: from nobody."""


@dataclass(frozen=True, slots=True)
class SinkContext:
    """What a sink writer is opened with.

    Attributes:
        job_uid: The job.
        lineage: The uninterrupted history of epochs that goes on here.
        blobs: The job's blob store; a sink writes below ``staging/``.
        decided: The last decided epoch; None for a job that begins, whose sinks hold nothing of it yet.
        restored: That epoch is another lineage's.
    """

    job_uid: str
    lineage: str
    blobs: BlobStore
    decided: int | None = 0
    restored: bool = False

    @property
    def entry(self) -> Entry:
        """How the lineage comes to its targets."""
        if self.decided is None:
            return Entry.BEGINS
        return Entry.RESTORED if self.restored else Entry.GOES_ON


class SinkWriter(Protocol):
    """An open two-phase sink. Used by one thread."""

    def recover(self, pre_commit: PreCommit | None) -> None:
        """Fence every predecessor of this job's sink, then finish ``pre_commit`` if it is not committed yet.

        Called first, after this instance has become the owner of the job: with None, only to fence, and again with
        the pre-commit of the last record, if there is one.

        Raises:
            FencedError: Another instance has taken over meanwhile.
        """

    def write(self, frame: pl.DataFrame) -> None:
        """Take rows of the current epoch; may write them durably but invisibly."""

    def prepare(self, epoch: EpochId, coverage: Boundary | None) -> PreCommit | None:
        """Make all rows of the epoch durable but invisible.

        Args:
            epoch: The epoch that ends here.
            coverage: What of the source's topics the sink's rows stand for, None when they are not one-to-one
                (a stateful operator holds rows back).

        Returns:
            What ``commit`` needs, in this process or another one; None when there is nothing to commit.
        """

    def commit(self, pre_commit: PreCommit) -> None:
        """Make a prepared epoch visible, exactly once, however often it is called and by whom.

        Raises:
            FencedError: A newer instance of the job has committed meanwhile.
            CommitUnknownError: It cannot be decided whether the commit happened; files are kept.
        """

    def abort(self) -> None:
        """Throw away the rows of the current epoch (best effort)."""

    def close(self) -> None:
        """Release clients. May never run."""


class Sink(Protocol):
    """A sink as described by the job."""

    @property
    def id(self) -> str:
        """Stable id: commit tokens are bound to it."""

    @property
    def commit_order(self) -> int:
        """Sinks commit in ascending order: Kafka (0) before Iceberg (1)."""

    def open(self, schema: pl.Schema, context: SinkContext) -> SinkWriter:
        """Open for rows of ``schema``; checks that the target exists (or creates it) and takes the rows."""
