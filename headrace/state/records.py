"""The checkpoint record as a value, and its stored form."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final

from headrace.kernel.errors import UserError
from headrace.kernel.protocols import EpochId, Json, OperatorState, Position, PreCommit
from headrace.state.frames import damaged

FORMAT: Final = "headrace-checkpoint"
FORMAT_VERSION: Final = 4


@dataclass(frozen=True, slots=True)
class FrameRef:
    """A frame of an operator's state in a blob (Arrow IPC, lz4)."""

    blob: str
    nbytes: int
    crc32: int
    rows: int


@dataclass(frozen=True, slots=True)
class RunRef:
    """The rows of a run from ``start`` up to (not including) ``stop``; several records name the run's one blob."""

    id: str
    blob: str
    nbytes: int
    crc32: int
    rows: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class PartRef:
    """What one instance has written (:class:`headrace.kernel.keyed.KeyedPart`)."""

    base: Sequence[RunRef]
    changes: Sequence[RunRef]

    @property
    def runs(self) -> Sequence[RunRef]:
        """All of them."""
        return (*self.base, *self.changes)


@dataclass(frozen=True, slots=True)
class KeyedRef:
    """Keyed state as the record keeps it (:class:`headrace.kernel.keyed.KeyedSnapshot`).

    Attributes:
        columns: An Arrow IPC file without rows that has the columns, base64.
    """

    version: int
    columns: str
    key: Sequence[str]
    within: Sequence[str]
    probe: str
    rows: int
    parts: Sequence[PartRef]


@dataclass(frozen=True, slots=True)
class SegmentRef:
    """Rows, and which of them are marked (:class:`headrace.kernel.held.HeldSegment`)."""

    run: RunRef
    marks: RunRef | None = None


@dataclass(frozen=True, slots=True)
class HeldPartRef:
    """What one instance has written (:class:`headrace.kernel.held.HeldPart`), for key groups from first up to end."""

    first: int
    end: int
    segments: Sequence[SegmentRef]

    @property
    def runs(self) -> Sequence[RunRef]:
        """All of them."""
        return [run for segment in self.segments for run in (segment.run, segment.marks) if run is not None]


@dataclass(frozen=True, slots=True)
class HeldRef:
    """Held rows as the record keeps them (:class:`headrace.kernel.held.HeldSnapshot`).

    Attributes:
        columns: As in :class:`KeyedRef`.
    """

    version: int
    columns: str
    key: Sequence[str]
    time: str
    flag: str | None
    probe: str
    rows: int
    parts: Sequence[HeldPartRef]


@dataclass(frozen=True, slots=True)
class OperatorStateRef:
    """An operator's state as the record keeps it: small values inline, the rest by reference."""

    version: int
    fingerprint: str
    inputs: Sequence[str]
    values: Mapping[str, Json] = field(default_factory=dict)
    frames: Mapping[str, FrameRef] = field(default_factory=dict)
    keyed: Mapping[str, KeyedRef] = field(default_factory=dict)
    held: Mapping[str, HeldRef] = field(default_factory=dict)

    @property
    def kept(self) -> Mapping[str, KeyedRef | HeldRef]:
        """What is kept in runs, by name."""
        return {**self.held, **self.keyed}

    @property
    def runs(self) -> Iterator[RunRef]:
        """All runs that it names."""
        for kept in self.kept.values():
            for part in kept.parts:
                yield from part.runs


@dataclass(frozen=True, slots=True)
class SavedOperator:
    """An operator's state with what it is bound to.

    Attributes:
        fingerprint: Of the definition that it belongs to.
        inputs: What feeds the operator, in words.
        state: The state.
    """

    fingerprint: str
    inputs: Sequence[str]
    state: OperatorState


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The record of one epoch.

    Attributes:
        job_uid: The job, by uid.
        lineage: The uninterrupted history of epochs it belongs to.
        epoch: Its number in the lineage; 0 is written before any row is processed.
        attempt: Unique per try to make this epoch.
        created_us: Wall clock, microseconds since the Unix epoch; for people only.
        positions: By source, where it goes on (*next*, not last).
        pins: By name, what was resolved once for the lineage (snapshots of lookup tables).
        watermarks: By source, event-time microseconds, None while unknown.
        operators: By operator id.
        pre_commits: By sink id, what is prepared and not known to be committed.
        fingerprint: Of the whole job.
        dropped: Operators that the user has said may begin empty, though the job has a past.
        finished: The job was drained: a later run has nothing to do.
        totals: Counters for people (records, rows by sink ...).
    """

    job_uid: str
    lineage: str
    epoch: int
    attempt: str
    created_us: int
    positions: Mapping[str, Position] = field(default_factory=dict)
    pins: Mapping[str, Json] = field(default_factory=dict)
    watermarks: Mapping[str, int | None] = field(default_factory=dict)
    operators: Mapping[str, OperatorStateRef] = field(default_factory=dict)
    pre_commits: Mapping[str, PreCommit] = field(default_factory=dict)
    fingerprint: str = ""
    dropped: Sequence[str] = ()
    totals: Mapping[str, Json] = field(default_factory=dict)
    finished: bool = False

    @property
    def id(self) -> EpochId:
        """The epoch's name for all time."""
        return EpochId(self.job_uid, self.lineage, self.epoch, self.attempt)


def encode(checkpoint: Checkpoint) -> bytes:
    """The stored form: a line with format, version and digest, then a line with the record, both JSON."""
    body = json.dumps(to_json(checkpoint), default=_mapping, separators=(",", ":")).encode()
    top = {"format": FORMAT, "version": FORMAT_VERSION, "sha256": hashlib.sha256(body).hexdigest()}
    return json.dumps(top).encode() + b"\n" + body + b"\n"


def decode(data: bytes, name: str) -> Checkpoint:
    """Read what :func:`encode` wrote.

    Raises:
        UserError: A later release wrote it.
        DataError: It is damaged; the message has ``name``.
    """
    first, _, body = data.partition(b"\n")
    try:
        top = json.loads(first)
    except ValueError as error:
        raise damaged(name, str(error)) from error
    if not isinstance(top, dict) or top.get("format") != FORMAT:
        raise damaged(name, "it does not begin like a checkpoint record")
    if top.get("version") != FORMAT_VERSION:
        raise UserError(
            f"the checkpoint record {name} has version {top.get('version')!r}",
            detail=f"this release reads version {FORMAT_VERSION}",
            hint="run the job with the release that wrote it, or a later one",
            code="CHECKPOINT_VERSION",
        )
    if hashlib.sha256(body.removesuffix(b"\n")).hexdigest() != top.get("sha256"):
        raise damaged(name, "the digest does not match")
    try:
        return _from_json(json.loads(body))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise damaged(name, repr(error)) from error


def to_json(checkpoint: Checkpoint) -> dict[str, Any]:
    """JSON values, as they are stored."""
    value = {item.name: getattr(checkpoint, item.name) for item in fields(checkpoint)}
    value["operators"] = {
        key: {
            "version": ref.version,
            "fingerprint": ref.fingerprint,
            "inputs": list(ref.inputs),
            "values": ref.values,
            "frames": {name: asdict(frame) for name, frame in ref.frames.items()},
            "keyed": {name: asdict(keyed) for name, keyed in ref.keyed.items()},
            "held": {name: asdict(held) for name, held in ref.held.items()},
        }
        for key, ref in checkpoint.operators.items()
    }
    return value


def _from_json(value: dict[str, Any]) -> Checkpoint:
    operators = {
        key: OperatorStateRef(
            ref["version"],
            ref["fingerprint"],
            tuple(ref["inputs"]),
            ref["values"],
            {name: FrameRef(**frame) for name, frame in ref["frames"].items()},
            {name: _keyed(keyed) for name, keyed in ref["keyed"].items()},
            {name: _held(held) for name, held in ref["held"].items()},
        )
        for key, ref in value["operators"].items()
    }
    return Checkpoint(**{**value, "operators": operators, "dropped": tuple(value["dropped"])})


def _keyed(value: dict[str, Any]) -> KeyedRef:
    parts = tuple(PartRef(_runs(part["base"]), _runs(part["changes"])) for part in value["parts"])
    return KeyedRef(**{**value, "key": tuple(value["key"]), "within": tuple(value["within"]), "parts": parts})


def _held(value: dict[str, Any]) -> HeldRef:
    parts = tuple(
        HeldPartRef(part["first"], part["end"], tuple(map(_segment, part["segments"]))) for part in value["parts"]
    )
    return HeldRef(**{**value, "key": tuple(value["key"]), "parts": parts})


def _segment(value: dict[str, Any]) -> SegmentRef:
    marks = value["marks"]
    return SegmentRef(RunRef(**value["run"]), None if marks is None else RunRef(**marks))


def _runs(values: Sequence[dict[str, Any]]) -> tuple[RunRef, ...]:
    return tuple(RunRef(**run) for run in values)


def _mapping(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is no JSON value")
