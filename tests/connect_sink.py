"""What Iceberg's Kafka Connect sink leaves: events of its control topic, as the real one encodes them."""

from __future__ import annotations

import base64
import io
import json
import struct
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from pyiceberg.avro.encoder import BinaryEncoder

if TYPE_CHECKING:
    from collections.abc import Mapping

GOLDEN: dict[str, bytes] = {
    name: base64.b64decode(text)
    for name, text in json.loads((Path(__file__).parent / "golden" / "connect_events.json").read_text()).items()
    if name.isupper()
}
"""One event of each type, written by Iceberg's own Java classes (see the file)."""

COMMIT = "00000000-0000-0001-0000-000000000002"


def header(kind: str) -> bytes:
    """Magic and schema of a golden event."""
    (length,) = struct.unpack_from(">H", GOLDEN[kind], 2)
    return GOLDEN[kind][: 4 + length]


def data_complete(
    group: str, offsets: Mapping[tuple[str, int], int | None], *, commit: str = COMMIT, header_: bytes | None = None
) -> bytes:
    """A ``DataComplete`` event: next offsets by source topic and partition; None: nothing was read."""
    out = io.BytesIO()
    encoder = BinaryEncoder(out)
    _begin(encoder, 2, group)
    encoder.write(uuid.UUID(commit).bytes)
    encoder.write_int(1)
    encoder.write_int(len(offsets))
    for (topic, partition), following in offsets.items():
        encoder.write_utf8(topic)
        encoder.write_int(partition)
        _optional(encoder, following)
        _optional(encoder, None)
    encoder.write_int(0)
    return (header("DATA_COMPLETE") if header_ is None else header_) + out.getvalue()


def start_commit(group: str, *, commit: str = COMMIT) -> bytes:
    """A ``StartCommit`` event."""
    out = io.BytesIO()
    encoder = BinaryEncoder(out)
    _begin(encoder, 0, group)
    encoder.write(uuid.UUID(commit).bytes)
    return header("START_COMMIT") + out.getvalue()


def commit_complete(group: str, *, commit: str = COMMIT) -> bytes:
    """A ``CommitComplete`` event without a valid-through time."""
    out = io.BytesIO()
    encoder = BinaryEncoder(out)
    _begin(encoder, 4, group)
    encoder.write(uuid.UUID(commit).bytes)
    _optional(encoder, None)
    return header("COMMIT_COMPLETE") + out.getvalue()


def _begin(encoder: BinaryEncoder, kind: int, group: str) -> None:
    encoder.write(uuid.uuid4().bytes)
    encoder.write_int(kind)
    encoder.write_int(1_767_225_600_000_000)
    encoder.write_utf8(group)


def _optional(encoder: BinaryEncoder, value: int | None) -> None:
    encoder.write_int(0 if value is None else 1)
    if value is not None:
        encoder.write_int(value)
