"""Blobs and the head of a job in a local folder. POSIX: needs hard links, ``flock`` and atomic rename.

Layout: ``blobs/<name>``, ``head.json``, ``head.lock``, ``tmp/``. Every file is written in ``tmp/``, synced, and then
linked (blobs: the kernel refuses an existing name) or renamed (head: under the lock) to where it belongs, so that a
process killed at any line leaves the old or the new content, never a part of it.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from threading import Event
from typing import Final

from headrace.kernel.errors import (
    CommitUnknownError,
    ConfigError,
    FencedError,
    NotFoundError,
    UnavailableError,
)
from headrace.kernel.protocols import Head
from headrace.state.disk_errors import mapped
from headrace.state.stores import check_name, damaged_head, fenced, head_from_json, head_to_json

_LOCK_PATIENCE_SECONDS: Final = 20.0
_LOCK_POLL_SECONDS: Final = 0.005
_LINK_TRIES: Final = 10
_ABANDONED_SECONDS: Final = 24 * 3600


def open_folder(folder: Path) -> tuple[LocalBlobStore, LocalHeadStore]:
    """Open a job's folder, create it if need be, and drop what killed writers left in ``tmp/`` a day ago.

    Raises:
        ConfigError: The file system has no hard links, or the path is a file.
        AccessDeniedError: The folder cannot be written.
    """
    folder = folder.absolute()
    with _mapped("open", folder):
        _make_folders(folder / "blobs", folder.parent)
        _make_folders(folder / "tmp", folder)
        _drop_abandoned(folder / "tmp")
        _probe_links(folder / "tmp")
    return LocalBlobStore(folder), LocalHeadStore(folder)


class LocalBlobStore:
    """A :class:`~headrace.kernel.protocols.BlobStore` below ``FOLDER/blobs``."""

    def __init__(self, folder: Path) -> None:
        self._root = folder / "blobs"
        self._tmp = folder / "tmp"

    def put(self, name: str, data: bytes) -> None:
        """See :meth:`BlobStore.put`. Returns when the data and its name are on disk."""
        target = self._root / check_name(name)
        with _mapped("write", target):
            temporary = _write_synced(self._tmp, data)
            try:
                self._link(temporary, target)
            except FileExistsError as error:
                raise FencedError(f"the blob {name} exists already", detail=f"in {self._root}") from error
            finally:
                temporary.unlink()
            _sync_folder(target.parent)

    def get(self, name: str) -> bytes:
        """See :meth:`BlobStore.get`."""
        path = self._root / check_name(name)
        with _mapped("read", path):
            try:
                return path.read_bytes()
            except FileNotFoundError as error:
                raise NotFoundError(
                    f"the blob {name} is not there", detail=f"in {self._root}", code="BLOB_NOT_FOUND"
                ) from error

    def delete(self, name: str) -> None:
        """See :meth:`BlobStore.delete`. Folders that become empty go too."""
        path = self._root / check_name(name)
        with _mapped("delete", path):
            path.unlink(missing_ok=True)
            self._drop_empty_parents(path)

    def list(self, prefix: str) -> Sequence[str]:
        """See :meth:`BlobStore.list`."""
        above = self._root / prefix.rpartition("/")[0]
        with _mapped("list", above):
            names = (
                (Path(folder) / file).relative_to(self._root).as_posix()
                for folder, _, files in os.walk(above)
                for file in files
            )
            return sorted(name for name in names if name.startswith(prefix))

    def _link(self, temporary: Path, target: Path) -> None:
        for _ in range(_LINK_TRIES):
            _make_folders(target.parent, self._root)
            with suppress(FileNotFoundError):  # a deletion next to it has dropped the folder, empty until now
                os.link(temporary, target)
                return
        raise UnavailableError(f"the folder {target.parent} goes away all the time")

    def _drop_empty_parents(self, path: Path) -> None:
        for folder in path.parents:
            if folder == self._root:
                return
            try:
                folder.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                return


class LocalHeadStore:
    """A :class:`~headrace.kernel.protocols.HeadStore` in ``FOLDER/head.json``, guarded by a ``flock``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / "head.json"

    def read(self) -> Head | None:
        """See :meth:`HeadStore.read`."""
        with _mapped("read", self._path):
            try:
                data = self._path.read_bytes()
            except FileNotFoundError:
                return None
        try:
            value = json.loads(data)
        except ValueError as error:
            raise damaged_head(str(self._path), str(error)) from error
        return head_from_json(value, str(self._path))

    def swap(self, expected: Head | None, new: Head) -> None:
        """See :meth:`HeadStore.swap`.

        Raises:
            UnavailableError: Another process has held the lock for twenty seconds (it may be stopped).
            CommitUnknownError: The new head was put in place, but the disk did not confirm it.
        """
        data = json.dumps(head_to_json(new)).encode()
        with _mapped("write", self._path), self._locked():
            current = self.read()
            if current is not None and current.nonce == new.nonce:
                return
            if current != expected:
                raise fenced(current, expected)
            _write_synced(self._folder / "tmp", data).replace(self._path)
            try:
                _sync_folder(self._folder)
            except OSError as error:
                raise CommitUnknownError(
                    f"the disk did not confirm the job's head {self._path}", detail=str(error)
                ) from error

    @contextmanager
    def _locked(self) -> Iterator[None]:
        handle = os.open(self._folder / "head.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._wait_for_lock(handle)
            yield
        finally:
            os.close(handle)

    def _wait_for_lock(self, handle: int) -> None:
        deadline = time.monotonic() + _LOCK_PATIENCE_SECONDS
        pause = Event()
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise UnavailableError(
                        f"another process holds the lock of the job's head {self._path}",
                        hint="a stopped (SIGSTOP) instance of this job may hold it; end that process",
                    ) from error
                pause.wait(_LOCK_POLL_SECONDS)
            else:
                return


def _write_synced(folder: Path, data: bytes) -> Path:
    path = folder / uuid.uuid4().hex
    try:
        with path.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        path.unlink(missing_ok=True)
        raise
    return path


def _make_folders(folder: Path, existing: Path) -> None:
    missing = []
    while folder != existing and not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for path in reversed(missing):
        path.mkdir(parents=True, exist_ok=True)
        _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _drop_abandoned(tmp: Path) -> None:
    oldest = time.time() - _ABANDONED_SECONDS
    for path in tmp.iterdir():
        with suppress(FileNotFoundError):  # another instance's, and done
            if path.stat().st_mtime < oldest:
                path.unlink()


def _probe_links(tmp: Path) -> None:
    source = _write_synced(tmp, b"")
    target = tmp / uuid.uuid4().hex
    try:
        os.link(source, target)
    except OSError as error:
        raise ConfigError(
            f"the file system of {tmp.parent} has no hard links", detail=str(error), hint="choose another folder"
        ) from error
    finally:
        source.unlink()
        target.unlink(missing_ok=True)


def _mapped(action: str, path: Path) -> AbstractContextManager[None]:
    return mapped(f"cannot {action} {path}", denied="check the path and its owner and mode", full="the disk is full")
