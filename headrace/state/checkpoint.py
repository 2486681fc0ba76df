"""Checkpoint records: everything that a job needs to go on, under names that are never used twice.

Layout below the job's blobs: ``epochs/<lineage>/<epoch>-<attempt>/record.json``, ``.../<operator>/<frame>.arrow``,
``.../<operator>/<name>/<id>.run`` (keyed state and held rows; later records name it, too), ``.../committed.json`` once
a run has ended with every sink committed, and ``.../ended.json`` once it has come to the end that it was asked to read
to. Sinks stage below ``staging/<lineage>/<epoch>-<attempt>/`` (:func:`staging_folder`), so that
:meth:`CheckpointStore.retire` can collect what no retained record names.
"""

from __future__ import annotations

import re
import uuid
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final
from urllib.parse import quote

import polars as pl

from headrace.kernel.errors import DataError, FencedError, NotFoundError, UserError
from headrace.kernel.protocols import EpochId, Head, Json, OperatorState
from headrace.state.frames import checked_blob, damaged, frame_from_ipc, frame_to_ipc
from headrace.state.records import (
    Checkpoint,
    FrameRef,
    OperatorStateRef,
    SavedOperator,
    decode,
    encode,
    to_json,
)
from headrace.state.run_blobs import RunBlobs
from headrace.state.runs import RunFolder
from headrace.state.stores import JobStore

_EPOCH_FOLDER: Final = re.compile(r"(?:epochs|staging)/[^/]+/(\d{12})-[^/]+/")
_ACQUIRE_TRIES: Final = 10
_COMMITTED: Final = "committed"
_ENDED: Final = "ended"


def record_name(epoch: EpochId) -> str:
    """Where the record of an epoch lies."""
    return f"epochs/{epoch.lineage}/{epoch.epoch:012d}-{epoch.attempt}/record.json"


def _check_owner(head: Head | None, owner: str) -> None:
    if head is None or head.owner != owner:
        raise FencedError(
            "another instance has taken this job over",
            hint="this instance has stopped and committed nothing more; run only one instance of a job",
        )


def _note_name(record: str, note: str) -> str:
    return f"{record.rpartition('/')[0]}/{note}.json"


def staging_folder(lineage: str, epoch: int, attempt: str, sink: str) -> str:
    """Where a sink stages what it may need to commit an epoch again; collected with the epoch.

    ``epoch`` may be lower than the one that will refer to the blobs, never higher.
    """
    return f"staging/{lineage}/{epoch:012d}-{attempt}/{quote(sink, safe='')}"


class CheckpointStore:
    """Writes, reads and retires the checkpoints of one job, and moves its head. Used by one thread."""

    def __init__(self, store: JobStore, job_uid: str) -> None:
        self._blobs = store.blobs
        self._heads = store.head
        self._job_uid = job_uid
        self._runs = RunBlobs(store.blobs)
        self._referenced: dict[str, frozenset[str]] = {}

    # ------------------------------------------------------------------------------------------------------ head

    def acquire(self, owner: str, expected: str | None = None) -> tuple[Head, Checkpoint | None]:
        """Become the owner of the job: every other instance fails at its next :meth:`advance`.

        The record is read before the swap, so that a release which cannot read it leaves a running job alone.

        Args:
            owner: Who.
            expected: Only from this owner, so that a restart takes nothing back from a successor. None: from anybody.

        Returns:
            The new head, and the last decided checkpoint, None for a new job (with a new lineage).

        Raises:
            FencedError: The head is not ``expected``'s, or other instances took it in all of ten tries.
            UserError: The record belongs to another job or to a later release.
            DataError: The record is damaged.
        """
        for _ in range(_ACQUIRE_TRIES):
            current = self._heads.read()
            if expected is not None:
                _check_owner(current, expected)
            try:
                checkpoint = self.read(current.record) if current and current.record else None
            except NotFoundError as error:
                if self._heads.read() == current:
                    raise DataError(
                        "the job's last checkpoint record is gone", detail=error.detail, code="CHECKPOINT_GONE"
                    ) from error
                continue
            new = Head(
                sequence=current.sequence + 1 if current else 1,
                owner=owner,
                nonce=uuid.uuid4().hex,
                lineage=current.lineage if current else uuid.uuid4().hex,
                record=current.record if current else None,
            )
            try:
                self._heads.swap(current, new)
            except FencedError:
                continue
            return new, checkpoint
        raise FencedError("other instances keep taking over this job", detail=f"{_ACQUIRE_TRIES} tries to take it back")

    def advance(self, head: Head, record: str) -> Head:
        """Decide an epoch: the head now names ``record``.

        Args:
            head: What this instance wrote last.
            record: A name that :meth:`save` returned.

        Raises:
            FencedError: Another instance owns the job.
            CommitUnknownError: Read the head to learn whether it moved.
        """
        new = replace(head, sequence=head.sequence + 1, nonce=uuid.uuid4().hex, record=record)
        self._heads.swap(head, new)
        return new

    def check_owner(self, owner: str) -> None:
        """Check that nobody has taken the job over since ``owner`` did.

        Raises:
            FencedError: Another instance has taken the job over.
        """
        _check_owner(self._heads.read(), owner)

    def drop_state(self, owner: str, operators: Collection[str]) -> None:
        """Decide that operators begin empty: the last record again, without their state. Fences a running instance.

        Args:
            owner: Who decides.
            operators: Their ids; also those of operators that are new.

        Raises:
            NotFoundError: The job has no checkpoint.
            HeadraceError: As :meth:`acquire` and :meth:`advance`.
        """
        head, record = self.acquire(owner)
        if record is None or head.record is None:
            raise NotFoundError(
                f"job {self._job_uid!r} has no checkpoint", hint="it has no state that could be dropped"
            )
        kept = {name: ref for name, ref in record.operators.items() if name not in operators}
        dropped = tuple(sorted({*record.dropped, *operators}))
        new = replace(record, attempt=uuid.uuid4().hex, operators=kept, dropped=dropped)
        name = record_name(new.id)
        notes = [note for note in (_COMMITTED, _ENDED) if self._is_noted(head, note)]
        self._blobs.put(name, encode(new))
        head = self.advance(head, name)
        for note in notes:
            self._note(head, note)

    # --------------------------------------------------------------------------------------------------- records

    def save(self, checkpoint: Checkpoint, operators: Mapping[str, SavedOperator]) -> tuple[str, Checkpoint]:
        """Write the states' frames, then the record; durable when it returns, decided only by :meth:`advance`.

        Args:
            checkpoint: The record; its ``operators`` are replaced by references to what is written here.
            operators: State by operator id.

        Returns:
            The record's name, and the record as written.

        Raises:
            FencedError: The name exists: attempts must be unique.
        """
        name = record_name(checkpoint.id)
        folder = name.rpartition("/")[0]
        refs = {key: self._save_operator(folder, key, operator) for key, operator in operators.items()}
        self._runs.forget_all_but(refs.values())
        full = replace(checkpoint, operators=refs)
        self._blobs.put(name, encode(full))
        return name, full

    def read(self, name: str) -> Checkpoint:
        """A record without its operators' frames.

        Raises:
            NotFoundError: No such record.
            UserError: It belongs to another job, or a later release wrote it.
            DataError: It is damaged.
        """
        checkpoint = decode(self._blobs.get(name), name)
        if checkpoint.job_uid != self._job_uid:
            raise UserError(
                f"the checkpoint store belongs to the job {checkpoint.job_uid!r}, not to {self._job_uid!r}",
                detail=name,
                hint="give each job a store of its own",
                code="STORE_OF_ANOTHER_JOB",
            )
        if (own := record_name(checkpoint.id)) != name:
            # Going on from it would take what is committed behind it for its own epochs, or commit it again.
            raise damaged(name, f"it is the record {own}")
        return checkpoint

    def find(self, epoch: int | None = None) -> Checkpoint:
        """The record of a decided epoch of the head's lineage, for readers; nothing is taken over.

        Args:
            epoch: Its number; None: the last one. Where several tries at it were saved, the latest is taken.

        Raises:
            NotFoundError: There is none (``CHECKPOINT_NOT_FOUND``), or it is not retained.
            HeadraceError: As :meth:`read`.
        """
        head = self._heads.read()
        if head is None or head.record is None:
            raise NotFoundError(f"job {self._job_uid!r} has no checkpoint yet", code="CHECKPOINT_NOT_FOUND")
        last = _epoch_of(head.record)
        if epoch is None or epoch == last:
            return self.read(head.record)
        names = [name for name in self._blobs.list(f"epochs/{head.lineage}/") if name.endswith("/record.json")]
        found = [self.read(name) for name in names if _epoch_of(name) == epoch < last]
        if not found:
            kept = sorted({_epoch_of(name) for name in names if _epoch_of(name) <= last})
            raise NotFoundError(
                f"job {self._job_uid!r} has no checkpoint of epoch {epoch}",
                hint=f"it keeps {', '.join(map(str, kept))}",
                code="CHECKPOINT_NOT_FOUND",
            )
        return max(found, key=lambda record: record.created_us)

    def restore(self, checkpoint: Checkpoint, runs: RunFolder, only: str | None = None) -> dict[str, SavedOperator]:
        """The operators' states of a record, by operator id.

        Args:
            checkpoint: The record.
            runs: Where the files of keyed state and held rows go.
            only: Of this operator.

        Raises:
            DataError: A blob is gone or damaged; the message names it.
            HeadraceError: As :meth:`RunFolder.write`.
        """
        return {
            key: SavedOperator(
                ref.fingerprint,
                ref.inputs,
                OperatorState(
                    ref.version,
                    ref.values,
                    {name: self._read_frame(frame) for name, frame in ref.frames.items()},
                    self._runs.restore_keyed(ref.keyed, runs),
                    self._runs.restore_held(ref.held, runs),
                ),
            )
            for key, ref in checkpoint.operators.items()
            if only is None or key == only
        }

    def load(self, name: str, runs: RunFolder) -> tuple[Checkpoint, dict[str, SavedOperator]]:
        """:meth:`read` and :meth:`restore` in one."""
        checkpoint = self.read(name)
        return checkpoint, self.restore(checkpoint, runs)

    def note_committed(self, head: Head) -> None:
        """Note that all sinks have committed the head's record: its pre-commits are not needed any more."""
        self._note(head, _COMMITTED)

    def is_committed(self, head: Head) -> bool:
        """Whether it is noted that all sinks have committed the head's record; without the note it is not known."""
        return self._is_noted(head, _COMMITTED)

    def note_ended(self, head: Head) -> None:
        """Note that the run that wrote the head's record has come to its end."""
        self._note(head, _ENDED)

    def has_ended(self, head: Head) -> bool:
        """Whether that is noted; a head without a record is of no run, and a run without the note was interrupted."""
        return head.record is None or self._is_noted(head, _ENDED)

    def _note(self, head: Head, note: str) -> None:
        if head.record is not None and not self._is_noted(head, note):
            with suppress(FencedError):  # another instance has noted it meanwhile
                self._blobs.put(_note_name(head.record, note), b"{}")

    def _is_noted(self, head: Head, note: str) -> bool:
        if head.record is None:
            return False
        name = _note_name(head.record, note)
        return name in self._blobs.list(name)

    def retire(self, head: Head, keep: int) -> int:
        """Delete what the ``keep`` newest epochs of the head's lineage do not need.

        Everything below an epoch's folder goes together: records (the undecided ones of zombies too), state, and
        sinks' staging. Blobs that a retained record names stay, wherever they lie, and so do those of later epochs,
        which a successor may have decided meanwhile. Other lineages are left alone.

        Args:
            head: What this instance wrote last.
            keep: How many epochs to keep, at least 1.

        Returns:
            The number of blobs deleted.
        """
        if keep < 1:
            raise ValueError("at least one checkpoint must be kept")
        if head.record is None:
            return 0
        last = _epoch_of(head.record)
        names = self._blobs.list(f"epochs/{head.lineage}/")
        records = [name for name in names if name.endswith("/record.json")]
        oldest = sorted({epoch for name in records if (epoch := _epoch_of(name)) <= last}, reverse=True)[:keep][-1]
        retained = [name for name in records if _epoch_of(name) >= oldest]
        needed = self._names_in(retained)
        old = [
            name
            for name in (*names, *self._blobs.list(f"staging/{head.lineage}/"))
            if _EPOCH_FOLDER.match(name) and _epoch_of(name) < oldest and name not in needed
        ]
        # Records first: a record that is there always finds its blobs.
        for name in sorted(old, key=lambda name: not name.endswith("/record.json")):
            self._blobs.delete(name)
        return len(old)

    def _names_in(self, records: Sequence[str]) -> frozenset[str]:
        self._referenced = {
            name: self._referenced.get(name) or frozenset(_strings(to_json(self.read(name)))) for name in records
        }
        return frozenset[str]().union(*self._referenced.values())

    def _save_operator(self, folder: str, key: str, operator: SavedOperator) -> OperatorStateRef:
        below = f"{folder}/{quote(key, safe='')}"
        frames = {
            name: self._save_frame(f"{below}/{quote(name, safe='')}.arrow", frame)
            for name, frame in operator.state.frames.items()
        }
        state = operator.state
        keyed, held = self._runs.save_keyed(below, state.keyed), self._runs.save_held(below, state.held)
        return OperatorStateRef(state.version, operator.fingerprint, operator.inputs, state.values, frames, keyed, held)

    def _save_frame(self, name: str, frame: pl.DataFrame) -> FrameRef:
        data = frame_to_ipc(frame)
        self._blobs.put(name, data)
        return FrameRef(name, len(data), zlib.crc32(data), frame.height)

    def _read_frame(self, ref: FrameRef) -> pl.DataFrame:
        return frame_from_ipc(checked_blob(self._blobs, ref.blob, ref.nbytes, ref.crc32), ref.blob)


def _strings(value: Json) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, Sequence):
        for item in value:
            yield from _strings(item)


def _epoch_of(name: str) -> int:
    found = _EPOCH_FOLDER.match(name)
    return int(found.group(1)) if found else -1
