"""The folder on the local disk where keyed state lies while a job runs: immutable Arrow IPC files, mapped, not read.

Nothing in it is needed after the process has ended. A folder belongs to one attempt, which holds a lock in it; what
killed attempts have left behind is removed by the next one that works in the same place.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import uuid
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Final

import polars as pl
import pyarrow as pa

from headrace.kernel.keyed import RunFile
from headrace.state.disk_errors import mapped
from headrace.state.frames import damaged

_PREFIX: Final = "headrace-state-"
_LOCK: Final = "lock"


class RunFolder:
    """Writes and maps run files; makes nothing on disk before it is needed. Once open, threads may share it.

    Args:
        parent: Where; None: the system's folder for temporary files.
    """

    def __init__(self, parent: Path | None = None) -> None:
        self._parent = parent or Path(tempfile.gettempdir())
        self._folder: Path | None = None
        self._finalizer: Callable[[], object] | None = None

    def open(self) -> Path:
        """The folder, made if need be; raises as :meth:`write`."""
        with self._mapped():
            if self._folder is None:
                self._parent.mkdir(parents=True, exist_ok=True)
                _remove_abandoned(self._parent)
                self._folder = self._made()
        return self._folder

    def write(self, rows: pl.DataFrame) -> RunFile:
        """Write rows as a new file.

        Raises:
            AccessDeniedError: The folder cannot be written.
            UnavailableError: The disk is full (``DISK_FULL``).
        """

        def content(path: Path) -> None:
            rows.write_ipc(path, compression="uncompressed", record_batch_size=max(rows.height, 1))

        return self._placed(uuid.uuid4().hex, rows.height, content)

    def add(self, run_id: str, data: bytes, rows: int) -> RunFile:
        """Take in the content of a run file; raises as :meth:`write`."""
        return self._placed(run_id, rows, lambda path: path.write_bytes(data))

    def _placed(self, run_id: str, rows: int, content: Callable[[Path], object]) -> RunFile:
        folder = self.open()
        with self._mapped():
            path = folder / f"{run_id}-{uuid.uuid4().hex[:8]}.arrow"
            try:
                content(path)
                nbytes = path.stat().st_size
            except OSError:
                path.unlink(missing_ok=True)
                raise
        file = RunFile(run_id, path, rows, nbytes)
        weakref.finalize(file, self._remove, path)
        return file

    def close(self) -> None:
        """Remove everything. Frames that are mapped stay readable."""
        if self._finalizer is not None:
            self._finalizer()
            self._finalizer = self._folder = None

    def _made(self) -> Path:
        # It gets its name once it is locked, so that nobody takes it for abandoned.
        made = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}", dir=self._parent))
        lock = os.open(made / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = made.rename(made.with_name(made.name.removeprefix(".")))
        # Each file's finalizer holds this object, so that the folder goes when the last of its files has gone.
        self._finalizer = weakref.finalize(self, _remove_folder, folder, lock)
        return folder

    def _remove(self, path: Path) -> None:
        with suppress(OSError):
            path.unlink(missing_ok=True)

    def _mapped(self) -> AbstractContextManager[None]:
        return mapped(
            f"state cannot be kept in the folder {self._parent}",
            denied="check its owner and mode, or name another folder under state.dir",
            full="the disk is full: make room, or name a folder on a larger one under state.dir",
        )


def mapped_rows(path: Path, schema: pl.Schema) -> pl.DataFrame:
    """The rows of a run file, mapped into memory: what is not touched is not read.

    Args:
        path: Where it lies.
        schema: Of the rows, as they were written; Arrow does not keep every type.

    Raises:
        DataError: It is not an Arrow IPC file.
    """
    try:
        with pa.memory_map(str(path)) as source:
            table = pa.ipc.open_file(source).read_all()
    except (pa.ArrowInvalid, OSError) as error:
        raise damaged(path.name, str(error)) from error
    frame = pl.from_arrow(table, rechunk=False)
    if isinstance(frame, pl.DataFrame):
        if frame.schema == schema:
            return frame
        return frame.select(pl.col(name).cast(dtype) for name, dtype in schema.items())
    raise damaged(path.name, "it holds no table")


def _remove_folder(folder: Path, lock: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


def _remove_abandoned(parent: Path) -> None:
    for folder in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
