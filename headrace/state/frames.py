"""Frames as blobs: Arrow IPC files, readable by any Arrow library."""

from __future__ import annotations

import io
import zlib

import polars as pl

from headrace.kernel.errors import DataError, NotFoundError
from headrace.kernel.protocols import BlobStore


def frame_to_ipc(frame: pl.DataFrame) -> bytes:
    """A frame as an Arrow IPC file, lz4."""
    out = io.BytesIO()
    frame.write_ipc(out, compression="lz4")
    return out.getvalue()


def frame_from_ipc(data: bytes, name: str) -> pl.DataFrame:
    """Read what :func:`frame_to_ipc` wrote.

    Raises:
        DataError: Not an Arrow IPC file; the message has ``name``.
    """
    try:
        return pl.read_ipc(io.BytesIO(data))
    except (pl.exceptions.PolarsError, OSError) as error:
        raise damaged(name, str(error)) from error


def checked_blob(blobs: BlobStore, name: str, nbytes: int, crc32: int) -> bytes:
    """A blob that a record names.

    Raises:
        DataError: It is gone (``CHECKPOINT_GONE``) or damaged.
    """
    try:
        data = blobs.get(name)
    except NotFoundError as error:
        raise DataError(
            f"the state blob {name} of a checkpoint is gone", detail=error.detail, code="CHECKPOINT_GONE"
        ) from error
    if len(data) != nbytes or zlib.crc32(data) != crc32:
        raise damaged(name, f"{len(data)} bytes, expected {nbytes}, or another checksum")
    return data


def damaged(name: str, detail: str) -> DataError:
    """The error for a blob of a checkpoint that cannot be read."""
    return DataError(
        f"the checkpoint file {name} is damaged",
        detail=detail,
        hint="restore the file from a backup of the store, or start the job from an older checkpoint",
        code="CHECKPOINT_DAMAGED",
        context={"file": name},
    )
