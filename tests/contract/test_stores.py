"""One suite over every blob store and head store."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from headrace.kernel.errors import (
    FencedError,
    InternalError,
    NotFoundError,
)
from headrace.kernel.protocols import Head
from headrace.state.stores import JobStore, open_store

Place = tuple[str, dict[str, dict[str, Any]]]


@pytest.fixture(params=["folder", "file-url", pytest.param("s3", marks=pytest.mark.services)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "folder":
        return str(tmp_path / "not" / "yet"), {}
    if request.param == "file-url":
        return (tmp_path / "with space").as_uri(), {}
    s3 = request.getfixturevalue("stack").endpoints.s3
    options = {
        "endpoint_url": s3.endpoint,
        "aws_access_key_id": s3.access_key,
        "aws_secret_access_key": s3.secret_key,
        "region_name": s3.region,
    }
    return f"s3://{s3.bucket}/jobs/{uuid.uuid4().hex}", {"s3": options}


@pytest.fixture
def store(place: Place) -> JobStore:
    return open_store(*place)


def head(sequence: int, owner: str = "me") -> Head:
    return Head(sequence, owner, uuid.uuid4().hex, "lineage", None)


def test_put_get_list_delete(store: JobStore) -> None:
    store.blobs.put("a/b/one", b"1")
    store.blobs.put("a/b2", b"")
    store.blobs.put("a-other", b"x" * 3_000_000)

    assert store.blobs.get("a/b/one") == b"1"
    assert store.blobs.get("a/b2") == b""
    assert len(store.blobs.get("a-other")) == 3_000_000
    assert store.blobs.list("a/") == ["a/b/one", "a/b2"]
    assert store.blobs.list("a/b") == ["a/b/one", "a/b2"]
    assert store.blobs.list("") == ["a-other", "a/b/one", "a/b2"]
    assert store.blobs.list("none/at/all") == []

    store.blobs.delete("a/b/one")
    store.blobs.delete("a/b/one")
    with pytest.raises(NotFoundError, match="a/b/one"):
        store.blobs.get("a/b/one")
    assert store.blobs.list("a/") == ["a/b2"]


def test_put_never_overwrites(store: JobStore) -> None:
    store.blobs.put("name", b"first")
    with pytest.raises(FencedError, match="name"):
        store.blobs.put("name", b"second")
    with pytest.raises(FencedError):
        store.blobs.put("name", b"first")
    assert store.blobs.get("name") == b"first"


@pytest.mark.parametrize("name", ["", "/abs", "a//b", "../up", "a/../b", "a/", "a\\b", "."])
def test_names_that_leave_the_store_are_refused(store: JobStore, name: str) -> None:
    with pytest.raises(InternalError):
        store.blobs.put(name, b"")


def test_racing_puts_have_one_winner(place: Place) -> None:
    stores = [open_store(*place) for _ in range(6)]
    barrier = Barrier(len(stores))

    def put(number: int) -> bool:
        barrier.wait()
        try:
            stores[number].blobs.put("contested", str(number).encode() * 10_000)
        except FencedError:
            return False
        return True

    with ThreadPoolExecutor(len(stores)) as pool:
        won = list(pool.map(put, range(len(stores))))
    assert won.count(True) == 1
    assert stores[0].blobs.get("contested") == str(won.index(True)).encode() * 10_000


def test_head_moves_only_from_what_it_is(store: JobStore) -> None:
    assert store.head.read() is None
    first, second = head(1), head(2)
    store.head.swap(None, first)
    assert store.head.read() == first
    with pytest.raises(FencedError):
        store.head.swap(None, second)
    store.head.swap(first, second)
    with pytest.raises(FencedError) as caught:
        store.head.swap(first, head(2, "other"))
    assert caught.value.context == {"owner": "me", "sequence": 2}
    assert store.head.read() == second


def test_a_swap_that_has_worked_may_be_repeated(store: JobStore) -> None:
    first, second = head(1), head(2)
    store.head.swap(None, first)
    store.head.swap(None, first)
    store.head.swap(first, second)
    store.head.swap(first, second)
    assert store.head.read() == second


def swap_all_day(place: Place, owner: str, wins: int) -> int:
    """Swap until ``wins`` own swaps have won; gives the number of tries."""
    store = open_store(*place)
    tries = won = 0
    while won < wins:
        current = store.head.read()
        tries += 1
        try:
            store.head.swap(current, head(current.sequence + 1 if current else 1, owner))
        except FencedError:
            continue
        won += 1
    return tries


def test_racing_swaps_of_threads_each_have_one_winner(place: Place) -> None:
    with ThreadPoolExecutor(4) as pool:
        runs = [pool.submit(swap_all_day, place, f"thread {number}", 10) for number in range(4)]
        for run in runs:
            run.result()
    last = open_store(*place).head.read()
    assert last is not None
    assert last.sequence == 40


def test_racing_swaps_of_processes_each_have_one_winner(place: Place) -> None:
    code = (
        "import sys, json; sys.path.insert(0, sys.argv[1])\n"
        "import importlib.util as u\n"
        "spec = u.spec_from_file_location('suite', sys.argv[2]); m = u.module_from_spec(spec)\n"
        "sys.modules['suite'] = m; spec.loader.exec_module(m)\n"
        "m.swap_all_day(json.loads(sys.argv[3]), sys.argv[4], 10)\n"
    )
    root = str(Path(__file__).parents[2])
    runs = [
        subprocess.Popen([sys.executable, "-c", code, root, __file__, json.dumps(place), f"process {number}"])
        for number in range(3)
    ]
    assert [run.wait(120) for run in runs] == [0, 0, 0]
    last = open_store(*place).head.read()
    assert last is not None
    assert last.sequence == 30
