"""Events of the control topic of Iceberg's Kafka Connect sink.

A value is the bytes ``C2 01``, the Avro schema (length in two bytes, then JSON), and the event in Avro's binary
encoding by that schema: every event brings the schema it was written with, so that it is read by field names. Source:
``AvroEncoderUtil`` and ``org.apache.iceberg.connect.events`` of Apache Iceberg; Tabular's connector, from which it
came, wrote the same shape under other class names.
"""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

DATA_COMPLETE: Final = 2
COMMIT_TO_TABLE: Final = 3
COMMIT_COMPLETE: Final = 4

_READ: Final = frozenset({DATA_COMPLETE, COMMIT_TO_TABLE, COMMIT_COMPLETE})
_MAGIC: Final = b"\xc2\x01"
_UUID_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class SourceOffset:
    """A source partition in a ``DataComplete`` event: the next offset (exclusive); None: nothing was read."""

    topic: str
    partition: int
    next: int | None


@dataclass(frozen=True, slots=True)
class ControlEvent:
    """An event, as far as a boundary needs it.

    Attributes:
        type: ``DATA_COMPLETE``: a worker has written all data of a commit up to ``offsets``. ``COMMIT_TO_TABLE`` and
            ``COMMIT_COMPLETE``: the coordinator has committed. Others carry no more than this.
        group: The connector's group.
        commit_id: The commit it belongs to; None for types that are not read.
        offsets: Of ``DATA_COMPLETE``.
        snapshot_id: Of ``COMMIT_TO_TABLE``.
    """

    type: int
    group: str
    commit_id: str | None = None
    offsets: tuple[SourceOffset, ...] = ()
    snapshot_id: int | None = None


def decode_event(value: bytes) -> ControlEvent:
    """Read the value of a record of the control topic.

    Raises:
        ValueError: It is no such event.
    """
    if value[:2] != _MAGIC:
        raise ValueError(f"an event begins with C2 01, not {value[:2].hex()}")
    try:
        (length,) = struct.unpack_from(">H", value, 2)
        schema = _schema(value[4 : 4 + length])
        reader = _Reader(value, 4 + length, schema.names)
        head: dict[str, Any] = {}
        for field in schema.root["fields"]:
            if field["name"] == "payload" and head["type"] not in _READ:
                return ControlEvent(int(head["type"]), str(head["group_id"]))
            head[field["name"]] = reader.read(field["type"])
        return _event(head)
    except (struct.error, IndexError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"the event cannot be read: {error!r}") from error


def _event(head: Mapping[str, Any]) -> ControlEvent:
    payload = head["payload"]
    commit = payload["commit_id"]
    return ControlEvent(
        int(head["type"]),
        str(head["group_id"]),
        str(uuid.UUID(bytes=commit)) if isinstance(commit, bytes) and len(commit) == _UUID_BYTES else str(commit),
        tuple(
            SourceOffset(str(entry["topic"]), int(entry["partition"]), entry["offset"])
            for entry in payload.get("assignments") or ()
        ),
        payload.get("snapshot_id"),
    )


@dataclass(frozen=True, slots=True)
class _Schema:
    root: Any
    names: Mapping[str, Any]


@lru_cache(maxsize=64)
def _schema(text: bytes) -> _Schema:
    names: dict[str, Any] = {}
    root = json.loads(text)
    _collect(root, names)
    return _Schema(root, names)


def _collect(schema: Any, names: dict[str, Any]) -> None:
    """The named types of a schema, by their full name and by the last part of it."""
    if isinstance(schema, list):
        for branch in schema:
            _collect(branch, names)
    elif isinstance(schema, dict):
        if "name" in schema and schema.get("type") in {"record", "fixed", "enum"}:
            names[schema["name"]] = schema
            names[f"{schema.get('namespace', '')}.{schema['name']}".lstrip(".")] = schema
            names[schema["name"].rpartition(".")[2]] = schema
        for key in ("items", "values", "type"):
            if isinstance(schema.get(key), dict | list):
                _collect(schema[key], names)
        for field in schema.get("fields", ()):
            _collect(field["type"], names)


class _Reader:
    """Avro's binary encoding (Avro specification 1.11, "Binary encoding")."""

    def __init__(self, data: bytes, at: int, names: Mapping[str, Any]) -> None:
        self._data = data
        self._at = at
        self._names = names

    def read(self, schema: Any) -> Any:
        if isinstance(schema, list):
            return self.read(schema[self._long()])
        return self._primitive(schema) if isinstance(schema, str) else self._complex(schema)

    def _complex(self, schema: Mapping[str, Any]) -> Any:
        kind = schema["type"]
        if kind == "record":
            return {field["name"]: self.read(field["type"]) for field in schema["fields"]}
        if kind == "array":
            return self._blocks(lambda: self.read(schema["items"]))
        if kind == "map":
            return dict(self._blocks(lambda: (self._bytes().decode(), self.read(schema["values"]))))
        if kind == "fixed":
            return self._take(schema["size"])
        return schema["symbols"][self._long()] if kind == "enum" else self.read(kind)

    def _primitive(self, kind: str) -> Any:
        if kind in {"int", "long"}:
            return self._long()
        if kind in {"string", "bytes"}:
            found = self._bytes()
            return found.decode() if kind == "string" else found
        if kind == "boolean":
            return self._take(1) == b"\x01"
        if kind in {"float", "double"}:
            return struct.unpack("<f" if kind == "float" else "<d", self._take(4 if kind == "float" else 8))[0]
        return None if kind == "null" else self.read(self._names[kind])

    def _blocks(self, item: Any) -> list[Any]:
        out = []
        while count := self._long():
            if count < 0:
                self._long()
            out += [item() for _ in range(abs(count))]
        return out

    def _long(self) -> int:
        value = shift = 0
        while True:
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if not byte & 0x80:
                return (value >> 1) ^ -(value & 1)
            shift += 7

    def _bytes(self) -> bytes:
        return self._take(self._long())

    def _take(self, size: int) -> bytes:
        found = self._data[self._at : self._at + size]
        if size < 0 or len(found) != size:
            raise ValueError("the event ends too early")
        self._at += size
        return found
