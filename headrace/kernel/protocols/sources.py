"""Where rows come from: sources, their readers, and the batches that they hand out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from headrace.kernel.protocols.values import Json, Origin, Position

if TYPE_CHECKING:
    import polars as pl

    from headrace.kernel.boundary import Boundary
    from headrace.kernel.until import Until


class FirstSegment(Protocol):
    """The stateless part of a job behind a source. May be called by several threads at once."""

    def __call__(
        self, rows: pl.LazyFrame, origin: Origin, *, maybe_late: bool = False, files: Sequence[str] = ()
    ) -> object:
        """Collect it over the rows of a batch (see :class:`Batch`); what it gives is the engine's own."""


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """What the plan pushes down into a source.

    Attributes:
        columns: The columns (payload and system) that the plan needs; None for all payload columns.
        predicate: Exact filter on rows, in Polars semantics. Every reader applies it in full.
        until: ``None`` runs for ever; ``caught-up`` ends at the end offsets seen when the run began, a time at the
            first records at or after it (timestamps of Kafka; a history is read whole). A source keeps the ends in its
            position, and bounds by them whatever it reads in the place of the topic, too.
        compute: For sources that read ahead: they may call it in threads of their own, and hand out what it gave with
            the batch. None: only lazy rows are wanted.
        goes_on: The run that the position is of was interrupted: one to the same end keeps its ends.
        filters: Filters that the plan applies to the rows by itself; ``predicate`` is what they all imply. None: they
            are not known.
    """

    columns: Sequence[str] | None = None
    predicate: pl.Expr | None = None
    until: Until | None = None
    compute: FirstSegment | None = None
    goes_on: bool = False
    filters: Sequence[pl.Expr] | None = ()


@dataclass(frozen=True, slots=True)
class Note:
    """Something that happened in a source, for people.

    Attributes:
        code: Which kind, stable.
        message: In words.
    """

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch on its way out of a source.

    Attributes:
        rows: Lazy rows with the requested columns; the source's predicate is applied already. History gives a scan
            (so that the first segment fuses with the reading), the tail a frame in memory.
        position: Where the source stands after this batch.
        watermark: Event time in microseconds below which no further row is expected after this batch; None: unknown.
        origin: Where the rows came from.
        maybe_late: Some row's event time may lie below its row watermark, so the late port must be evaluated.
        errors: Dead letters (``columns.ERRORS``), or None.
        records: Number of input records this batch stands for, before the predicate.
        nbytes: Bytes read for it, as good as the source knows.
        files: What its rows are read from, for messages.
        notes: What happened on the way to it.
        computed: What ``ReadRequest.compute`` has given for its rows; None: it is still to be called.
    """

    rows: pl.LazyFrame
    position: Position
    watermark: int | None
    origin: Origin
    maybe_late: bool = False
    errors: pl.DataFrame | None = None
    records: int = 0
    nbytes: int = 0
    files: Sequence[str] = ()
    notes: Sequence[Note] = ()
    computed: object = None


class SourceReader(Protocol):
    """An open source. Used by one thread."""

    def poll(self, timeout: float) -> Batch | None:
        """The next batch, or None when nothing came within ``timeout`` seconds.

        Empty batches are allowed: they carry a position or watermark that moved without rows.
        """

    @property
    def finished(self) -> bool:
        """True once a bounded read has handed out everything."""

    @property
    def position(self) -> Position:
        """Where the reader stands: after the last batch it handed out, or where it was opened."""

    def coverage(self, position: Position) -> Boundary | None:
        """What of its topics a source at ``position`` has handed out, or None for a source without a topic."""

    def progress(self) -> Mapping[str, Json]:
        """Facts for people: phase, percent, ETA, lag per partition, watermark.

        ``lost`` is the gap ledger, ``retention`` says by partition for how long the topic keeps what is needed,
        ``silent`` are the partitions that the watermark waits for, though they are read to their ends, and
        ``warnings`` are ``{code, message}`` of what threatens: each is told as an event when it appears.
        """

    def close(self) -> None:
        """Release clients and threads. May never run."""


class Source(Protocol):
    """A source as described by the job; opening it reads metadata, building it does not."""

    @property
    def name(self) -> str:
        """Its name in the job."""

    @property
    def schema(self) -> pl.Schema:
        """All columns it can give: payload, then ``columns.SYSTEM``."""

    def begin(self) -> Position:
        """Decide afresh where to begin: snapshot, boundary and start offsets are resolved once, here.

        Files are not planned yet, so that the snapshot can be leased first.

        Raises:
            HeadraceError: Of the User, Data or External kind; nothing has been read then.
        """

    def open(self, request: ReadRequest, position: Position | None) -> SourceReader:
        """Open at ``position``; None: where it begins.

        Raises:
            HeadraceError: Of the User, Data or External kind; nothing has been read then.
        """
