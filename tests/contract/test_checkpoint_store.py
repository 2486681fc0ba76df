"""Checkpoint records: what is saved is what comes back; retiring; the head."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from headrace.kernel.errors import DataError, FencedError, UserError
from headrace.kernel.protocols import Head, Json, OperatorState
from headrace.state.checkpoint import CheckpointStore, record_name, staging_folder
from headrace.state.records import Checkpoint, OperatorStateRef, SavedOperator, decode, encode
from headrace.state.runs import RunFolder
from headrace.state.stores import JobStore, open_store

KEYS = pl.DataFrame(
    {
        "key": ["a", None, "ü"],
        "sum": pl.Series(
            [Decimal("1.10"), None, Decimal("-99999999999999999999999999999999.99")], dtype=pl.Decimal(38, 2)
        ),
        "at": [datetime(2026, 1, 1, tzinfo=UTC), None, datetime(1969, 1, 1, tzinfo=UTC)],
        "day": [date(2026, 1, 1), None, date(1, 1, 1)],
        "list": [[1, 2], [], None],
        "float": [float("nan"), -0.0, None],
        "bytes": [b"\x00", b"", None],
        "cat": pl.Series(["x", None, "y"], dtype=pl.Categorical()),
        "struct": [{"a": 1}, {"a": None}, None],
    }
)


@pytest.fixture
def store(tmp_path: Path) -> JobStore:
    return open_store(str(tmp_path))


@pytest.fixture
def checkpoints(store: JobStore) -> CheckpointStore:
    return CheckpointStore(store, "job")


def checkpoint(epoch: int, lineage: str = "l", attempt: str = "a", **more: Json) -> Checkpoint:
    return Checkpoint("job", lineage, epoch, attempt, created_us=1, **more)


def saved(frames: Mapping[str, pl.DataFrame]) -> SavedOperator:
    return SavedOperator("print", ("source s",), OperatorState(3, {"watermark": 2**62 + 1}, frames))


def run(checkpoints: CheckpointStore, head: Head, epoch: int, **more: Json) -> Head:
    name, _ = checkpoints.save(
        checkpoint(epoch, head.lineage, f"a{epoch}", **more), {"window/1": saved({"keys": KEYS.head(epoch % 3)})}
    )
    return checkpoints.advance(head, name)


def test_what_is_saved_comes_back(checkpoints: CheckpointStore) -> None:
    first = checkpoint(
        7,
        positions=MappingProxyType({"flights": {"version": 1, "tail": {"0": 2**63 - 1}, "id": 9007199254740993}}),
        pins={"airlines": 2**62 + 3, "none": None},
        watermarks={"flights": -1, "other": None},
        pre_commits={"out": {"rows": 3}},
        fingerprint="f",
        totals={"records": 1.5},
    )
    frames = {"keys": KEYS, "empty": KEYS.clear(), "sp ace/../x": KEYS}
    name, full = checkpoints.save(first, {"../window 1": saved(frames), "other": saved({})})
    assert name == record_name(first.id) == "epochs/l/000000000007-a/record.json"

    found, operators = checkpoints.load(name, RunFolder())
    assert found == full
    assert encode(found) == encode(full)
    assert found.positions["flights"]["id"] == 9007199254740993
    assert set(operators) == {"../window 1", "other"}
    back = operators["../window 1"]
    assert (back.fingerprint, back.state.version, back.state.values) == ("print", 3, {"watermark": 2**62 + 1})
    assert list(back.state.frames) == list(frames)
    for key, frame in frames.items():
        assert back.state.frames[key].schema == frame.schema
        assert_frame_equal(back.state.frames[key], frame)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@settings(deadline=None)
@given(st.dictionaries(st.text(), values, max_size=4), st.dictionaries(st.text(), values, max_size=3))
def test_records_round_trip(positions: dict[str, Json], values: dict[str, Json]) -> None:
    record = checkpoint(0, positions=positions, operators={"o": OperatorStateRef(1, "f", ("source s",), values)})
    assert decode(encode(record), "name") == record


def test_an_attempt_is_used_once(checkpoints: CheckpointStore) -> None:
    checkpoints.save(checkpoint(1), {})
    with pytest.raises(FencedError):
        checkpoints.save(checkpoint(1), {})


@settings(deadline=None)
@given(st.data())
def test_a_damaged_record_is_refused_by_name(data: st.DataObject) -> None:
    whole = encode(checkpoint(1, positions={"s": {"next": 17}}))
    at = data.draw(st.integers(0, len(whole) - 2))
    cut = whole[:at]
    flipped = whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
    for broken in (cut, flipped):
        with pytest.raises((DataError, UserError), match=r"epochs/x/record\.json"):
            decode(broken, "epochs/x/record.json")


def test_a_record_in_the_place_of_another_is_refused(checkpoints: CheckpointStore, store: JobStore) -> None:
    """Its digest is right, but going on from it would do again, or leave out, what was committed since."""
    old, _ = checkpoints.save(checkpoint(1), {})
    copied = old.replace("/000000000001-", "/000000000002-")
    store.blobs.put(copied, store.blobs.get(old))
    with pytest.raises(DataError, match=copied) as caught:
        checkpoints.read(copied)
    assert caught.value.code == "CHECKPOINT_DAMAGED"
    assert old in caught.value.detail


def test_a_record_of_a_later_release_is_refused(checkpoints: CheckpointStore, store: JobStore) -> None:
    top, _, body = encode(checkpoint(1)).partition(b"\n")
    later = json.dumps({**json.loads(top), "version": 99}).encode() + b"\n" + body
    store.blobs.put("epochs/l/000000000001-a/record.json", later)
    with pytest.raises(UserError, match="version 99") as caught:
        checkpoints.read("epochs/l/000000000001-a/record.json")
    assert caught.value.code == "CHECKPOINT_VERSION"


def test_a_record_that_cannot_be_read_leaves_the_running_job_alone(
    checkpoints: CheckpointStore, store: JobStore
) -> None:
    head, _ = checkpoints.acquire("me")
    head = run(checkpoints, head, 0)
    with pytest.raises(UserError, match="belongs to the job 'job'"):
        CheckpointStore(store, "another").acquire("other")
    assert store.head.read() == head
    run(checkpoints, head, 1)


@pytest.mark.parametrize("damage", [b"", b"ARROW1 no more", None])
def test_a_damaged_or_lost_state_blob_is_named(
    checkpoints: CheckpointStore, store: JobStore, tmp_path: Path, damage: bytes | None
) -> None:
    name, full = checkpoints.save(checkpoint(1), {"window": saved({"keys": KEYS})})
    blob = full.operators["window"].frames["keys"].blob
    store.blobs.delete(blob)
    if damage is not None:
        store.blobs.put(blob, damage)
    with pytest.raises(DataError, match=r"000000000001-a/window/keys\.arrow"):
        checkpoints.load(name, RunFolder())


def test_acquire_gives_the_last_decided_record(checkpoints: CheckpointStore, store: JobStore) -> None:
    head, nothing = checkpoints.acquire("first")
    assert nothing is None
    assert (head.sequence, head.owner, head.record) == (1, "first", None)
    head = run(checkpoints, head, 0)
    undecided, _ = checkpoints.save(checkpoint(1, head.lineage, "zombie"), {})

    second, found = CheckpointStore(store, "job").acquire("second")
    assert found is not None
    assert found.epoch == 0
    assert second.lineage == head.lineage
    assert second.sequence == head.sequence + 1
    with pytest.raises(FencedError, match="taken over"):
        checkpoints.advance(head, undecided)
    assert store.head.read() == second


def test_a_lost_record_is_an_error(checkpoints: CheckpointStore, store: JobStore) -> None:
    head, _ = checkpoints.acquire("first")
    head = run(checkpoints, head, 0)
    assert head.record is not None
    store.blobs.delete(head.record)
    with pytest.raises(DataError, match="gone"):
        checkpoints.acquire("second")
    assert store.head.read() == head


def test_retire_keeps_the_newest_epochs_and_what_they_name(checkpoints: CheckpointStore, store: JobStore) -> None:
    head, _ = checkpoints.acquire("me")
    assert checkpoints.retire(head, 1) == 0
    foreign = "staging/other-lineage/000000000000-x/out/0.arrow"
    unknown = f"staging/{head.lineage}/laid-out-otherwise/0.arrow"
    pinned = f"{staging_folder(head.lineage, 0, 'w', 'out')}/0.arrow"
    stale = f"{staging_folder(head.lineage, 1, 'w', 'o/ut')}/0.arrow"
    running = f"{staging_folder(head.lineage, 6, 'w', 'out')}/0.arrow"
    for name in (foreign, unknown, pinned, stale, running):
        store.blobs.put(name, b"")
    zombie, _ = checkpoints.save(checkpoint(2, head.lineage, "zombie"), {"window": saved({"keys": KEYS})})
    young_zombie, _ = checkpoints.save(checkpoint(6, head.lineage, "zombie"), {})
    for epoch in range(6):
        head = run(checkpoints, head, epoch, pre_commits={"out": {"parts": [{"blob": pinned}]}} if epoch == 4 else {})

    assert checkpoints.retire(head, 2) == 4 * 2 + 2 + 1
    left = set(store.blobs.list(""))
    assert zombie not in left
    assert stale not in left
    assert {foreign, unknown, pinned, running, young_zombie} <= left
    folders = {name.split("/")[2] for name in left if name.startswith("epochs/")}
    assert folders == {"000000000004-a4", "000000000005-a5", "000000000006-zombie"}
    assert checkpoints.retire(head, 2) == 0
    checkpoints.load(head.record or "", RunFolder())

    head = run(checkpoints, head, 6)
    head = run(checkpoints, head, 7)
    checkpoints.retire(head, 2)
    assert pinned not in store.blobs.list("")


def test_a_zombie_retires_nothing_that_is_needed(checkpoints: CheckpointStore, store: JobStore) -> None:
    head, _ = checkpoints.acquire("zombie")
    for epoch in range(3):
        head = run(checkpoints, head, epoch)
    new, _ = CheckpointStore(store, "job").acquire("new")
    for epoch in range(3, 6):
        new = run(checkpoints, new, epoch)
    checkpoints.retire(head, 1)
    epochs = sorted(int(name.split("/")[2][:12]) for name in store.blobs.list("epochs/") if name.endswith("json"))
    assert epochs == [2, 3, 4, 5]


def test_a_zombie_leaves_what_its_successor_has_decided(checkpoints: CheckpointStore, store: JobStore) -> None:
    head, _ = checkpoints.acquire("zombie")
    for epoch in range(3):
        head = run(checkpoints, head, epoch)
    new, _ = CheckpointStore(store, "job").acquire("new")
    early = f"{staging_folder(head.lineage, 0, 'w', 'out')}/0.arrow"
    store.blobs.put(early, b"")
    run(checkpoints, new, 3, pre_commits={"out": {"staging": [early]}})
    checkpoints.retire(head, 1)
    assert early in store.blobs.list("staging/")


def test_what_is_committed_is_noted_until_its_epoch_is_retired(checkpoints: CheckpointStore, store: JobStore) -> None:
    head, _ = checkpoints.acquire("me")
    assert not checkpoints.is_committed(head)
    first = run(checkpoints, head, 0)
    assert not checkpoints.is_committed(first)
    for _ in range(2):
        checkpoints.note_committed(first)
    assert checkpoints.is_committed(first)
    second = run(checkpoints, first, 1)
    assert not checkpoints.is_committed(second)
    checkpoints.retire(second, 1)
    assert not checkpoints.is_committed(first)
