"""Frames as blobs: Arrow IPC files, readable by any Arrow library."""

from __future__ import annotations

import io

import polars as pl

from headrace.kernel.errors import DataError


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


def damaged(name: str, detail: str) -> DataError:
    """The error for a blob of a checkpoint that cannot be read."""
    return DataError(
        f"the checkpoint file {name} is damaged",
        detail=detail,
        hint="restore the file from a backup of the store, or start the job from an older checkpoint",
        code="CHECKPOINT_DAMAGED",
        context={"file": name},
    )
