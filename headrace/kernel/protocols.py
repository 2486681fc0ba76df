"""The seams: sources, operators, sinks, stores. Frames cross them as Polars frames, positions as JSON values.

Factories (``Source``, ``StatefulOperator``, ``Sink``) are cheap and do no I/O when they are built; what they open
(``SourceReader``, ``OperatorInstance``, ``SinkWriter``) holds resources and gets its earlier state only as the
argument that resumes it. ``close`` may never run: a process can be killed at any line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    import polars as pl

    from headrace.kernel.boundary import Boundary
    from headrace.kernel.keyed import KeyedLayout, KeyedSnapshot, KeyedState, KeyGroups
    from headrace.kernel.until import Until

Json: TypeAlias = Any
"""A JSON value. 64-bit integers stay integers."""

Position: TypeAlias = Mapping[str, Json]
"""Where a source stands: versioned, JSON-serialisable, opaque to everybody but the source. *Next*, not last."""

PreCommit: TypeAlias = Mapping[str, Json]
"""What a sink hands over at the end of an epoch: enough to finish the commit later, idempotently."""

MAIN = "main"
ERRORS = "errors"
LATE = "late"

Origin: TypeAlias = Literal["history", "tail"]
"""Where the rows of a batch come from; decides only which Polars engine runs the first segment."""

Emission: TypeAlias = Mapping[str, "pl.DataFrame"]
"""What an operator gives out: frames by port (``main``, ``late``)."""


class Determinism(StrEnum):
    """What an operator promises about its output (ARCHITECTURE.md, cut-invariance)."""

    EXACT = "exact"
    EXACT_TABLE = "exact as a final table"
    WITHIN_TOLERANCE = "within tolerance"
    NOT_INVARIANT = "not invariant"


# --------------------------------------------------------------------------------------------------------- sources


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
    """

    columns: Sequence[str] | None = None
    predicate: pl.Expr | None = None
    until: Until | None = None
    compute: FirstSegment | None = None
    goes_on: bool = False


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

        ``lost`` is the gap ledger, ``retention`` says by partition for how long the topic keeps what is needed, and
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

    def open(self, request: ReadRequest, position: Position | None) -> SourceReader:
        """Open at ``position``; None plans afresh (snapshot, boundary, start offsets are resolved once, here).

        Raises:
            HeadraceError: Of the User, Data or External kind; nothing has been read then.
        """


# ------------------------------------------------------------------------------------------------------- operators


class Transform(Protocol):
    """A stateless operator: consecutive ones are fused into one lazy plan."""

    @property
    def id(self) -> str:
        """Stable id."""

    @property
    def determinism(self) -> Determinism:
        """What it promises."""

    def apply(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """Rows in, rows out. Pure; called for each batch, and once on an empty frame to probe the plan."""


COUNTS: Final = "counts"
"""The name in :attr:`OperatorState.values` of whole numbers by name, which several instances add up."""


@dataclass(frozen=True, slots=True)
class OperatorState:
    """A stateful operator's state at a barrier.

    Attributes:
        version: Of the layout of values and frames; an operator reads its own older versions.
        values: Small values. Beside :data:`COUNTS`, which are added up, those of an operator with a key are the same in
            all of its instances; of marks that differ, as after a drain, the highest holds for all.
        frames: Frames, written whole at each barrier; those of an operator with a key have its key columns.
        keyed: By the layout's name, what :meth:`OperatorContext.keyed` has given; only changes are written.
    """

    version: int
    values: Mapping[str, Json] = field(default_factory=dict)
    frames: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    keyed: Mapping[str, KeyedSnapshot] = field(default_factory=dict)


class OperatorContext(Protocol):
    """What an instance of a stateful operator is opened with."""

    @property
    def state(self) -> OperatorState | None:
        """Where to resume; None: from the beginning."""

    @property
    def key_groups(self) -> KeyGroups:
        """The keys that come to this instance."""

    def keyed(self, layout: KeyedLayout) -> KeyedState:
        """Open keyed state, resumed from ``state.keyed[layout.name]`` where that is there; once for each name.

        Only rows of :attr:`key_groups` are there. Closed by whoever made the context.

        Raises:
            GraphChangedError: What is stored has another version, key or columns.
        """

    def narrowed(self, key_groups: KeyGroups, state: OperatorState | None) -> OperatorContext:
        """The same for one of several instances of the operator."""


class OperatorInstance(Protocol):
    """A stateful operator at work. Used by one thread."""

    def process(self, partials: pl.DataFrame) -> Emission:
        """Take in one batch of partials (or rows); may give out rows at once."""

    def advance(self, watermark: int) -> Emission:
        """The watermark is now ``watermark`` (microseconds; never goes back); give out what is complete."""

    def drain(self) -> Emission:
        """The input has ended: give out everything that is still held."""

    def outgoing_watermark(self, watermark: int) -> int:
        """The watermark for operators downstream once ``advance(watermark)`` has been given out."""

    def rows_held(self) -> int:
        """Rows in the state now, as good as it is known without work; for progress displays."""

    def snapshot(self) -> OperatorState:
        """The state at this barrier; the frames must not change afterwards."""


class StatefulOperator(Protocol):
    """A keyed, stateful operator, split into a stateless part that fuses with what stands before it, and a merge."""

    @property
    def id(self) -> str:
        """Stable id: state is bound to it."""

    @property
    def determinism(self) -> Determinism:
        """What it promises."""

    @property
    def fingerprint(self) -> str:
        """Changes when the state of the old definition cannot serve the new one (keys, types, window)."""

    @property
    def ports(self) -> Sequence[str]:
        """Output ports; ``main`` first."""

    @property
    def key_columns(self) -> Sequence[str]:
        """Columns of the partials that are the key: rows of different keys never meet in the operator.

        The operator then runs as several instances, each for some of the keys (:mod:`headrace.runtime.exchange`). None:
        as one instance only.
        """

    def partial(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """The stateless part: rows in (late ones included), partials of the rows that are not late out.

        Rows without the column ``_row_watermark`` are never late: the engine drops it where a batch has no late row.
        """

    def late(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """The rows that ``partial`` leaves out because they are late."""

    def leaves_out(self, partials: pl.DataFrame) -> bool:
        """Whether a batch with these partials has rows that only :meth:`late` gives, though none of them came late."""

    def output_schema(self, schema: pl.Schema) -> pl.Schema:
        """Columns of the ``main`` port, given the schema of the partials."""

    def open(self, schema: pl.Schema, context: OperatorContext) -> OperatorInstance:
        """An instance over partials of ``schema``, resumed from ``context.state`` if there is one.

        Raises:
            GraphChangedError: The state does not fit the definition.
        """


@runtime_checkable
class Ticks(Protocol):
    """An instance of a stateful operator that goes by processing time, too."""

    def tick(self, now_us: int) -> Emission:
        """The wall clock shows ``now_us`` (microseconds since the epoch); give out what is due.

        Called before rows are processed, and now and then when there are none. It may go back, also through a restart.
        """


@runtime_checkable
class ShowsState(Protocol):
    """A stateful operator that can say what its state means."""

    def shown(self, table: str, rows: pl.LazyFrame) -> pl.LazyFrame:
        """Rows of a frame, or of keyed state, of that name, as people read them."""


# ----------------------------------------------------------------------------------------------------------- sinks


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


# ---------------------------------------------------------------------------------------------------------- stores


class BlobStore(Protocol):
    """Durable named blobs, written once. Names are relative, ``/``-separated."""

    def put(self, name: str, data: bytes) -> None:
        """Write durably under a name never used before.

        Raises:
            FencedError: The name exists: somebody else works on this job.
        """

    def get(self, name: str) -> bytes:
        """Read.

        Raises:
            NotFoundError: No such blob.
        """

    def delete(self, name: str) -> None:
        """Remove; no error when it is gone."""

    def list(self, prefix: str) -> Sequence[str]:
        """Names that begin with ``prefix``, sorted."""


@dataclass(frozen=True, slots=True)
class Head:
    """The decision: which record is the job's last epoch, and who may make the next one."""

    sequence: int
    owner: str
    nonce: str
    lineage: str
    record: str | None


class HeadStore(Protocol):
    """One head for each job, changed only by compare-and-swap."""

    def read(self) -> Head | None:
        """The head as it is now."""

    def swap(self, expected: Head | None, new: Head) -> None:
        """Replace ``expected`` by ``new`` atomically. A lost reply is resolved by reading the nonce back.

        Raises:
            FencedError: The head is no longer ``expected``.
        """


class LookupTable(Protocol):
    """A static table for lookup joins, pinned for the life of a lineage."""

    @property
    def schema(self) -> pl.Schema:
        """Its columns."""

    def pin(self) -> Json:
        """Which version to use from now on (a snapshot id); kept in the checkpoint."""

    def load(self, pin: Json) -> pl.DataFrame:
        """The rows of that version."""
