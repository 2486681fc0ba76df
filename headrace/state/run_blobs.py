"""Keyed state and held rows in the checkpoint store: each run is written once, and all records that need it name it."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import quote

import polars as pl

from headrace.kernel.held import HeldPart, HeldSegment, HeldSnapshot
from headrace.kernel.keyed import KeyedPart, KeyedRun, KeyedSnapshot, KeyGroups, RunFile
from headrace.kernel.protocols import BlobStore
from headrace.state.frames import checked_blob, frame_from_ipc, frame_to_ipc
from headrace.state.records import (
    FrameRef,
    HeldPartRef,
    HeldRef,
    KeyedRef,
    OperatorStateRef,
    PartRef,
    RunRef,
    SegmentRef,
)
from headrace.state.runs import RunFolder


class RunBlobs:
    """Writes the runs of snapshots, and reads them back. Used by one thread."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._written: dict[str, FrameRef] = {}

    def save_keyed(self, below: str, keyed: Mapping[str, KeyedSnapshot]) -> dict[str, KeyedRef]:
        """Write the runs that are not there yet.

        Args:
            below: The folder for new ones.
            keyed: The snapshots of one operator, by name.
        """
        return {name: self._save(_folder(below, name), snapshot) for name, snapshot in keyed.items()}

    def save_held(self, below: str, held: Mapping[str, HeldSnapshot]) -> dict[str, HeldRef]:
        """:meth:`save_keyed` for held rows."""
        return {name: self._save_held(_folder(below, name), snapshot) for name, snapshot in held.items()}

    def restore_keyed(self, keyed: Mapping[str, KeyedRef], runs: RunFolder) -> dict[str, KeyedSnapshot]:
        """Read runs into local files.

        Raises:
            DataError: A blob is gone or damaged; the message names it.
            HeadraceError: As :meth:`RunFolder.write`.
        """
        files: dict[str, RunFile] = {}
        return {name: self._restore(ref, runs, files) for name, ref in keyed.items()}

    def restore_held(self, held: Mapping[str, HeldRef], runs: RunFolder) -> dict[str, HeldSnapshot]:
        """:meth:`restore_keyed` for held rows."""
        files: dict[str, RunFile] = {}
        return {name: self._restore_held(ref, runs, files) for name, ref in held.items()}

    def forget_all_but(self, operators: Iterable[OperatorStateRef]) -> None:
        """No later record needs other runs than those of the last one and new ones."""
        needed = {run.id for ref in operators for run in ref.runs}
        self._written = {key: blob for key, blob in self._written.items() if key in needed}

    def _save(self, below: str, snapshot: KeyedSnapshot) -> KeyedRef:
        parts = tuple(
            PartRef(self._save_runs(below, part.base), self._save_runs(below, part.changes)) for part in snapshot.parts
        )
        return KeyedRef(
            snapshot.version,
            _columns(snapshot.schema),
            tuple(snapshot.key),
            tuple(snapshot.within),
            snapshot.probe,
            snapshot.rows,
            parts,
        )

    def _save_held(self, below: str, snapshot: HeldSnapshot) -> HeldRef:
        parts = tuple(
            HeldPartRef(
                part.groups.first, part.groups.end, tuple(self._save_segment(below, one) for one in part.segments)
            )
            for part in snapshot.parts
        )
        return HeldRef(
            snapshot.version,
            _columns(snapshot.schema),
            tuple(snapshot.key),
            snapshot.time,
            snapshot.flag,
            snapshot.probe,
            snapshot.rows,
            parts,
        )

    def _save_segment(self, below: str, segment: HeldSegment) -> SegmentRef:
        marks = segment.marks
        return SegmentRef(self._save_run(below, segment.run), None if marks is None else self._save_run(below, marks))

    def _save_runs(self, below: str, runs: Sequence[KeyedRun]) -> tuple[RunRef, ...]:
        return tuple(self._save_run(below, run) for run in runs)

    def _save_run(self, below: str, run: KeyedRun) -> RunRef:
        file = run.file
        if file.id not in self._written:
            data = file.path.read_bytes()
            name = f"{below}/{file.id}.run"
            self._blobs.put(name, data)
            self._written[file.id] = FrameRef(name, len(data), zlib.crc32(data), file.rows)
        blob = self._written[file.id]
        return RunRef(file.id, blob.blob, blob.nbytes, blob.crc32, blob.rows, run.start, run.stop)

    def _restore(self, ref: KeyedRef, runs: RunFolder, files: dict[str, RunFile]) -> KeyedSnapshot:
        parts = [
            KeyedPart(self._restore_runs(part.base, runs, files), self._restore_runs(part.changes, runs, files))
            for part in ref.parts
        ]
        return KeyedSnapshot(ref.version, _schema(ref.columns), ref.key, ref.within, ref.probe, parts, ref.rows)

    def _restore_held(self, ref: HeldRef, runs: RunFolder, files: dict[str, RunFile]) -> HeldSnapshot:
        def restored(segment: SegmentRef) -> HeldSegment:
            run, marks = self._restore_run(segment.run, runs, files), segment.marks
            return HeldSegment(run, None if marks is None else self._restore_run(marks, runs, files))

        parts = [HeldPart(KeyGroups(part.first, part.end), [*map(restored, part.segments)]) for part in ref.parts]
        return HeldSnapshot(ref.version, _schema(ref.columns), ref.key, ref.time, ref.flag, ref.probe, parts, ref.rows)

    def _restore_runs(self, refs: Sequence[RunRef], runs: RunFolder, files: dict[str, RunFile]) -> tuple[KeyedRun, ...]:
        return tuple(self._restore_run(run, runs, files) for run in refs)

    def _restore_run(self, ref: RunRef, runs: RunFolder, files: dict[str, RunFile]) -> KeyedRun:
        if ref.id not in files:
            data = checked_blob(self._blobs, ref.blob, ref.nbytes, ref.crc32)
            files[ref.id] = runs.add(ref.id, data, ref.rows)
        self._written[ref.id] = FrameRef(ref.blob, ref.nbytes, ref.crc32, ref.rows)
        return KeyedRun(files[ref.id], ref.start, ref.stop)


def _folder(below: str, name: str) -> str:
    return f"{below}/{quote(name, safe='')}"


def _columns(schema: pl.Schema) -> str:
    return base64.b64encode(frame_to_ipc(pl.DataFrame(schema=schema))).decode()


def _schema(columns: str) -> pl.Schema:
    return frame_from_ipc(base64.b64decode(columns), "record.json").schema
