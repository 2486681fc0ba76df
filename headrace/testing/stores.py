"""A job store in memory: it outlives a simulated crash, not the process."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from headrace.kernel.errors import FencedError, NotFoundError
from headrace.kernel.protocols import Head
from headrace.state.stores import JobStore


class MemoryBlobs:
    """Blobs in a dictionary."""

    def __init__(self) -> None:
        self._blobs: dict[str, bytes] = {}

    def put(self, name: str, data: bytes) -> None:
        """See :meth:`BlobStore.put`."""
        if name in self._blobs:
            raise FencedError(f"blob {name} exists")
        self._blobs[name] = data

    def get(self, name: str) -> bytes:
        """See :meth:`BlobStore.get`."""
        try:
            return self._blobs[name]
        except KeyError as error:
            raise NotFoundError(f"no blob {name}") from error

    def delete(self, name: str) -> None:
        """See :meth:`BlobStore.delete`."""
        self._blobs.pop(name, None)

    def list(self, prefix: str) -> Sequence[str]:
        """See :meth:`BlobStore.list`."""
        return sorted(name for name in self._blobs if name.startswith(prefix))


class MemoryHead:
    """A head in a variable."""

    def __init__(self) -> None:
        self._head: Head | None = None
        self._lock = threading.Lock()

    def read(self) -> Head | None:
        """See :meth:`HeadStore.read`."""
        return self._head

    def swap(self, expected: Head | None, new: Head) -> None:
        """See :meth:`HeadStore.swap`."""
        with self._lock:
            if self._head != expected:
                raise FencedError("the head has moved")
            self._head = new


def memory_store() -> JobStore:
    """A fresh job store in memory."""
    return JobStore(MemoryBlobs(), MemoryHead())
