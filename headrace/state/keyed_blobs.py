"""Keyed state in the checkpoint store: each run is written once, and named by every record that needs it."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import quote

import polars as pl

from headrace.kernel.keyed import KeyedPart, KeyedRun, KeyedSnapshot, RunFile
from headrace.kernel.protocols import BlobStore
from headrace.state.frames import checked_blob, frame_from_ipc, frame_to_ipc
from headrace.state.records import FrameRef, KeyedRef, OperatorStateRef, PartRef, RunRef
from headrace.state.runs import RunFolder


class KeyedBlobs:
    """Writes the runs of snapshots, and reads them back. Used by one thread."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._written: dict[str, FrameRef] = {}

    def save(self, below: str, keyed: Mapping[str, KeyedSnapshot]) -> dict[str, KeyedRef]:
        """Write the runs that are not there yet.

        Args:
            below: The folder for new ones.
            keyed: The snapshots of one operator, by name.
        """
        return {name: self._save(f"{below}/{quote(name, safe='')}", snapshot) for name, snapshot in keyed.items()}

    def restore(self, keyed: Mapping[str, KeyedRef], runs: RunFolder) -> dict[str, KeyedSnapshot]:
        """Read runs into local files.

        Raises:
            DataError: A blob is gone or damaged; the message names it.
            HeadraceError: As :meth:`RunFolder.write`.
        """
        files: dict[str, RunFile] = {}
        return {name: self._restore(ref, runs, files) for name, ref in keyed.items()}

    def forget_all_but(self, operators: Iterable[OperatorStateRef]) -> None:
        """No later record needs other runs than those of the last one and new ones."""
        needed = {
            run.id for ref in operators for keyed in ref.keyed.values() for part in keyed.parts for run in part.runs
        }
        self._written = {key: blob for key, blob in self._written.items() if key in needed}

    def _save(self, below: str, snapshot: KeyedSnapshot) -> KeyedRef:
        columns = base64.b64encode(frame_to_ipc(pl.DataFrame(schema=snapshot.schema))).decode()
        parts = tuple(
            PartRef(self._save_runs(below, part.base), self._save_runs(below, part.changes)) for part in snapshot.parts
        )
        return KeyedRef(
            snapshot.version,
            columns,
            tuple(snapshot.key),
            tuple(snapshot.within),
            snapshot.probe,
            snapshot.rows,
            parts,
        )

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
        schema = frame_from_ipc(base64.b64decode(ref.columns), "record.json").schema
        parts = [
            KeyedPart(
                [self._restore_run(run, runs, files) for run in part.base],
                [self._restore_run(run, runs, files) for run in part.changes],
            )
            for part in ref.parts
        ]
        return KeyedSnapshot(ref.version, schema, ref.key, ref.within, ref.probe, parts, ref.rows)

    def _restore_run(self, ref: RunRef, runs: RunFolder, files: dict[str, RunFile]) -> KeyedRun:
        if ref.id not in files:
            data = checked_blob(self._blobs, ref.blob, ref.nbytes, ref.crc32)
            files[ref.id] = runs.add(ref.id, data, ref.rows)
        self._written[ref.id] = FrameRef(ref.blob, ref.nbytes, ref.crc32, ref.rows)
        return KeyedRun(files[ref.id], ref.start, ref.stop)
