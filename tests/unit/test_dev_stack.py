"""The life of a stack, on a small server in place of the real ones."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

import pytest

from headrace.kernel.errors import ConfigError, UnavailableError
from infra import dev
from infra.dev import stack
from infra.dev.endpoints import Endpoints
from infra.dev.process import ProcessId, identify, wait_until
from infra.dev.record import load
from infra.dev.service import Command, NotReadyError, Place

SERVER = """
import socket, sys, pathlib
port, home = int(sys.argv[1]), pathlib.Path(sys.argv[2])
unlucky = home / "unlucky"
if unlucky.exists():
    unlucky.unlink()
    sys.exit("bind: Address already in use")
server = socket.create_server(("127.0.0.1", port))
print("listening", flush=True)
while True:
    server.accept()[0].close()
"""


class Echo:
    """A service that is up at once."""

    name: ClassVar[str] = "echo"
    ports: ClassVar[tuple[str, ...]] = ("main",)
    port_variables: ClassVar[Mapping[str, str]] = {}
    secrets: ClassVar[tuple[str, ...]] = ("word",)
    optional: ClassVar[bool] = False
    start_seconds: ClassVar[float] = 20.0
    ports_taken: ClassVar[tuple[str, ...]] = ("Address already in use",)

    def given(self, external: Endpoints) -> bool:
        return external.kafka_bootstrap is not None

    def require(self, home: Path) -> None:
        pass

    def prepare(self, place: Place) -> Command:
        return Command((sys.executable, "-S", "-c", SERVER, str(place.ports["main"]), str(place.home)), os.environ)

    def probe(self, place: Place) -> None:
        try:
            socket.create_connection(("127.0.0.1", place.ports["main"]), timeout=1).close()
        except OSError as error:
            raise NotReadyError(str(error)) from error

    def endpoints(self, place: Place) -> Endpoints:
        return Endpoints(kafka_bootstrap=f"127.0.0.1:{place.ports['main']}")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(stack, "_SERVICES", {"echo": Echo()})
    monkeypatch.delenv("HEADRACE_KAFKA_BOOTSTRAP", raising=False)
    yield tmp_path / "one"
    for used in tmp_path.iterdir():
        dev.down(used)


def process(folder: Path) -> ProcessId:
    found = load(folder).services["echo"].process
    assert found is not None
    return found


def test_a_second_up_finds_the_first(folder: Path) -> None:
    there = dev.up(folder)
    first = process(folder)
    assert dev.up(folder) == there
    assert process(folder) == first
    assert dev.locate(folder) == there


def test_two_at_once_start_one(folder: Path) -> None:
    found: list[Endpoints] = []
    callers = [threading.Thread(target=lambda: found.append(dev.up(folder))) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(found) == 4
    assert len(set(found)) == 1
    assert (folder / "echo/log").read_text() == "listening\n"


def test_two_folders_are_two_stacks(folder: Path) -> None:
    one, two = dev.up(folder), dev.up(folder.with_name("two"))
    assert one != two
    dev.down(folder)
    assert dev.locate(folder.with_name("two")) == two


def test_it_outlives_the_process_that_started_it_and_its_terminal(folder: Path) -> None:
    dev.up(folder)
    assert os.getsid(process(folder).pid) == process(folder).pid


def test_down_stops_it_and_a_second_down_is_no_error(folder: Path) -> None:
    dev.up(folder)
    before = process(folder)
    dev.down(folder)
    assert not before.alive()
    assert dev.locate(folder) == Endpoints()
    dev.down(folder)
    dev.down(folder.with_name("never-up"))


def test_ports_and_secrets_are_kept_over_a_restart(folder: Path) -> None:
    dev.up(folder)
    before = load(folder).services["echo"]
    dev.stop_service(folder, "echo", kill=True)
    dev.start_service(folder, "echo")
    after = load(folder).services["echo"]
    assert (after.ports, after.secrets) == (before.ports, before.secrets)
    assert after.process != before.process


def test_a_port_that_was_taken_meanwhile_is_replaced(folder: Path) -> None:
    before = dev.up(folder)
    dev.down(folder)
    with socket.create_server(("127.0.0.1", load(folder).services["echo"].ports["main"])):
        assert dev.up(folder) != before


def test_a_port_lost_between_choice_and_start_is_chosen_again(folder: Path) -> None:
    (folder / "echo").mkdir(parents=True)
    (folder / "echo/unlucky").touch()
    assert dev.up(folder) == dev.locate(folder)
    assert re.search("Address already in use\nlistening", (folder / "echo/log").read_text())


def test_delete_removes_the_data(folder: Path) -> None:
    dev.up(folder)
    dev.down(folder, delete=True)
    assert not folder.exists()


def test_the_record_is_the_owners_only(folder: Path) -> None:
    dev.up(folder)
    assert (folder / "stack.json").stat().st_mode & 0o077 == 0


def test_a_recycled_process_id_is_not_killed(folder: Path) -> None:
    dev.up(folder)
    mine, other = process(folder), ProcessId(process(folder).pid, "another start")
    assert not other.alive()
    other.kill(signal.SIGKILL)
    assert mine.alive()


def test_a_dead_child_is_not_alive_though_nobody_waited_for_it() -> None:
    child = subprocess.Popen(["/bin/sh", "-c", "read line"], stdin=subprocess.PIPE)
    assert child.stdin is not None
    known = identify(child.pid)
    assert known.alive()
    child.stdin.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)

    assert identify(child.pid) == known, "a zombie still is who it was"
    assert not known.alive()
    child.wait()
    assert not known.alive()


def test_status_tells_what_died(folder: Path) -> None:
    dev.up(folder)
    assert [(each.state, each.pid) for each in dev.status(folder)] == [(dev.State.RUNNING, process(folder).pid)]
    process(folder).kill(signal.SIGKILL)
    assert wait_until(lambda: not process(folder).alive(), 10)
    assert [(each.state, each.pid) for each in dev.status(folder)] == [(dev.State.STOPPED, None)]


def test_services_of_ones_own_are_not_started(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_KAFKA_BOOTSTRAP", "broker:9092")
    assert dev.up(folder).kafka_bootstrap == "broker:9092"
    assert not (folder / "stack.json").exists()
    assert [each.state for each in dev.status(folder)] == [dev.State.EXTERNAL]


def test_a_failed_start_stops_what_it_started(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Mute(Echo):
        name: ClassVar[str] = "mute"
        start_seconds: ClassVar[float] = 0.2

        def probe(self, place: Place) -> None:
            raise NotReadyError("wrong answer")

    monkeypatch.setattr(stack, "_SERVICES", {"echo": Echo(), "mute": Mute()})
    with pytest.raises(UnavailableError, match=r"service mute gave no right answer(?s:.)*wrong answer"):
        dev.up(folder)
    assert all(record.process is None for record in load(folder).services.values())


def test_a_failed_start_leaves_what_ran_before(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = dev.up(folder)

    class Dead(Echo):
        name: ClassVar[str] = "dead"

        def prepare(self, place: Place) -> Command:
            return Command(("/bin/sh", "-c", "echo last words; exit 3"), os.environ)

    monkeypatch.setattr(stack, "_SERVICES", {"echo": Echo(), "dead": Dead()})
    with pytest.raises(UnavailableError, match=r"service dead died at its start(?s:.)*last words"):
        dev.up(folder)
    assert dev.locate(folder) == there


def test_an_unknown_service(folder: Path) -> None:
    with pytest.raises(ConfigError, match="no service 'kafak'"):
        dev.up(folder, ["kafak"])


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 2, "services": {}}', '{"version": 1, "services": [1]}'])
def test_a_record_that_is_none(folder: Path, text: str) -> None:
    folder.mkdir()
    (folder / "stack.json").write_text(text)
    with pytest.raises(ConfigError, match=r"stack\.json is not a dev stack's record"):
        dev.up(folder)
    (folder / "stack.json").unlink()


def test_logs_are_the_last_lines(folder: Path) -> None:
    assert dev.logs(folder) == {"echo": []}
    dev.up(folder)
    assert dev.logs(folder, lines=1) == {"echo": ["listening"]}
