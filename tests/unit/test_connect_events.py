"""Events of the control topic of Iceberg's Kafka Connect sink, as the real one writes them."""

from __future__ import annotations

import json
import struct

import pytest

from hybrid_source.boundary.connect_events import (
    COMMIT_COMPLETE,
    COMMIT_TO_TABLE,
    DATA_COMPLETE,
    ControlEvent,
    SourceOffset,
    decode_event,
)
from tests.connect_sink import COMMIT, GOLDEN, data_complete, header

OFFSETS = (SourceOffset("orders", 0, 12), SourceOffset("orders", 1, None))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("START_COMMIT", ControlEvent(0, "connect-sink")),
        ("DATA_COMPLETE", ControlEvent(DATA_COMPLETE, "connect-sink", COMMIT, OFFSETS)),
        ("COMMIT_TO_TABLE", ControlEvent(COMMIT_TO_TABLE, "connect-sink", COMMIT, snapshot_id=77)),
        ("COMMIT_COMPLETE", ControlEvent(COMMIT_COMPLETE, "connect-sink", COMMIT)),
    ],
)
def test_events_that_icebergs_own_classes_have_written(kind: str, expected: ControlEvent) -> None:
    assert decode_event(GOLDEN[kind]) == expected


def test_the_tests_own_encoding_is_that_of_the_real_one() -> None:
    offsets = {("orders", 0): 12, ("orders", 1): None}
    assert decode_event(data_complete("connect-sink", offsets)) == decode_event(GOLDEN["DATA_COMPLETE"])


def test_an_event_is_read_by_the_schema_it_brings() -> None:
    """Tabular's class names, a field more at the end, and the uuid as text: all of them are in the schema."""
    schema = json.loads(header("DATA_COMPLETE")[4:])
    schema["namespace"] = "io.tabular.iceberg.connect.events"
    payload = schema["fields"][4]["type"]
    entry = payload["fields"][1]["type"][1]["items"]
    entry["fields"].append({"name": "more", "type": {"type": "map", "values": "string"}})
    text = json.dumps(schema).encode()
    value = data_complete("g", {}, header_=b"\xc2\x01" + struct.pack(">H", len(text)) + text)
    assert decode_event(value) == ControlEvent(DATA_COMPLETE, "g", COMMIT)


@pytest.mark.parametrize("cut", [0, 1, 3, 200, 1100, -1])
def test_what_is_cut_short_is_no_event(cut: int) -> None:
    with pytest.raises(ValueError, match="event"):
        decode_event(GOLDEN["DATA_COMPLETE"][:cut])


@pytest.mark.parametrize("value", [b"{}", b"\xc2\x01\x00\x02{}", b"\xc2\x01\x00\x02[]", b"\xc2\x01\x00\x01{"])
def test_other_records_are_no_events(value: bytes) -> None:
    with pytest.raises(ValueError, match="event"):
        decode_event(value)
