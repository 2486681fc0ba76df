"""What only the folder has: crashes at each line, damaged files, file system errors."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headrace.kernel.errors import (
    AccessDeniedError,
    ConfigError,
    FencedError,
    HeadraceError,
    InternalError,
    UnavailableError,
)
from headrace.kernel.protocols import Head
from headrace.state import local
from headrace.state.stores import open_store

FIRST = Head(1, "me", "n1", "l", "record-1")
SECOND = Head(2, "me", "n2", "l", "record-2")

KILLER = """
import os, signal, sys
from headrace.kernel.protocols import Head
from headrace.state.stores import open_store
store = open_store(sys.argv[1])
left = int(sys.argv[2])
def deadly(call):
    def wrapped(*args, **kwargs):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*args, **kwargs)
    return wrapped
for name in ("fsync", "link", "open", "close", "mkdir"):
    setattr(os, name, deadly(getattr(os, name)))
from pathlib import Path
for name in ("unlink", "replace", "mkdir"):
    setattr(Path, name, deadly(getattr(Path, name)))
store.blobs.put("deep/er/blob", b"x" * 100_000)
store.head.swap(Head(1, "me", "n1", "l", "record-1"), Head(2, "me", "n2", "l", "record-2"))
"""


def test_killed_at_each_system_call_leaves_old_or_new(tmp_path: Path) -> None:
    outcomes = set()
    for number in range(1, 60):
        folder = tmp_path / str(number)
        store = open_store(str(folder))
        store.head.swap(None, FIRST)
        code = subprocess.run([sys.executable, "-c", KILLER, str(folder), str(number)], check=False).returncode
        assert code in {0, -9}
        again = open_store(str(folder))
        there = again.blobs.list("")
        head = again.head.read()
        assert head in {FIRST, SECOND}
        if there:
            assert again.blobs.get("deep/er/blob") == b"x" * 100_000
        else:
            assert head == FIRST
            again.blobs.put("deep/er/blob", b"mine")
        outcomes.add((bool(there), head.sequence, code))
        if code == 0:
            break
        if head == FIRST:
            again.head.swap(FIRST, SECOND)
    assert outcomes == {(False, 1, -9), (True, 1, -9), (True, 2, -9), (True, 2, 0)}


def test_a_head_that_was_cut_off_is_named(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.head.swap(None, FIRST)
    path = tmp_path / "head.json"
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(InternalError, match=r"head\.json cannot be read"):
        store.head.read()


def test_a_head_of_a_later_release_is_refused(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    (tmp_path / "head.json").write_text('{"version": 2}')
    with pytest.raises(InternalError, match="version 2"):
        store.head.swap(None, FIRST)


def test_a_stopped_holder_of_the_lock_does_not_hang_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_LOCK_PATIENCE_SECONDS", 0.05)
    store = open_store(str(tmp_path))
    holder = (
        "import fcntl, sys; file = open(sys.argv[1], 'w'); fcntl.flock(file, fcntl.LOCK_EX);"
        "print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holder, str(tmp_path / "head.lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(UnavailableError, match="holds the lock"):
            store.head.swap(None, FIRST)
        assert store.head.read() is None
        process.communicate()
    store.head.swap(None, FIRST)


def test_leftovers_of_killed_writers_go_after_a_day(tmp_path: Path) -> None:
    open_store(str(tmp_path))
    old, young = tmp_path / "tmp" / "old", tmp_path / "tmp" / "young"
    for path in (old, young):
        path.write_bytes(b"")
    os.utime(old, (time.time() - 100_000,) * 2)
    open_store(str(tmp_path))
    assert [path.name for path in (tmp_path / "tmp").iterdir()] == ["young"]


def test_no_temporary_file_stays_after_a_refused_put(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.blobs.put("a", b"")
    with pytest.raises(FencedError):
        store.blobs.put("a", b"")
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_file_where_the_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(AccessDeniedError, match="file"):
        open_store(str(tmp_path / "file"))


@pytest.mark.parametrize(
    ("failure", "kind", "code"),
    [
        (OSError(28, "No space left on device"), UnavailableError, "DISK_FULL"),
        (PermissionError(13, "Permission denied"), AccessDeniedError, "ACCESS_DENIED"),
        (OSError(5, "Input/output error"), UnavailableError, "UNAVAILABLE"),
    ],
)
def test_errors_of_the_file_system_are_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: OSError, kind: type[HeadraceError], code: str
) -> None:
    store = open_store(str(tmp_path))

    def fail(_: int) -> None:
        raise failure

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(kind) as caught:
        store.blobs.put("a", b"")
    assert caught.value.code == code
    monkeypatch.undo()
    assert store.blobs.list("") == []
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize("location", ["gs://bucket/x", "s3:///x", "file://host/x"])
def test_unknown_locations_are_refused(location: str) -> None:
    with pytest.raises(ConfigError, match="checkpoint store"):
        open_store(location)
